"""Where ``nilometer consume`` begins: parses ``--offset``, and finds the offset of each partition.

An offset that a partition's log does not have is an error that names the range: what the user asked for is
not there, and other records would be mistaken for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import click

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.log_ranges import LogRange, log_ranges
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import ErrorCode, KafkaError

EARLIEST = "earliest"
LATEST = "latest"
_PLACE = re.compile(rf"(?:([0-9]{{1,10}}):)?({EARLIEST}|{LATEST}|-?[0-9]{{1,19}})")
_NO_PARTITIONS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin. A *place* is an offset, ``earliest``, ``latest``, or ``-N`` for N before the end."""

    place: str | None = None
    """The place in every partition without its own."""
    by_partition: Mapping[int, str] = field(default_factory=lambda: _NO_PARTITIONS)
    timestamp_ms: int | None = None

    @property
    def only_partitions(self) -> tuple[int, ...] | None:
        """The partitions to read if places were given for single partitions alone; None: not limited."""
        return tuple(self.by_partition) if self.by_partition and self.place is None else None


def parse_places(texts: Sequence[str]) -> Start:
    """Return the start for the values of ``--offset``: PLACE or PARTITION:PLACE. Raises BadParameter."""
    place: str | None = None
    by_partition: dict[int, str] = {}
    for text in texts:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise click.BadParameter(
                f"{text!r} is not an offset, earliest, latest, -N, or PARTITION: and one of them"
            )
        number, one = match.groups()
        if number is None and place is None:
            place = one
        elif number is not None and int(number) not in by_partition:
            by_partition[int(number)] = one
        else:
            raise click.BadParameter(f"{text!r} names a second place for the same partitions")
    return Start(place, by_partition)


def resolve(place: str, log: LogRange) -> int | None:
    """Return the offset of ``place`` in a partition; None if the log does not have it."""
    if place == EARLIEST:
        return log.start
    if place == LATEST:
        return log.end
    if place.startswith("-"):
        return max(log.end - int(place[1:]), log.start)
    offset = int(place)
    return offset if log.start <= offset <= log.high_watermark else None


async def seek_to_start(consumer: Consumer, partitions: Sequence[TopicPartition], start: Start) -> None:
    """Set the position of each assigned partition.

    Raises KafkaError, for an offset that a log does not have with OFFSET_OUT_OF_RANGE.
    """
    logs = await log_ranges(consumer, partitions)
    if start.timestamp_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, start.timestamp_ms))
        for partition in partitions:
            one = found.get(partition)
            consumer.seek(partition, one.offset if one is not None else logs[partition].end)
        return
    for partition in partitions:
        place = start.by_partition.get(partition.partition, start.place or LATEST)
        offset = resolve(place, logs[partition])
        if offset is None:
            raise KafkaError(ErrorCode.offset_out_of_range, _not_there(place, partition, logs[partition]))
        consumer.seek(partition, offset)


def _not_there(place: str, partition: TopicPartition, log: LogRange) -> str:
    if log.start == log.high_watermark:
        has = f"the log is empty, and its next record gets offset {log.high_watermark}"
    else:
        has = f"the log has the offsets {log.start} to {log.high_watermark - 1}"
    return f"offset {place} is not in {partition}: {has}"
