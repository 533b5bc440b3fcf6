"""What an entry of the metadata log changes of partitions, computed before the entry is applied.

An entry may create, change or delete thousands of partitions, and no reader may see an image with a part of
them. So :func:`prepare` computes each partition's new state in steps, between which others may run, while
the image stays as it is; :class:`PreparedEntry` is then applied at once, which only stores what was computed.

Invariants:
- what was prepared fits the image that it was prepared with, as long as its number is the same;
- nothing here changes the image.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeVar

import msgspec

from nilometer.cluster.delta import PartitionTransition
from nilometer.cluster.entries import Entry
from nilometer.cluster.records import (
    Election,
    PartitionChanged,
    PartitionCreated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from nilometer.cluster.states import IndexChange, PartitionState, Topic, partition_of
from nilometer.identifiers import TopicId, TopicIdPartition
from nilometer.invariants import InvariantBroken

T = TypeVar("T")

STEP_RECORDS = 64
"""So many partitions are prepared in a step: some 4 us each."""


class PartitionRun(msgspec.Struct):
    """Successive records about partitions of one topic."""

    topic_id: TopicId
    created: list[PartitionState] = msgspec.field(default_factory=list[PartitionState])
    """The states of new partitions: the next ones of the topic."""
    changed: list[tuple[int, PartitionState, PartitionState]] = msgspec.field(
        default_factory=list[tuple[int, PartitionState, PartitionState]]
    )
    """Number, state before and after; a run has new partitions or changed ones."""
    unclean_elections: int = 0
    last_known_elections: int = 0


class PreparedEntry(msgspec.Struct):
    steps: list[Record | PartitionRun] = msgspec.field(default_factory=list[Record | PartitionRun])
    """The entry's records in order, those about partitions as runs."""
    partitions: dict[TopicIdPartition, PartitionTransition] = msgspec.field(
        default_factory=dict[TopicIdPartition, PartitionTransition]
    )
    """The state of each partition before and after the entry, in the order of the records."""
    index: IndexChange = msgspec.field(default_factory=IndexChange)


class Topics(Protocol):
    """The topics of an image."""

    @property
    def number(self) -> int: ...
    def topic_by_id(self, topic_id: TopicId) -> Topic | None: ...


def prepare(image: Topics, entry: Entry) -> Generator[int, None, PreparedEntry]:
    """Return what ``entry`` changes in ``image``; yields after each step how many records it had.

    Raises InvariantBroken if a record about a partition does not fit the image and the records before it.
    """
    preparation = Preparation(image)
    for number, record in enumerate(entry.records, start=1):
        if isinstance(record, PartitionCreated):
            preparation.create(record)
        elif isinstance(record, PartitionChanged):
            preparation.change(record)
        elif isinstance(record, TopicDeleted):
            yield from preparation.delete(record)
        else:
            preparation.keep(record)
        if number % STEP_RECORDS == 0:
            yield STEP_RECORDS
    yield from preparation.index()
    return preparation.prepared


class Preparation:
    """Invariant: with the records so far, a topic of ``_counts`` has so many partitions."""

    def __init__(self, image: Topics) -> None:
        self.prepared = PreparedEntry()
        self.image = image
        self._counts: dict[TopicId, int] = {}

    def keep(self, record: Record) -> None:
        if isinstance(record, TopicCreated):
            self._counts[record.topic_id] = 0
        self.prepared.steps.append(record)

    def create(self, record: PartitionCreated) -> None:
        count = self._count(record.topic_id, record)
        if record.partition != count:
            raise InvariantBroken(f"{record} although the next partition is {count}")
        state = partition_of(record)
        run = self._run(record.topic_id)
        if run.changed:
            run = self._begin_run(record.topic_id)
        run.created.append(state)
        self._counts[record.topic_id] = count + 1
        self._note(TopicIdPartition(record.topic_id, record.partition), None, state)

    def change(self, record: PartitionChanged) -> None:
        count, key = self._count(record.topic_id, record), TopicIdPartition(record.topic_id, record.partition)
        before = self._state(key) if 0 <= record.partition < count else None
        if before is None:
            raise InvariantBroken(f"{record} although there is no such partition")
        after = before.after(record)
        run = self._run(record.topic_id)
        if run.created:
            run = self._begin_run(record.topic_id)
        run.changed.append((record.partition, before, after))
        run.unclean_elections += record.election is Election.UNCLEAN
        run.last_known_elections += record.election is Election.LAST_KNOWN
        self._note(key, before, after)

    def delete(self, record: TopicDeleted) -> Generator[int, None, None]:
        for index in range(self._count(record.topic_id, record)):
            key = TopicIdPartition(record.topic_id, index)
            self._note(key, self._state(key), None)
            if (index + 1) % STEP_RECORDS == 0:
                yield STEP_RECORDS
        self._counts[record.topic_id] = 0
        self.keep(record)

    def index(self) -> Generator[int, None, None]:
        """Compute the change of the indexes."""
        change = self.prepared.index
        for number, (key, (before, after)) in enumerate(self.prepared.partitions.items(), start=1):
            change.note(key, before, after)
            if number % STEP_RECORDS == 0:
                yield STEP_RECORDS

    def _count(self, topic_id: TopicId, record: Record) -> int:
        count = self._counts.get(topic_id)
        if count is None:
            topic = self.image.topic_by_id(topic_id)
            if topic is None:
                raise InvariantBroken(f"{record} although there is no such topic")
            count = self._counts[topic_id] = len(topic.partitions)
        return count

    def _state(self, key: TopicIdPartition) -> PartitionState | None:
        """Return a partition's state after the records so far."""
        known = self.prepared.partitions.get(key)
        if known is not None:
            return known.after
        topic = self.image.topic_by_id(key.topic_id)
        return None if topic is None else topic.partition(key.partition)

    def _run(self, topic_id: TopicId) -> PartitionRun:
        """Return the run to which records about partitions of the topic belong."""
        steps = self.prepared.steps
        last = steps[-1] if steps else None
        if isinstance(last, PartitionRun) and last.topic_id == topic_id:
            return last
        return self._begin_run(topic_id)

    def _begin_run(self, topic_id: TopicId) -> PartitionRun:
        run = PartitionRun(topic_id)
        self.prepared.steps.append(run)
        return run

    def _note(
        self, key: TopicIdPartition, before: PartitionState | None, after: PartitionState | None
    ) -> None:
        known = self.prepared.partitions.get(key)
        self.prepared.partitions[key] = PartitionTransition(known.before if known else before, after)
