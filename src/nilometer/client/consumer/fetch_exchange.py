"""Makes Fetch requests from fetch plans, and reads the responses per partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from nilometer.client.consumer.fetch_session_handler import FetchPlan
from nilometer.client.network.cluster_metadata import BrokerNode, TopicPartition
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, Message

TOPIC_IDS_SINCE = 13
"""The first version of Fetch that names topics only by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    isolation_level: int
    rack: str


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A Fetch response for one partition."""

    partition: TopicPartition
    code: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: bytes
    aborted: Sequence[tuple[int, int]]
    """(producer id, first offset) of the aborted transactions in ``records``; for read_committed only."""
    leader_id: int
    leader_epoch: int
    preferred_replica: int


def fetch_request(api: Api, plan: FetchPlan, limits: FetchLimits) -> Message:
    by_topic: dict[tuple[str, UUID | None], list[Message]] = {}
    for partition, wanted in plan.send.items():
        part = api.make_request(
            "FetchPartition",
            partition=partition.partition,
            current_leader_epoch=wanted.leader_epoch,
            fetch_offset=wanted.fetch_offset,
            last_fetched_epoch=NO_LEADER_EPOCH,
            log_start_offset=-1,
            partition_max_bytes=wanted.max_bytes,
        )
        by_topic.setdefault((partition.topic, wanted.topic_id), []).append(part)
    forgotten: dict[tuple[str, UUID | None], list[int]] = {}
    for partition, topic_id in plan.forget.items():
        forgotten.setdefault((partition.topic, topic_id), []).append(partition.partition)
    topics = tuple(
        api.make_request("FetchTopic", topic=name, topic_id=topic_id, partitions=tuple(parts))
        for (name, topic_id), parts in by_topic.items()
    )
    gone = tuple(
        api.make_request("ForgottenTopic", topic=name, topic_id=topic_id, partitions=tuple(parts))
        for (name, topic_id), parts in forgotten.items()
    )
    fields: dict[str, object] = {"replica_id": -1} if api.version < 15 else {}
    return api.request(
        **fields,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=limits.isolation_level,
        session_id=plan.session_id,
        session_epoch=plan.session_epoch,
        topics=topics,
        forgotten_topics_data=gone,
        rack_id=limits.rack,
    )


def read_fetch_response(response: Message, names: Mapping[UUID, str]) -> list[FetchAnswer]:
    """Return the response per partition; ``names`` maps the requested topic ids to names.

    Other topics of the response are dropped.
    """
    answers: list[FetchAnswer] = []
    for topic in response.responses:
        name = topic.topic if hasattr(topic, "topic") else names.get(topic.topic_id)
        if name is None:
            continue
        for part in topic.partitions:
            leader = getattr(part, "current_leader", None)
            answers.append(
                FetchAnswer(
                    partition=TopicPartition(name, part.partition_index),
                    code=part.error_code,
                    high_watermark=part.high_watermark,
                    log_start_offset=getattr(part, "log_start_offset", -1),
                    records=part.records or b"",
                    aborted=[(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()],
                    leader_id=leader.leader_id if leader is not None else -1,
                    leader_epoch=leader.leader_epoch if leader is not None else NO_LEADER_EPOCH,
                    preferred_replica=getattr(part, "preferred_read_replica", -1),
                )
            )
    return answers


def nodes_named(response: Message) -> list[BrokerNode]:
    """Return the addresses of the leaders that a response names (KIP-951)."""
    return [
        BrokerNode(node.node_id, node.host, node.port, node.rack)
        for node in getattr(response, "node_endpoints", ())
    ]
