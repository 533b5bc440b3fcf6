"""TxnOffsetCommit: offsets of a group that count once the producer's transaction is committed.

Versions: 2 has leader epochs; 3 the member and its generation (KIP-447), which fence a member that lost
its partitions; 4 knows TRANSACTION_ABORTABLE; 5 adds the group's partition of ``__consumer_offsets`` to the
transaction (KIP-890). As with a produced batch, it is first verified with the transaction's coordinator that
this partition is part of the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.authorization.access import Access
from nilometer.broker.connection import Reply
from nilometer.broker.coordinators.error_replies import coordinator_error
from nilometer.broker.services import Services
from nilometer.broker.transactions.verification import Asker
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC
from nilometer.coordinators.turn import Producer
from nilometer.groups.requests import (
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitReply,
    OffsetCommitTopic,
    OffsetCommitTopicReply,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import Message

FIRST_WITH_LOADING = 2
FIRST_WITH_ABORTABLE = 4
FIRST_THAT_ADDS = 5

Errors = Mapping[tuple[str, int], ErrorCode]


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body, access = request.body, access_of(services, request)
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id):
        return _respond(request, _everything(request, ErrorCode.transactional_id_authorization_failed))
    if not access.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return _respond(request, _everything(request, ErrorCode.group_authorization_failed))
    readable, denied = _readable_topics(request, access)
    known = _known_topics(services, readable)
    if not known:
        return _respond(request, denied)
    return spawn(services, _answer(services, request, known, denied))


def _readable_topics(request: Request, access: Access) -> tuple[list[Message], Errors]:
    """Return the topics of the request that the client may read, and the errors of the others."""
    readable: list[Message] = []
    denied: dict[tuple[str, int], ErrorCode] = {}
    for topic in request.body.topics:
        if access.allows(Operation.READ, ResourceType.TOPIC, topic.name):
            readable.append(topic)
            continue
        for partition in topic.partitions:
            denied[topic.name, partition.partition_index] = ErrorCode.topic_authorization_failed
    return readable, denied


def _everything(request: Request, error: ErrorCode) -> Errors:
    return {
        (topic.name, partition.partition_index): error
        for topic in request.body.topics
        for partition in topic.partitions
    }


def _known_topics(services: Services, asked: Sequence[Message]) -> tuple[OffsetCommitTopic, ...]:
    """Return the offsets to commit of those topics and partitions that exist."""
    known: list[OffsetCommitTopic] = []
    for topic in asked:
        found = services.image.topic(topic.name)
        partitions = tuple(
            OffsetCommitPartition(
                partition.partition_index,
                partition.committed_offset,
                getattr(partition, "committed_leader_epoch", -1),
                partition.committed_metadata,
            )
            for partition in topic.partitions
            if found is not None and found.partition(partition.partition_index) is not None
        )
        if found is not None and partitions:
            known.append(OffsetCommitTopic(topic.name, partitions, found.uuid))
    return tuple(known)


async def _answer(
    services: Services, request: Request, known: tuple[OffsetCommitTopic, ...], denied: Errors
) -> Reply:
    body = request.body
    error = await _verify(services, request)
    if error is not ErrorCode.none:
        return _respond(request, {**_everywhere(known, error), **denied})
    commit = OffsetCommit(
        group_id=body.group_id,
        topics=known,
        generation_id_or_member_epoch=request.field("generation_id", -1),
        member_id=request.field("member_id", ""),
        group_instance_id=request.field("group_instance_id"),
        producer=Producer(body.producer_id, body.producer_epoch),
    )
    reply = await services.groups.answer(commit.group_id, commit)
    assert isinstance(reply, OffsetCommitReply)
    return _respond(request, {**_errors(reply.topics), **denied})


async def _verify(services: Services, request: Request) -> ErrorCode:
    """Return the error if the group's partition is not part of the transaction, or if the producer is
    fenced; else ``none``."""
    body = request.body
    asker = Asker(
        knows_abortable=request.version >= FIRST_WITH_ABORTABLE, adds=request.version >= FIRST_THAT_ADDS
    )
    try:
        index = services.groups.partition_for(body.group_id)
        partition = services.replicas.partition(GROUP_METADATA_TOPIC, index)
        _ = partition.leader  # raises where another broker leads
    except KafkaError:
        return ErrorCode.not_coordinator
    guard = services.verification.guard(partition, body.producer_id, body.producer_epoch, asker)
    if guard is not None:
        verified = await services.verification.verify(body.transactional_id, (guard,), asker)
        try:
            partition = services.replicas.partition(GROUP_METADATA_TOPIC, index)
        except KafkaError:
            return ErrorCode.not_coordinator
        error = verified.error(partition, body.producer_id, body.producer_epoch)
        if error is not ErrorCode.none:
            return coordinator_error(error)
    producer = partition.log.producers.producers.get(body.producer_id)
    is_fenced = producer is not None and body.producer_epoch < producer.producer_epoch
    return ErrorCode.invalid_producer_epoch if is_fenced else ErrorCode.none


def _everywhere(topics: Sequence[OffsetCommitTopic], error: ErrorCode) -> Errors:
    return {
        (topic.name, partition.partition_index): error for topic in topics for partition in topic.partitions
    }


def _errors(topics: Sequence[OffsetCommitTopicReply]) -> Errors:
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in topics
        for partition in topic.partitions
    }


def _respond(request: Request, errors: Errors) -> Reply:
    """Make the response, in the order of the request; a partition missing in ``errors`` does not exist."""

    def error_of(topic: str, index: int) -> ErrorCode:
        error = errors.get((topic, index), ErrorCode.unknown_topic_or_partition)
        if error is ErrorCode.coordinator_load_in_progress and request.version < FIRST_WITH_LOADING:
            return ErrorCode.coordinator_not_available  # older producers do not retry on loading (KAFKA-7296)
        return error

    return request.respond(
        throttle_time_ms=0,
        topics=tuple(
            request.make(
                "TxnOffsetCommitResponseTopic",
                name=topic.name,
                partitions=tuple(
                    request.make(
                        "TxnOffsetCommitResponsePartition",
                        partition_index=partition.partition_index,
                        error_code=error_of(topic.name, partition.partition_index),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.body.topics
        ),
    )


API = ApiSpec(
    key=ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    handle=handle,
    divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
    rights=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.READ, ResourceType.GROUP),
        Right(Operation.READ, ResourceType.TOPIC),
    ),
)
