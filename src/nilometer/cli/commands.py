"""The commands and groups of the command line: an option is given once, unless it takes several values.

click lets the last of repeated options win: the others would have no effect, and the user would not know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click


class _Strict(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)


class Command(_Strict):
    """A command. ``@command()`` makes one of a function."""


class Group(_Strict, click.Group):
    """A group whose commands are of the same kind. ``@group()`` makes one of a function."""

    command_class = Command
    group_class = type


command: partial[Callable[[Callable[..., Any]], Command]] = partial(click.command, cls=Command)
group: partial[Callable[[Callable[..., Any]], Group]] = partial(click.group, cls=Group)


def _refuse_repeated(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Raise UsageError if two options give one value: the same one twice, or two that exclude each other."""
    _, _, given = command.make_parser(context).parse_args(args=[*arguments])
    by_value: dict[str | None, click.Option] = {}
    for option in given:
        if not isinstance(option, click.Option) or option.multiple or option.count:
            continue
        first = by_value.setdefault(option.name, option)
        if first is not option:
            raise click.UsageError(f"give one of {_shown(first)} and {_shown(option)}", context)
        if given.count(option) > 1:
            raise click.UsageError(f"{_shown(option)} is given twice, and takes one value", context)


def _shown(option: click.Option) -> str:
    return "/".join((option.opts[-1], *option.secondary_opts))
