"""Which offsets are read: positions in topics, the ranges between two of them, and the bounds that a query's
filters set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast

from nilometer.client.network.cluster_metadata import TopicPartition

# Positions in topics, and the offset ranges between two of them. Pure.
#
# A *position* is an offset for each partition. Its JSON is Spark's, ``{"topic": {"0": 23}}``, with two
# additional keys (which are no valid topic names):
#
# - ``#topic-ids`` has the ids of the topics, by which a topic that was deleted and created again is
#   distinguished from the one that was read so far;
# - ``#start`` has, in the first positions of a stream, the position at which it started. Spark's checkpoint
#   contains only the end of a batch: if the first batch is run again, the stream would otherwise start at the
#   earliest or latest offset of that time.
#
# Invariants: the JSON of a position is always in the same order, since Spark compares positions as text; a
# range is half open and never empty; the ranges of a batch depend only on its two positions, so that a batch
# that is run again reads the same.

TOPIC_IDS = "#topic-ids"
START = "#start"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of one partition, read by one task."""

    topic: str
    topic_id: str
    """Empty if the brokers have no topic ids."""
    partition: int
    start: int
    end: int

    @property
    def part(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Position:
    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    start: Position | None = None
    """The position at which the stream started; only until the first batch has read records."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        offsets = {
            TopicPartition(topic, int(number)): offset
            for topic, numbers in value.items()
            if topic not in (TOPIC_IDS, START)
            for number, offset in numbers.items()
        }
        start = value.get(START)
        return cls(
            offsets, dict(value.get(TOPIC_IDS, {})), cls.from_json(start) if start is not None else None
        )

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {TOPIC_IDS: dict(sorted(self.topic_ids.items()))} if self.topic_ids else {}
        if self.start is not None:
            value[START] = self.start.to_json()
        for part, offset in sorted(self.offsets.items()):
            value.setdefault(part.topic, {})[str(part.partition)] = offset
        return value

    def as_start(self) -> Position:
        """Return this position as the start of a stream."""
        bare = Position(self.offsets, self.topic_ids)
        return replace(bare, start=bare)

    def reached_from(self, begin: Position) -> Position:
        """Return this position as the end of a batch that begins at ``begin``.

        It has ``begin``'s start if the batch is the stream's first. If there are no new records it is
        ``begin`` itself: Spark regards any other JSON as new records.
        """
        if self.offsets == begin.offsets and self.topic_ids == begin.topic_ids:
            return begin
        is_first = begin.start is not None and begin.offsets == begin.start.offsets
        return replace(self, start=begin.start if is_first else None)

    def is_same_topic(self, topic: str, other: Position) -> bool:
        """Whether both positions have the same id of ``topic``; True if one has none."""
        mine, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return mine is None or theirs is None or mine == theirs

    def begin_of(self, part: TopicPartition, end: Position) -> int:
        """Return the offset from which to read ``part`` towards ``end``.

        It is 0 for a new partition, and for a topic that was deleted and created again.
        """
        known = self.offsets.get(part)
        return known if known is not None and self.is_same_topic(part.topic, end) else 0


def ranges(start: Position, end: Position) -> list[OffsetRange]:
    """Return the range of each partition between two positions; a start in ``end`` replaces ``start``."""
    if end.start is not None and start != end:
        start = end.start
    found: list[OffsetRange] = []
    for part, until in sorted(end.offsets.items()):
        begin = start.begin_of(part, end)
        if begin < until:
            found.append(
                OffsetRange(part.topic, end.topic_ids.get(part.topic, ""), part.partition, begin, until)
            )
    return found


def limited(start: Position, end: Position, rows_max: int) -> Position:
    """Return a position about ``rows_max`` offsets after ``start``, in the direction of ``end``.

    Each partition gets a share in proportion to its range, but at least one offset.
    """
    pending = ranges(start, end)
    total = sum(map(len, pending))
    if total <= rows_max:
        return end
    cut = {one.part: one.start + min(len(one), max(len(one) * rows_max // total, 1)) for one in pending}
    return replace(end, offsets={part: cut.get(part, offset) for part, offset in end.offsets.items()})


def split(
    pieces: Iterable[OffsetRange], minimum: int | None, records_max: int | None = None
) -> list[OffsetRange]:
    """Divide ranges so that each has at most ``records_max`` offsets and there are at least ``minimum``.

    There are fewer only if there are fewer offsets.
    """
    whole = list(pieces)
    if records_max is not None:
        whole = [part for one in whole for part in _cut(one, -(-len(one) // records_max))]
    if minimum is None or len(whole) >= minimum:
        return whole
    total = sum(map(len, whole))
    return [
        part for one in whole for part in _cut(one, min(max(-(-len(one) * minimum // total), 1), len(one)))
    ]


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [one.start + len(one) * number // count for number in range(count + 1)]
    return [replace(one, start=low, end=high) for low, high in pairwise(bounds)]


# Converts a query's filters on topic, partition, offset and timestamp to bounds for reading.
#
# Uses Spark's filter objects by their names and fields, and imports nothing of Spark.
#
# Invariant: bounds only leave out records that a filter excludes. Spark applies every filter again to the
# rows, so an unsupported filter only costs time. A timestamp is only a lower bound: records need not be in
# the order of their timestamps, but before the first record at or after a timestamp all are earlier.

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

    def allows(self, topic: str, number: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
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
        if not bounds.allows(*one.part):
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
