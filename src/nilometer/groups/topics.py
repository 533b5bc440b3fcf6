"""The cluster's topics as the groups see them whose coordinator assigns partitions, with a version that rises
when they may have changed; and assignments.

Members subscribe by name, or by regular expressions in the syntax of RE2 that match whole topic names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from nilometer.client_patterns import HEAVIEST, PATTERN_ERRORS, compile_pattern, matching, weight
from nilometer.cluster.image import ClusterImage
from nilometer.groups.requests import DescribedTopicPartitions, TopicPartitions
from nilometer.wire.errors import ErrorCode, KafkaError

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id, without empty sets."""

BY_NUMBER: Final = attrgetter("int")
"""In the order of UUIDs, which compare by functions of Python: of thousands that takes long."""
NO_PARTITIONS: Final[Assignment] = MappingProxyType({})


def assignment_of(partitions: Iterable[TopicPartitions]) -> Assignment:
    """Convert from the form in requests and records, which may name a topic twice."""
    found: dict[UUID, frozenset[int]] = {}
    for topic in partitions:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def topic_partitions(assignment: Mapping[UUID, Iterable[int]]) -> tuple[TopicPartitions, ...]:
    """Convert to the form in results and records, sorted."""
    ids = sorted(assignment, key=BY_NUMBER)
    return tuple(TopicPartitions(topic_id, tuple(sorted(assignment[topic_id]))) for topic_id in ids)


class Topics:
    """The topics of the current image. One per shard."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self.version = 0
        self._names: frozenset[str] | None = None

    @property
    def metadata_version(self) -> int:
        return self._image.number

    def changed(self, image: ClusterImage) -> None:
        self._image = image
        self.version += 1
        self._names = None

    def names(self) -> frozenset[str]:
        """Return the names of all topics; the same object until topics may have changed."""
        if self._names is None:
            self._names = frozenset(topic.name for topic in self._image.topics())
        return self._names

    def id_of(self, name: str) -> UUID | None:
        topic = self._image.topic(name)
        return None if topic is None else topic.uuid

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self._image.topic_by_uuid(topic_id)
        return None if topic is None else topic.name

    def ids_of(self, names: Iterable[str]) -> frozenset[UUID]:
        """Return the ids of those topics that exist."""
        found = (self._image.topic(name) for name in names)
        return frozenset(topic.uuid for topic in found if topic is not None)

    def ids_by_name(self, names: Iterable[str]) -> dict[str, UUID]:
        """Return the ids of those topics that exist."""
        found = ((name, self._image.topic(name)) for name in names)
        return {name: topic.uuid for name, topic in found if topic is not None}

    def partition_count(self, topic_id: UUID) -> int:
        """Return how many partitions the topic has; 0 if it does not exist."""
        topic = self._image.topic_by_uuid(topic_id)
        return 0 if topic is None else len(topic.partitions)

    def size_of(self, name: str) -> int:
        """Return how many partitions the topic of this name has; 0 if it does not exist."""
        topic = self._image.topic(name)
        return 0 if topic is None else len(topic.partitions)

    def partition_counts(self, names: Iterable[str]) -> dict[UUID, int]:
        found = (self._image.topic(name) for name in names)
        return {topic.uuid: len(topic.partitions) for topic in found if topic is not None}

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a signed 64-bit hash of the topics' ids and partition counts; 0 if none of them exists.

        It changes when one of them is created, deleted, created again or gets more partitions.
        """
        digest = hashlib.blake2b(digest_size=8)
        empty = True
        for name in sorted(names):
            topic = self._image.topic(name)
            if topic is not None:
                empty = False
                digest.update(topic.uuid.bytes + len(topic.partitions).to_bytes(4, "big"))
        return 0 if empty else int.from_bytes(digest.digest(), "big", signed=True)


def described_partitions(
    assignment: Mapping[UUID, Iterable[int]], topics: Topics
) -> tuple[DescribedTopicPartitions, ...]:
    """Return the partitions of topics that still exist, sorted by topic name."""
    named = ((topics.name_of(topic_id), topic_id) for topic_id in assignment)
    return tuple(
        DescribedTopicPartitions(topic_id, name, tuple(sorted(assignment[topic_id])))
        for name, topic_id in sorted((name, topic_id) for name, topic_id in named if name is not None)
    )


def check_topic_regex(regex: str, names: Iterable[str] = ()) -> None:
    """Raise KafkaError (INVALID_REGULAR_EXPRESSION) if the expression cannot be compiled, or if it would take
    too long to match ``names``."""
    try:
        if weight(compile_pattern(regex), names) > HEAVIEST:
            raise KafkaError(
                ErrorCode.invalid_regular_expression,
                f"SubscribedTopicRegex `{_shown(regex)}` takes too long to match against all topics.",
            )
    except PATTERN_ERRORS as error:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{_shown(regex)}` is not a valid regular expression: {_reason(error)}.",
        ) from None


def match_weight(regex: str, names: Collection[str]) -> int:
    """Return the weight (:func:`~nilometer.client_patterns.weight`) of matching the names; 0 if
    the expression cannot be compiled."""
    try:
        return weight(compile_pattern(regex), names)
    except PATTERN_ERRORS:
        return 0


def matching_topics(regex: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that the expression matches as a whole; none if it cannot be compiled."""
    try:
        pattern = compile_pattern(regex)
    except PATTERN_ERRORS:
        # Another implementation may have accepted it as coordinator: it must not make this one fail.
        return frozenset()
    return frozenset(matching(pattern, names))


def matches(wanted: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return, by expression, which of its names it matches as a whole."""
    return {regex: matching_topics(regex, wanted[regex]) for regex in wanted}


def _reason(error: Exception) -> str:
    argument: object = error.args[0] if error.args else error
    return argument.decode(errors="replace") if isinstance(argument, bytes) else str(argument)


def _shown(regex: str) -> str:
    shown = regex.encode(errors="backslashreplace").decode()
    return shown if len(shown) <= 100 else f"{shown[:100]}…"
