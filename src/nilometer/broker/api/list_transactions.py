"""ListTransactions: the transactional ids that this broker coordinates.

Versions: 1 filters by how long a transaction is open (KIP-994); 2 by a pattern of the id (KIP-1152).
"""

from __future__ import annotations

import asyncio
from functools import partial

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.coordinators.client_patterns import (
    HEAVIEST,
    PATTERN_ERRORS,
    compile_pattern,
    weight,
)
from nilometer.transactions.requests import ListedTransaction, ListTransactions, ListTransactionsReply
from nilometer.transactions.shard import list_transactions
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    return spawn(services, _list(services, request), "ListTransactions")


async def _list(services: Services, request: Request) -> Reply:
    """Make one response from the replies of all coordinator partitions led here.

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
    replies = [list_transactions((), asked, wall_ms=0)]
    access = access_of(services, request)
    work = LongWork(services.turns)
    shown: list[ListedTransaction] = []
    for answer in services.transactions.answer_all(asked):
        reply = await answer
        assert isinstance(reply, ListTransactionsReply)
        replies.append(reply)
        await work.step(len(reply.transactions))
        for each in reply.transactions:
            await work.step(1)
            if access.allows(
                Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id, report=False
            ):
                shown.append(each)
    if error := next((each.error_code for each in replies if each.error_code), ErrorCode.none):
        return _refuse(request, error)
    if request.field("transactional_id_pattern"):
        ids = [each.transactional_id for each in shown]
        if weight(pattern, ids) > HEAVIEST:
            return _refuse(request, ErrorCode.invalid_regular_expression)
        matched = set(await services.transactions.matching(pattern, ids))
        shown = [each for each in shown if each.transactional_id in matched]
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(
            dict.fromkeys(name for reply in replies for name in reply.unknown_state_filters)
        ),
        transaction_states=LazySequence(partial(_transaction, request), shown),
    )


def _refuse(request: Request, error: ErrorCode) -> Reply:
    return request.respond(
        throttle_time_ms=0, error_code=error, unknown_state_filters=(), transaction_states=()
    )


def _transaction(request: Request, listed: ListedTransaction) -> Message:
    return request.make(
        "TransactionState",
        transactional_id=listed.transactional_id,
        producer_id=listed.producer_id,
        transaction_state=listed.transaction_state,
    )


API = ApiSpec(
    key=ApiKey.LIST_TRANSACTIONS,
    versions=(0, 2),
    handle=handle,
    rights=(Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),),
)
