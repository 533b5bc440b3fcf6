"""What all commands are made of: commands and groups that take an option once, the values of options,
and the options of --watch.

click lets the last of repeated options win: the others would have no effect, and the user would not know.
Numbers are bounded by what the protocol can carry: a larger one is wrong usage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

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


# --- numbers

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

PARTITION = click.IntRange(0, INT32_MAX)
PARTITIONS_COUNT = click.IntRange(1, INT32_MAX)
BROKER_ID = click.IntRange(0, INT32_MAX)
OFFSET = click.IntRange(0, INT64_MAX)
INT64 = click.IntRange(-INT64_MAX - 1, INT64_MAX)
SECONDS_MAX = 10.0**9
MINUTES_MAX = 10.0**6


class FiniteRange(click.FloatRange):
    """A number within bounds; "nan", which click's own range accepts, is not one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number", param, ctx)
        return found


class Seconds(FiniteRange):
    """A number of seconds from ``smallest`` to about thirty years."""

    name = "seconds"

    def __init__(self, smallest: float = 0.0) -> None:
        super().__init__(smallest, SECONDS_MAX)


class Minutes(FiniteRange):
    """A number of minutes from ``smallest`` to about two years."""

    name = "minutes"

    def __init__(self, smallest: float = 0.0) -> None:
        super().__init__(smallest, MINUTES_MAX)


# --- timestamps

_MILLISECONDS = re.compile("[0-9]{1,19}")


def parse_time(text: str) -> int:
    """Return milliseconds since 1970, from such a number or from an ISO time (UTC if it has no zone).

    Raises ValueError, also for times before 1970: a record has none of them.
    """
    try:
        found = int(text) if _MILLISECONDS.fullmatch(text) else _from_iso(text)
    except (ValueError, OverflowError):
        found = -1
    if not 0 <= found <= INT64_MAX:
        raise ValueError(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00"
        )
    return found


def _from_iso(text: str) -> int:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)


# --- the options of commands that show something once, or again and again

F = TypeVar("F", bound=Callable[..., Any])

MIN_S = 0.05


def watch_options(*, interval_s: float, timeout_help: str) -> Callable[[F], F]:
    """Add --watch, --interval, --times and --timeout.

    ``interval_s`` is the default of --interval; ``timeout_help`` says what --timeout is for in this command.
    """
    seconds = Seconds(MIN_S)

    def add(command: F) -> F:
        command = click.option("--timeout", type=seconds, default=2.0, show_default=True, help=timeout_help)(
            command
        )
        command = click.option(
            "--times", type=click.IntRange(1), help="With --watch: stop after this many refreshes."
        )(command)
        command = click.option(
            "--interval",
            type=seconds,
            default=interval_s,
            show_default=True,
            help="With --watch: seconds between two refreshes.",
        )(command)
        return click.option(
            "--watch", is_flag=True, help="Refresh until Ctrl-C. With --json: one line per refresh."
        )(command)

    return add
