"""The records of one partition from one Fetch response, returned in portions. Pure.

Batches are checked and decoded one at a time, when the first of their records is needed. Control records are
never returned; with ``read_committed`` neither are the records of aborted transactions: the response lists
their producer ids and first offsets, and the producer's abort marker ends each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.errors import CorruptBatch, ErrorCode, KafkaError
from nilometer.wire.record_batch import BatchHeader, batches, check_batch
from nilometer.wire.records import Header, Record, decode_records

ABORT_MARKER = b"\x00\x00"
"""The type field (after a two-byte version) in the key of the control record of an aborted transaction."""


class ConsumerRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    """0: set by the producer. 1: by the broker, when it appended the record."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    leader_epoch: int


class FetchedRecords:
    def __init__(
        self,
        partition: TopicPartition,
        generation: int,
        offset: int,
        data: bytes,
        *,
        aborted: Sequence[tuple[int, int]] = (),
        check_crcs: bool = True,
        read_committed: bool = False,
    ) -> None:
        self.partition = partition
        self.generation = generation
        self.next_offset = offset
        """The offset after the last returned record: the user's next position."""
        self.epoch = NO_LEADER_EPOCH
        """The leader epoch of the record before ``next_offset``."""
        self._data = data
        self._check_crcs = check_crcs
        self._read_committed = read_committed
        self._batches = list(batches(data))
        self._batch_index = 0
        self._aborted = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._aborted_producers: dict[int, None] = {}
        self._records: list[Record] = []
        self._record_index = 0
        self._header: BatchHeader | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the last batch: where to fetch next."""
        return self._batches[-1][1].next_offset if self._batches else self.next_offset

    @property
    def is_exhausted(self) -> bool:
        return self._record_index >= len(self._records) and self._batch_index >= len(self._batches)

    def take(self, count: int) -> list[ConsumerRecord]:
        """Return up to ``count`` records, none at the end. Each call at a corrupt batch raises KafkaError."""
        taken: list[ConsumerRecord] = []
        topic, index = self.partition
        while len(taken) < count:
            if self._record_index >= len(self._records) and not self._next_batch(bool(taken)):
                break
            assert self._header is not None
            begin = self._record_index
            part = self._records[begin : begin + count - len(taken)]
            self._record_index += len(part)
            kind, epoch = self._header.timestamp_type, self._header.partition_leader_epoch
            taken += [
                ConsumerRecord(topic, index, offset, timestamp, kind, key, value, headers, epoch)
                for offset, timestamp, key, value, headers in part
            ]
            self.epoch = epoch
            if self._record_index >= len(self._records):
                self.next_offset = self._header.next_offset
            else:
                self.next_offset = part[-1].offset + 1
        return taken

    def _next_batch(self, some_taken: bool) -> bool:
        """Advance to the next batch with records for the user; return False if there is none.

        Raises KafkaError for a corrupt batch; returns False instead if ``some_taken``: the next call raises.
        """
        while self._batch_index < len(self._batches):
            position, header = self._batches[self._batch_index]
            try:
                records = self._decode(position, header)
            except KafkaError as error:
                if some_taken:
                    return False  # return the good records first; the next call raises the error
                raise KafkaError(
                    error.code, f"{self.partition} at offset {header.base_offset}: {error.message}"
                ) from error
            self._batch_index += 1
            if records:
                self._records, self._record_index, self._header = records, 0, header
                return True
            self.next_offset = max(self.next_offset, header.next_offset)
            self.epoch = header.partition_leader_epoch
        return False

    def _decode(self, position: int, header: BatchHeader) -> list[Record]:
        if header.next_offset <= self.next_offset:
            return []
        if self._check_crcs:
            check_batch(self._data, position, header)
        if header.is_control:
            self._on_control(position, header)
            return []
        if self._read_committed and self._is_aborted(header):
            return []
        records = decode_records(self._data, position, header)
        if header.base_offset < self.next_offset:
            records = [record for record in records if record.offset >= self.next_offset]
        return records

    def _is_aborted(self, header: BatchHeader) -> bool:
        while self._aborted and self._aborted[-1][1] <= header.last_offset:
            self._aborted_producers[self._aborted.pop()[0]] = None
        return header.is_transactional and header.producer_id in self._aborted_producers

    def _on_control(self, position: int, header: BatchHeader) -> None:
        if not self._read_committed:
            return
        self._is_aborted(header)
        for record in decode_records(self._data, position, header):
            if record.key is None or len(record.key) < 4:
                raise CorruptBatch("control record without a type")
            if record.key[2:4] == ABORT_MARKER:
                self._aborted_producers.pop(header.producer_id, None)


def damaged(partition: TopicPartition, offset: int) -> KafkaError:
    """Return the error for a Fetch response that contains no whole batch."""
    return KafkaError(
        ErrorCode.corrupt_message,
        f"{partition} at offset {offset}: the fetch response is not a record batch",
    )
