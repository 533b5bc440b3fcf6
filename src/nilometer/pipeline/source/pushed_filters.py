"""Converts a query's filters on topic, partition, offset and timestamp to bounds for reading.

Uses Spark's filter objects by their names and fields, and imports nothing of Spark.

Invariant: bounds only leave out records that a filter excludes. Spark applies every filter again to the rows,
so an unsupported filter only costs time. A timestamp is only a lower bound: records need not be in the order
of their timestamps, but before the first record at or after a timestamp all are earlier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.pipeline.source.positions import OffsetRange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for reading; None is no limit. ``last`` and ``partition_last`` are included."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_first: int = 0
    partition_last: int | None = None
    first: int = 0
    last: int | None = None
    since_ms: int | None = None

    def allows(self, part: TopicPartition) -> bool:
        number = part.partition
        return (
            (self.topics is None or part.topic in self.topics)
            and (self.partitions is None or number in self.partitions)
            and self.partition_first <= number
            and (self.partition_last is None or number <= self.partition_last)
        )


_PUSH_DOWN = "pyspark.sql.worker.data_source_pushdown_filters"


def pushes_filters() -> bool:
    """Whether this is the process in which Spark pushes filters down.

    Spark plans a read in a separate process, without the session's settings. But it runs one program for
    plans with filters, and another for plans without.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSH_DOWN in sys.modules or (main is not None and main.name == _PUSH_DOWN)


def bounds_of(filters: Iterable[Any]) -> Bounds:
    bounds = Bounds()
    for one in filters:
        bounds = _narrowed(bounds, one)
    return bounds


def narrowed(
    ranges: Sequence[OffsetRange], bounds: Bounds, since: dict[TopicPartition, int] | None = None
) -> list[OffsetRange]:
    """Return the parts of ``ranges`` within ``bounds``.

    ``since`` has, per partition, the first offset at or after the bounds' timestamp.
    """
    left: list[OffsetRange] = []
    for one in ranges:
        if not bounds.allows(one.part):
            continue
        start = max(one.start, bounds.first, (since or {}).get(one.part, 0))
        end = one.end if bounds.last is None else min(one.end, bounds.last + 1)
        if start < end:
            left.append(replace(one, start=start, end=end))
    return left


def _narrowed(bounds: Bounds, one: Any) -> Bounds:
    column = getattr(one, "attribute", ())
    value = getattr(one, "value", None)
    match column, type(one).__name__:
        case ("topic",), "EqualTo" | "EqualNullSafe" | "In":
            return replace(bounds, topics=_both(bounds.topics, _values(value)))
        case ("partition",), "EqualTo" | "EqualNullSafe" | "In":
            return replace(bounds, partitions=_both(bounds.partitions, _values(value)))
        case ("partition",), kind:
            first, last = _range_of(kind, value)
            return replace(
                bounds,
                partition_first=max(bounds.partition_first, first),
                partition_last=_least(bounds.partition_last, last),
            )
        case ("offset",), "In":
            known = [offset for offset in value or () if offset is not None]
            return _offsets(bounds, min(known), max(known)) if known else bounds
        case ("offset",), kind:
            return _offsets(bounds, *_range_of(kind, value))
        case ("timestamp",), "EqualTo" | "GreaterThan" | "GreaterThanOrEqual" if isinstance(value, datetime):
            # Rounded down: records have milliseconds, the filter has microseconds.
            since = (value.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)
            return _since(bounds, since)
        case _:
            return bounds


def _range_of(kind: str, value: Any) -> tuple[int, int | None]:
    """Return the first and the last (None: no limit) whole number that pass a comparison."""
    if not isinstance(value, int):
        return 0, None
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return value, value
        case "GreaterThan":
            return value + 1, None
        case "GreaterThanOrEqual":
            return value, None
        case "LessThan":
            return 0, value - 1
        case "LessThanOrEqual":
            return 0, value
        case _:
            return 0, None


def _since(bounds: Bounds, milliseconds: int) -> Bounds:
    """Return ``bounds`` with a lower bound of the timestamp.

    One before 1970 is ignored: negative timestamps have special meanings for brokers, such as -1 for the end.
    """
    if milliseconds < 0 or (bounds.since_ms is not None and milliseconds <= bounds.since_ms):
        return bounds
    return replace(bounds, since_ms=milliseconds)


def _offsets(bounds: Bounds, first: int, last: int | None) -> Bounds:
    return replace(bounds, first=max(bounds.first, first), last=_least(bounds.last, last))


def _least(one: int | None, other: int | None) -> int | None:
    known = [last for last in (one, other) if last is not None]
    return min(known, default=None)


def _values(value: Any) -> frozenset[Any]:
    return frozenset(cast(Sequence[Any], value) if isinstance(value, list | tuple) else [value])


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more
