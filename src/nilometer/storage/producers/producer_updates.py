"""The changes that one append makes in the producer state: checked first, applied after the write.

The checks follow Kafka: an older producer epoch is fenced; a batch must continue the sequence of the
previous one; a new epoch starts at sequence 0; an unknown producer may start at any sequence, since its
records may have been deleted (KIP-360). Only the leader checks sequences, and only in clients' records; a
follower accepts all batches that the leader accepted (KAFKA-6003).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from nilometer.storage.producers.producer_entry import (
    NO_OFFSET,
    SEQUENCE_MAX,
    BatchMetadata,
    ProducerStateEntry,
)
from nilometer.wire.control_records import ControlType, EndTxnMarker
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, BatchHeader


class AppendOrigin(enum.Enum):
    """The source of the records, which decides how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


_CLIENT = AppendOrigin.CLIENT


class CompletedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerUpdates:
    """The changes of one append: each batch is checked against the state after the batches before it."""

    __slots__ = ("_known", "_origin", "completed", "entries", "started")

    def __init__(self, known: Mapping[int, ProducerStateEntry], origin: AppendOrigin) -> None:
        self._known = known
        self._origin = origin
        self.entries: dict[int, ProducerStateEntry] = {}
        self.started: list[tuple[int, int]] = []
        """(first offset, producer id) of the transactions that start in this append."""
        self.completed: list[CompletedTxn] = []

    def add_batch(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Check and add a data batch that will get ``base_offset``. Raises KafkaError if it is rejected."""
        entry = self._entry(header.producer_id)
        known_before = entry.producer_epoch != NO_PRODUCER_EPOCH
        self._check_epoch(entry, header.producer_epoch)
        if self._origin is _CLIENT and known_before:
            self._check_sequence(entry, header)
        last_offset = base_offset + header.last_offset_delta
        entry.add_batch(
            header.producer_epoch,
            BatchMetadata(header.last_sequence, last_offset, header.last_offset_delta, max_timestamp),
        )
        in_transaction, is_transactional = (
            entry.current_txn_first_offset != NO_OFFSET,
            header.is_transactional,
        )
        if in_transaction and not is_transactional:
            if self._origin is not AppendOrigin.REPLICATION:
                raise KafkaError(
                    ErrorCode.invalid_txn_state,
                    f"producer {header.producer_id} sent a batch outside of its open transaction",
                )
        elif is_transactional and not in_transaction:
            entry.current_txn_first_offset = base_offset
            self.started.append((base_offset, header.producer_id))

    def add_marker(self, header: BatchHeader, offset: int, marker: EndTxnMarker) -> None:
        """Check and add a transaction marker that will get ``offset``. Raises KafkaError if rejected."""
        entry = self._entry(header.producer_id)
        self._check_epoch(entry, header.producer_epoch)
        if (
            marker.coordinator_epoch < entry.coordinator_epoch
            and self._origin is not AppendOrigin.REPLICATION
        ):
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"coordinator epoch {marker.coordinator_epoch} is older than {entry.coordinator_epoch}",
            )
        if entry.current_txn_first_offset != NO_OFFSET:
            aborted = marker.control_type is ControlType.ABORT
            self.completed.append(
                CompletedTxn(header.producer_id, entry.current_txn_first_offset, offset, aborted)
            )
        entry.enter_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.current_txn_first_offset = NO_OFFSET
        entry.last_timestamp = marker.timestamp

    def _entry(self, producer_id: int) -> ProducerStateEntry:
        entry = self.entries.get(producer_id)
        if entry is None:
            known = self._known.get(producer_id)
            entry = ProducerStateEntry(producer_id) if known is None else known.copy()
            self.entries[producer_id] = entry
        return entry

    def _check_epoch(self, entry: ProducerStateEntry, producer_epoch: int) -> None:
        if producer_epoch < entry.producer_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {entry.producer_id} has epoch {entry.producer_epoch}, but sent {producer_epoch}",
            )

    def _check_sequence(self, entry: ProducerStateEntry, header: BatchHeader) -> None:
        first = header.base_sequence
        if header.producer_epoch != entry.producer_epoch:
            if first != 0:
                raise _out_of_order(header, "0, because its epoch is new")
            return
        last = entry.last_sequence
        expected = 0 if last in (NO_SEQUENCE, SEQUENCE_MAX) else last + 1
        if first != expected:
            raise _out_of_order(header, str(expected))


def _out_of_order(header: BatchHeader, expected: str) -> KafkaError:
    return KafkaError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence {header.base_sequence}"
        f", but the log expects {expected}",
    )
