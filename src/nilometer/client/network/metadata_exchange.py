"""Makes Metadata requests, and turns their responses into the values of ``cluster_metadata``. Pure."""

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
    """Topic name (or topic id) to error code, for the topics that were not described."""


def metadata_request(api: Api, topics: Iterable[str] | None, *, create: bool = False) -> Message:
    """Make a Metadata request for ``topics`` (None: all); ``create`` lets the broker create missing ones."""
    named = None
    if topics is not None:
        named = tuple(api.make_request("MetadataRequestTopic", name=name, topic_id=None) for name in topics)
        if not named and api.version == 0:
            named = None  # Version 0 cannot request no topics at all: request all.
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
    # A partition may be missing while its topic is being created: stop before it, so that there is no gap.
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
