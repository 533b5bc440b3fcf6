"""The requests of transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message, spawn
from nilometer.broker.authorization.authorizer import Access
from nilometer.broker.replies import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC, INTERNAL_TOPICS
from nilometer.coordination.store import CoordinationError
from nilometer.storage.names import TopicPartition
from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsReply,
    EndTransaction,
    EndTransactionReply,
    InitProducerId,
    InitProducerIdReply,
    TransactionReply,
    TransactionRequest,
    VerifyPartitions,
    VerifyPartitionsReply,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division

# Errors of transactions, as older versions of their APIs know them.


def error_for(error: ErrorCode, version: int, first_with_producer_fenced: int) -> ErrorCode:
    """Return ``error``, or INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in versions that do not know it: there
    it is as fatal."""
    if error is ErrorCode.producer_fenced and version < first_with_producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return error


# InitProducerId: returns a producer id and epoch for an idempotent or a transactional producer.
#
# A request without a transactional id gets a new producer id, even if it names its current id and epoch
# (version 3): without a transactional id the previous user of a producer id cannot be fenced. A request with
# one is decided by its transaction coordinator. Version 4 knows PRODUCER_FENCED.

INIT_PRODUCER_ID_FIRST_WITH_PRODUCER_FENCED = 4


def handle_init_producer_id(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return spawn(services, _answer_init_producer_id(services, request))


async def _answer_init_producer_id(services: Services, request: Request) -> Reply:
    transactional_id: str | None = request.body.transactional_id
    timeout_ms = milliseconds(request.body.transaction_timeout)
    if (denied := _denial(services, request)) is not ErrorCode.none:
        return _respond_init_producer_id(request, InitProducerIdReply(denied))
    asked = of_message(InitProducerId, request.body, transaction_timeout_ms=timeout_ms)
    if transactional_id == "" or (asked.producer_id < 0) != (asked.producer_epoch < 0):
        return _respond_init_producer_id(request, InitProducerIdReply(ErrorCode.invalid_request))
    if transactional_id is None:
        return _respond_init_producer_id(request, await _new_identity(services))
    reply = await services.transactions.answer_for_id(asked)
    assert isinstance(reply, InitProducerIdReply)
    return _respond_init_producer_id(request, reply)


def _denial(services: Services, request: Request) -> ErrorCode:
    """Return the error if the client may not get a producer id; ``none`` if it may.

    Idempotent producers need IDEMPOTENT_WRITE on the cluster, or WRITE on some topic (KIP-679).
    """
    access, transactional_id = access_of(services, request), request.body.transactional_id
    if transactional_id is not None:
        if access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.none
        return ErrorCode.transactional_id_authorization_failed
    if access.on_cluster(Operation.IDEMPOTENT_WRITE, report=False):
        return ErrorCode.none
    if access.allows_some(Operation.WRITE, ResourceType.TOPIC):
        return ErrorCode.none
    return ErrorCode.cluster_authorization_failed


async def _new_identity(services: Services) -> InitProducerIdReply:
    try:
        return InitProducerIdReply(ErrorCode.none, await services.producer_ids.next(), 0)
    except (KafkaError, CoordinationError):
        return InitProducerIdReply(ErrorCode.coordinator_load_in_progress)


def _respond_init_producer_id(request: Request, reply: InitProducerIdReply) -> Reply:
    error = error_for(reply.error_code, request.version, INIT_PRODUCER_ID_FIRST_WITH_PRODUCER_FENCED)
    return request.respond(**(asdict(reply) | {"error_code": error}))


INIT_PRODUCER_ID = ApiSpec(
    key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    handle=handle_init_producer_id,
    rights=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
        Right(Operation.WRITE, ResourceType.TOPIC),
    ),
)


# AddPartitionsToTxn: add partitions to a transaction before it writes to them, or verify that it has them.
#
# Versions: 2 knows PRODUCER_FENCED. From 4 on brokers send it, for many transactions at once: to verify that
# a partition is part of the transaction (``verify_only``), or to add it when a producer that knows
# ``transaction.version`` 2 sends its first batch (KIP-890).

FIRST_OF_BROKERS = 4
_WRITE = Operation.WRITE
ADD_PARTITIONS_FIRST_WITH_PRODUCER_FENCED = 2

Errors = Mapping[TopicPartition, ErrorCode]


def handle_add_partitions(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
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
        return of_message(VerifyPartitions, transaction, partitions=tuple(partitions))
    added = frozenset(partitions)
    return of_message(AddPartitions, transaction, partitions=added, version=EPOCH_BUMP_VERSION)


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
    error = error_for(reply.error_code, request.version, ADD_PARTITIONS_FIRST_WITH_PRODUCER_FENCED)
    return dict.fromkeys(partitions, error)


def _respond_one(request: Request, errors: Errors) -> Reply:
    return request.respond(results_by_topic_v3_and_below=_topics(request, errors))


def _respond_many(
    request: Request,
    transactions: Sequence[Message],
    errors: Sequence[Errors],
    error: ErrorCode = ErrorCode.none,
) -> Reply:
    return request.respond(
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


ADD_PARTITIONS = ApiSpec(
    key=ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    handle=handle_add_partitions,
    divisions=(Division(("transactions",), ("results_by_transaction",)),),
    rights=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.WRITE, ResourceType.TOPIC),
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
)


# AddOffsetsToTxn: a transaction is about to commit offsets of a group.
#
# It adds the group's partition of ``__consumer_offsets`` to the transaction, so that the transaction's marker
# is written there too. Producers of ``transaction.version`` 2 do not send it: their TxnOffsetCommit adds the
# partition. Versions: 2 knows PRODUCER_FENCED.

ADD_OFFSETS_FIRST_WITH_PRODUCER_FENCED = 2


def handle_add_offsets(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    access = access_of(services, request)
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id):
        return _respond_add_offsets(request, ErrorCode.transactional_id_authorization_failed)
    if not access.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return _respond_add_offsets(request, ErrorCode.group_authorization_failed)
    kept_in = TopicPartition(GROUP_METADATA_TOPIC, services.groups.partition_for(body.group_id))
    asked = of_message(AddPartitions, body, partitions=frozenset({kept_in}))

    def respond(reply: AddPartitionsReply) -> Reply:
        return _respond_add_offsets(
            request, error_for(reply.error_code, request.version, ADD_OFFSETS_FIRST_WITH_PRODUCER_FENCED)
        )

    return services.transactions.ask_one(asked.transactional_id, asked, AddPartitionsReply, respond)


def _respond_add_offsets(request: Request, error: ErrorCode) -> Reply:
    return request.respond(error_code=error)


ADD_OFFSETS = ApiSpec(
    key=ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    handle=handle_add_offsets,
    rights=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.READ, ResourceType.GROUP),
    ),
)


# EndTxn: commit or abort the open transaction of a producer.
#
# Versions: 2 knows PRODUCER_FENCED; 5 bumps the producer epoch with every end, and returns the producer id
# and epoch for the next transaction (KIP-890).

FIRST_WITH_EPOCH_BUMP = 5
END_TXN_FIRST_WITH_PRODUCER_FENCED = 2


def handle_end_txn(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return spawn(services, _answer_end_txn(services, request))


async def _answer_end_txn(services: Services, request: Request) -> Reply:
    body = request.body
    write, kind = Operation.WRITE, ResourceType.TRANSACTIONAL_ID
    if not access_of(services, request).allows(write, kind, body.transactional_id):
        return _respond_end_txn(request, EndTransactionReply(ErrorCode.transactional_id_authorization_failed))
    version = EPOCH_BUMP_VERSION if request.version >= FIRST_WITH_EPOCH_BUMP else 0
    reply = await services.transactions.answer_for_id(of_message(EndTransaction, body, version=version))
    assert isinstance(reply, EndTransactionReply)
    return _respond_end_txn(request, reply)


def _respond_end_txn(request: Request, reply: EndTransactionReply) -> Reply:
    error = error_for(reply.error_code, request.version, END_TXN_FIRST_WITH_PRODUCER_FENCED)
    return request.respond(**(asdict(reply) | {"error_code": error}))


END_TXN = ApiSpec(
    key=ApiKey.END_TXN,
    versions=(0, 5),
    handle=handle_end_txn,
    rights=(Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),),
)
