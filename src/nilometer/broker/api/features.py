"""The cluster as a whole: UpdateFeatures, DescribeQuorum and UnregisterBroker."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quorum.description import (
    UNKNOWN,
    metadata_partition,
    quorum_fields,
    unavailable_partition,
    voting_nodes,
)
from nilometer.broker.replies import Reply
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.brokers import decide_unregister_broker
from nilometer.cluster.controller.decision import Decision, Outcome, Steps
from nilometer.cluster.controller.features import FeatureUpdate, UpgradeType, decide_update_features
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import StoreUnavailable
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    metadata: MetadataLog
    quorum: QuorumStore | None
    """None: the metadata is in another coordination store."""
    rights: Rights
    controller_requests: ControllerRequests


# UpdateFeatures: raise or lower finalized levels of features (KIP-584, KIP-1022).
#
# Versions: 0 can only raise levels (its ``allow_downgrade`` has no effect, as in Kafka); 1 has the type of
# each update (upgrade, safe or unsafe downgrade), and ``validate_only``; 2 has one outcome for the whole
# request.

FIRST_WITHOUT_RESULTS = 2


def handle_update_features(parts: Parts, request: Request) -> asyncio.Future[Reply]:
    updates = [
        FeatureUpdate(
            update.feature,
            update.max_version_level,
            getattr(update, "upgrade_type", int(UpgradeType.UPGRADE)),
        )
        for update in request.body.feature_updates
    ]
    validate_only: bool = request.field("validate_only", False)

    def decide(image: ClusterImage) -> Decision[Outcome]:
        return decide_update_features(image, updates, validate_only=validate_only)

    return parts.controller_requests.decide(
        request, decide, _respond_update_features, _refuse_update_features, needs=Operation.ALTER
    )


def _respond_update_features(request: Request, outcome: Outcome) -> Reply:
    results: dict[str, object] = {}
    if request.version < FIRST_WITHOUT_RESULTS:
        updates = request.body.feature_updates if outcome.ok else ()
        results["results"] = tuple(
            request.make("UpdatableFeatureResult", feature=update.feature, error_message=None)
            for update in updates
        )
    return request.respond(error_code=outcome.error, error_message=outcome.message, **results)


def _refuse_update_features(request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond_update_features(request, Outcome(error, message))


# DescribeQuorum: the metadata log in the words of KRaft, to be read only (KIP-595, KIP-836).
#
# With a metadata quorum its leader is asked.
#
# With another coordination store there is no quorum of brokers: the controller is shown as the leader and
# only voter, all other live brokers as observers. What is shown is what this broker has folded; how far the
# others are is not known (-1).


def handle_describe_quorum(parts: Parts, request: Request) -> Reply | asyncio.Future[Reply]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE):
        return _refuse_describe_quorum(request)
    if parts.quorum is not None:
        return parts.tasks.spawn(_describe_quorum(parts, parts.quorum, request))
    return _respond_quorum(request, _partition(parts, request), _nodes(parts, request))


async def _describe_quorum(parts: Parts, quorum: QuorumStore, request: Request) -> Reply:
    api = request.api
    try:
        found = await quorum.describe()
    except StoreUnavailable as error:
        partition = unavailable_partition(api, str(error))
    else:
        partition = metadata_partition(api, found, parts.runtime.clock.wall_ms())
    return _respond_quorum(request, partition, voting_nodes(api, quorum.voters()))


def _respond_quorum(request: Request, partition: Message, nodes: dict[str, object]) -> Reply:
    return request.respond(**quorum_fields(request.api, request.body, partition, nodes))


def _refuse_describe_quorum(request: Request) -> Reply:
    error = {"error_code": ErrorCode.cluster_authorization_failed, "error_message": CLUSTER_DENIED}
    nodes: dict[str, object] = {"nodes": ()} if request.api.has("Node") else {}
    return request.respond(**error, topics=(), **nodes)


def _nodes(parts: Parts, request: Request) -> dict[str, object]:
    if not request.api.has("Node"):
        return {}
    controller = parts.metadata.image.broker(parts.metadata.image.controller_id)
    if controller is None:
        return {"nodes": ()}
    listeners = tuple(
        request.make("Listener", name=point.listener, host=point.host, port=point.port)
        for point in controller.endpoints
    )
    return {"nodes": (request.make("Node", node_id=controller.id, listeners=listeners),)}


def _partition(parts: Parts, request: Request) -> Message:
    image = parts.metadata.image
    end = image.number + 1
    observers = [broker.id for broker in image.live_brokers() if broker.id != image.controller_id]
    return request.make(
        "PartitionData",
        partition_index=0,
        error_message=None,
        leader_id=image.controller_id,
        leader_epoch=image.controller_epoch,
        high_watermark=end,
        current_voters=(_replica(parts, request, image.controller_id, end),),
        observers=tuple(
            _replica(parts, request, broker, end if broker == parts.config.node_id else UNKNOWN)
            for broker in observers
        ),
    )


def _replica(parts: Parts, request: Request, broker_id: int, end: int) -> Message:
    """Return the state of ``broker_id`` as a replica of the metadata log, with log end offset ``end``.

    Its timestamps are the present time for this broker, and unknown for others.
    """
    known = broker_id == parts.config.node_id
    now_ms = parts.runtime.clock.wall_ms() if known else UNKNOWN
    return request.make(
        "ReplicaState",
        replica_id=broker_id,
        log_end_offset=end,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


# UnregisterBroker: remove a broker that will never return, so that no partition waits for its log any more.
#
# Rejected for a live broker: it would register again at once, without its former place in the ISRs.


def handle_unregister_broker(parts: Parts, request: Request) -> asyncio.Future[Reply]:
    def decide(image: ClusterImage) -> Decision[Outcome] | Steps[Outcome]:
        known = image.broker(request.body.broker_id)
        if known is not None and not known.fenced:
            return Decision(
                (), Outcome(ErrorCode.invalid_request, f"Broker {known.id} is alive; stop it first.")
            )
        return decide_unregister_broker.steps(image, request.body.broker_id)

    return parts.controller_requests.decide(
        request,
        decide,
        _respond_unregister_broker,
        _refuse_unregister_broker,
        needs=Operation.ALTER,
    )


def _respond_unregister_broker(request: Request, outcome: Outcome) -> Reply:
    return request.respond(error_code=outcome.error, error_message=outcome.message)


def _refuse_unregister_broker(request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond_unregister_broker(request, Outcome(error, message))


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.UPDATE_FEATURES,
            versions=(0, 2),
            handle=partial(handle_update_features, parts),
            forwardable=True,
            rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_QUORUM,
            versions=(0, 2),
            handle=partial(handle_describe_quorum, parts),
            divisions=(
                Division(("topics", "partitions"), ("topics", "partitions"), repeated=Repeated.AT_MOST_TWICE),
            ),
            rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.UNREGISTER_BROKER,
            versions=(0, 0),
            handle=partial(handle_unregister_broker, parts),
            forwardable=True,
            rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
        ),
    )
