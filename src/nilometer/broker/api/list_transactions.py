"""ListTransactions: the transactional ids that this broker coordinates.

Versions: 1 filters by how long a transaction is open (KIP-994); 2 by a pattern of the id (KIP-1152).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.transactions.requests import (
    ListedTransaction,
    ListTransactions,
    ListTransactionsReply,
    TransactionReply,
)
from nilometer.transactions.views import list_transactions
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    asked = ListTransactions(
        state_filters=tuple(body.state_filters),
        producer_id_filters=tuple(body.producer_id_filters),
        duration_filter_ms=request.field("duration_filter", -1),
        transactional_id_pattern=request.field("transactional_id_pattern") or "",
    )
    of_none = list_transactions((), asked, wall_ms=0)
    """What is wrong with the request is said also where no coordinator partition is led."""
    return services.transactions.ask_all_shells(
        asked, lambda replies: _respond(services, request, (of_none, *replies))
    )


def _respond(services: Services, request: Request, replies: Sequence[TransactionReply]) -> Reply:
    """Make one response from the replies of all coordinator partitions led here.

    The error of one of them is the error of the whole response: clients would take a partial list for the
    complete one.
    """
    listed = [reply for reply in replies if isinstance(reply, ListTransactionsReply)]
    error = next((each.error_code for each in listed if each.error_code), ErrorCode.none)
    access = access_of(services, request)
    unknown = dict.fromkeys(name for reply in listed for name in reply.unknown_state_filters)
    shown = [
        each
        for reply in listed
        if error is ErrorCode.none
        for each in reply.transactions
        if access.allows(
            Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id, report=False
        )
    ]
    return request.respond(
        throttle_time_ms=0,
        error_code=error,
        unknown_state_filters=tuple(unknown),
        transaction_states=LazySequence(partial(_transaction, request), shown),
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
