"""EndTxn, and the ends that the coordinator decides itself: a producer is fenced, a transaction times out.

With ``transaction.version`` 2 (KIP-890) every end bumps the epoch. So a late EndTxn cannot end the next
transaction (E-39), and a repeated one is recognised by its old epoch and gets the reply of the first.
Below version 2 a repeated EndTxn has the current epoch: a commit of a committed transaction succeeds again.
"""

from __future__ import annotations

from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.transactions.decision import Decision
from nilometer.transactions.requests import (
    EndTransaction,
    EndTransactionReply,
    MarkersWritten,
    MarkersWrittenReply,
    ProducerIdNeeded,
    TimeOut,
    TimeOutReply,
)
from nilometer.transactions.state import TransactionState
from nilometer.transactions.transaction import EPOCH_MAX, NO_PRODUCER_ID, Transaction
from nilometer.wire.errors import ErrorCode

_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
"""The final state, by whether the transaction is committed."""


def fence(
    transaction: Transaction, version: int, new_producer_id: int | None, wall_ms: int
) -> Transaction | None:
    """Prepare the abort of an open transaction with a bumped epoch, which fences its producer.

    Returns None if a ``new_producer_id`` is needed: with ``version`` 2 the end of a transaction with the last
    epoch assigns the next producer id.
    """
    needs_id = version >= EPOCH_BUMP_VERSION and transaction.is_exhausted
    if needs_id and new_producer_id is None:
        return None
    return transaction.prepared(
        commit=False,
        version=version if version >= EPOCH_BUMP_VERSION else 0,
        next_producer_id=new_producer_id if needs_id and new_producer_id is not None else NO_PRODUCER_ID,
        fences=True,
        wall_ms=wall_ms,
    )


def decide_time_out(
    transaction: Transaction | None, request: TimeOut, version: int, wall_ms: int, known_open_ms: int
) -> Decision:
    """Abort the transaction if it is still open and has timed out.

    ``version``: the finalized level of ``transaction.version``. ``known_open_ms``: as in
    :meth:`.Transaction.is_timed_out`.
    """
    if (
        transaction is None
        or not _is_about(transaction, request)
        or not transaction.is_timed_out(wall_ms, known_open_ms)
    ):
        return Decision(TimeOutReply(aborted=False))
    after = fence(transaction, version, request.new_producer_id, wall_ms)
    return Decision(TimeOutReply(aborted=after is not None), after)


def decide_completion(transaction: Transaction | None, request: MarkersWritten, wall_ms: int) -> Decision:
    if transaction is None or not transaction.state.is_prepared or not _is_about(transaction, request):
        return Decision(MarkersWrittenReply(completed=False))
    return Decision(MarkersWrittenReply(completed=True), transaction.completed(wall_ms))


def _is_about(transaction: Transaction, request: TimeOut | MarkersWritten) -> bool:
    """Whether the request concerns the transaction's current producer id and epoch, not an earlier end."""
    return (transaction.producer_id, transaction.producer_epoch) == (
        request.producer_id,
        request.producer_epoch,
    )


def decide_end_transaction(
    transaction: Transaction | None, request: EndTransaction, wall_ms: int
) -> Decision:
    if not request.transactional_id:
        return _refused(ErrorCode.invalid_request)
    if transaction is None:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    if request.version >= EPOCH_BUMP_VERSION:
        return _end_with_bump(transaction, request, wall_ms)
    return _end(transaction, request, wall_ms)


def _refused(error: ErrorCode) -> Decision:
    return Decision(EndTransactionReply(error))


def _done(transaction: Transaction) -> EndTransactionReply:
    """Return the reply with the producer id and epoch for the producer's next transaction."""
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return EndTransactionReply(ErrorCode.none, transaction.next_producer_id, 0)
    return EndTransactionReply(ErrorCode.none, transaction.producer_id, transaction.producer_epoch)


def _end(transaction: Transaction, request: EndTransaction, wall_ms: int) -> Decision:
    if transaction.producer_id != request.producer_id:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    if transaction.producer_epoch != request.producer_epoch:
        return _refused(ErrorCode.producer_fenced)
    if transaction.state.is_prepared:
        return _refused(ErrorCode.concurrent_transactions)
    if transaction.state is TransactionState.ONGOING:
        return _prepare(transaction, request, wall_ms)
    if transaction.state is _COMPLETE[request.committed]:
        return Decision(_done(transaction))
    return _refused(ErrorCode.invalid_txn_state)


def _end_with_bump(transaction: Transaction, request: EndTransaction, wall_ms: int) -> Decision:
    if transaction.state.is_prepared:
        return _refused(ErrorCode.concurrent_transactions)
    rotated = _was_rotated_by(transaction, request)
    repeated = rotated or transaction.producer_epoch == request.producer_epoch + 1
    if transaction.producer_id != request.producer_id and not rotated:
        return _refused(ErrorCode.invalid_producer_id_mapping)
    is_complete = transaction.state in _COMPLETE.values()
    if transaction.producer_epoch != request.producer_epoch and not (repeated and is_complete):
        return _refused(ErrorCode.producer_fenced)
    if is_complete and repeated:
        as_before = transaction.state is _COMPLETE[request.committed]
        return Decision(_done(transaction)) if as_before else _refused(ErrorCode.invalid_txn_state)
    if request.committed and transaction.state is not TransactionState.ONGOING:
        return _refused(ErrorCode.invalid_txn_state)
    return _prepare(transaction, request, wall_ms)


def _was_rotated_by(transaction: Transaction, request: EndTransaction) -> bool:
    """Whether an earlier copy of this request used the last epoch of its producer id, which was replaced."""
    return (
        transaction.previous_producer_id == request.producer_id
        and request.producer_epoch == EPOCH_MAX
        and transaction.producer_epoch == 0
    )


def _prepare(transaction: Transaction, request: EndTransaction, wall_ms: int) -> Decision:
    needs_id = request.version >= EPOCH_BUMP_VERSION and transaction.is_exhausted
    if needs_id and request.new_producer_id is None:
        return Decision(ProducerIdNeeded())
    after = transaction.prepared(
        commit=request.committed,
        version=request.version,
        next_producer_id=request.new_producer_id
        if needs_id and request.new_producer_id is not None
        else NO_PRODUCER_ID,
        fences=False,
        wall_ms=wall_ms,
    )
    return Decision(_done(after), after)
