"""Transactions and producers as an administrator sees them: ListTransactions, DescribeTransactions and
DescribeProducers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from msgspec.structs import asdict, replace

from nilometer.broker.api.access import Rights
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.transactions.transaction_coordinator import TransactionCoordinator
from nilometer.broker.turns import LongWork
from nilometer.client_patterns import HEAVIEST, PATTERN_ERRORS, compile_pattern, weight
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.storage.producers import ProducerStateEntry
from nilometer.transactions.requests import (
    DescribeTransaction,
    DescribeTransactionResult,
    ListedTransaction,
    ListTransactions,
    ListTransactionsResult,
    TransactionResult,
)
from nilometer.transactions.shard import list_transactions
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    listings: Listings
    replicas: ReplicaManager
    transactions: TransactionCoordinator
    rights: Rights


# ListTransactions: the transactional ids that this broker coordinates.
#
# Versions: 1 filters by how long a transaction is open (KIP-994); 2 by a pattern of the id (KIP-1152).


def handle_list(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.listings.answer(request, partial(_list, parts))


async def _list(parts: Parts, request: Request, work: LongWork) -> Response:
    """Make one response from the results of all coordinator partitions led here.

    The error of one of them is the error of the whole response: clients would take a partial list for the
    complete one.
    """
    body = request.body
    asked = ListTransactions(
        state_filters=tuple(body.state_filters),
        producer_id_filters=tuple(body.producer_id_filters),
        duration_filter_ms=request.field("duration_filter", -1),
    )
    try:
        pattern = compile_pattern(request.field("transactional_id_pattern") or "")
    except PATTERN_ERRORS:
        return _refuse(request, ErrorCode.invalid_regular_expression)
    # What is wrong with the request is said also where no coordinator partition is led.
    results = [list_transactions({}, asked, wall_ms=0)]
    access = parts.rights.access(request)
    shown: list[ListedTransaction] = []
    for answer in parts.transactions.answer_all(asked):
        result = await work.wait(answer)
        assert isinstance(result, ListTransactionsResult)
        results.append(result)
        for each in () if result.transactions is None else await work.go_through(result.transactions):
            await work.step(1)
            if access.allows(
                Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id, report=False
            ):
                shown.append(each)
    if error := next((each.error_code for each in results if each.error_code), ErrorCode.none):
        return _refuse(request, error)
    if request.field("transactional_id_pattern"):
        ids = [each.transactional_id for each in shown]
        if weight(pattern, ids) > HEAVIEST:
            return _refuse(request, ErrorCode.invalid_regular_expression)
        matched = set(await parts.transactions.matching(pattern, ids))
        shown = [each for each in shown if each.transactional_id in matched]
    return request.respond(
        unknown_state_filters=tuple(
            dict.fromkeys(name for result in results for name in result.unknown_state_filters)
        ),
        transaction_states=LazySequence(partial(_transaction, request), shown),
    )


def _refuse(request: Request, error: ErrorCode) -> Response:
    return request.respond(error_code=error, unknown_state_filters=(), transaction_states=())


def _transaction(request: Request, listed: ListedTransaction) -> Message:
    return request.make("TransactionState", **asdict(listed))


# DescribeTransactions: the state, producer and partitions of transactional ids that this broker
# coordinates.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The Unix epoch. Start times count from it; an id without a transaction has -1 ms, since the field cannot
be null."""


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    ids: Sequence[str] = request.body.transactional_ids
    access = parts.rights.access(request)
    allowed = access.allowed(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ids)
    denied = ErrorCode.transactional_id_authorization_failed
    refused = [DescribeTransactionResult(denied, each) for each in ids if each not in allowed]
    asked = [(each, DescribeTransaction(each)) for each in ids if each in allowed]
    return parts.transactions.ask(asked, lambda results: _respond(parts, request, [*refused, *results]))


def _respond(parts: Parts, request: Request, results: Sequence[TransactionResult]) -> Response:
    described = [
        _visible(parts, request, result)
        for result in results
        if isinstance(result, DescribeTransactionResult)
    ]
    return request.respond(transaction_states=tuple(_state(request, each) for each in described))


def _visible(
    parts: Parts, request: Request, described: DescribeTransactionResult
) -> DescribeTransactionResult:
    """Return the transaction with those of its partitions that the client may describe."""
    access = parts.rights.access(request)
    if access.is_full:
        return described
    topics = [each.topic for each in described.partitions]
    allowed = access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, topics)
    partitions = tuple(each for each in described.partitions if each.topic in allowed)
    return replace(described, partitions=partitions)


def _state(request: Request, described: DescribeTransactionResult) -> Message:
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


# DescribeProducers: the producers in the state of a partition's leader, and the first offsets of their open
# transactions.


def handle_describe_producers(parts: Parts, request: Request) -> Response:
    topics = tuple(
        request.make(
            "TopicResponse",
            name=topic.name,
            partitions=tuple(
                _describe(parts, request, topic.name, index) for index in topic.partition_indexes
            ),
        )
        for topic in request.body.topics
    )
    return request.respond(topics=topics)


def _describe(parts: Parts, request: Request, topic: str, index: int) -> Message:
    try:
        if not parts.rights.access(request).allows(Operation.READ, ResourceType.TOPIC, topic):
            raise KafkaError(ErrorCode.topic_authorization_failed)
        partition = parts.replicas.partition(topic, index)
        _ = partition.leader  # raises where another broker leads
        known = partition.log.producers.producers
    except KafkaError as refused:
        return request.make(
            "PartitionResponse",
            partition_index=index,
            error_code=refused.code,
            error_message=None,
            active_producers=(),
        )
    producers = LazySequence(partial(_producer, request), list(known.values()))
    return request.make(
        "PartitionResponse", partition_index=index, error_message=None, active_producers=producers
    )


def _producer(request: Request, entry: ProducerStateEntry) -> Message:
    return request.make(
        "ProducerState",
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.LIST_TRANSACTIONS,
            versions=(0, 2),
            handle=partial(handle_list, parts),
            rights=(Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),),
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_TRANSACTIONS,
            versions=(0, 0),
            handle=partial(handle_describe, parts),
            divisions=(
                Division(
                    ("transactional_ids",),
                    ("transaction_states",),
                    repeated=Repeated.AT_MOST_TWICE,
                    elements_max=1,  # a transaction may have thousands of partitions
                ),
            ),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_PRODUCERS,
            versions=(0, 0),
            handle=partial(handle_describe_producers, parts),
            divisions=(
                Division(
                    ("topics", "partition_indexes"),
                    ("topics", "partitions"),
                    repeated=Repeated.AT_MOST_TWICE,
                    elements_max=4,  # a partition may have thousands of producers
                ),
            ),
            rights=(Right(Operation.READ, ResourceType.TOPIC),),
        ),
    )
