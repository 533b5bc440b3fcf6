"""The state of one idempotent producer in one log: its epoch, its last five batches, its open transaction.

Sequence numbers run from 0 to 2^31 - 1 and then wrap to 0.
"""

from __future__ import annotations

import msgspec

from nilometer.storage.producers.producer_snapshot import SnapshotEntry
from nilometer.wire.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader

BATCHES_MAX = 5
"""A client has at most five requests in flight, so a duplicate is one of the last five batches."""

SEQUENCE_MAX = 2**31 - 1
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


class BatchMetadata(msgspec.Struct, frozen=True, gc=False):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + SEQUENCE_MAX + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """One producer's state. Invariant: all ``batches`` have epoch ``producer_epoch``; the oldest is first."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp = NO_TIMESTAMP
        self.current_txn_first_offset = NO_OFFSET
        self.batches: tuple[BatchMetadata, ...] = ()

    def copy(self) -> ProducerStateEntry:
        copy = ProducerStateEntry.__new__(ProducerStateEntry)
        copy.producer_id = self.producer_id
        copy.producer_epoch = self.producer_epoch
        copy.coordinator_epoch = self.coordinator_epoch
        copy.last_timestamp = self.last_timestamp
        copy.current_txn_first_offset = self.current_txn_first_offset
        copy.batches = self.batches
        return copy

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def add_batch(self, producer_epoch: int, batch: BatchMetadata) -> None:
        self.enter_epoch(producer_epoch)
        self.batches = (*self.batches[-(BATCHES_MAX - 1) :], batch)
        self.last_timestamp = batch.timestamp

    def enter_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches = ()

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the batch with the same epoch and sequence numbers if it is among the last five, or None."""
        if header.producer_epoch != self.producer_epoch:
            return None
        if self.batches and header.base_sequence == self.batches[-1].last_sequence + 1:
            return None  # the usual case: it continues the last batch
        last_sequence = header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return None

    def to_snapshot(self) -> SnapshotEntry:
        last = self.batches[-1] if self.batches else BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
        return SnapshotEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=last.last_sequence,
            last_offset=last.last_offset,
            offset_delta=last.offset_delta,
            timestamp=self.last_timestamp,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.current_txn_first_offset,
        )

    @classmethod
    def from_snapshot(cls, saved: SnapshotEntry) -> ProducerStateEntry:
        entry = cls(saved.producer_id)
        entry.producer_epoch = saved.producer_epoch
        entry.coordinator_epoch = saved.coordinator_epoch
        entry.last_timestamp = saved.timestamp
        entry.current_txn_first_offset = saved.current_txn_first_offset
        if saved.last_offset >= 0:
            batch = BatchMetadata(saved.last_sequence, saved.last_offset, saved.offset_delta, saved.timestamp)
            entry.batches = (batch,)
        return entry
