"""The options of commands that show something once, or again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from nilometer.cli.number_types import Seconds

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
