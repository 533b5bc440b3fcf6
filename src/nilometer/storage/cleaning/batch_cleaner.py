"""Compacting one batch: keep it unchanged, keep it with fewer records, keep it empty, or drop it.

A batch that is kept does not change its base offset, last offset, producer, sequence and leader epoch, so
compaction leaves gaps in and between batches. The rules are Kafka's:

- a record is kept if no newer record of its key was read; a record without a key is removed;
- records of an aborted transaction are removed at once;
- a record without a value (a tombstone) is kept until the batch's *delete horizon*: the time of the first
  round that keeps the tombstone plus ``delete.retention.ms``. It is stored as the batch's base timestamp
  (KIP-534). Until then every reader can see the deletion;
- a transaction marker is kept as long as the log has a batch of its transaction, then until a delete horizon;
- the last batch of a producer is kept for its sequence number, and the last batch of the cleaned part to mark
  its end, even if empty. A marker that must be kept is kept with its record, which has the producer's epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nilometer.storage.cleaning.offset_map import OffsetMap
from nilometer.storage.cleaning.record_spans import RecordSpan, joined, record_spans, with_timestamp_delta
from nilometer.storage.cleaning.transactions import TransactionTracker
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes, Codec, compress
from nilometer.wire.control_records import read_end_txn_marker
from nilometer.wire.record_batch import (
    NO_TIMESTAMP,
    BatchHeader,
    batch_attributes,
    pack_batch,
    read_header,
)
from nilometer.wire.records import records_data


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest offset of each key in the records below ``end_offset``."""

    offsets: OffsetMap
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRules:
    newest: Newest
    wall_ms: int
    delete_retention_ms: int
    round_end: int
    """The end offset of the part of the log that may be cleaned."""
    is_last_of_producer: Callable[[BatchHeader], bool]
    """Whether a batch is its producer's last one in that part, see :func:`cleaning_round.last_batches`."""
    decompressed_bytes_max: int
    """Largest decompressed size of a batch."""


class CleanedBatch(NamedTuple):
    data: Bytes
    """The bytes of the new batch; empty if it is dropped."""
    header: BatchHeader
    records: int
    """How many records are kept."""
    aborted: AbortedTxn | None = None
    """The entry that the new segment's transaction index needs for this abort marker."""


class BatchCleaner:
    def __init__(self, rules: CleaningRules, transactions: TransactionTracker) -> None:
        self._rules = rules
        self._transactions = transactions

    def clean(self, buffer: Bytes, position: int, header: BatchHeader) -> CleanedBatch:
        """Return the cleaned form of the batch at byte ``position`` of ``buffer``, whose CRC was checked.

        Raises CorruptBatch if its records cannot be parsed.
        """
        if header.is_control:
            return self._clean_marker(buffer, position, header)
        is_aborted = self._transactions.on_batch(header)
        spans: list[RecordSpan] = []
        data = b""
        if not is_aborted and header.records_count:
            data = records_data(buffer, position, header, self._rules.decompressed_bytes_max)
            spans = self._staying(data, header)
        if not spans:
            if not self._must_stay(header):
                return CleanedBatch(b"", header, 0)
            return _kept(buffer, position, header) if not header.records_count else _emptied(header)
        needs_horizon = not header.has_delete_horizon and not all(has_value for *_, has_value in spans)
        if len(spans) == header.records_count and not needs_horizon:
            return _kept(buffer, position, header)
        return _rebuilt(data, spans, header, self._horizon if needs_horizon else None)

    @property
    def _horizon(self) -> int:
        return self._rules.wall_ms + self._rules.delete_retention_ms

    def _staying(self, data: bytes, header: BatchHeader) -> list[RecordSpan]:
        """Return the records that are kept. Raises CorruptBatch."""
        rules = self._rules
        newest, newest_end = rules.newest.offsets.get, rules.newest.end_offset
        base_offset = header.base_offset
        keeps_tombstones = not header.has_delete_horizon or rules.wall_ms < header.base_timestamp
        staying: list[RecordSpan] = []
        for span in record_spans(data, header):
            _, _, _, _, offset_delta, key, has_value = span
            offset = base_offset + offset_delta
            if offset < newest_end and (
                key is None or offset < newest(key) or not (has_value or keeps_tombstones)
            ):
                continue
            staying.append(span)
        return staying

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self._rules.round_end:
            return True
        return header.has_producer_id and self._rules.is_last_of_producer(header)

    def _clean_marker(self, buffer: Bytes, position: int, header: BatchHeader) -> CleanedBatch:
        marker = read_end_txn_marker(buffer, position, header)
        if marker is None:  # of another kind, or emptied by another cleaner
            is_needed = bool(header.records_count) or self._must_stay(header)
            return _kept(buffer, position, header) if is_needed else CleanedBatch(b"", header, 0)
        is_last, entry = self._transactions.on_marker(header, marker.control_type)
        if not is_last:
            return _kept(buffer, position, header)._replace(aborted=entry)
        if not header.has_delete_horizon:
            data = records_data(buffer, position, header, self._rules.decompressed_bytes_max)
            return _rebuilt(data, list(record_spans(data, header)), header, self._horizon)
        if self._rules.wall_ms < header.base_timestamp or self._must_stay(header):
            return _kept(buffer, position, header)
        return CleanedBatch(b"", header, 0)


def _kept(buffer: Bytes, position: int, header: BatchHeader) -> CleanedBatch:
    return CleanedBatch(memoryview(buffer)[position : position + header.size], header, header.records_count)


def _emptied(header: BatchHeader) -> CleanedBatch:
    """Return the batch without records. It keeps its maximum timestamp, by which an idle producer expires."""
    attributes = batch_attributes(
        Codec.NONE,
        log_append_time=header.is_log_append_time,
        transactional=header.is_transactional,
        control=header.is_control,
    )
    emptied = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, records_count=0)
    data = pack_batch(emptied, b"")
    return CleanedBatch(data, read_header(data), 0)


def _rebuilt(data: bytes, spans: list[RecordSpan], header: BatchHeader, horizon: int | None) -> CleanedBatch:
    """Return the batch with only the records ``spans``; ``horizon`` is its new delete horizon, if any."""
    base = header.base_timestamp
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = base + max(timestamp_delta for _, _, timestamp_delta, *_ in spans)
    if horizon is None:
        records, new_base = joined(data, spans), base
    else:
        new_base = horizon
        records = b"".join(with_timestamp_delta(data, span, span[2] + base - new_base) for span in spans)
    attributes = batch_attributes(
        header.codec,
        log_append_time=header.is_log_append_time,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon=horizon is not None or header.has_delete_horizon,
    )
    rebuilt = header._replace(
        attributes=attributes,
        base_timestamp=new_base,
        max_timestamp=max_timestamp,
        records_count=len(spans),
    )
    packed = pack_batch(rebuilt, compress(header.codec, records))
    return CleanedBatch(packed, read_header(packed), len(spans))
