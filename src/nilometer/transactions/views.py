"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.transactions.requests import (
    DescribeTransaction,
    DescribeTransactionReply,
    ListedTransaction,
    ListTransactions,
    ListTransactionsReply,
)
from nilometer.transactions.state import BY_NAME
from nilometer.transactions.transaction import Transaction
from nilometer.wire.errors import ErrorCode


def describe_transaction(
    transaction: Transaction | None, request: DescribeTransaction
) -> DescribeTransactionReply:
    transactional_id = request.transactional_id
    if not transactional_id:
        return DescribeTransactionReply(ErrorCode.invalid_request, transactional_id)
    if transaction is None:
        return DescribeTransactionReply(ErrorCode.transactional_id_not_found, transactional_id)
    return DescribeTransactionReply(
        ErrorCode.none,
        transactional_id,
        transaction.state.kafka_name,
        transaction.timeout_ms,
        transaction.started_ms,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.ordered_partitions,
    )


def list_transactions(
    transactions: Iterable[tuple[str, Transaction]], request: ListTransactions, wall_ms: int
) -> ListTransactionsReply:
    """Return the transactions that ``request`` asks for."""
    producer_ids = frozenset(request.producer_id_filters)
    states = {BY_NAME[name] for name in request.state_filters if name in BY_NAME}

    def is_wanted(transactional_id: str, transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not request.state_filters or transaction.state in states)
            and (
                request.duration_filter_ms < 0
                or wall_ms - transaction.started_ms > request.duration_filter_ms
            )
        )

    return ListTransactionsReply(
        ErrorCode.none,
        tuple(name for name in request.state_filters if name not in BY_NAME),
        tuple(
            ListedTransaction(transactional_id, transaction.producer_id, transaction.state.kafka_name)
            for transactional_id, transaction in transactions
            if is_wanted(transactional_id, transaction)
        ),
    )
