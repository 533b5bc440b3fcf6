"""Makes Produce requests from batches, and reads the responses per batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from nilometer.client.network.cluster_metadata import BrokerNode, ClusterMetadata, TopicPartition
from nilometer.client.producer.batch import ProducerBatch
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.building import milliseconds_since_epoch
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, Message

TOPIC_IDS_SINCE = 13
"""The first version of Produce that names topics only by id."""


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """A Produce response for one batch."""

    partition: TopicPartition
    code: ErrorCode
    message: str
    base_offset: int
    log_append_time: int
    leader_id: int
    leader_epoch: int
    """The epoch of ``leader_id``, the new leader if the response names one (KIP-951); else both are -1."""


def topic_ids(metadata: ClusterMetadata, batches: Sequence[ProducerBatch]) -> dict[str, UUID] | None:
    """Return the topic ids of ``batches`` by topic name, or None if one of them is unknown."""
    ids: dict[str, UUID] = {}
    for batch in batches:
        topic = metadata.topics.get(batch.partition.topic)
        if topic is None or topic.topic_id is None:
            return None
        ids[topic.name] = topic.topic_id
    return ids


def produce_request(
    api: Api,
    batches: Sequence[ProducerBatch],
    ids: dict[str, UUID] | None,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Message:
    """Make a Produce request; ``batches`` contains at most one batch per partition.

    ``ids`` are the topics' ids, for versions that name topics by id.
    """
    by_topic: dict[str, list[Message]] = {}
    for batch in batches:
        part = api.make_request(
            "PartitionProduceData", index=batch.partition.partition, records=batch.encoded()
        )
        by_topic.setdefault(batch.partition.topic, []).append(part)
    return api.request(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            api.make_request(
                "TopicProduceData",
                name=topic,
                topic_id=ids[topic] if ids is not None else None,
                partition_data=tuple(parts),
            )
            for topic, parts in by_topic.items()
        ),
    )


def read_produce_response(response: Message, ids: dict[str, UUID] | None) -> list[ProduceAnswer]:
    names = {topic_id: name for name, topic_id in ids.items()} if ids is not None else {}
    answers: list[ProduceAnswer] = []
    for topic in response.responses:
        name = topic.name if hasattr(topic, "name") else names.get(topic.topic_id, "")
        for part in topic.partition_responses:
            leader = getattr(part, "current_leader", None)
            answers.append(
                ProduceAnswer(
                    partition=TopicPartition(name, part.index),
                    code=part.error_code,
                    message=getattr(part, "error_message", None) or "",
                    base_offset=part.base_offset,
                    log_append_time=_milliseconds(part.log_append_time),
                    leader_id=leader.leader_id if leader is not None else -1,
                    leader_epoch=leader.leader_epoch if leader is not None else NO_LEADER_EPOCH,
                )
            )
    return answers


def nodes_named(response: Message) -> list[BrokerNode]:
    """Return the addresses of the leaders that a response names (KIP-951)."""
    return [
        BrokerNode(node.node_id, node.host, node.port, node.rack)
        for node in getattr(response, "node_endpoints", ())
    ]


def _milliseconds(moment: datetime | None) -> int:
    """Return a timestamp field of a response in milliseconds, or -1 if it is null."""
    return milliseconds_since_epoch(moment) if moment is not None else -1
