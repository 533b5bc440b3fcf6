"""One partition of ``__transaction_state``: the transactional ids kept there, and the requests to their
coordinator.

What a shard cannot do itself it requests of its shell, as actions. DescribeTransactions and ListTransactions
are views of its state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from enum import Enum, auto
from typing import TypeAlias, assert_never

import msgspec

from nilometer import coordinators
from nilometer.cluster.features import TRANSACTION_VERSION
from nilometer.cluster.image import ClusterImage
from nilometer.coordinators import Timers, Token, TransactionalRecord, TransactionEnd
from nilometer.steps import listing
from nilometer.storage.names import TopicPartition
from nilometer.transactions.decisions import (
    decide_add_partitions,
    decide_completion,
    decide_end_transaction,
    decide_init_producer_id,
    decide_time_out,
    fence,
    verify_partitions,
)
from nilometer.transactions.records import TransactionRecord
from nilometer.transactions.requests import (
    AddPartitions,
    DescribeTransaction,
    DescribeTransactionResult,
    EndTransaction,
    InitProducerId,
    ListedTransaction,
    ListTransactions,
    ListTransactionsResult,
    MarkersWritten,
    TimeOut,
    TransactionRequest,
    TransactionResult,
    VerifyPartitions,
)
from nilometer.transactions.transaction import BY_NAME, Transaction, TransactionConfig, TransactionState
from nilometer.wire.errors import ErrorCode


class SendMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """Send the marker that ends the transaction to the leader of each partition.

    When all markers are committed, the shard gets :class:`~nilometer.transactions.requests.MarkersWritten`.
    Until then the transaction stays prepared; a new coordinator sends the markers again.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]
    version: int
    """The ``transaction.version`` of this end; with 2 the marker's epoch is above that of the records."""
    cause: str = ""
    """Why the coordinator aborts the transaction by itself; empty: its producer has ended it."""


class AllocateProducerId(msgspec.Struct, frozen=True):
    """Allocate a producer id, and submit ``request``, the time-out of a transaction, again with that id.

    The abort of the transaction bumps the producer epoch, to fence the producer. If the epoch cannot be
    bumped any further, the producer must get a new id (``transaction.version`` 2).
    """

    request: TimeOut


TransactionAction: TypeAlias = SendMarkers | AllocateProducerId


def describe_transaction(
    transaction: Transaction | None, request: DescribeTransaction
) -> DescribeTransactionResult:
    transactional_id = request.transactional_id
    if not transactional_id:
        return DescribeTransactionResult(ErrorCode.invalid_request, transactional_id)
    if transaction is None:
        return DescribeTransactionResult(ErrorCode.transactional_id_not_found, transactional_id)
    return DescribeTransactionResult(
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
    transactions: Mapping[str, Transaction], request: ListTransactions, wall_ms: int
) -> ListTransactionsResult:
    """Return the transactions that ``request`` asks for, as they are now."""
    producer_ids = frozenset(request.producer_id_filters)
    states = {BY_NAME[name] for name in request.state_filters if name in BY_NAME}

    def show(item: tuple[str, Transaction]) -> ListedTransaction | None:
        transactional_id, transaction = item
        is_wanted = (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not request.state_filters or transaction.state in states)
            and (
                request.duration_filter_ms < 0
                or wall_ms - transaction.started_ms > request.duration_filter_ms
            )
        )
        if not is_wanted:
            return None
        return ListedTransaction(transactional_id, transaction.producer_id, transaction.state.kafka_name)

    return ListTransactionsResult(
        ErrorCode.none,
        tuple(name for name in request.state_filters if name not in BY_NAME),
        listing(list(transactions.items()), show),
    )


RECORDS_PER_CALL_MAX = 1_000
"""A call writes one batch: after so many records the timers that are due wait for the next call."""
PARTITIONS_PER_CALL_MAX = 2_000
"""Of the transactions that one call aborts, before the last one: each is in a record, and gets a marker."""
NAMED_PER_CALL_MAX = 100
"""Of the transactions that one call aborts because of their time-out, so many have their cause logged."""

Effects: TypeAlias = coordinators.Effects[TransactionRecord, TransactionResult, TransactionAction]


class Turn(coordinators.Turn[TransactionRecord, TransactionResult, TransactionAction]):
    __slots__ = ()


class TimerKind(Enum):
    TIME_OUTS = auto()
    """The next check for open transactions that have timed out."""
    EXPIRATION = auto()
    """The next check for transactional ids that have expired."""
    MARKERS = auto()
    """The markers of the transactions that were being ended when the partition was loaded."""


class TransactionShard:
    def __init__(self, config: TransactionConfig, image: ClusterImage) -> None:
        self._config = config
        self._version = image.feature_level(TRANSACTION_VERSION)
        """The ``transaction.version`` with which the coordinator itself ends transactions."""
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, int] = {}
        """The transactional ids with an open transaction, which may time out, and since when this coordinator
        has known it to be open (monotonic, ms)."""
        self._prepared: list[str] = []
        """The transactional ids that were being ended when the partition was loaded, the first one last;
        without those whose markers have been requested."""
        self._timers = Timers[TimerKind]()
        self._waiting: set[Token] = set()

    # ── loading ─────────────────────────────────────────────────────────────────────────────────
    def replay(self, record: TransactionRecord) -> None:
        """Apply a record to the state: one that is loaded, or one that was just written."""
        transactional_id, transaction = record.transactional_id, record.transaction
        self._ongoing.pop(transactional_id, None)
        if transaction is None or transaction.state is TransactionState.DEAD:
            self._transactions.pop(transactional_id, None)
            return
        self._transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing[transactional_id] = 0  # the caller knows the time

    def replay_transactional(self, transactional: TransactionalRecord[TransactionRecord]) -> None:
        """Apply a record as if it were not transactional: nothing is written to this topic in a
        transaction."""
        self.replay(transactional.record)

    def replay_end(self, end: TransactionEnd) -> None:
        """Ignore the end of a transaction, since none writes to this topic."""

    def on_loaded(self, now_ms: int, wall_ms: int) -> Generator[int, None, Effects]:
        """Start the timers, and complete prepared transactions: the partition has been read to its end."""
        turn = Turn(now_ms, wall_ms)
        for name in self._ongoing:
            self._ongoing[name] = now_ms
            yield 1
        for name, transaction in reversed(self._transactions.items()):
            if transaction.state.is_prepared:
                self._prepared.append(name)
            yield 1
        if not self._complete_prepared(turn):
            self._timers.schedule(TimerKind.MARKERS, now_ms)
        self._timers.schedule(TimerKind.TIME_OUTS, now_ms + self._config.abort_check_interval_ms)
        self._timers.schedule(TimerKind.EXPIRATION, now_ms + self._config.expiration_check_interval_ms)
        return turn.effects(self._waiting)

    def states(self) -> Iterator[str]:
        """Yield the state of the transaction of each transactional id, under Kafka's name."""
        return (transaction.state.kafka_name for transaction in list(self._transactions.values()))

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def handle(self, token: Token, request: TransactionRequest, now_ms: int, wall_ms: int) -> Effects:
        turn = Turn(now_ms, wall_ms)
        self._waiting.add(token)
        turn.resolve(token, self._answer(turn, request))
        return turn.effects(self._waiting)

    def _answer(self, turn: Turn, request: TransactionRequest) -> TransactionResult:
        if isinstance(request, ListTransactions):
            return list_transactions(self._transactions, request, turn.wall_ms)
        transaction = self._transactions.get(request.transactional_id)
        match request:
            case InitProducerId():
                decision = decide_init_producer_id(
                    transaction, request, self._config, self._version, turn.wall_ms
                )
            case AddPartitions():
                decision = decide_add_partitions(transaction, request, turn.wall_ms)
            case EndTransaction():
                decision = decide_end_transaction(transaction, request, turn.wall_ms)
            case MarkersWritten():
                decision = decide_completion(transaction, request, turn.wall_ms)
            case TimeOut():
                known_open_ms = self._known_open_ms(turn, request.transactional_id)
                decision = decide_time_out(transaction, request, self._version, turn.wall_ms, known_open_ms)
            case VerifyPartitions():
                return verify_partitions(transaction, request)
            case DescribeTransaction():
                return describe_transaction(transaction, request)
            case _:
                assert_never(request)
        if decision.after is not None:
            self._keep(turn, request.transactional_id, decision.after, _cause(request, decision.after))
        return decision.result

    def forget(self, token: Token) -> None:
        """Drop the result of a request whose connection was lost."""
        self._waiting.discard(token)

    # ── state ───────────────────────────────────────────────────────────────────────────────────
    def _keep(self, turn: Turn, transactional_id: str, transaction: Transaction, cause: str = "") -> None:
        record = TransactionRecord(transactional_id, transaction)
        turn.write(record)
        since_ms = self._ongoing.get(transactional_id, turn.now_ms)
        self.replay(record)
        if transactional_id in self._ongoing:
            self._ongoing[transactional_id] = since_ms
        if transaction.state.is_prepared:
            turn.act(_markers(transactional_id, transaction, cause))

    # ── time ────────────────────────────────────────────────────────────────────────────────────
    def on_image(self, image: ClusterImage, now_ms: int, wall_ms: int) -> Effects:
        """Note the finalized ``transaction.version``. Deleted partitions are noticed when markers are
        sent."""
        self._version = image.feature_level(TRANSACTION_VERSION)
        return coordinators.Effects()

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def on_time(self, now_ms: int, wall_ms: int) -> Effects:
        turn = Turn(now_ms, wall_ms)
        while (kind := self._timers.take_due(now_ms)) is not None:
            if kind is TimerKind.TIME_OUTS:
                done, interval_ms = self._abort_timed_out(turn), self._config.abort_check_interval_ms
            elif kind is TimerKind.EXPIRATION:
                done, interval_ms = self._expire(turn), self._config.expiration_check_interval_ms
            elif self._complete_prepared(turn):
                continue
            else:
                done, interval_ms = False, 0
            self._timers.schedule(kind, now_ms + (interval_ms if done else 1))
        return turn.effects(self._waiting)

    def _complete_prepared(self, turn: Turn) -> bool:
        """Request the markers of transactions that were being ended; return false if there are more than one
        call may request."""
        partitions = 0
        while self._prepared and partitions < PARTITIONS_PER_CALL_MAX:
            transactional_id = self._prepared.pop()
            transaction = self._transactions.get(transactional_id)
            if transaction is not None and transaction.state.is_prepared:
                turn.act(_markers(transactional_id, transaction))
                partitions += 1 + len(transaction.partitions)
        return not self._prepared

    def _abort_timed_out(self, turn: Turn) -> bool:
        """Abort transactions that have timed out; return false if one batch does not have room for all."""
        partitions = 0
        for transactional_id in list(self._ongoing):
            if turn.records_count >= RECORDS_PER_CALL_MAX or partitions >= PARTITIONS_PER_CALL_MAX:
                return False
            transaction = self._transactions[transactional_id]
            if not transaction.is_timed_out(turn.wall_ms, self._known_open_ms(turn, transactional_id)):
                continue
            after = fence(transaction, self._version, None, turn.wall_ms)
            if after is None:
                turn.act(AllocateProducerId(_time_out(transactional_id, transaction)))
            else:
                cause = _timed_out(after) if turn.records_count < NAMED_PER_CALL_MAX else ""
                self._keep(turn, transactional_id, after, cause)
                partitions += len(after.partitions)
        return True

    def _known_open_ms(self, turn: Turn, transactional_id: str) -> int:
        """Return for how long this coordinator has known the id's transaction to be open; 0 if none is."""
        return turn.now_ms - self._ongoing.get(transactional_id, turn.now_ms)

    def _expire(self, turn: Turn) -> bool:
        expired_ms = turn.wall_ms - self._config.id_expiration_ms
        for transactional_id, transaction in list(self._transactions.items()):
            if turn.records_count >= RECORDS_PER_CALL_MAX:
                return False
            if transaction.state.is_idle and transaction.updated_ms <= expired_ms:
                record = TransactionRecord(transactional_id, None)
                turn.write(record)
                self.replay(record)
        return True


def _cause(request: TransactionRequest, after: Transaction) -> str:
    """Return why the coordinator aborts the transaction by itself; empty if it does not."""
    if after.state is not TransactionState.PREPARE_ABORT:
        return ""
    if isinstance(request, InitProducerId):
        return "another producer has initialized the transactional id"
    return _timed_out(after) if isinstance(request, TimeOut) else ""


def _timed_out(transaction: Transaction) -> str:
    return f"it was open for longer than its time-out of {transaction.timeout_ms} ms"


def _time_out(transactional_id: str, transaction: Transaction) -> TimeOut:
    return TimeOut(
        transactional_id=transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
    )


def _markers(transactional_id: str, transaction: Transaction, cause: str = "") -> SendMarkers:
    return SendMarkers(
        transactional_id=transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=transaction.state is TransactionState.PREPARE_COMMIT,
        partitions=transaction.ordered_partitions,
        version=transaction.version,
        cause=cause,
    )
