"""One transactional id: its producer id and epoch, and the transaction that this producer has open.

A value; each transition returns the next one, and is written as a record before anything follows from it.

Invariants:
- of one producer id the epoch never falls; a producer id, once replaced, is not taken up again;
- a producer never has an epoch above :data:`EPOCH_MAX`, so that the coordinator can always fence it: an epoch
  that is exhausted is followed by epoch 0 of a new producer id (EDGE 40);
- there are partitions only while the transaction is ongoing or prepared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nilometer.replication.invariants import check
from nilometer.storage import TopicPartition
from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.transactions.state import TransactionState

NO_PRODUCER_ID = -1
NO_EPOCH = -1
INT16_MAX = 2**15 - 1
EPOCH_MAX = INT16_MAX - 1
"""The highest epoch that a producer is given."""


def is_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    producer_id: int
    producer_epoch: int
    """-1 only before the first InitProducerId is answered; such a value is never written."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    """By the wall clock: when the first partition was added; -1 where none was since the epoch was new."""
    updated_ms: int
    """By the wall clock: the last transition."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """While prepared, what the producer has been given for its next transaction, with epoch 0."""
    next_producer_epoch: int = NO_EPOCH
    """Kept as it was read: two-phase commit (KIP-939) is not served."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the last bump that the producer asked for: a repeated request is known by it. Not kept
    in records."""
    version: int = 0
    """The ``transaction.version`` that the producer uses."""

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.producer_epoch)

    @property
    def bumps_epochs(self) -> bool:
        return self.version >= EPOCH_BUMP_VERSION

    @property
    def ordered_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self.partitions, key=lambda each: (each.topic, each.partition)))

    def is_timed_out(self, wall_ms: int) -> bool:
        return self.state is TransactionState.ONGOING and self.started_ms + self.timeout_ms < wall_ms

    # ── transitions ─────────────────────────────────────────────────────────────────────────────
    def with_epoch(self, epoch: int, last_epoch: int, timeout_ms: int, wall_ms: int) -> Transaction:
        """The producer is given ``epoch``: a new one, or again the one that it has."""
        check(self.producer_epoch <= epoch <= EPOCH_MAX, "a producer's epoch never falls", self, epoch)
        return self._become(
            TransactionState.EMPTY,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset[TopicPartition](),
            started_ms=-1,
            updated_ms=wall_ms,
        )

    def with_producer_id(
        self, producer_id: int, last_epoch: int, timeout_ms: int, wall_ms: int
    ) -> Transaction:
        """The epochs of the producer id are exhausted: epoch 0 of another."""
        return self._become(
            TransactionState.EMPTY,
            previous_producer_id=self.producer_id,
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset[TopicPartition](),
            started_ms=-1,
            updated_ms=wall_ms,
        )

    def with_partitions(self, added: frozenset[TopicPartition], version: int, wall_ms: int) -> Transaction:
        begins = self.state.is_idle
        return self._become(
            TransactionState.ONGOING,
            partitions=added if begins else self.partitions | added,
            started_ms=wall_ms if begins else self.started_ms,
            updated_ms=wall_ms,
            version=version,
        )

    def prepared(
        self, *, commit: bool, version: int, next_producer_id: int, fences: bool, wall_ms: int
    ) -> Transaction:
        """The outcome is decided. ``fences``: by the coordinator, against the producer."""
        bumps = version >= EPOCH_BUMP_VERSION
        epoch = self.producer_epoch + (1 if bumps or fences else 0)
        check(epoch <= INT16_MAX, "there is an epoch left to end a transaction with", self)
        if bumps:
            last_epoch = self.producer_epoch
        else:
            last_epoch = NO_EPOCH if fences else self.last_producer_epoch
        return self._become(
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            started_ms=wall_ms if self.state.is_idle else self.started_ms,
            updated_ms=wall_ms,
            version=version,
        )

    def completed(self, wall_ms: int) -> Transaction:
        """All markers are written."""
        rotates = self.bumps_epochs and self.next_producer_id != NO_PRODUCER_ID
        return self._become(
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            previous_producer_id=self.producer_id,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset[TopicPartition](),
            updated_ms=wall_ms,
        )

    def _become(self, state: TransactionState, **changes: object) -> Transaction:
        check(self.state.may_become(state), "a transaction takes a lawful step", self, state)
        return replace(self, state=state, **changes)  # type: ignore[arg-type]
