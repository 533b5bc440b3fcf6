"""DeleteRecords: deletes the records of partitions below an offset (KIP-107)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

HIGH_WATERMARK = -1
"""As an offset: delete all records that are committed."""

Deletions = dict[TopicPartition, int | KafkaError]
"""The log start offset after the deletion, or the partition's error."""


async def delete_records(client: Client, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> Deletions:
    """Delete the records of each partition below its offset; return the outcome per partition.

    Retriable errors (a leader that has moved) are retried until ``timeout_ms``. Raises KafkaError if no
    broker responds.
    """
    outcomes: Deletions = {}
    client.watch_topics(sorted({partition.topic for partition in offsets}))
    await client.refresh()

    async def attempt() -> Deletions:
        left = [one for one in sorted(offsets) if not _is_final(outcomes.get(one))]
        by_leader: dict[int, list[TopicPartition]] = {}
        for one in left:
            leader = client.metadata.leader(one)
            if leader is None:
                code = client.topic_errors.get(one.topic, ErrorCode.unknown_topic_or_partition)
                outcomes[one] = KafkaError(code, f"no leader of {one} is known")
            else:
                by_leader.setdefault(leader.node_id, []).append(one)
        requests = (
            _ask(client, leader, offsets, several, timeout_ms) for leader, several in by_leader.items()
        )
        for found in await asyncio.gather(*requests):
            outcomes.update(found)
        retriable = [error for one in left if not _is_final(error := outcomes[one])]
        if retriable and isinstance(retriable[0], KafkaError):
            raise retriable[0]
        return outcomes

    try:
        return await client.retry(attempt, timeout_ms)
    except KafkaError:
        if len(outcomes) < len(offsets):
            raise
        return outcomes


def _is_final(outcome: int | KafkaError | None) -> bool:
    return isinstance(outcome, int) or (isinstance(outcome, KafkaError) and not outcome.retriable)


async def _ask(
    client: Client,
    leader_id: int,
    offsets: Mapping[TopicPartition, int],
    partitions: list[TopicPartition],
    timeout_ms: int,
) -> Deletions:
    def make(api: Api) -> Message:
        by_topic: dict[str, list[TopicPartition]] = {}
        for one in partitions:
            by_topic.setdefault(one.topic, []).append(one)
        topics = tuple(
            api.make_request(
                "DeleteRecordsTopic",
                name=topic,
                partitions=tuple(
                    api.make_request(
                        "DeleteRecordsPartition", partition_index=one.partition, offset=offsets[one]
                    )
                    for one in several
                ),
            )
            for topic, several in by_topic.items()
        )
        return api.request(timeout_ms=timeout_ms, topics=topics)

    try:
        response = await client.send_to(leader_id, ApiKey.DELETE_RECORDS, make)
    except KafkaError as error:
        return dict.fromkeys(partitions, error)
    return {
        TopicPartition(topic.name, part.partition_index): part.low_watermark
        if part.error_code == ErrorCode.none
        else KafkaError(part.error_code, _place(topic.name, part.partition_index))
        for topic in response.topics
        for part in topic.partitions
    }


def _place(topic: str, partition: int) -> str:
    return str(TopicPartition(topic, partition))
