"""Sequence numbers: how retries neither repeat nor reorder records (SPEC P-3, KIP-98, KIP-360). Pure.

A producer has an identity: producer id and producer epoch. Every batch of a partition carries the identity
and the sequence of its first record. The broker appends a batch only if its sequence follows the last one,
and acknowledges a duplicate with the offset of the first append. So several batches may be in flight, and a
failed one is sent again before any later one.

When the sequences are no longer known to match (the broker lost its producer state, or a batch was given up
that may have been written) the producer epoch is raised and the partition's sequences restart at 0, which the
broker accepts under a new epoch.

Invariants, by partition:

- ``in_flight`` holds the unresolved batches with a sequence, in the order of sequences and without gaps:
  each begins where the one before it ends, and ``next_sequence`` is where the last one ends.
- Until the first batch under an identity is acknowledged, no other one is sent.
- A batch that is sent again is sent alone until it is acknowledged; none with a later sequence passes it.
- Under one identity a sequence always means the same record.
- A batch that may have been written keeps its identity: it is acknowledged under it, or given up.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerBatch, next_sequence
from nilometer.wire.errors import ErrorCode

IN_FLIGHT_MAX = 5
"""The maximum of batches in flight per partition: as many as a broker remembers to detect duplicates."""
PRODUCER_EPOCH_MAX = 0x7FFF
NOTHING_ACKNOWLEDGED = -1


class Verdict(enum.Enum):
    """The meaning of an error code for the batch that got it, given its sequence."""

    RETRY = enum.auto()
    """Send it again, without counting the attempt against ``retries``."""
    ALREADY_WRITTEN = enum.auto()
    FAILED = enum.auto()
    """Fail the batch: later records are in the log already, because the broker had lost the producer's state;
    or its transaction must be aborted."""
    NOT_ABOUT_SEQUENCES = enum.auto()


@dataclass(slots=True)
class PartitionSequences:
    producer_id: int
    producer_epoch: int
    next_sequence: int = 0
    last_acknowledged: int = NOTHING_ACKNOWLEDGED
    """The sequence of the last record acknowledged under this identity."""
    in_flight: list[ProducerBatch] = field(default_factory=list[ProducerBatch])
    acknowledged_ahead: int = 0
    """The number of batches acknowledged, since nothing was in flight, before one that was sent earlier.

    The earlier one may still wait for the old leader when the new leader has acknowledged a later one.
    """
    unresolved: bool = False
    """Whether a batch was given up that may have been written: no new batch is sent until that is known."""

    def resolve(self, batch: ProducerBatch) -> None:
        """Remove ``batch`` from the batches in flight."""
        self.in_flight.remove(batch)
        if not self.in_flight:
            self.acknowledged_ahead = 0

    def is_next(self, batch: ProducerBatch) -> bool:
        """Whether all records before ``batch`` are acknowledged."""
        expected = 0 if self.last_acknowledged < 0 else next_sequence(self.last_acknowledged, 1)
        return batch.base_sequence == expected

    def is_overtaken(self, batch: ProducerBatch) -> bool:
        """Whether records after ``batch`` are acknowledged, though ``batch`` is not."""
        ahead = next_sequence(self.last_acknowledged, -batch.base_sequence)
        return self.last_acknowledged >= 0 and ahead < 1 << 30


class IdempotenceState:
    def __init__(self, *, transactional: bool = False) -> None:
        """``transactional``: producer id and epoch come from the transaction coordinator and change only
        between two transactions, so that this object never raises the epoch itself."""
        self._transactional = transactional
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._to_restart: dict[TopicPartition, None] = {}

    @property
    def has_identity(self) -> bool:
        return self.producer_id >= 0

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        """Set the identity of an InitProducerId response; partitions marked to restart do so under it."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._restart_waiting()

    def forget_identity(self) -> None:
        """Drop the identity, so that a new one is requested; batches in flight keep the one they have."""
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH

    def may_send(self, batch: ProducerBatch) -> bool:
        """Whether ``batch``, the first in its partition's queue, may be sent now by the invariants."""
        if not self.has_identity:
            return False
        state = self._partitions.get(batch.partition)
        if state is None:
            return True
        if batch.has_sequence:
            return state.in_flight[0] is batch
        # A broker that does not know the producer accepts any first sequence: make sure that it is 0, by
        # sending nothing else until that batch is written.
        in_flight_max = IN_FLIGHT_MAX if state.last_acknowledged >= 0 else 1
        # Batches acknowledged ahead of the first one in flight count too: a broker that remembers only later
        # batches could not recognise the first one as a duplicate.
        if state.unresolved or len(state.in_flight) + state.acknowledged_ahead >= in_flight_max:
            return False
        return not (self._is_stale(state) and state.in_flight)

    def begin(self, batch: ProducerBatch) -> None:
        """Give ``batch``, which is about to be sent, an identity and a sequence if it has none."""
        if batch.has_sequence:
            batch.resequenced = False
            return
        state = self._partitions.get(batch.partition)
        if state is None or (self._is_stale(state) and not state.in_flight):
            state = PartitionSequences(self.producer_id, self.producer_epoch)
            self._partitions[batch.partition] = state
        batch.set_sequence(state.producer_id, state.producer_epoch, state.next_sequence)
        state.next_sequence = next_sequence(state.next_sequence, batch.records_count)
        state.in_flight.append(batch)

    def on_acknowledged(self, batch: ProducerBatch) -> None:
        """Remove an acknowledged batch from those in flight, and note its last sequence."""
        state = self._state_of(batch)
        if state is None:
            return
        if batch in state.in_flight:
            state.acknowledged_ahead += batch is not state.in_flight[0]
            state.resolve(batch)
        if self._has_identity_of(state, batch):
            last = next_sequence(batch.base_sequence, batch.records_count - 1)
            if state.last_acknowledged < 0 or 0 < next_sequence(last, -state.last_acknowledged) < 1 << 30:
                state.last_acknowledged = last
        self._maybe_settle(batch.partition, state)

    def on_failed(self, batch: ProducerBatch, *, maybe_written: bool) -> None:
        """Remove a batch that was given up; if it was certainly not written, renumber the later ones.

        If it may have been written, no new batch is sent until the outcome of those in flight shows it.
        """
        state = self._state_of(batch)
        if state is None or batch not in state.in_flight:
            return
        place = state.in_flight.index(batch)
        state.resolve(batch)
        if maybe_written:
            state.unresolved = True
        elif self._has_identity_of(state, batch):
            sequence = batch.base_sequence
            for later in state.in_flight[place:]:
                later.set_sequence(state.producer_id, state.producer_epoch, sequence)
                sequence = next_sequence(sequence, later.records_count)
            state.next_sequence = sequence
        self._maybe_settle(batch.partition, state)

    def on_split(self, batch: ProducerBatch, parts: tuple[ProducerBatch, ...]) -> None:
        """Replace ``batch`` by its ``parts`` among the batches in flight."""
        state = self._state_of(batch)
        if state is not None and batch in state.in_flight:
            place = state.in_flight.index(batch)
            state.in_flight[place : place + 1] = parts

    def judge(self, batch: ProducerBatch, code: ErrorCode) -> Verdict:
        """Return the meaning of error ``code`` for ``batch``; may mark its partition to restart at 0."""
        if code == ErrorCode.duplicate_sequence_number:
            return Verdict.ALREADY_WRITTEN
        state = self._state_of(batch)
        if state is None:
            return Verdict.NOT_ABOUT_SEQUENCES
        match code:
            case ErrorCode.out_of_order_sequence_number | ErrorCode.unknown_producer_id:
                if batch.resequenced or not self._has_identity_of(state, batch):
                    return Verdict.RETRY  # the error is about the batch's previous sequence
                if state.is_overtaken(batch):
                    return Verdict.FAILED
                if self._transactional:
                    return self._judge_in_transaction(state, batch, code)
                if any(each.maybe_written for each in state.in_flight):
                    # It may be in the log already: a restarted broker may know only the producer's last
                    # batch. Under another epoch it would be appended twice.
                    return Verdict.RETRY
                if code == ErrorCode.unknown_producer_id or state.unresolved or state.is_next(batch):
                    # All records before it are acknowledged, yet the broker misses some: it lost its state.
                    self._to_restart[batch.partition] = None
                return Verdict.RETRY
            case ErrorCode.invalid_producer_epoch | ErrorCode.invalid_producer_id_mapping:
                if self._transactional:
                    return Verdict.FAILED
                if batch.resequenced or not self._is_current(batch):
                    return Verdict.RETRY
                self._to_restart[batch.partition] = None
                self.forget_identity()
                return Verdict.RETRY
            case _:
                return Verdict.NOT_ABOUT_SEQUENCES

    @staticmethod
    def _judge_in_transaction(state: PartitionSequences, batch: ProducerBatch, code: ErrorCode) -> Verdict:
        """Return the verdict for a batch of a transaction after an error about its sequence number.

        The batch is failed, and so its transaction aborted, if the batch can never be appended in order.
        """
        if code == ErrorCode.unknown_producer_id or state.unresolved or state.is_next(batch):
            return Verdict.FAILED
        return Verdict.RETRY

    def maybe_raise_epoch(self) -> None:
        """Raise the epoch if partitions are marked to restart, and restart them at sequence 0.

        After the last epoch, drop the identity instead, so that a new producer id is requested.
        """
        if not self._to_restart or not self.has_identity:
            return
        if self.producer_epoch >= PRODUCER_EPOCH_MAX:
            self.forget_identity()
            return
        self.producer_epoch += 1
        self._restart_waiting()

    def _restart_waiting(self) -> None:
        for partition in self._to_restart:
            state = self._partitions.get(partition)
            if state is not None:
                self._restart(state)
        self._to_restart.clear()

    def _restart(self, state: PartitionSequences) -> None:
        state.producer_id = self.producer_id
        state.producer_epoch = self.producer_epoch
        state.last_acknowledged = NOTHING_ACKNOWLEDGED
        state.unresolved = False
        state.acknowledged_ahead = 0
        sequence = 0
        for batch in state.in_flight:
            batch.set_sequence(state.producer_id, state.producer_epoch, sequence)
            sequence = next_sequence(sequence, batch.records_count)
        state.next_sequence = sequence

    def _maybe_settle(self, partition: TopicPartition, state: PartitionSequences) -> None:
        """Once nothing is in flight, decide whether the given-up batch was written.

        If the last acknowledged sequence shows that it was not, mark the partition to restart at sequence 0.
        """
        if not state.unresolved or state.in_flight:
            return
        state.unresolved = False
        last = state.last_acknowledged
        if state.next_sequence != (0 if last < 0 else next_sequence(last, 1)):
            self._to_restart[partition] = None

    def _state_of(self, batch: ProducerBatch) -> PartitionSequences | None:
        return self._partitions.get(batch.partition) if batch.has_sequence else None

    def _is_stale(self, state: PartitionSequences) -> bool:
        return (state.producer_id, state.producer_epoch) != (self.producer_id, self.producer_epoch)

    def _is_current(self, batch: ProducerBatch) -> bool:
        return (batch.producer_id, batch.producer_epoch) == (self.producer_id, self.producer_epoch)

    def _has_identity_of(self, state: PartitionSequences, batch: ProducerBatch) -> bool:
        return (batch.producer_id, batch.producer_epoch) == (state.producer_id, state.producer_epoch)
