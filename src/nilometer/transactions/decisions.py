"""The decisions on requests to one transactional id: each returns a result and the next value of the
transaction.

InitProducerId gives a producer id and epoch (KIP-98, KIP-360). AddPartitionsToTxn adds the partitions that a
transaction writes to before their first record is written. EndTxn ends it; the coordinator itself ends
transactions whose producer is fenced or that time out.
"""

from __future__ import annotations

import msgspec

from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsResult,
    EndTransaction,
    EndTransactionResult,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
    MarkersWrittenResult,
    ProducerIdNeeded,
    TimeOut,
    TimeOutResult,
    TransactionResult,
    VerifyPartitions,
    VerifyPartitionsResult,
    refusal,
)
from nilometer.transactions.transaction import (
    EPOCH_BUMP_VERSION,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionConfig,
    TransactionState,
    is_exhausted,
)
from nilometer.wire.errors import ErrorCode


class Decision(msgspec.Struct, frozen=True):
    result: TransactionResult
    after: Transaction | None = None
    """The transaction's next value, which must be committed before the result is sent; None: no change."""


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
        return Decision(TimeOutResult(aborted=False))
    after = fence(transaction, version, request.new_producer_id, wall_ms)
    return Decision(TimeOutResult(aborted=after is not None), after)


def decide_completion(transaction: Transaction | None, request: MarkersWritten, wall_ms: int) -> Decision:
    if transaction is None or not transaction.state.is_prepared or not _is_about(transaction, request):
        return Decision(MarkersWrittenResult(completed=False))
    return Decision(MarkersWrittenResult(completed=True), transaction.completed(wall_ms))


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
    return Decision(EndTransactionResult(error))


def _done(transaction: Transaction) -> EndTransactionResult:
    """Return the result with the producer id and epoch for the producer's next transaction."""
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return EndTransactionResult(ErrorCode.none, transaction.next_producer_id, 0)
    return EndTransactionResult(ErrorCode.none, transaction.producer_id, transaction.producer_epoch)


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


def decide_init_producer_id(
    transaction: Transaction | None,
    request: InitProducerId,
    config: TransactionConfig,
    version: int,
    wall_ms: int,
) -> Decision:
    """Decide an InitProducerId request. ``version``: the finalized level of ``transaction.version``."""
    if not request.transactional_id:
        return _refused_producer(ErrorCode.invalid_request)
    if not 0 < request.transaction_timeout_ms <= config.max_timeout_ms:
        return _refused_producer(ErrorCode.invalid_transaction_timeout)
    if transaction is None:
        return _first(request, config.first_epoch, wall_ms)
    if transaction.state.is_prepared:
        return _refused_producer(ErrorCode.concurrent_transactions)
    if _names_producer(request) and not _is_known(transaction, request):
        return _refused_producer(ErrorCode.producer_fenced)
    if transaction.state is TransactionState.ONGOING:
        return _abort_first(transaction, request, version, wall_ms)
    return _next_epoch(transaction, request, wall_ms)


def _refused_producer(error: ErrorCode) -> Decision:
    return Decision(InitProducerIdResult(error))


def _given(transaction: Transaction) -> Decision:
    result = InitProducerIdResult(ErrorCode.none, transaction.producer_id, transaction.producer_epoch)
    return Decision(result, transaction)


def _names_producer(request: InitProducerId) -> bool:
    return request.producer_id != NO_PRODUCER_ID


def _is_known(transaction: Transaction, request: InitProducerId) -> bool:
    """Whether the named producer id belongs to this transactional id: the current one, or the previous one if
    its epochs are exhausted (the result with the new id may have been lost). The epoch is checked later."""
    return request.producer_id == transaction.producer_id or (
        request.producer_id == transaction.previous_producer_id and is_exhausted(request.producer_epoch)
    )


def _first(request: InitProducerId, epoch: int, wall_ms: int) -> Decision:
    """Decide the request of a transactional id that is not known: it is new, or has expired."""
    if request.new_producer_id is None:
        return Decision(ProducerIdNeeded())
    created = Transaction(
        producer_id=request.new_producer_id,
        producer_epoch=NO_EPOCH,
        timeout_ms=request.transaction_timeout_ms,
        updated_ms=wall_ms,
    )
    return _given(created.with_epoch(epoch, NO_EPOCH, request.transaction_timeout_ms, wall_ms))


def _abort_first(transaction: Transaction, request: InitProducerId, version: int, wall_ms: int) -> Decision:
    after = fence(transaction, version, request.new_producer_id, wall_ms)
    if after is None:
        return Decision(ProducerIdNeeded())
    return Decision(InitProducerIdResult(ErrorCode.concurrent_transactions), after)


def _next_epoch(transaction: Transaction, request: InitProducerId, wall_ms: int) -> Decision:
    named = _names_producer(request)
    epoch, timeout_ms = transaction.producer_epoch, request.transaction_timeout_ms
    goes_on = request.producer_epoch == epoch
    if named and not goes_on:
        if request.producer_epoch != transaction.last_producer_epoch:
            return _refused_producer(ErrorCode.producer_fenced)
        return _given(  # a repeated request: the first result was lost
            transaction.with_epoch(epoch, transaction.last_producer_epoch, timeout_ms, wall_ms)
        )
    last_epoch = epoch if named else NO_EPOCH
    if not transaction.is_exhausted:
        return _given(transaction.with_epoch(epoch + 1, last_epoch, timeout_ms, wall_ms))
    if request.new_producer_id is None:
        return Decision(ProducerIdNeeded())
    return _given(transaction.with_producer_id(request.new_producer_id, last_epoch, timeout_ms, wall_ms))


def decide_add_partitions(transaction: Transaction | None, request: AddPartitions, wall_ms: int) -> Decision:
    if (error := _check_adding(transaction, request)) is not ErrorCode.none or transaction is None:
        return Decision(AddPartitionsResult(error))
    done = Decision(AddPartitionsResult(ErrorCode.none))
    has_all = all(each in transaction.partitions for each in request.partitions)
    if transaction.state is TransactionState.ONGOING and has_all:
        return done
    return Decision(done.result, transaction.with_partitions(request.partitions, request.version, wall_ms))


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


def verify_partitions(transaction: Transaction | None, request: VerifyPartitions) -> VerifyPartitionsResult:
    if (error := _check_verifying(transaction, request)) is not ErrorCode.none or transaction is None:
        refused = refusal(request, error)
        assert isinstance(refused, VerifyPartitionsResult)
        return refused
    return VerifyPartitionsResult(
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
