"""Requests to the controller for leader elections and partition reassignments (KIP-460, KIP-455).

The operations that change partitions return an outcome per partition: None, or its KafkaError.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition, numbers_by_topic
from nilometer.client.network.metadata_exchange import MetadataAnswer, metadata_request, read_metadata
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

PartitionOutcomes = dict[TopicPartition, KafkaError | None]

OPERATION_TIMEOUT_MS = 60_000


class ElectionType(enum.IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class OngoingMove:
    """A reassignment that has not completed."""

    replicas: tuple[int, ...]
    """The current replicas, including those of ``adding`` and ``removing``."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def elect_leaders(
    admin: Admin, kind: ElectionType, partitions: Sequence[TopicPartition] | None
) -> PartitionOutcomes:
    """Have the controller elect leaders for ``partitions`` (None: all); return the outcome per partition.

    An outcome may be ELECTION_NOT_NEEDED. Raises KafkaError if the whole request is rejected.
    """

    def make(api: Api) -> Message:
        asked = None
        if partitions is not None:
            asked = tuple(
                api.make_request("TopicPartitions", topic=topic, partitions=tuple(numbers))
                for topic, numbers in numbers_by_topic(partitions).items()
            )
        return api.request(election_type=int(kind), topic_partitions=asked, timeout_ms=OPERATION_TIMEOUT_MS)

    async def ask() -> PartitionOutcomes:
        response = await admin.client.send_to_controller(ApiKey.ELECT_LEADERS, make)
        _raise(getattr(response, "error_code", ErrorCode.none), None)
        return {
            TopicPartition(topic.topic, part.partition_id): _error(part.error_code, part.error_message)
            for topic in response.replica_election_results
            for part in topic.partition_result
        }

    return await admin.client.retry(ask, OPERATION_TIMEOUT_MS)


async def alter_reassignments(
    admin: Admin, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> PartitionOutcomes:
    """Start moving each partition to its target replicas; a target of None cancels its reassignment.

    Returns the outcome per partition. Raises KafkaError if the whole request is rejected.
    """

    def make(api: Api) -> Message:
        topics = tuple(
            api.make_request(
                "ReassignableTopic",
                name=topic,
                partitions=tuple(
                    api.make_request(
                        "ReassignablePartition",
                        partition_index=number,
                        replicas=None if target is None else tuple(target),
                    )
                    for number in numbers
                    for target in (targets[TopicPartition(topic, number)],)
                ),
            )
            for topic, numbers in numbers_by_topic(targets).items()
        )
        return api.request(topics=topics, timeout_ms=OPERATION_TIMEOUT_MS)

    async def ask() -> PartitionOutcomes:
        response = await admin.client.send_to_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, make)
        _raise(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): _error(part.error_code, part.error_message)
            for topic in response.responses
            for part in topic.partitions
        }

    return await admin.client.retry(ask, OPERATION_TIMEOUT_MS) if targets else {}


async def list_reassignments(
    admin: Admin, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OngoingMove]:
    """Return the ongoing reassignments of ``partitions`` (None: of all). Raises KafkaError."""

    def make(api: Api) -> Message:
        asked = None
        if partitions is not None:
            asked = tuple(
                api.make_request(
                    "ListPartitionReassignmentsTopics", name=topic, partition_indexes=tuple(numbers)
                )
                for topic, numbers in numbers_by_topic(partitions).items()
            )
        return api.request(topics=asked, timeout_ms=OPERATION_TIMEOUT_MS)

    async def ask() -> dict[TopicPartition, OngoingMove]:
        response = await admin.client.send_to_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, make)
        _raise(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): OngoingMove(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in response.topics
            for part in topic.partitions
        }

    return await admin.client.retry(ask, OPERATION_TIMEOUT_MS)


async def describe_by_controller(admin: Admin, topics: Sequence[str]) -> dict[str, TopicMetadata]:
    """Return the controller's metadata of ``topics``: another broker's may lack the last changes.

    Raises KafkaError if one of them does not exist.
    """

    async def ask() -> MetadataAnswer:
        response = await admin.client.send_to_controller(
            ApiKey.METADATA, lambda api: metadata_request(api, topics)
        )
        return read_metadata(response)

    answer = await admin.client.retry(ask, OPERATION_TIMEOUT_MS)
    for name, code in answer.errors.items():
        raise KafkaError(code, f"topic {name}")
    return {name: answer.metadata.topics[name] for name in topics}


def _error(code: ErrorCode, message: str | None) -> KafkaError | None:
    return None if code == ErrorCode.none else KafkaError(code, message or "")


def _raise(code: ErrorCode, message: str | None) -> None:
    if code != ErrorCode.none:
        raise KafkaError(code, message or "")
