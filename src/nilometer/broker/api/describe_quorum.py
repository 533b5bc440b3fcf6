"""DescribeQuorum: the metadata log in the words of KRaft, to be read only (KIP-595, KIP-836).

The metadata log is kept by a coordination store, so there is no quorum of brokers: the controller is shown as
the leader and only voter, all other live brokers as observers. What is shown is what this broker has folded;
how far the others are is not known (-1).
"""

from __future__ import annotations

from nilometer.broker.api.access import CLUSTER_DENIED, access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message

METADATA_TOPIC = "__cluster_metadata"
UNKNOWN = -1


def handle(services: Services, request: Request) -> Reply:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE):
        return _refuse(request)
    topics = tuple(
        request.make(
            "TopicData",
            topic_name=topic.topic_name,
            partitions=tuple(
                _partition(services, request)
                if (topic.topic_name, partition.partition_index) == (METADATA_TOPIC, 0)
                else _unknown(request, partition.partition_index)
                for partition in topic.partitions
            ),
        )
        for topic in request.body.topics
    )
    return request.respond(
        error_code=ErrorCode.none, error_message=None, topics=topics, **_nodes(services, request)
    )


def _refuse(request: Request) -> Reply:
    error = {"error_code": ErrorCode.cluster_authorization_failed, "error_message": CLUSTER_DENIED}
    nodes: dict[str, object] = {"nodes": ()} if request.api.has("Node") else {}
    return request.respond(**error, topics=(), **nodes)


def _nodes(services: Services, request: Request) -> dict[str, object]:
    if not request.api.has("Node"):
        return {}
    controller = services.image.broker(services.image.controller_id)
    if controller is None:
        return {"nodes": ()}
    listeners = tuple(
        request.make("Listener", name=point.listener, host=point.host, port=point.port)
        for point in controller.endpoints
    )
    return {"nodes": (request.make("Node", node_id=controller.id, listeners=listeners),)}


def _partition(services: Services, request: Request) -> Message:
    image = services.image
    end = image.number + 1
    observers = [broker.id for broker in image.live_brokers() if broker.id != image.controller_id]
    return request.make(
        "PartitionData",
        partition_index=0,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=image.controller_id,
        leader_epoch=image.controller_epoch,
        high_watermark=end,
        current_voters=(_replica(services, request, image.controller_id, end),),
        observers=tuple(
            _replica(services, request, broker, end if broker == services.broker_id else UNKNOWN)
            for broker in observers
        ),
    )


def _replica(services: Services, request: Request, broker_id: int, end: int) -> Message:
    """Return the state of ``broker_id`` as a replica of the metadata log, with log end offset ``end``.

    Its timestamps are the present time for this broker, and unknown for others.
    """
    known = broker_id == services.broker_id
    now_ms = services.runtime.clock.wall_ms() if known else UNKNOWN
    return request.make(
        "ReplicaState",
        replica_id=broker_id,
        log_end_offset=end,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _unknown(request: Request, index: int) -> Message:
    return request.make(
        "PartitionData",
        partition_index=index,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message="There is no such metadata log.",
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_QUORUM,
    versions=(0, 2),
    handle=handle,
    divisions=(
        Division(("topics", "partitions"), ("topics", "partitions"), repeated=Repeated.AT_MOST_TWICE),
    ),
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
