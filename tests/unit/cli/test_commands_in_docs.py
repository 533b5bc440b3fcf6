"""Every `nilometer` command in the documentation's samples exists, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from nilometer.cli.main import cli
from support.documentation.shell_samples import PAGES, blocks

_END = re.compile(r"[|;&#<>]|\s\\$|…")
"""Where a command ends for this test; what follows in a pipe or a comment is not checked."""


def commands(page: Path) -> list[str]:
    """Return the lines with a command, but no synopsis such as ``nilometer topic list [--internal]``."""
    lines = [line.strip().removeprefix("$ ") for block in blocks(page) for line in block.splitlines()]
    return [line for line in lines if line.startswith("nilometer ") and " [-" not in line]


CASES = [(page.name, command) for page in PAGES for command in commands(page)]


def test_there_are_samples() -> None:
    assert len(CASES) > 30


@pytest.mark.parametrize(("page", "command"), CASES)
def test_a_command_of_the_documentation_exists(page: str, command: str) -> None:
    words = shlex.split(_END.split(command)[0])[1:]
    try:
        parse(words)
    except click.BadParameter:
        pass  # a file that only the reader has
    except click.UsageError as error:
        pytest.fail(f"{page}: {command}: {error.format_message()}")


def parse(words: list[str]) -> None:
    """Parse ``words`` as the command line does, without running the command. Raises UsageError."""
    command: click.Command = cli
    context = click.Context(cli, info_name="nilometer")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"there is no command {words[0]}")
        command, words = found, words[1:]
    try:
        command.make_context(command.name or "", words, parent=context)
    except click.exceptions.Exit:
        pass  # --help or --version
