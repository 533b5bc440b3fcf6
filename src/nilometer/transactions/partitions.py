"""AddPartitionsToTxn: adds the partitions that a transaction writes to, before their first record is
acknowledged (E-41), and verifies for brokers that they were added (E-38)."""

from __future__ import annotations

from nilometer.transactions.decision import Decision
from nilometer.transactions.error_replies import refusal
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsReply,
    VerifyPartitions,
    VerifyPartitionsReply,
)
from nilometer.transactions.state import TransactionState
from nilometer.transactions.transaction import Transaction
from nilometer.wire.errors import ErrorCode


def decide_add_partitions(transaction: Transaction | None, request: AddPartitions, wall_ms: int) -> Decision:
    if (error := _check_adding(transaction, request)) is not ErrorCode.none or transaction is None:
        return Decision(AddPartitionsReply(error))
    done = Decision(AddPartitionsReply(ErrorCode.none))
    if transaction.state is TransactionState.ONGOING and request.partitions <= transaction.partitions:
        return done
    return Decision(done.reply, transaction.with_partitions(request.partitions, request.version, wall_ms))


def _check_adding(transaction: Transaction | None, request: AddPartitions) -> ErrorCode:
    """Return the error of the request, or ``none``.

    A prepared transaction is checked first: the producer may already have the epoch or the producer id of the
    next transaction, which would seem wrong.
    """
    if not request.transactional_id:
        return ErrorCode.invalid_request
    if transaction is not None and transaction.state.is_prepared:
        return ErrorCode.concurrent_transactions
    return _check_producer(transaction, request.producer_id, request.producer_epoch)


def _check_producer(transaction: Transaction | None, producer_id: int, producer_epoch: int) -> ErrorCode:
    if transaction is None or transaction.producer_id != producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if transaction.producer_epoch != producer_epoch:
        return ErrorCode.producer_fenced
    return ErrorCode.none


def verify_partitions(transaction: Transaction | None, request: VerifyPartitions) -> VerifyPartitionsReply:
    if (error := _check_verifying(transaction, request)) is not ErrorCode.none or transaction is None:
        refused = refusal(request, error)
        assert isinstance(refused, VerifyPartitionsReply)
        return refused
    return VerifyPartitionsReply(
        tuple(
            (each, ErrorCode.none if each in transaction.partitions else ErrorCode.transaction_abortable)
            for each in request.partitions
        )
    )


def _check_verifying(transaction: Transaction | None, request: VerifyPartitions) -> ErrorCode:
    if not request.transactional_id:
        return ErrorCode.invalid_request
    error = _check_producer(transaction, request.producer_id, request.producer_epoch)
    if error is ErrorCode.none and transaction is not None and transaction.state.is_prepared:
        return ErrorCode.concurrent_transactions
    return error
