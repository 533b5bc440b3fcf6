"""Responses that describe a metadata quorum in the words of KRaft: DescribeQuorum (KIP-595, KIP-836, KIP-853)
on every listener, and DescribeCluster on those of controllers (KIP-919).

A replica is caught up, as far as it is known, if its last fetch was of all that is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nilometer.identifiers import NO_LEADER, uuid_from_text
from nilometer.raft.control_records import VoterEntry
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import NONE, ErrorCode
from nilometer.wire.own_apis import QuorumDescription, QuorumReplica

METADATA_TOPIC = "__cluster_metadata"
UNKNOWN = -1
CONTROLLERS = 2
"""The endpoint type of controllers."""
OPERATIONS_NOT_ASKED = -(1 << 31)


def metadata_partition(api: Api, found: QuorumDescription, now_ms: int) -> Message:
    """``now_ms``: since the epoch."""

    def replicas(*, voting: bool) -> tuple[Message, ...]:
        return tuple(_replica(api, one, found, now_ms) for one in found.replicas if one.is_voter is voting)

    return api.make(
        "PartitionData",
        partition_index=0,
        error_message=None,
        leader_id=found.leader_id,
        leader_epoch=found.epoch,
        high_watermark=found.high_watermark,
        current_voters=replicas(voting=True),
        observers=replicas(voting=False),
    )


def unavailable_partition(api: Api, why: str) -> Message:
    """Return the partition of a quorum without a leader."""
    error = ErrorCode.leader_not_available
    return api.make("PartitionData", partition_index=0, error_code=error, error_message=why)


def _replica(api: Api, one: QuorumReplica, quorum: QuorumDescription, now_ms: int) -> Message:
    fetched_ms = UNKNOWN if one.fetched_ms < 0 else now_ms - one.fetched_ms
    directory = {"replica_directory_id": uuid_from_text(one.directory_id)} if api.has("Node") else {}
    return api.make(
        "ReplicaState",
        replica_id=one.node_id,
        log_end_offset=one.log_end_offset,
        last_fetch_timestamp=fetched_ms,
        last_caught_up_timestamp=fetched_ms if one.log_end_offset >= quorum.high_watermark else UNKNOWN,
        **directory,
    )


def voting_nodes(api: Api, voters: Sequence[VoterEntry]) -> dict[str, object]:
    """Return the field of a response that has the voters' listeners, in the versions with one."""
    if not api.has("Node"):
        return {}
    return {
        "nodes": tuple(
            api.make(
                "Node",
                node_id=entry.key.node_id,
                listeners=tuple(
                    api.make("Listener", name=one.listener, host=one.host, port=one.port)
                    for one in entry.endpoints
                ),
            )
            for entry in voters
        )
    }


def quorum_fields(
    api: Api, request: Any, metadata: Message, nodes: Mapping[str, object]
) -> dict[str, object]:
    """Return the fields of the response to DescribeQuorum, of which ``metadata`` is the one partition."""
    topics = tuple(
        api.make(
            "TopicData",
            topic_name=topic.topic_name,
            partitions=tuple(
                metadata
                if (topic.topic_name, partition.partition_index) == (METADATA_TOPIC, 0)
                else _unknown(api, partition.partition_index)
                for partition in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return {"error_message": None, "topics": topics, **nodes}


def _unknown(api: Api, index: int) -> Message:
    return api.make(
        "PartitionData",
        partition_index=index,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message="There is no such metadata log.",
    )


def controllers_response(
    api: Api, request: Any, cluster_id: str | None, leader: VoterEntry | None, voters: Sequence[VoterEntry]
) -> Message:
    """Return the response to DescribeCluster of a listener of controllers, which describes these only."""
    if request.endpoint_type != CONTROLLERS:
        return api.response(
            error_code=ErrorCode.mismatched_endpoint_type,
            error_message="The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint "
            "of type BROKER",
            endpoint_type=CONTROLLERS,
            cluster_id=cluster_id or "",
            controller_id=NO_LEADER,
            brokers=(),
            cluster_authorized_operations=OPERATIONS_NOT_ASKED,
        )
    nodes = tuple(
        api.make(
            "DescribeClusterBroker",
            broker_id=entry.key.node_id,
            host=entry.endpoints[0].host,
            port=entry.endpoints[0].port,
            rack=None,
        )
        for entry in voters
        if entry.endpoints
    )
    return api.response(
        error_code=NONE,
        error_message=None,
        endpoint_type=CONTROLLERS,
        cluster_id=cluster_id or "",
        controller_id=NO_LEADER if leader is None else leader.key.node_id,
        brokers=nodes,
        cluster_authorized_operations=OPERATIONS_NOT_ASKED,
    )
