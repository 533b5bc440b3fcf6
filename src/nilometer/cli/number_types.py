"""Numbers on the command line, within what the protocol can carry: a larger one is wrong usage."""

from __future__ import annotations

import math
from typing import Any

import click

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
