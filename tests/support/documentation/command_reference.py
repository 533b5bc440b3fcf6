"""The part of docs/commands.md that lists every command with its options, made from the commands themselves.

`PYTHONPATH=tests python -m support.documentation.command_reference` writes it into the page.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from nilometer.cli.main import cli

from .code_blocks import DOCS

PAGE = DOCS / "commands.md"
BEGIN = "<!-- From here on, tests/support/documentation/command_reference.py writes this page. -->\n"
COMMON = ("--bootstrap-server", "--command-config", "--json", "--help")
"""Options that the page describes once."""


def leaf_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command that can be run, with its name, in the order of the help."""
    yield from _leaves("nilometer", cli, click.Context(cli, info_name="nilometer"))


def _leaves(name: str, command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    if command.invoke_without_command:
        yield name, command
    for word in command.list_commands(context):
        found = command.get_command(context, word)
        assert found is not None
        yield from _leaves(f"{name} {word}", found, click.Context(found, info_name=word, parent=context))


def reference() -> str:
    """Return the generated part of the page."""
    return "\n".join(_entry(name, command) for name, command in leaf_commands())


def page_with(reference_text: str) -> str:
    """Return the page with its generated part replaced."""
    head, mark, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert mark, f"{PAGE} lacks the line {BEGIN!r}"
    return f"{head}{BEGIN}\n{reference_text}"


def _entry(name: str, command: click.Command) -> str:
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    usage = " ".join([name, *(_argument(one) for one in arguments)])
    rows = [_row(one) for one in options if not set(one.opts) & set(COMMON)]
    common = " ".join(f"`{one.opts[0]}`" for one in options if set(one.opts) & set(COMMON))
    parts = [f"### {name}\n", f"`{usage}`\n", _prose(command.help or ""), *rows]
    if common:
        parts.append(f"- {common}")
    return "\n".join(parts) + "\n"


def _argument(one: click.Argument) -> str:
    return one.metavar or (one.name or "").upper()


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" *{_value(option)}*"
    default = ""
    if option.show_default and option.default is not None and not option.is_flag:
        default = f" Default: `{option.default}`."
    text = " ".join((option.help or "").split())
    return f"- {names}{value}: {text}{default}".rstrip(": ")


def _value(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(one) for one in option.type.choices)
    return option.type.name.upper().replace(" RANGE", "")


def _prose(help_text: str) -> str:
    """Return the help's paragraphs, each in one line; one that begins with \\b stays in lines."""
    paragraphs: list[str] = []
    for paragraph in help_text.strip().split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines and lines[0] == "\b":
            paragraphs.append("```\n" + "\n".join(lines[1:]) + "\n```\n")
        else:
            paragraphs.append(" ".join(lines) + "\n")
    return "\n".join(paragraphs)


if __name__ == "__main__":
    PAGE.write_text(page_with(reference()), encoding="utf-8")
