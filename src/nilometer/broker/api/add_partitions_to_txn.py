"""AddPartitionsToTxn: add partitions to a transaction before it writes to them, or verify that it has them.

Versions: 2 knows PRODUCER_FENCED. From 4 on brokers send it, for many transactions at once: to verify that
a partition is part of the transaction (``verify_only``), or to add it when a producer that knows
``transaction.version`` 2 sends its first batch (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.transaction_errors import error_for
from nilometer.broker.authorization.access import Access
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.storage import TopicPartition
from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsReply,
    TransactionReply,
    TransactionRequest,
    VerifyPartitions,
    VerifyPartitionsReply,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import Message

FIRST_OF_BROKERS = 4
_WRITE = Operation.WRITE
FIRST_WITH_PRODUCER_FENCED = 2

Errors = Mapping[TopicPartition, ErrorCode]


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if request.version >= FIRST_OF_BROKERS:
        return _handle_many(services, request)
    body = request.body
    partitions = _partitions(body.v3_and_below_topics)
    access = access_of(services, request)
    if not access.allows(_WRITE, ResourceType.TRANSACTIONAL_ID, body.v3_and_below_transactional_id):
        denied = ErrorCode.transactional_id_authorization_failed
        return _respond_one(request, dict.fromkeys(partitions, denied))
    wrong = {**_unknown(services, partitions), **_denied(access, partitions)}
    if wrong:
        return _respond_one(request, _not_attempted(partitions, wrong))
    asked = AddPartitions(
        transactional_id=body.v3_and_below_transactional_id,
        producer_id=body.v3_and_below_producer_id,
        producer_epoch=body.v3_and_below_producer_epoch,
        partitions=frozenset(partitions),
    )
    return services.transactions.ask(
        [(asked.transactional_id, asked)],
        lambda replies: _respond_one(request, _errors(request, partitions, replies[0])),
    )


def _handle_many(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if not access_of(services, request).on_cluster(Operation.CLUSTER_ACTION):
        return _respond_many(request, (), (), ErrorCode.cluster_authorization_failed)
    transactions: Sequence[Message] = request.body.transactions
    partitions = [_partitions(transaction.topics) for transaction in transactions]
    refused = [
        _not_attempted(each, unknown) if (unknown := _unknown(services, each)) else None
        for each in partitions
    ]
    asked = [
        (transaction.transactional_id, _asked(transaction, each))
        for transaction, each, error in zip(transactions, partitions, refused, strict=True)
        if error is None
    ]

    def respond(replies: Sequence[TransactionReply]) -> Reply:
        answered = iter(replies)
        errors = [
            error if error is not None else _errors(request, each, next(answered))
            for each, error in zip(partitions, refused, strict=True)
        ]
        return _respond_many(request, transactions, errors)

    return services.transactions.ask(asked, respond)


def _asked(transaction: Message, partitions: Sequence[TopicPartition]) -> TransactionRequest:
    if transaction.verify_only:
        return VerifyPartitions(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            partitions=tuple(partitions),
        )
    return AddPartitions(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        partitions=frozenset(partitions),
        version=EPOCH_BUMP_VERSION,
    )


def _partitions(topics: Sequence[Message]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _unknown(services: Services, partitions: Sequence[TopicPartition]) -> Errors:
    image = services.image
    missing = [each for each in partitions if image.partition(each.topic, each.partition) is None]
    return dict.fromkeys(missing, ErrorCode.unknown_topic_or_partition)


def _denied(access: Access, partitions: Sequence[TopicPartition]) -> Errors:
    """Return the errors of the topics that the client may not write to. Internal ones are never allowed."""
    if access.is_full:
        return {}
    topics = (each.topic for each in partitions if each.topic not in INTERNAL_TOPICS)
    allowed = access.allowed(_WRITE, ResourceType.TOPIC, topics)
    denied = [each for each in partitions if each.topic not in allowed]
    return dict.fromkeys(denied, ErrorCode.topic_authorization_failed)


def _not_attempted(partitions: Sequence[TopicPartition], wrong: Errors) -> Errors:
    """Return the errors of a request of which some partitions are ``wrong``: none of them is added."""
    return {each: wrong.get(each, ErrorCode.operation_not_attempted) for each in partitions}


def _errors(request: Request, partitions: Sequence[TopicPartition], reply: TransactionReply) -> Errors:
    if isinstance(reply, VerifyPartitionsReply):
        return dict(reply.errors)
    assert isinstance(reply, AddPartitionsReply)
    error = error_for(reply.error_code, request.version, FIRST_WITH_PRODUCER_FENCED)
    return dict.fromkeys(partitions, error)


def _respond_one(request: Request, errors: Errors) -> Reply:
    return request.respond(throttle_time_ms=0, results_by_topic_v3_and_below=_topics(request, errors))


def _respond_many(
    request: Request,
    transactions: Sequence[Message],
    errors: Sequence[Errors],
    error: ErrorCode = ErrorCode.none,
) -> Reply:
    return request.respond(
        throttle_time_ms=0,
        error_code=error,
        results_by_transaction=tuple(
            request.make(
                "AddPartitionsToTxnResult",
                transactional_id=transaction.transactional_id,
                topic_results=_topics(request, each),
            )
            for transaction, each in zip(transactions, errors, strict=True)
        ),
    )


def _topics(request: Request, errors: Errors) -> tuple[Message, ...]:
    topics: dict[str, list[Message]] = {}
    for partition, error in errors.items():
        topics.setdefault(partition.topic, []).append(
            request.make(
                "AddPartitionsToTxnPartitionResult",
                partition_index=partition.partition,
                partition_error_code=error,
            )
        )
    return tuple(
        request.make("AddPartitionsToTxnTopicResult", name=name, results_by_partition=tuple(results))
        for name, results in topics.items()
    )


API = ApiSpec(
    key=ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    handle=handle,
    divisions=(Division(("transactions",), ("results_by_transaction",)),),
    rights=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.WRITE, ResourceType.TOPIC),
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
)
