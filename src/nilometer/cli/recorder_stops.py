"""Where `nilometer recorder replay` stops: what its options name, and whether it happens at a moment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from nilometer.cli.commands import parse_time
from nilometer.simulation.recorded_cluster import Moment
from nilometer.simulation.recording import Kind, applied_fields

WATCHED = {
    "high watermark": "high_watermark",
    "log end offset": "log_end_offset",
    "log start offset": "log_start_offset",
    "leader epoch": "leader_epoch",
    "role": "role",
    "ISR": "isr",
    "epochs": "epochs",
}
"""What ``--break-on`` may name → the field of a replica's state."""
_BREAK = re.compile(rf"({'|'.join(WATCHED)}) of (.+-\d+) (?:moves|changes)")


class Watch(NamedTuple):
    """What stops a replay."""

    field: str
    partition: str

    def happens_in(self, moment: Moment) -> bool:
        """Whether a replica of the partition, known before, has another value of the field."""
        return any(
            change.partition == self.partition
            and change.difference is not None
            and change.difference.kind is not Kind.REPLICA
            and self.field in applied_fields(change.difference.change)
            for change in moment.changes
        )


class Stops:
    """Where a replay stops: at a time, and from the nth time on wherever one of the watches happens."""

    def __init__(self, until_ms: int | None, watches: Sequence[Watch], nth: int) -> None:
        self._until_ms = until_ms
        self._watches = watches
        self._before = nth - 1

    def stops_at(self, moment: Moment) -> bool:
        """Return whether it stops here. To be asked once for each moment."""
        if self._until_ms is not None and moment.at_ms >= self._until_ms:
            self._until_ms = None  # it stops there once
            return True
        if not any(watch.happens_in(moment) for watch in self._watches):
            return False
        if self._before:
            self._before -= 1
            return False
        return True


class WatchParam(click.ParamType[Watch]):
    name = "what"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Watch:
        found = _BREAK.fullmatch(value)
        if found is None:
            self.fail(
                f"{value!r} is not WHAT of TOPIC-PARTITION moves, with one of: {', '.join(WATCHED)}",
                param,
                ctx,
            )
        return Watch(WATCHED[found[1]], found[2])


class PartitionParam(click.ParamType[tuple[str, int]]):
    name = "topic-partition"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        topic, dash, number = value.rpartition("-")
        if not dash or not topic or not number.isdecimal():
            self.fail(f"{value!r} is not TOPIC-PARTITION, such as orders-0", param, ctx)
        return topic, int(number)


class UntilParam(click.ParamType[int]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_time(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
