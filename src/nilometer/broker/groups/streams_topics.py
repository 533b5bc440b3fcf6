"""Creates the internal topics of streams groups (KIP-1071), in the name of the client whose heartbeat needs
them. No heartbeat waits for it: a later one finds the topics, or is told why they are not there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from nilometer.broker.control.controller_link import ControllerLink, RequestingClient
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.topics import NewTopic
from nilometer.coordination.store import CoordinationError
from nilometer.groups.streams_topology import InternalTopic, listed
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.groups")

DEFAULT_REPLICATION_FACTORS: Final = (0, -1)
"""Those of a topology that leaves it to the broker. Kafka Streams sends its setting ``replication.factor``,
which is -1 if the application does not set it."""
KNOWN_MAX: Final = 10_000
"""So many topics may be in creation, or have failed a short time ago."""
TOLD_FOR_MS: Final = 10_000
"""Members are told for this long why a topic could not be created; then it is tried again."""
CREATED_AT_ONCE: Final = 64
PARTITIONS_AT_ONCE: Final = 1_000
"""So many topics with so many partitions, or one, are created by one decision of the controller."""
_CREATED_OR_EXISTS = (ErrorCode.none, ErrorCode.topic_already_exists)


class _Attempt(msgspec.Struct):
    began_ms: int
    why: str = ""
    """Why it has failed; empty: it has not."""
    is_over: bool = False


class StreamsTopics:
    def __init__(self, runtime: Runtime, tasks: Tasks, link: ControllerLink, replication_factor: int) -> None:
        """``replication_factor``: that of topics whose topology gives none."""
        self._runtime = runtime
        self._tasks = tasks
        self._link = link
        self._replication_factor = replication_factor
        self._attempts: dict[str, _Attempt] = {}
        """By topic name."""

    def create(self, topics: Sequence[InternalTopic], client: RequestingClient) -> list[tuple[str, str]]:
        """Begin to create those topics that are not being created; return the others' failures: (name,
        reason)."""
        now_ms = self._runtime.clock.monotonic_ms()
        due: list[InternalTopic] = []
        failed: list[tuple[str, str]] = []
        for topic in topics:
            attempt = self._attempts.get(topic.name)
            if attempt is not None and attempt.is_over and now_ms >= attempt.began_ms + TOLD_FOR_MS:
                del self._attempts[topic.name]
                attempt = None
            if attempt is None:
                due.append(topic)
            elif attempt.why:
                failed.append((topic.name, attempt.why))
        if due and self._has_room(len(due)):
            self._attempts |= {topic.name: _Attempt(now_ms) for topic in due}
            self._tasks.spawn(self._create(due, client), name="creating topics of streams groups")
        return failed

    def _has_room(self, count: int) -> bool:
        """Return whether so many more may be in creation. What is over makes room for it, outdated or not, so
        that no client's failures keep the topics of others from being created."""
        if len(self._attempts) + count > KNOWN_MAX:
            over = [name for name, attempt in self._attempts.items() if attempt.is_over]
            for name in over:
                del self._attempts[name]
        return len(self._attempts) + count <= KNOWN_MAX

    async def _create(self, topics: Sequence[InternalTopic], client: RequestingClient) -> None:
        """Create the topics, some after the others: each decision of the controller is one turn."""
        try:
            for some in _portions(topics):
                await self._create_some(some, client)
        finally:
            for topic in topics:  # a topic that stays in creation is never created
                if not self._attempts[topic.name].is_over:
                    del self._attempts[topic.name]

    async def _create_some(self, topics: Sequence[InternalTopic], client: RequestingClient) -> None:
        errors = {topic.name: ErrorCode.unknown_server_error.name.upper() for topic in topics}
        try:
            codes = await self._link.create_topics(
                [self._new(topic) for topic in topics], self._runtime.entropy, client
            )
            errors = {
                name: code.name.upper() for name, code in codes.items() if code not in _CREATED_OR_EXISTS
            }
        except KafkaError as error:
            errors = {topic.name: error.message or error.code.name.upper() for topic in topics}
        except CoordinationError as error:
            errors = {topic.name: str(error) for topic in topics}
        finally:  # whatever has failed
            self._note(topics, errors)

    def _note(self, topics: Sequence[InternalTopic], errors: Mapping[str, str]) -> None:
        for topic in topics:
            why = errors.get(topic.name, "")
            self._attempts[topic.name] = _Attempt(self._runtime.clock.monotonic_ms(), why, is_over=True)
        failed = [topic.name for topic in topics if topic.name in errors]
        if failed:
            why = errors[failed[0]]
            logger.warning("Topics of a streams group could not be created: %s: %s", listed(failed), why)

    def _new(self, topic: InternalTopic) -> NewTopic:
        factor = topic.replication_factor
        return NewTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=self._replication_factor if factor in DEFAULT_REPLICATION_FACTORS else factor,
            configs={each.key: each.value for each in topic.topic_configs},
        )


def _portions(topics: Sequence[InternalTopic]) -> Iterator[list[InternalTopic]]:
    portion: list[InternalTopic] = []
    partitions = 0
    for topic in topics:
        partitions += topic.partitions
        if portion and (len(portion) >= CREATED_AT_ONCE or partitions > PARTITIONS_AT_ONCE):
            yield portion
            portion, partitions = [], topic.partitions
        portion.append(topic)
    yield portion
