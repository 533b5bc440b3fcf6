"""The requests that only brokers send: AlterPartition, AllocateProducerIds, BrokerHeartbeat, and Nilometer's
own ProveBroker and ForfeitReplicas.

They are served only on a connection that proved to be from the broker that the request names.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from functools import partial
from uuid import UUID

import msgspec

from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.spec import NO_RIGHTS, ApiSpec, Request, Right
from nilometer.broker.authorizer import BrokerUsers
from nilometer.broker.control import decision_log
from nilometer.broker.control.secret_keeper import SecretKeeper
from nilometer.broker.quotas import ConnectionAdmission
from nilometer.broker.responses import CloseConnection, Response
from nilometer.broker.settings.broker_authentication import AUTHENTICATION
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.cluster_secret import NONCE_BYTES, ProofExchange, Side, broker_proof, is_proof
from nilometer.cluster.controller.brokers import (
    ProducerIdBlock,
    ShutdownProgress,
    decide_allocate_producer_ids,
    decide_controlled_shutdown,
)
from nilometer.cluster.controller.decision import Decision, Outcome, Steps
from nilometer.cluster.controller.isr_changes import (
    AlteredPartition,
    ForfeitedReplica,
    IsrChange,
    IsrMember,
    decide_alter_partitions,
    decide_forfeit_replicas,
)
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import RecoveryState
from nilometer.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
    topic_id_of,
    uuid_from_text,
)
from nilometer.runtime import Runtime
from nilometer.security.principal import BROKER, Principal
from nilometer.wire import own_apis as forfeit_replicas
from nilometer.wire import own_apis as prove_broker
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    cluster_id: str
    secrets: SecretKeeper
    admission: ConnectionAdmission
    broker_users: BrokerUsers
    controller_requests: ControllerRequests


# ProveBroker (Nilometer's own): a connection proves that it is from a broker of this cluster.
#
# By the cluster's secret (:mod:`nilometer.cluster.cluster_secret`), or by the user that authenticated on the
# listener between brokers (:mod:`nilometer.broker.authorizer`): the broker that connects asks
# for the latter with a request that has no nonce; a broker that accepts only users answers every request so.
# A connection has one attempt; a wrong proof closes it. :mod:`nilometer.broker.control.broker_peers` is the
# connecting side.

logger = logging.getLogger("nilometer.broker.authentication")


def handle_prove_broker(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body: prove_broker.ProveBrokerRequest = request.body
    if body.proof:
        return _finish(parts, request, body)
    if (refused := _refusal(parts, request, body)) is not None:
        error, message = refused
        return request.respond(error_code=int(error), message=message)
    how = parts.config.broker_authentication
    if not how.uses_secret or (how.uses_listener and not body.nonce):
        return _accept_user(parts, request, body)
    return parts.tasks.spawn(_begin(parts, request, body))


def _refusal(
    parts: Parts, request: Request, body: prove_broker.ProveBrokerRequest
) -> tuple[ErrorCode, str] | None:
    own = parts.config.node_id
    if body.cluster_id != parts.cluster_id:
        return ErrorCode.inconsistent_cluster_id, f"this is a broker of cluster {parts.cluster_id}"
    if body.expected_broker_id != own:
        return ErrorCode.invalid_request, f"this is broker {own}, not {body.expected_broker_id}"
    if body.broker_id < 0 or body.broker_id == own:
        return ErrorCode.invalid_request, f"broker {body.broker_id} cannot connect to broker {own}"
    how = parts.config.broker_authentication
    if not body.nonce and not how.uses_listener:
        message = f"it requires a proof by the cluster's secret: its {AUTHENTICATION} is {how.value}"
        return ErrorCode.invalid_request, message
    if body.nonce and len(body.nonce) != NONCE_BYTES:
        return ErrorCode.invalid_request, f"the nonce has {len(body.nonce)} bytes instead of {NONCE_BYTES}"
    if request.connection.proof_begun:
        return ErrorCode.invalid_request, "this connection has already begun a proof"
    return None


def _accept_user(parts: Parts, request: Request, body: prove_broker.ProveBrokerRequest) -> Response:
    connection, context = request.connection, request.context
    connection.proof_begun = True
    broker_id, user = body.broker_id, context.principal
    why = parts.broker_users.why_not(context)
    if why is not None:
        logger.warning(
            "%s:%d claims to be broker %d: %s", context.client_address, context.client_port, broker_id, why
        )
        return request.respond(error_code=int(ErrorCode.cluster_authorization_failed), message=why)
    parts.broker_users.accept(connection)
    _become_broker(parts, request, broker_id)
    logger.info(
        "%s:%d is broker %d, by its user %s", context.client_address, context.client_port, broker_id, user
    )
    return request.respond()


async def _begin(parts: Parts, request: Request, body: prove_broker.ProveBrokerRequest) -> Response:
    connection = request.connection
    connection.proof_begun = True
    keeper = parts.secrets
    secret = await keeper.numbered(body.secret_number) or keeper.secrets.current
    exchange = ProofExchange(
        parts.cluster_id,
        body.broker_id,
        parts.config.node_id,
        body.nonce,
        parts.runtime.entropy.bytes(NONCE_BYTES),
    )
    connection.pending_proof = exchange, secret
    return request.respond(
        secret_number=secret.number,
        nonce=exchange.acceptor_nonce,
        proof=parts.runtime.with_secret(
            "broker proof", lambda: broker_proof(secret, Side.ACCEPTOR, exchange)
        ),
    )


def _finish(parts: Parts, request: Request, body: prove_broker.ProveBrokerRequest) -> Response:
    connection, context = request.connection, request.context
    pending, connection.pending_proof = connection.pending_proof, None
    if pending is None:
        raise CloseConnection("a proof without a preceding nonce exchange")
    exchange, secret = pending
    if not parts.runtime.with_secret(
        "is proof", lambda: is_proof(secret, Side.INITIATOR, exchange, body.proof)
    ):
        logger.warning(
            "%s:%d claims to be broker %d, but its proof is wrong: it is not a broker of this cluster",
            context.client_address,
            context.client_port,
            exchange.initiator_id,
        )
        raise CloseConnection(f"the proof to be broker {exchange.initiator_id} is wrong")
    _become_broker(parts, request, exchange.initiator_id)
    return request.respond()


def _become_broker(parts: Parts, request: Request, broker_id: int) -> None:
    context = request.context
    request.connection.context = dataclasses.replace(
        context, broker_id=broker_id, principal=Principal(BROKER, str(broker_id))
    )
    parts.admission.on_broker_proved(context.listener, context.client_address)


# BrokerHeartbeat, only for controlled shutdown: a broker announces that it stops.
#
# The controller moves the broker's leaderships at once and removes it from every ISR that it can leave. The
# broker may stop once it has applied these changes from the metadata log. Liveness is not reported this way:
# the brokers' sessions with the coordination service show it.


def handle_broker_heartbeat(parts: Parts, request: Request) -> asyncio.Future[Response]:
    body = request.body

    def decide(image: ClusterImage) -> Decision[ShutdownProgress] | Steps[ShutdownProgress]:
        if not body.want_shut_down:
            why = (
                "BrokerHeartbeat is only for a controlled shutdown: liveness is by session, not by heartbeat"
            )
            return Decision((), ShutdownProgress(outcome=Outcome(ErrorCode.invalid_request, why)))
        return decide_controlled_shutdown.steps(
            image, BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch)
        )

    cause = decision_log.shutdown(body.broker_id)
    return parts.controller_requests.decide(
        request,
        decide,
        _respond_broker_heartbeat,
        _refuse_broker_heartbeat,
        acting_broker=body.broker_id,
        cause=cause,
    )


def _respond_broker_heartbeat(request: Request, progress: ShutdownProgress) -> Response:
    return request.respond(
        error_code=progress.outcome.error,
        is_caught_up=True,
        is_fenced=False,
        should_shut_down=progress.outcome.ok,
    )


def _refuse_broker_heartbeat(request: Request, error: ErrorCode, message: str) -> Response:
    return _respond_broker_heartbeat(request, ShutdownProgress(outcome=Outcome(error, message)))


# AllocateProducerIds: a broker requests a block of producer ids from the controller.


def handle_allocate_producer_ids(parts: Parts, request: Request) -> asyncio.Future[Response]:
    body = request.body

    def decide(image: ClusterImage) -> Decision[ProducerIdBlock]:
        return decide_allocate_producer_ids(image, BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch))

    cause = decision_log.producer_ids(body.broker_id)
    return parts.controller_requests.decide(
        request,
        decide,
        _respond_allocate_producer_ids,
        _refuse_allocate_producer_ids,
        acting_broker=body.broker_id,
        cause=cause,
    )


def _respond_allocate_producer_ids(request: Request, block: ProducerIdBlock) -> Response:
    return request.respond(
        error_code=block.outcome.error, producer_id_start=block.first, producer_id_len=block.count
    )


def _refuse_allocate_producer_ids(request: Request, error: ErrorCode, message: str) -> Response:
    return _respond_allocate_producer_ids(request, ProducerIdBlock(Outcome(error, message)))


# AlterPartition: a leader requests a new ISR from the controller (KIP-497, KIP-841, KIP-903).
#
# Only brokers send it.

_NO_TOPIC_ID = UUID(int=0)
Altered = tuple[AlteredPartition, ...]


def handle_alter_partition(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body = request.body
    try:
        asked = [_asked(topic, part) for topic in body.topics for part in topic.partitions]
    except ValueError as error:  # an unknown recovery state
        return _refuse_alter_partition(request, ErrorCode.invalid_request, str(error))

    def decide(image: ClusterImage) -> Decision[Altered]:
        return decide_alter_partitions(image, BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch), asked)

    cause = decision_log.isr_request(body.broker_id)
    return parts.controller_requests.decide(
        request,
        decide,
        _respond_alter_partition,
        _refuse_alter_partition,
        acting_broker=body.broker_id,
        cause=cause,
    )


def _asked(topic: Message, part: Message) -> IsrChange:
    return IsrChange(
        partition=TopicIdPartition(topic_id_of(topic.topic_id or _NO_TOPIC_ID), part.partition_index),
        leader_epoch=LeaderEpoch(part.leader_epoch),
        partition_epoch=PartitionEpoch(part.partition_epoch),
        new_isr=tuple(
            IsrMember(BrokerId(member.broker_id), BrokerEpoch(member.broker_epoch))
            for member in part.new_isr_with_epochs
        ),
        recovery_state=RecoveryState(part.leader_recovery_state),
    )


def _respond_alter_partition(request: Request, altered: Altered) -> Response:
    topics: dict[str, list[Message]] = {}
    for one in altered:
        topics.setdefault(one.partition.topic_id, []).append(_partition(request, one))
    answers = tuple(
        request.make("TopicData", topic_id=uuid_from_text(topic_id), partitions=tuple(partitions))
        for topic_id, partitions in topics.items()
    )
    return request.respond(topics=answers)


def _partition(request: Request, one: AlteredPartition) -> Message:
    state = one.state
    return request.make(
        "PartitionData",
        partition_index=one.partition.partition,
        error_code=one.outcome.error,
        leader_id=-1 if state is None else state.leader,
        leader_epoch=-1 if state is None else state.leader_epoch,
        isr=() if state is None else state.isr,
        leader_recovery_state=0 if state is None else int(state.recovery_state),
        partition_epoch=-1 if state is None else state.partition_epoch,
    )


def _refuse_alter_partition(request: Request, error: ErrorCode, message: str) -> Response:
    return request.respond(error_code=error, topics=())


# ForfeitReplicas (Nilometer's own): a broker leaves the ISR and the ELR of partitions whose records are
# damaged on its disk, or (``offline``) whose log it cannot use any more.
#
# Only brokers send it.

Forfeited = tuple[ForfeitedReplica, ...]


def handle_forfeit_replicas(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body: forfeit_replicas.ForfeitReplicasRequest = request.body
    asked = [TopicIdPartition(TopicId(one.topic_id), one.partition) for one in body.replicas]

    def decide(image: ClusterImage) -> Decision[Forfeited]:
        return decide_forfeit_replicas(
            image,
            BrokerId(body.broker_id),
            BrokerEpoch(body.broker_epoch),
            asked,
            offline=body.offline,
        )

    cause = decision_log.forfeited_replicas(body.broker_id, offline=body.offline)
    return parts.controller_requests.decide(
        request,
        decide,
        _respond_forfeit_replicas,
        _refuse_forfeit_replicas,
        acting_broker=body.broker_id,
        cause=cause,
    )


def _respond_forfeit_replicas(request: Request, forfeited: Forfeited) -> Response:
    outcomes = tuple(
        forfeit_replicas.ForfeitOutcome(
            topic_id=one.partition.topic_id,
            partition=one.partition.partition,
            error_code=int(one.outcome.error),
            message=one.outcome.message or "",
        )
        for one in forfeited
    )
    return request.respond(error_code=int(ErrorCode.none), outcomes=outcomes)


def _refuse_forfeit_replicas(request: Request, error: ErrorCode, message: str) -> Response:
    return request.respond(error_code=int(error), message=message)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=prove_broker.PROVE_BROKER,
            versions=(0, 0),
            handle=partial(handle_prove_broker, parts),
            between_brokers=True,
            # A connection has one attempt; its quota would be that of all anonymous clients.
            exempt_from_quotas=True,
            rights=NO_RIGHTS,
        ),
        ApiSpec(
            key=ApiKey.BROKER_HEARTBEAT,
            versions=(0, 1),
            handle=partial(handle_broker_heartbeat, parts),
            between_brokers=True,
            rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.ALLOCATE_PRODUCER_IDS,
            versions=(0, 0),
            handle=partial(handle_allocate_producer_ids, parts),
            between_brokers=True,
            rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.ALTER_PARTITION,
            versions=(3, 3),
            handle=partial(handle_alter_partition, parts),
            between_brokers=True,
            rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=forfeit_replicas.FORFEIT_REPLICAS,
            versions=(0, 0),
            handle=partial(handle_forfeit_replicas, parts),
            between_brokers=True,
            rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
        ),
    )
