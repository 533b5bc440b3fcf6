"""The topology of a streams group, and what it needs of the cluster's topics: how many tasks each subtopology
has, and which internal topics (repartition and changelog topics) are missing.

A repartition topic has the partitions that its topology asks for; or else as many as the largest source topic
of a subtopology that writes to it; or as the topics that it must be co-partitioned with. A changelog topic
has as many as the largest source topic of its subtopology.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias, TypeVar

import msgspec

from nilometer.wire.errors import ErrorCode, KafkaError

Task: TypeAlias = tuple[str, int]
"""Subtopology id and partition."""

_Item = TypeVar("_Item")

TOPOLOGY_NAMES_MAX: Final = 2_000
"""So many names of topics may a topology have in all its lists together, and so many settings of topics."""
TASKS_MAX: Final = 10_000
"""So many tasks and subtopologies may a group have: a member that has them all names them in one request.
Each subtopology has one for each partition of its largest topic, so a short topology may ask for millions."""
NAME_BYTES: Final = 100
"""About what a name or setting takes in memory beside its characters."""
SHOWN_MAX: Final = 3
"""Names of topics in one message."""


class KeyValue(msgspec.Struct, frozen=True):
    key: str
    value: str


class Endpoint(msgspec.Struct, frozen=True):
    """Where a member answers queries about its state."""

    host: str
    port: int


class TaskIds(msgspec.Struct, frozen=True):
    """Tasks of one subtopology, as messages and records have them."""

    subtopology_id: str
    partitions: tuple[int, ...]


class TopicInfo(msgspec.Struct, frozen=True):
    name: str
    partitions: int = 0
    """0: as the rules of the module have it."""
    replication_factor: int = 0
    """0: the broker's default."""
    topic_configs: tuple[KeyValue, ...] = ()


class CopartitionGroup(msgspec.Struct, frozen=True):
    """Source topics that must have the same number of partitions: indexes into the subtopology's lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


class Subtopology(msgspec.Struct, frozen=True):
    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    def sources(self) -> Iterator[str]:
        """Yield the topics that it reads."""
        yield from self.source_topics
        for topic in self.repartition_source_topics:
            yield topic.name

    def internal_topics(self) -> Iterator[TopicInfo]:
        """Yield the topics that are created for it."""
        yield from self.repartition_source_topics
        yield from self.state_changelog_topics

    def copartitioned(self) -> Iterator[frozenset[str]]:
        """Yield the names of each co-partition group. Raises IndexError."""
        for group in self.copartition_groups:
            names = [_at(self.source_topics, index) for index in group.source_topics]
            found = [_at(self.repartition_source_topics, index) for index in group.repartition_source_topics]
            yield frozenset([*names, *(topic.name for topic in found)])


def _at(items: Sequence[_Item], index: int) -> _Item:
    if index < 0:
        raise IndexError
    return items[index]


class Topology(msgspec.Struct, frozen=True):
    epoch: int
    subtopologies: tuple[Subtopology, ...]

    def names(self) -> Iterator[str]:
        """Yield the name of every topic that the application reads or writes, some several times."""
        for each in self.subtopologies:
            yield from each.sources()
            yield from each.repartition_sink_topics
            for topic in each.state_changelog_topics:
                yield topic.name

    def required_topics(self) -> frozenset[str]:
        """Return the topics without which no task can run."""
        return frozenset(
            name
            for each in self.subtopologies
            for name in (*each.sources(), *(topic.name for topic in each.state_changelog_topics))
        )

    def size(self) -> int:
        """Return how many names and settings it has."""
        configs = (
            len(topic.topic_configs) for each in self.subtopologies for topic in each.internal_topics()
        )
        lists = (
            (group.source_topics, group.source_topic_regex, group.repartition_source_topics)
            for each in self.subtopologies
            for group in each.copartition_groups
        )
        groups = (1 + sum(map(len, indexes)) for indexes in lists)
        return len(self.subtopologies) + sum(1 for _ in self.names()) + sum(configs) + sum(groups)

    def bytes(self) -> int:
        """Return about how much memory it takes."""
        texts = (
            text
            for each in self.subtopologies
            for topic in each.internal_topics()
            for config in topic.topic_configs
            for text in (config.key, config.value)
        )
        ids = sum(len(each.subtopology_id) for each in self.subtopologies)
        return NAME_BYTES * self.size() + ids + sum(map(len, self.names())) + sum(map(len, texts))


class Status(IntEnum):
    """What a member is told about its group in a heartbeat's response."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6
    """Only in version 1 and later."""


class InternalTopic(msgspec.Struct, frozen=True):
    """An internal topic with the partitions that it has to have."""

    name: str
    partitions: int
    replication_factor: int
    """0: the broker's default."""
    topic_configs: tuple[KeyValue, ...]


class ConfiguredSubtopology(msgspec.Struct, frozen=True):
    tasks: int
    """The number of its tasks, one for each partition of its largest source topic."""
    source_topics: tuple[str, ...]
    """All that it reads, in order."""
    is_stateful: bool
    repartition_source_topics: tuple[InternalTopic, ...]
    state_changelog_topics: tuple[InternalTopic, ...]


class Configured(msgspec.Struct, frozen=True):
    """A topology as the cluster's topics are now."""

    epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology]
    """By id, in order; empty if source topics are missing, or topics have the wrong number of partitions."""
    missing: tuple[InternalTopic, ...] = ()
    """The internal topics that are to be created."""
    status: Status | None = None
    """Why the application cannot run."""
    detail: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether all topics are there and fit together."""
        return self.status is None

    def has_task(self, task: Task) -> bool:
        subtopology = self.subtopologies.get(task[0])
        return subtopology is not None and 0 <= task[1] < subtopology.tasks


class _Unusable(Exception):
    """The topology cannot run on these topics."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


CountOf: TypeAlias = Callable[[str], int]
"""Returns how many partitions a topic has; 0 if it does not exist."""


def configure(topology: Topology, metadata_hash: int, count_of: CountOf) -> Configured:
    """Return what ``topology`` needs. Raises KafkaError (STREAMS_INVALID_TOPOLOGY)."""
    try:
        counts = _internal_counts(topology, count_of)
        subtopologies = {
            each.subtopology_id: _configured(each, counts, count_of)
            for each in sorted(topology.subtopologies, key=lambda one: one.subtopology_id)
        }
        _check_count(subtopologies.values())
        missing = _missing(subtopologies.values(), count_of)
    except _Unusable as unusable:
        return Configured(topology.epoch, metadata_hash, {}, (), unusable.status, unusable.detail)
    if not missing:
        return Configured(topology.epoch, metadata_hash, subtopologies)
    detail = f"Internal topics are missing: {listed(topic.name for topic in missing)}"
    return Configured(
        topology.epoch, metadata_hash, subtopologies, missing, Status.MISSING_INTERNAL_TOPICS, detail
    )


def invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.streams_invalid_topology, why)


def _internal_counts(topology: Topology, count_of: CountOf) -> dict[str, int]:
    """Return the number of partitions of each internal topic."""
    groups = [group for each in topology.subtopologies for group in _copartition_groups(each)]
    external = {name for each in topology.subtopologies for name in each.source_topics}
    absent = sorted(name for name in external if not count_of(name))
    if absent:
        raise _Unusable(Status.MISSING_SOURCE_TOPICS, f"Source topics {listed(absent)} are missing.")
    counts = _repartition_counts(topology, count_of)
    repartition = [topic for each in topology.subtopologies for topic in each.repartition_source_topics]
    names = {topic.name for topic in repartition}
    fixed = {topic.name for topic in repartition if topic.partitions}
    for group in groups:
        counts |= _copartitioned(group, names, fixed, counts, count_of)
    for subtopology in topology.subtopologies:
        largest = max((count_of(name) or counts[name] for name in subtopology.sources()), default=0)
        if not largest:
            raise invalid(f"No source topics found for subtopology {subtopology.subtopology_id}")
        counts |= {topic.name: largest for topic in subtopology.state_changelog_topics}
    return counts


def _copartition_groups(subtopology: Subtopology) -> list[frozenset[str]]:
    try:
        return list(subtopology.copartitioned())
    except IndexError:
        raise invalid(
            f"A co-partition group of subtopology {subtopology.subtopology_id} names no topic."
        ) from None


def _repartition_counts(topology: Topology, count_of: CountOf) -> dict[str, int]:
    """Return the number of partitions of each repartition topic, before co-partitioning.

    A subtopology that reads a topic whose number is known decides those of the topics that it writes.
    """
    counts = {
        topic.name: topic.partitions
        for each in topology.subtopologies
        for topic in each.repartition_source_topics
        if topic.partitions
    }
    readers: dict[str, list[Subtopology]] = {}
    for each in topology.subtopologies:
        for name in each.sources():
            readers.setdefault(name, []).append(each)
    due = deque(topology.subtopologies)
    decided: set[str] = set()
    while due:
        subtopology = due.popleft()
        if subtopology.subtopology_id in decided:
            continue
        known = [counts.get(topic.name, 0) for topic in subtopology.repartition_source_topics]
        largest = max([*known, *map(count_of, subtopology.source_topics)], default=0)
        if not largest:
            continue
        decided.add(subtopology.subtopology_id)
        for name in subtopology.repartition_sink_topics:
            if name not in counts:
                counts[name] = largest
                due.extend(readers.get(name, ()))
    for each in topology.subtopologies:
        if each.subtopology_id not in decided and any(n not in counts for n in each.repartition_sink_topics):
            raise invalid(
                "Failed to compute number of partitions for all repartition topics. "
                "There may be loops in the topology that cannot be resolved."
            )
        if any(topic.name not in counts for topic in each.repartition_source_topics):
            raise invalid(
                "Failed to compute number of partitions for all repartition topics, "
                "because a repartition source topic is never used as a sink topic."
            )
    return counts


def _copartitioned(
    group: Collection[str],
    names: Collection[str],
    fixed: Collection[str],
    counts: Mapping[str, int],
    count_of: CountOf,
) -> dict[str, int]:
    """Return how many partitions the repartition topics of one co-partition group have.

    ``names``: those of all repartition topics. A topic that a subtopology reads as an ordinary source topic
    is not among them, even if another writes to it.
    """
    repartition = sorted(name for name in group if name in names)
    others = {name: count_of(name) for name in sorted(group) if name not in names}
    given = {name: count_of(name) or counts[name] for name in repartition if name in fixed}
    if others:
        size = _same(others)
    elif given:
        size = _same(given)
    else:
        size = max((count_of(name) or counts[name] for name in repartition), default=0)
    for name, count in given.items():
        if count != size:
            raise _Unusable(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{count}] of repartition topic [{name}] doesn't match number of "
                f"partitions [{size}] of the source topic.",
            )
    return dict.fromkeys(repartition, size)


def _same(counts: Mapping[str, int]) -> int:
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}={count}" for name, count in sorted(counts.items())[:SHOWN_MAX])
        more = ", …" if len(counts) > SHOWN_MAX else ""
        raise _Unusable(
            Status.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}{more}}}]",
        )
    return next(iter(counts.values()))


def _configured(
    subtopology: Subtopology, counts: Mapping[str, int], count_of: CountOf
) -> ConfiguredSubtopology:
    sources = tuple(sorted(set(subtopology.sources())))
    return ConfiguredSubtopology(
        max(count_of(name) or counts[name] for name in sources),
        sources,
        bool(subtopology.state_changelog_topics),
        _internal(subtopology.repartition_source_topics, counts),
        _internal(subtopology.state_changelog_topics, counts),
    )


def _check_count(subtopologies: Iterable[ConfiguredSubtopology]) -> None:
    found = list(subtopologies)
    tasks = sum(each.tasks for each in found)
    if tasks + len(found) > TASKS_MAX:
        raise _Unusable(
            Status.INCORRECTLY_PARTITIONED_TOPICS,
            f"The topology has {tasks} tasks with the partitions of its topics; {TASKS_MAX - len(found)} are "
            "the most.",
        )


def _internal(topics: Iterable[TopicInfo], counts: Mapping[str, int]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            topic.name,
            topic.partitions or counts[topic.name],
            topic.replication_factor,
            topic.topic_configs,
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    )


def _missing(subtopologies: Iterable[ConfiguredSubtopology], count_of: CountOf) -> tuple[InternalTopic, ...]:
    missing: dict[str, InternalTopic] = {}
    for subtopology in subtopologies:
        for topic in (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics):
            found = count_of(topic.name)
            if not found:
                missing[topic.name] = topic
            elif found != topic.partitions:
                raise _Unusable(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {topic.name} has different number of partitions: "
                    f"expected {topic.partitions}, found {found}",
                )
    return tuple(missing[name] for name in sorted(missing))


def listed(names: Iterable[str]) -> str:
    """Return some names for a message: a string of it may have 32,767 bytes, and all could be more."""
    found = list(names)
    more = f" and {len(found) - SHOWN_MAX} additional topics" if len(found) > SHOWN_MAX else ""
    return ", ".join(found[:SHOWN_MAX]) + more
