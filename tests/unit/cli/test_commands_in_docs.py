"""Every command in the documentation exists, with its options: of `nilometer`, and of make."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from support.documentation.parsed_commands import (
    commands_of,
    inline_commands_of,
    make_targets_of,
    parse_command,
)
from support.documentation.shell_samples import PAGES, README

_END = re.compile(r"\\?[|;&#<>]|\s\\$|…")
"""Where a command ends for this test; what follows in a pipe or a comment is not checked."""
CASES = [(page.name, command) for page in PAGES for command in commands_of(page)]
INLINE = [(page.name, command) for page in PAGES for command in inline_commands_of(page)]


def test_there_are_samples() -> None:
    assert len(CASES) > 60
    assert len(INLINE) > 100


def _is_name(parameter: click.Parameter | None) -> bool:
    """Whether the command knows all that may be given."""
    return parameter is not None and isinstance(parameter.type, click.Choice)


@pytest.mark.parametrize(("page", "command"), CASES)
def test_a_command_of_the_documentation_exists(page: str, command: str) -> None:
    words = shlex.split(_END.split(command)[0])[1:]
    try:
        parse_command(words)
    except click.UsageError as error:
        if isinstance(error, click.BadParameter) and not _is_name(error.param):
            return  # a file that only the reader has
        pytest.fail(f"{page}: {command}: {error.format_message()}")


@pytest.mark.parametrize(("page", "command"), INLINE)
def test_a_command_in_a_sentence_exists(page: str, command: str) -> None:
    """Arguments may be missing there: a sentence names a command."""
    words = shlex.split(_END.split(command)[0])[1:]
    try:
        parse_command(words)
    except (click.BadParameter, click.MissingParameter):
        pass
    except click.NoSuchOption as error:
        pytest.fail(f"{page}: {command}: {error.format_message()}")
    except click.UsageError as error:
        assert "there is no command" not in error.message, f"{page}: {command}"


def test_every_target_of_make_exists() -> None:
    text = (README.parent / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    unknown = {(page.name, name) for page in PAGES for name in make_targets_of(page) if name not in targets}
    assert unknown == set()
