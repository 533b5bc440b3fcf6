"""DescribeTransactions: the state, producer and partitions of transactional ids that this broker
coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.transactions.requests import DescribeTransaction, DescribeTransactionReply, TransactionReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The Unix epoch. Start times count from it; an id without a transaction has -1 ms, since the field cannot
be null."""


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    ids: Sequence[str] = request.body.transactional_ids
    access = access_of(services, request)
    allowed = access.allowed(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids)
    denied = ErrorCode.transactional_id_authorization_failed
    refused = [DescribeTransactionReply(denied, each) for each in ids if each not in allowed]
    asked = [(each, DescribeTransaction(each)) for each in ids if each in allowed]
    return services.transactions.ask(asked, lambda replies: _respond(services, request, [*refused, *replies]))


def _respond(services: Services, request: Request, replies: Sequence[TransactionReply]) -> Reply:
    described = [
        _visible(services, request, reply) for reply in replies if isinstance(reply, DescribeTransactionReply)
    ]
    return request.respond(
        throttle_time_ms=0, transaction_states=tuple(_state(request, each) for each in described)
    )


def _visible(
    services: Services, request: Request, described: DescribeTransactionReply
) -> DescribeTransactionReply:
    """Return the transaction with those of its partitions that the client may describe."""
    access = access_of(services, request)
    if access.is_full:
        return described
    topics = [each.topic for each in described.partitions]
    allowed = access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, topics)
    partitions = tuple(each for each in described.partitions if each.topic in allowed)
    return replace(described, partitions=partitions)


def _state(request: Request, described: DescribeTransactionReply) -> Message:
    topics: dict[str, list[int]] = {}
    for partition in described.partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return request.make(
        "TransactionState",
        error_code=described.error_code,
        transactional_id=described.transactional_id,
        transaction_state=described.transaction_state,
        transaction_timeout_ms=described.transaction_timeout_ms,
        transaction_start_time=EPOCH + timedelta(milliseconds=described.transaction_start_time_ms),
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        topics=tuple(
            request.make("TopicData", topic=name, partitions=tuple(indexes))
            for name, indexes in topics.items()
        ),
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    handle=handle,
    divisions=(Division(("transactional_ids",), ("transaction_states",), repeated=Repeated.AT_MOST_TWICE),),
    rights=(
        Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)
