"""Commands of the documentation, parsed as the command line does it, without running them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from nilometer.cli.main import cli

from .shell_samples import blocks

_INLINE = re.compile(r"`(nilometer (?!COMMAND)[^`\n]+)`")
_PIPED = re.compile(r"(?:\| |\$\(|until |; )(nilometer [^|;)>]+)")
MAKE = re.compile(r"^\s*(?:\$ )?make ([^#\n]+)|`make ([^`\n]+)`", re.MULTILINE)


def commands_of(page: Path) -> Iterator[str]:
    """Yield the commands in the blocks of a page, but no synopsis as ``nilometer topic list [-…]``."""
    for block in blocks(page):
        for line in block.splitlines():
            command = line.strip().removeprefix("$ ")
            if " [-" in command:
                continue
            if command.startswith("nilometer "):
                yield command
            yield from (found.strip() for found in _PIPED.findall(command))


def inline_commands_of(page: Path) -> Iterator[str]:
    """Yield the commands in the sentences of a page. They may stand for many: options may be missing."""
    yield from _INLINE.findall(page.read_text(encoding="utf-8"))


def make_targets_of(page: Path) -> Iterator[str]:
    """Yield the targets of make that a page names."""
    for line, inline in MAKE.findall(page.read_text(encoding="utf-8")):
        for word in (line or inline).split():
            if "=" in word or word.startswith(("-", "'")):
                break
            yield word


def parse_command(words: Sequence[str]) -> None:
    """Parse the words behind ``nilometer``. Raises click.UsageError."""
    command: click.Command = cli
    context = click.Context(cli, info_name="nilometer")
    left = list(words)
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        found = command.get_command(context, left[0])
        if found is None:
            raise click.UsageError(f"there is no command {left[0]}")
        command, left = found, left[1:]
    with contextlib.suppress(click.exceptions.Exit):  # --help or --version
        command.make_context(command.name or "", left, parent=context)
