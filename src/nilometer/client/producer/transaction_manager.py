"""The state of a transactional producer: which calls are allowed, and which request is next. Pure.

The state changes with the application's calls (``begin_init``, ``begin``, ``on_appended``, ``add_offsets``,
``begin_end``) and with responses (``on_initialized``, ``on_partitions_added``, ...). ``next_step`` returns
the next request. One request is in flight at a time; it is retried until it succeeds or fails finally.

With ``transaction.version`` 0 or 1, the producer adds every partition with AddPartitionsToTxn before it sends
the first batch to it. With version 2 (KIP-890) the brokers add it on Produce, and every EndTxn raises the
producer epoch. The producer adopts a change of the cluster's version only between two transactions.

Invariants:

- Records are accepted only in ``IN_TRANSACTION``, and sent only to partitions that were added.
- EndTxn is sent only when all batches of the transaction are acknowledged or failed and no other request of
  it is in flight, so that none of them can arrive after the end.
- A transaction is committed only if none of its batches and requests failed.
- The producer id and epoch change only while no batch is in flight.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.invariants import check
from nilometer.transactions.transaction import EPOCH_BUMP_VERSION
from nilometer.wire.errors import ErrorCode, KafkaError, is_retriable

# The requests that the transaction manager wants sent to coordinators, as data. Pure.

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_known(self) -> bool:
        return self.producer_id >= 0


@dataclass(eq=False, slots=True)
class PendingOffsets:
    """The offsets of one ``send_offsets()`` call; ``left`` are those not yet part of the transaction."""

    group: GroupMetadata
    left: dict[TopicPartition, OffsetAndMetadata] = field(
        default_factory=dict[TopicPartition, OffsetAndMetadata]
    )
    is_group_added: bool = False
    is_asked: bool = False
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class InitProducerId:
    identity: ProducerIdentity
    """The producer id whose next epoch to request (KIP-360); unknown for a new producer."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    identity: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AddOffsets:
    identity: ProducerIdentity
    pending: PendingOffsets


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    identity: ProducerIdentity
    pending: PendingOffsets
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    version: int
    """The ``transaction.version`` of the transaction."""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    identity: ProducerIdentity
    committed: bool
    version: int
    is_empty: bool
    """The coordinator has not started the transaction: no EndTxn is needed."""


Step: TypeAlias = InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTransaction


# Classifies errors of a transactional producer: retry, abort, or close the producer (KIP-1050). Pure.
#
# After an *abortable* error, abort the transaction; the producer can begin the next one. After a *fatal*
# error, close the producer: another producer has started with its transactional id, or the coordinator has
# forgotten its producer id. The application may then create a new one. The classes are those of Kafka 4.3's
# producer.


class TransactionError(KafkaError):
    """An error of a transaction. Do not retry the call; the subclass says what to do instead."""

    @property
    def retriable(self) -> bool:
        return False


class AbortableTransactionError(TransactionError):
    """Call ``abort()``; the producer can then begin its next transaction."""


class FatalTransactionError(TransactionError):
    """Close the producer. The coordinator aborts its open transaction, or has aborted it already."""


class ProducerFenced(FatalTransactionError):
    """Another producer has started with the same transactional id, or the transaction timed out."""


class Severity(enum.Enum):
    RETRY = enum.auto()
    ABORTABLE = enum.auto()
    UNKNOWN_PRODUCER = enum.auto()
    """Abort the transaction, and get a new epoch before the next one."""
    FATAL = enum.auto()


FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})

_ABORTABLE = frozenset(
    {
        ErrorCode.transaction_abortable,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_instance_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
    }
)
_UNANSWERED = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        # The coordinator before may have done what an earlier attempt asked for.
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)
_FATAL_OF_ALL = frozenset(
    {
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.unsupported_version,
    }
)


def severity_of_step(step: Step, code: ErrorCode) -> Severity:
    """Classify the error code ``code`` in the response to ``step``."""
    if is_retriable(code):
        return Severity.RETRY
    if code in FENCED or code in _FATAL_OF_ALL or code == ErrorCode.invalid_txn_state:
        return Severity.FATAL
    if isinstance(step, EndTransaction) and not step.committed:
        return Severity.FATAL  # an abort that fails cannot be aborted
    if code == ErrorCode.unknown_producer_id:
        return Severity.UNKNOWN_PRODUCER
    if code in _ABORTABLE or isinstance(step, AddPartitions):
        return Severity.ABORTABLE
    return Severity.FATAL


def is_answered(code: ErrorCode) -> bool:
    """Return whether a request that got the retriable ``code`` has certainly not been carried out."""
    return code not in _UNANSWERED


def severity_of_batch(code: ErrorCode) -> Severity:
    """Classify the error of a batch that failed and is not retried.

    INVALID_PRODUCER_EPOCH is only abortable here: a broker may also return it when there is no second
    producer. If there is one, the EndTxn request fails with a fatal error.
    """
    if code in _FATAL_OF_ALL or code == ErrorCode.producer_fenced:
        return Severity.FATAL
    return Severity.ABORTABLE


def fatal_error(code: ErrorCode, message: str) -> FatalTransactionError:
    if code in FENCED:
        return ProducerFenced(ErrorCode.producer_fenced, message)
    return FatalTransactionError(code, message)


class ProducerState(enum.Enum):
    UNINITIALIZED = enum.auto()
    INITIALIZING = enum.auto()
    READY = enum.auto()
    IN_TRANSACTION = enum.auto()
    COMMITTING = enum.auto()
    ABORTING = enum.auto()
    ABORTABLE_ERROR = enum.auto()
    """The only call allowed is abort."""
    FATAL_ERROR = enum.auto()


S = ProducerState
VALID_PREVIOUS: Mapping[ProducerState, frozenset[ProducerState]] = MappingProxyType(
    {
        S.UNINITIALIZED: frozenset(),
        S.INITIALIZING: frozenset({S.UNINITIALIZED, S.COMMITTING, S.ABORTING}),
        S.READY: frozenset({S.INITIALIZING, S.COMMITTING, S.ABORTING}),
        S.IN_TRANSACTION: frozenset({S.READY}),
        S.COMMITTING: frozenset({S.IN_TRANSACTION}),
        S.ABORTING: frozenset({S.IN_TRANSACTION, S.ABORTABLE_ERROR}),
        S.ABORTABLE_ERROR: frozenset({S.IN_TRANSACTION, S.COMMITTING, S.ABORTABLE_ERROR}),
        S.FATAL_ERROR: frozenset(S),
    }
)


class TransactionManager:
    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.state = S.UNINITIALIZED
        self.identity = ProducerIdentity()
        self.version = 0
        """The ``transaction.version`` of the open transaction, or of the next one if none is open."""
        self.error: TransactionError | None = None
        """The error that led to the state ABORTABLE_ERROR or FATAL_ERROR; None in other states."""
        self._to_add: dict[TopicPartition, None] = {}
        self._asked: frozenset[TopicPartition] = frozenset()
        """The partitions of ``_to_add`` that were in the last AddPartitionsToTxn request."""
        self._added: dict[TopicPartition, None] = {}
        self._offsets: list[PendingOffsets] = []
        self._is_started = False
        """Whether the coordinator may have started the transaction, so that EndTxn is needed."""
        self._needs_new_epoch = False

    # ── for the sender ──────────────────────────────────────────────────────────────────────────
    @property
    def adds_implicitly(self) -> bool:
        """Whether brokers add a partition to the transaction on its first Produce (version 2)."""
        return self.version >= EPOCH_BUMP_VERSION

    @property
    def drops_unsent(self) -> bool:
        """Whether to fail the batches that were never sent, because the transaction cannot be committed."""
        return self.state in (S.ABORTABLE_ERROR, S.ABORTING, S.FATAL_ERROR)

    def may_send(self, partition: TopicPartition) -> bool:
        return self.state is not S.FATAL_ERROR and partition in self._added

    def raise_error(self) -> None:
        """Raise the stored AbortableTransactionError or FatalTransactionError, if there is one."""
        if self.error is not None:
            raise type(self.error)(self.error.code, self.error.message) from self.error

    # ── calls of the application ────────────────────────────────────────────────────────────────
    def begin_init(self) -> None:
        self._require("init", S.UNINITIALIZED)
        self._become(S.INITIALIZING)

    def begin(self) -> None:
        self._require("begin", S.READY)
        self._become(S.IN_TRANSACTION)

    def check_in_transaction(self, call: str) -> None:
        """Raise KafkaError unless a transaction is open for records and offsets; ``call`` is named in it."""
        self._require(call, S.IN_TRANSACTION)

    def on_appended(self, partition: TopicPartition) -> bool:
        """Make ``partition`` part of the transaction after a record for it was added to a batch.

        Return whether this is the transaction's first record for the partition.
        """
        if partition in self._added or partition in self._to_add:
            return False
        if self.adds_implicitly:
            self._added[partition] = None
            self._is_started = True
        else:
            self._to_add[partition] = None
        return True

    def add_offsets(
        self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> PendingOffsets:
        self._require("send_offsets", S.IN_TRANSACTION)
        pending = PendingOffsets(group, dict(offsets), is_group_added=self.adds_implicitly)
        self._offsets.append(pending)
        return pending

    def begin_end(self, *, commit: bool) -> None:
        if commit:
            self._require("commit", S.IN_TRANSACTION)
            self._become(S.COMMITTING)
            return
        self._require("abort", S.IN_TRANSACTION, S.ABORTABLE_ERROR)
        self._become(S.ABORTING)
        self.error = None
        # Requests that were never sent are dropped. Those that were sent may still take effect: repeat them.
        self._to_add = {partition: None for partition in self._to_add if partition in self._asked}
        self._offsets = [pending for pending in self._offsets if pending.is_asked]

    # ── steps ───────────────────────────────────────────────────────────────────────────────────
    def next_step(self, *, all_sent: bool) -> Step | None:
        """Return the request to send now, or None. ``all_sent``: no batch is open, queued or in flight."""
        if self.state is S.INITIALIZING:
            return InitProducerId(self.identity)
        if self.state not in (S.IN_TRANSACTION, S.COMMITTING, S.ABORTING):
            return None
        if self._to_add:
            return AddPartitions(self.identity, tuple(self._to_add))
        if self._offsets:
            pending = self._offsets[0]
            if not pending.is_group_added:
                return AddOffsets(self.identity, pending)
            return CommitOffsets(self.identity, pending, dict(pending.left), self.version)
        if self.state is S.IN_TRANSACTION or not all_sent:
            return None
        committed = self.state is S.COMMITTING
        return EndTransaction(self.identity, committed, self.version, is_empty=not self._is_started)

    def on_asking(self, step: Step) -> None:
        """Record that ``step`` is about to be sent."""
        match step:
            case AddPartitions(partitions=partitions):
                self._asked = frozenset(partitions)
            case AddOffsets(pending=pending):
                pending.is_asked = True
            case CommitOffsets(pending=pending):
                pending.is_asked = True
                self._is_started = True
            case InitProducerId() | EndTransaction():
                pass

    # ── responses ───────────────────────────────────────────────────────────────────────────────
    def on_initialized(self, identity: ProducerIdentity, version: int) -> None:
        self.identity = identity
        self.version = version
        self._needs_new_epoch = False
        self._become(S.READY)

    def on_partitions_added(self, partitions: Iterable[TopicPartition]) -> None:
        self._is_started = True
        self._asked = frozenset()
        for partition in partitions:
            if partition in self._to_add:
                del self._to_add[partition]
                self._added[partition] = None

    def on_group_added(self, pending: PendingOffsets) -> None:
        self._is_started = True
        pending.is_group_added = True
        if self.state is S.ABORTING:
            self._offsets.remove(pending)

    def on_offsets_committed(self, pending: PendingOffsets, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            pending.left.pop(partition, None)
        if not pending.left and pending in self._offsets:
            self._offsets.remove(pending)
            pending.is_done = True

    def on_ended(self, identity: ProducerIdentity | None, version: int) -> None:
        """Close the transaction after EndTxn succeeded.

        ``identity`` is for the next transaction (None if the response has none); ``version`` is the cluster's
        current ``transaction.version``.
        """
        if identity is not None and identity.is_known:
            self.identity = identity
        if version >= EPOCH_BUMP_VERSION and not self.adds_implicitly:
            # Late batches of version 1 must not be taken for batches of a transaction of version 2.
            self._needs_new_epoch = True
        self.version = version
        self._clear()
        self._become(S.INITIALIZING if self._needs_new_epoch else S.READY)

    def on_step_failed(self, step: Step, code: ErrorCode, message: str) -> bool:
        """Handle the error of ``step``. Return whether to send the same request again."""
        severity = severity_of_step(step, code)
        if severity is Severity.RETRY:
            if self.state is S.ABORTING and is_answered(code):
                self._drop(step)  # it was not done, and is not wanted any more
            return True
        if severity is Severity.FATAL or isinstance(step, InitProducerId):
            self._fail_fatally(fatal_error(code, message))
            return False
        if severity is Severity.UNKNOWN_PRODUCER:
            self._needs_new_epoch = self._needs_new_epoch or not self.adds_implicitly
        self._drop(step)
        self._fail(AbortableTransactionError(code, message))
        return False

    def on_batch_failed(self, code: ErrorCode, message: str) -> None:
        """Make the transaction abortable, or the producer fail, after a batch failed that is not retried.

        Not called for batches that are dropped because their transaction is aborted.
        """
        if severity_of_batch(code) is Severity.FATAL:
            self._fail_fatally(fatal_error(code, message))
            return
        # The batch may have been written: under the same epoch, later batches could reuse its sequences.
        self._needs_new_epoch = self._needs_new_epoch or not self.adds_implicitly
        self._fail(AbortableTransactionError(code, message))

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────
    def _require(self, call: str, *states: ProducerState) -> None:
        if self.state in states:
            return
        self.raise_error()
        raise KafkaError(
            ErrorCode.invalid_txn_state,
            f"{call}() is not possible now: the producer is in state {self.state.name}, "
            f"not {' or '.join(state.name for state in states)}",
        )

    def _become(self, state: ProducerState) -> None:
        check(self.state in VALID_PREVIOUS[state], "transaction states follow their order", self.state, state)
        self.state = state

    def _fail(self, error: AbortableTransactionError) -> None:
        if self.state is S.ABORTING or self.error is not None:
            return  # the transaction is being aborted, or an earlier error is stored
        self.error = error
        self._become(S.ABORTABLE_ERROR)

    def _fail_fatally(self, error: FatalTransactionError) -> None:
        if self.state is S.FATAL_ERROR:
            return
        self.error = error
        self._clear()
        self._become(S.FATAL_ERROR)

    def _drop(self, step: Step) -> None:
        """Remove the work of ``step``, which failed with an error that is not retriable."""
        match step:
            case AddPartitions(partitions=partitions):
                self._asked = frozenset()
                for partition in partitions:
                    self._to_add.pop(partition, None)
            case AddOffsets(pending=pending) | CommitOffsets(pending=pending):
                if pending in self._offsets:
                    self._offsets.remove(pending)
            case InitProducerId() | EndTransaction():
                pass

    def _clear(self) -> None:
        self._to_add.clear()
        self._asked = frozenset()
        self._added.clear()
        self._offsets.clear()
        self._is_started = False
