"""InitProducerId: decides the producer id and epoch of a transactional producer (KIP-98, KIP-360).

A producer that names no producer id is a new one: it gets the next epoch, and the previous producer is
fenced. A producer that names its current id and epoch gets the next epoch too, unless another producer has
been initialised since; if it repeats the request, it gets the same reply. An open transaction is aborted
first by the coordinator, and the producer must send the request again.
"""

from __future__ import annotations

from nilometer.transactions.config import TransactionConfig
from nilometer.transactions.decision import Decision
from nilometer.transactions.ends import fence
from nilometer.transactions.requests import InitProducerId, InitProducerIdReply, ProducerIdNeeded
from nilometer.transactions.state import TransactionState
from nilometer.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID, Transaction, is_exhausted
from nilometer.wire.errors import ErrorCode


def decide_init_producer_id(
    transaction: Transaction | None,
    request: InitProducerId,
    config: TransactionConfig,
    version: int,
    wall_ms: int,
) -> Decision:
    """Decide an InitProducerId request. ``version``: the finalized level of ``transaction.version``."""
    if not request.transactional_id:
        return _refused(ErrorCode.invalid_request)
    if not 0 < request.transaction_timeout_ms <= config.max_timeout_ms:
        return _refused(ErrorCode.invalid_transaction_timeout)
    if transaction is None:
        return _first(request, config.first_epoch, wall_ms)
    if transaction.state.is_prepared:
        return _refused(ErrorCode.concurrent_transactions)
    if _names_producer(request) and not _is_known(transaction, request):
        return _refused(ErrorCode.producer_fenced)
    if transaction.state is TransactionState.ONGOING:
        return _abort_first(transaction, request, version, wall_ms)
    return _next_epoch(transaction, request, wall_ms)


def _refused(error: ErrorCode) -> Decision:
    return Decision(InitProducerIdReply(error))


def _given(transaction: Transaction) -> Decision:
    reply = InitProducerIdReply(ErrorCode.none, transaction.producer_id, transaction.producer_epoch)
    return Decision(reply, transaction)


def _names_producer(request: InitProducerId) -> bool:
    return request.producer_id != NO_PRODUCER_ID


def _is_known(transaction: Transaction, request: InitProducerId) -> bool:
    """Whether the named producer id belongs to this transactional id: the current one, or the previous one if
    its epochs are exhausted (the reply with the new id may have been lost). The epoch is checked later."""
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
    return Decision(InitProducerIdReply(ErrorCode.concurrent_transactions), after)


def _next_epoch(transaction: Transaction, request: InitProducerId, wall_ms: int) -> Decision:
    named = _names_producer(request)
    epoch, timeout_ms = transaction.producer_epoch, request.transaction_timeout_ms
    goes_on = request.producer_epoch == epoch
    if named and not goes_on:
        if request.producer_epoch != transaction.last_producer_epoch:
            return _refused(ErrorCode.producer_fenced)
        return _given(  # a repeated request: the first reply was lost
            transaction.with_epoch(epoch, transaction.last_producer_epoch, timeout_ms, wall_ms)
        )
    last_epoch = epoch if named else NO_EPOCH
    if not transaction.is_exhausted:
        return _given(transaction.with_epoch(epoch + 1, last_epoch, timeout_ms, wall_ms))
    if request.new_producer_id is None:
        return Decision(ProducerIdNeeded())
    return _given(transaction.with_producer_id(request.new_producer_id, last_epoch, timeout_ms, wall_ms))
