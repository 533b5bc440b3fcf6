"""Positions in topics, and the offset ranges between two of them. Pure.

A *position* is an offset for each partition. Its JSON is Spark's, ``{"topic": {"0": 23}}``, with two
additional keys (which are no valid topic names):

- ``#topic-ids`` has the ids of the topics, by which a topic that was deleted and created again is
  distinguished from the one that was read so far;
- ``#start`` has, in the first positions of a stream, the position at which it started. Spark's checkpoint
  contains only the end of a batch: if the first batch is run again, the stream would otherwise start at the
  earliest or latest offset of that time.

Invariants: the JSON of a position is always in the same order, since Spark compares positions as text; a
range is half open and never empty; the ranges of a batch depend only on its two positions, so that a batch
that is run again reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from nilometer.client.network.cluster_metadata import TopicPartition

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
