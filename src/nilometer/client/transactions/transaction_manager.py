"""The state of a transactional producer: what it may do, and what is to be asked of coordinators next. Pure.

Calls of the user (``begin_init``, ``begin``, ``on_appended``, ``add_offsets``, ``begin_end``) and answers of
brokers (``on_initialized``, ``on_partitions_added``, ...) change it; ``next_step`` says what to ask. One step
is under way at a time, and is asked again until it is answered.

With version 1 of transactions every partition is added before the first batch goes to it. With version 2
(KIP-890) the brokers add it themselves, and every end raises the epoch. The version is the cluster's
``transaction.version``; a producer changes over between two transactions only.

Invariants:

- Records are taken in ``IN_TRANSACTION`` alone, and sent to added partitions alone.
- A transaction is ended only when all its batches are acknowledged or failed and no step of it is without an
  answer: nothing of it can arrive behind its end.
- It is committed only if no batch and no step of it failed.
- The identity changes only while no batch is under way.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.transactions.transaction_errors import (
    AbortableTransactionError,
    FatalTransactionError,
    Severity,
    TransactionError,
    fatal_error,
    severity_of_batch,
    severity_of_step,
)
from nilometer.client.transactions.transaction_steps import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    InitProducerId,
    PendingOffsets,
    ProducerIdentity,
    Step,
)
from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.wire.errors import ErrorCode, KafkaError


class ProducerState(enum.Enum):
    UNINITIALIZED = enum.auto()
    INITIALIZING = enum.auto()
    READY = enum.auto()
    IN_TRANSACTION = enum.auto()
    COMMITTING = enum.auto()
    ABORTING = enum.auto()
    ABORTABLE_ERROR = enum.auto()
    """The transaction can only be aborted."""
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
        """The ``transaction.version`` of the transaction that is open, or of the next one."""
        self.error: TransactionError | None = None
        """Why the state is ABORTABLE_ERROR or FATAL_ERROR."""
        self._to_add: dict[TopicPartition, None] = {}
        self._asked: frozenset[TopicPartition] = frozenset()
        """Those of ``_to_add`` in the last AddPartitions."""
        self._added: dict[TopicPartition, None] = {}
        self._offsets: list[PendingOffsets] = []
        self._is_started = False
        """The coordinator knows of the transaction, or may."""
        self._needs_new_epoch = False

    # ── what the sender asks ────────────────────────────────────────────────────────────────────
    @property
    def adds_implicitly(self) -> bool:
        """Whether the brokers add partitions by themselves."""
        return self.version >= EPOCH_BUMP_VERSION

    @property
    def drops_unsent(self) -> bool:
        """Whether batches that were never sent are to fail: the transaction will not be committed."""
        return self.state in (S.ABORTABLE_ERROR, S.ABORTING, S.FATAL_ERROR)

    def may_send(self, partition: TopicPartition) -> bool:
        return self.state is not S.FATAL_ERROR and partition in self._added

    def raise_error(self) -> None:
        """Raises the AbortableTransactionError or FatalTransactionError that the producer is stopped by."""
        if self.error is not None:
            raise type(self.error)(self.error.code, self.error.message) from self.error

    # ── calls of the user ───────────────────────────────────────────────────────────────────────
    def begin_init(self) -> None:
        self._require("init", S.UNINITIALIZED)
        self._become(S.INITIALIZING)

    def begin(self) -> None:
        self._require("begin", S.READY)
        self._become(S.IN_TRANSACTION)

    def check_in_transaction(self, call: str) -> None:
        """Raises KafkaError where no transaction is open to take records or offsets."""
        self._require(call, S.IN_TRANSACTION)

    def on_appended(self, partition: TopicPartition) -> bool:
        """A record for ``partition`` is in a batch. Whether it is the first of the transaction."""
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
        # What no coordinator was asked for need not be. What one was asked for may be done yet.
        self._to_add = {partition: None for partition in self._to_add if partition in self._asked}
        self._offsets = [pending for pending in self._offsets if pending.is_asked]

    # ── steps ───────────────────────────────────────────────────────────────────────────────────
    def next_step(self, *, all_sent: bool) -> Step | None:
        """What is to be asked now. ``all_sent``: no batch is open, queued or under way."""
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
        """``step`` is about to be sent."""
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

    # ── answers ─────────────────────────────────────────────────────────────────────────────────
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
        """``identity`` of the next transaction, where the answer names it; ``version`` of the cluster now."""
        if identity is not None and identity.is_known:
            self.identity = identity
        if version >= EPOCH_BUMP_VERSION and not self.adds_implicitly:
            self._needs_new_epoch = (
                True  # the change-over: no batch of version 1 may pass for one of version 2
            )
        self.version = version
        self._clear()
        self._become(S.INITIALIZING if self._needs_new_epoch else S.READY)

    def on_step_failed(self, step: Step, code: ErrorCode, message: str) -> bool:
        """Whether to ask again."""
        severity = severity_of_step(step, code)
        if severity is Severity.RETRY:
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
        """A batch was given up that was not dropped with its transaction."""
        if severity_of_batch(code) is Severity.FATAL:
            self._fail_fatally(fatal_error(code, message))
            return
        # Whether it was written is not known: without another epoch its sequences could not be told apart.
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
        assert self.state in VALID_PREVIOUS[state], f"{self.state.name} to {state.name}"
        self.state = state

    def _fail(self, error: AbortableTransactionError) -> None:
        if self.state is S.ABORTING or self.error is not None:
            return  # it is being aborted, or the first error is known
        self.error = error
        self._become(S.ABORTABLE_ERROR)

    def _fail_fatally(self, error: FatalTransactionError) -> None:
        if self.state is S.FATAL_ERROR:
            return
        self.error = error
        self._clear()
        self._become(S.FATAL_ERROR)

    def _drop(self, step: Step) -> None:
        """A refused step is not asked again."""
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
