"""Metadata requests made, and their responses turned into the values of ``cluster_metadata``. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, Message


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    metadata: ClusterMetadata
    errors: dict[str, ErrorCode]
    """Topics that were not described, and why."""


def metadata_request(api: Api, topics: Iterable[str] | None, *, create: bool = False) -> Message:
    """``topics`` None: all of them."""
    named = None
    if topics is not None:
        named = tuple(api.make_request("MetadataRequestTopic", name=name, topic_id=None) for name in topics)
        if not named and api.version == 0:
            named = None  # in version 0 an empty list means all topics: more than is wanted, but no less
    elif api.version == 0:
        named = ()
    return api.request(topics=named, allow_auto_topic_creation=create)


def read_metadata(response: Message) -> MetadataAnswer:
    topics: dict[str, TopicMetadata] = {}
    errors: dict[str, ErrorCode] = {}
    for topic in response.topics:
        if topic.error_code != ErrorCode.none:
            errors[topic.name or str(topic.topic_id)] = topic.error_code
        else:
            topics[topic.name] = _topic(topic)
    metadata = ClusterMetadata(
        cluster_id=getattr(response, "cluster_id", None),
        controller_id=getattr(response, "controller_id", -1),
        brokers={
            node.node_id: BrokerNode(node.node_id, node.host, node.port, getattr(node, "rack", None))
            for node in response.brokers
        },
        topics=topics,
    )
    return MetadataAnswer(metadata, errors)


def _topic(topic: Message) -> TopicMetadata:
    # A partition may be missing while its topic is being created: without it there are no gaps above either.
    found = {part.partition_index: part for part in topic.partitions}
    partitions: list[PartitionMetadata] = []
    while (part := found.get(len(partitions))) is not None:
        partitions.append(
            PartitionMetadata(
                partition=part.partition_index,
                leader_id=part.leader_id,
                leader_epoch=getattr(part, "leader_epoch", -1),
                replicas=part.replica_nodes,
                in_sync_replicas=part.isr_nodes,
                offline_replicas=getattr(part, "offline_replicas", ()),
            )
        )
    return TopicMetadata(
        name=topic.name,
        topic_id=getattr(topic, "topic_id", None),
        partitions=tuple(partitions),
        is_internal=getattr(topic, "is_internal", False),
    )
