"""ListOffsets and OffsetForLeaderEpoch requests to the leaders of partitions; for consumer and admin.

A query for many partitions is split by leader and sent in parallel. Partitions with a retriable error (their
leader has moved, for example) are queried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError

__all__ = [
    "EARLIEST_TIMESTAMP",
    "LATEST_TIMESTAMP",
    "MAX_TIMESTAMP",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "EpochEnd",
    "ListedOffset",
    "epoch_ends",
    "list_offsets",
    "log_end_offsets",
]


CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
"""As the replica id of ListOffsets: ``latest`` is the log end offset rather than the high watermark."""
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

Q = TypeVar("Q")
A = TypeVar("A")


class ListedOffset(NamedTuple):
    offset: int
    """-1 if no record has a timestamp at or after the requested one."""
    timestamp: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The largest leader epoch not above the requested one, and the offset after its last record."""

    leader_epoch: int
    end_offset: int


async def list_offsets(
    client: Client,
    timestamps: Mapping[TopicPartition, int],
    isolation_level: int,
    timeout_ms: int,
    *,
    replica_id: int = CONSUMER_REPLICA_ID,
) -> dict[TopicPartition, ListedOffset]:
    """Return, per partition, the first offset whose record's timestamp is at or after the given one.

    Timestamps are in milliseconds, or a special one of ``positions``. Raises KafkaError.
    """

    def make(api: Api, asked: Mapping[TopicPartition, int]) -> Message:
        topics = _by_topic(asked)
        if api.version < _version_needed(asked):
            raise KafkaError(ErrorCode.unsupported_version, "the broker cannot look up the highest timestamp")
        return api.request(
            replica_id=replica_id,
            isolation_level=isolation_level,
            timeout_ms=timeout_ms,
            topics=tuple(
                api.make_request(
                    "ListOffsetsTopic",
                    name=topic,
                    partitions=tuple(
                        api.make_request(
                            "ListOffsetsPartition",
                            partition_index=partition,
                            current_leader_epoch=client.metadata.leader_epoch(
                                TopicPartition(topic, partition)
                            ),
                            timestamp=timestamp,
                        )
                        for partition, timestamp in partitions
                    ),
                )
                for topic, partitions in topics.items()
            ),
        )

    def read(response: Message) -> list[tuple[TopicPartition, ErrorCode, ListedOffset]]:
        return [
            (
                TopicPartition(topic.name, part.partition_index),
                part.error_code,
                ListedOffset(
                    part.offset, _milliseconds(part.timestamp), getattr(part, "leader_epoch", NO_LEADER_EPOCH)
                ),
            )
            for topic in response.topics
            for part in topic.partitions
        ]

    return await _ask_leaders(client, ApiKey.LIST_OFFSETS, timestamps, make, read, timeout_ms)


async def log_end_offsets(
    client: Client, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, int]:
    """Return the log end offset of each partition's leader. Raises KafkaError.

    It is never below the high watermark: the records between the two are not committed yet.
    """
    latest = dict.fromkeys(partitions, LATEST_TIMESTAMP)
    found = await list_offsets(client, latest, READ_UNCOMMITTED, timeout_ms, replica_id=DEBUGGING_REPLICA_ID)
    return {partition: one.offset for partition, one in found.items()}


async def epoch_ends(
    client: Client, epochs: Mapping[TopicPartition, int], timeout_ms: int
) -> dict[TopicPartition, EpochEnd]:
    """Return, per partition, the end offset of leader epoch ``epochs[…]`` in the present leader's log.

    (KIP-320.) Raises KafkaError.
    """

    def make(api: Api, asked: Mapping[TopicPartition, int]) -> Message:
        return api.request(
            replica_id=CONSUMER_REPLICA_ID,
            topics=tuple(
                api.make_request(
                    "OffsetForLeaderTopic",
                    topic=topic,
                    partitions=tuple(
                        api.make_request(
                            "OffsetForLeaderPartition",
                            partition=partition,
                            current_leader_epoch=client.metadata.leader_epoch(
                                TopicPartition(topic, partition)
                            ),
                            leader_epoch=epoch,
                        )
                        for partition, epoch in partitions
                    ),
                )
                for topic, partitions in _by_topic(asked).items()
            ),
        )

    def read(response: Message) -> list[tuple[TopicPartition, ErrorCode, EpochEnd]]:
        return [
            (
                TopicPartition(topic.topic, part.partition),
                part.error_code,
                EpochEnd(part.leader_epoch, part.end_offset),
            )
            for topic in response.topics
            for part in topic.partitions
        ]

    return await _ask_leaders(client, ApiKey.OFFSET_FOR_LEADER_EPOCH, epochs, make, read, timeout_ms)


async def _ask_leaders(
    client: Client,
    api_key: int,
    questions: Mapping[TopicPartition, Q],
    make: Callable[[Api, Mapping[TopicPartition, Q]], Message],
    read: Callable[[Message], list[tuple[TopicPartition, ErrorCode, A]]],
    timeout_ms: int,
) -> dict[TopicPartition, A]:
    """Send ``questions`` to the partitions' leaders; retry until each has an answer. Raises KafkaError.

    ``make`` makes the request for the partitions of one leader; ``read`` returns its results per partition.
    """
    answers: dict[TopicPartition, A] = {}
    client.watch_topics(sorted({partition.topic for partition in questions}))

    async def ask(node_id: int, asked: Mapping[TopicPartition, Q]) -> KafkaError | None:
        """Query one leader and keep its answers; return the first error, or None."""
        error: KafkaError | None = None
        try:
            response = await client.send_to(node_id, api_key, lambda api: make(api, asked))
        except KafkaError as failure:
            return failure
        for partition, code, answer in read(response):
            if code == ErrorCode.none:
                answers[partition] = answer
            elif error is None:
                error = KafkaError(code, str(partition))
        return error

    async def round_of_questions() -> dict[TopicPartition, A]:
        by_leader: dict[int, dict[TopicPartition, Q]] = {}
        for partition in sorted(questions.keys() - answers.keys()):
            leader = client.metadata.leader(partition)
            if leader is None:
                code = client.topic_errors.get(partition.topic, ErrorCode.leader_not_available)
                raise KafkaError(code, f"no leader of {partition} is known")
            by_leader.setdefault(leader.node_id, {})[partition] = questions[partition]
        errors = await asyncio.gather(*(ask(node_id, asked) for node_id, asked in by_leader.items()))
        for error in errors:
            if error is not None:
                raise error
        return answers

    await client.retry(round_of_questions, timeout_ms)
    return answers


def _by_topic(asked: Mapping[TopicPartition, Q]) -> dict[str, list[tuple[int, Q]]]:
    topics: dict[str, list[tuple[int, Q]]] = {}
    for partition, question in asked.items():
        topics.setdefault(partition.topic, []).append((partition.partition, question))
    return topics


def _version_needed(asked: Mapping[TopicPartition, int]) -> int:
    return 7 if MAX_TIMESTAMP in asked.values() else 1


def _milliseconds(timestamp: object) -> int:
    return timestamp if isinstance(timestamp, int) else -1
