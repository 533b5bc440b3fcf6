"""Positions in topics, and what to read between two of them. Pure.

A position is Spark's own form, ``{"topic": {"0": 23}}``, with two additions (no topic can be named so):

- under ``#topic-ids`` stand the ids of the topics, by which a topic deleted and created again is
  distinguished from the one that was read so far;
- under ``#start`` stands, in the first positions of a stream, the position that it started from. Spark's
  checkpoint holds only where a batch ends: when the first batch is run again, the stream would otherwise
  start at what is earliest, or latest, by then.

Invariants: the JSON of a position is always in the same order, since Spark compares positions as text; a
range is half open and never empty; the ranges of a batch follow from its two positions alone, so that a
batch that is run again reads the same.
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
    """What one task reads."""

    topic: str
    topic_id: str
    """Empty where the brokers know no ids."""
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
    """Where the stream started, as long as nothing is read beyond that."""

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
        """This position as the one that a stream starts from."""
        bare = Position(self.offsets, self.topic_ids)
        return replace(bare, start=bare)

    def reached_from(self, begin: Position) -> Position:
        """This position as the end of a batch that begins at ``begin``: with the start, if it begins there.

        Where nothing has come it is ``begin`` itself: Spark takes any other JSON for something new to read.
        """
        if self.offsets == begin.offsets and self.topic_ids == begin.topic_ids:
            return begin
        is_first = begin.start is not None and begin.offsets == begin.start.offsets
        return replace(self, start=begin.start if is_first else None)

    def is_same_topic(self, topic: str, other: Position) -> bool:
        """Whether both have the same topic id, as far as ids are known."""
        mine, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return mine is None or theirs is None or mine == theirs

    def begin_of(self, part: TopicPartition, end: Position) -> int:
        """Where to begin reading towards ``end``: new partitions, and topics created again, at their
        start."""
        known = self.offsets.get(part)
        return known if known is not None and self.is_same_topic(part.topic, end) else 0


def ranges(start: Position, end: Position) -> list[OffsetRange]:
    """What lies between two positions, by partition. The start that ``end`` names goes before ``start``."""
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
    """As far towards ``end`` as ``rows_max`` records go, each partition in proportion to what it has."""
    pending = ranges(start, end)
    total = sum(map(len, pending))
    if total <= rows_max:
        return end
    cut = {one.part: one.start + min(len(one), max(len(one) * rows_max // total, 1)) for one in pending}
    return replace(end, offsets={part: cut.get(part, offset) for part, offset in end.offsets.items()})


def split(
    pieces: Iterable[OffsetRange], minimum: int | None, records_max: int | None = None
) -> list[OffsetRange]:
    """Ranges of ``records_max`` offsets at most, and at least ``minimum`` of them where there are as many."""
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
