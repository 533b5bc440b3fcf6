"""Compacting one batch: keep it unchanged, keep it with fewer records, keep it empty, or drop it.

A batch that is kept does not change its base offset, last offset, producer, sequence and leader epoch, so
compaction leaves gaps in and between batches. The rules are Kafka's:

- a record is kept if no newer record of its key was read; a record without a key is removed;
- records of an aborted transaction are removed at once;
- a record without a value (a tombstone) is kept until the batch's *delete horizon*: the time of the first
  round that cleans all of the batch, plus ``delete.retention.ms``. It is stored as the batch's base timestamp
  (KIP-534). Until then every reader can see the deletion. A round whose offset map was full before the end of
  the batch does not set it, unlike Kafka's: older values of its tombstones may still be read;
- a transaction marker is kept as long as the log has a batch of its transaction, then until a delete horizon;
- the last batch of a producer is kept for its sequence number, and the last batch of the cleaned part to mark
  its end, even if empty. A marker that must be kept is kept with its record, which has the producer's epoch.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
from msgspec import structs

from nilometer.compiled.widths import BytesView, Int64
from nilometer.storage.cleaning.offset_map import DROP, KEEP, TOMBSTONE, OffsetMap, RecordMarks
from nilometer.storage.cleaning.record_layout import (
    RecordSpan,
    UniformRun,
    find_run,
    read_keys,
    record_spans,
    with_timestamp_delta,
)
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes, Codec, compress
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.primitives import VARLONG_BYTES_MAX, decode_zigzag
from nilometer.wire.record_batch import NO_TIMESTAMP, BatchHeader, batch_attributes, pack_batch, read_header
from nilometer.wire.records import ControlType, read_end_txn_marker, records_data

# Tracking transactions while a cleaner reads a log from its start.
#
# - The transaction index shows which batches belong to an aborted transaction: their records are removed at
#   once, and must not count as the newest of their keys.
# - A marker, commit or abort, is needed as long as the log has a batch of its transaction: without it a
#   read-committed consumer cannot tell where the transaction ends. The same holds for the index entry of an
#   aborted transaction.
#
# Use one tracker for one pass over the batches, from the log start offset on, in order.


class TransactionTracker:
    __slots__ = ("_aborted", "_met")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """``aborted``: all aborted transactions that overlap the offsets to be read."""
        self._aborted: defaultdict[int, deque[AbortedTxn]] = defaultdict(deque)
        for entry in sorted(set(aborted), key=lambda entry: entry.last_offset):
            self._aborted[entry.producer_id].append(entry)
        self._met: set[int] = set()
        """Ids of the producers with a batch of their current transaction in the log."""

    def on_batch(self, header: BatchHeader) -> bool:
        """Track a data batch; return whether it belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._met.add(header.producer_id)
        entry = self._entry_at(header.producer_id, header.base_offset)
        return entry is not None and entry.first_offset <= header.base_offset

    def on_marker(self, header: BatchHeader, kind: ControlType) -> tuple[bool, AbortedTxn | None]:
        """Track a transaction marker of type ``kind``.

        Returns whether the log has no batch of its transaction left, and the transaction index entry to keep,
        if any.
        """
        is_met = header.producer_id in self._met
        self._met.discard(header.producer_id)
        entry = self._entry_at(header.producer_id, header.base_offset)
        if entry is not None and entry.first_offset > header.base_offset:
            entry = None
        return not is_met, entry if is_met and kind is ControlType.ABORT else None

    def _entry_at(self, producer_id: int, offset: int) -> AbortedTxn | None:
        """Return the producer's first aborted transaction that ends at ``offset`` or later, or None."""
        entries = self._aborted.get(producer_id)
        while entries and entries[0].last_offset < offset:
            entries.popleft()
        return entries[0] if entries else None


# Copying the records of a batch that are kept, unchanged, into the bytes of a new batch.

NO_DELTA = -(1 << 63)
"""Below all timestamp deltas."""
_KEPT = re.compile(rb"[^\x01]+", re.DOTALL)
"""Marks of neighbours that are kept: none of them is DROP."""
_IS_KEPT = bytes(mark != DROP for mark in range(256))


def kept_records(data: bytes, marks: bytes) -> tuple[bytes, int]:
    """Return the bytes of the records that are kept, and their largest timestamp delta.

    ``marks``: a mark for each record in ``data``, at least one of which is kept. Raises CorruptBatch.
    """
    pieces: list[bytes] = []
    newest = NO_DELTA
    index = start = 0
    try:
        while (run := find_run(data, start, len(marks) - index)) is not None:
            part = marks[index : index + run.records]
            _copy_run(data, run, part, pieces)
            deltas = run.timestamp_deltas(data, part.translate(_IS_KEPT))
            newest = max(newest, max(deltas, default=NO_DELTA))
            index, start = index + run.records, run.end
        newest = max(newest, _copy_singly(data, start, marks[index:], pieces))
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error
    return b"".join(pieces), newest


def _copy_run(data: bytes, run: UniformRun, marks: bytes, pieces: list[bytes]) -> None:
    start, stride = run.start, run.stride
    for kept in _KEPT.finditer(marks):
        first, last = kept.span()
        pieces.append(data[start + first * stride : start + last * stride])


def _copy_singly(data: bytes, start_at: int, marks: bytes, pieces: list[bytes]) -> int:
    """Copy records one by one, neighbours together; return the largest timestamp delta of those copied.

    Raises CorruptBatch, IndexError.
    """
    view: BytesView = data
    drop: Int64 = DROP
    start: Int64 = start_at
    kept_from: Int64 = start_at
    newest: Int64 = NO_DELTA
    mark: Int64
    low: Int64
    high: Int64
    length: Int64
    position: Int64
    end: Int64
    delta: Int64
    for mark in marks:
        low = view[start]
        if low < 0x80:
            length, position = (low >> 1) ^ -(low & 1), start + 1
        else:
            high = view[start + 1]
            if high < 0x80:
                length = low & 0x7F | high << 7
                length, position = (length >> 1) ^ -(length & 1), start + 2
            else:
                length, position = decode_zigzag(data, start)
        end = position + length
        if mark == drop:
            if kept_from < start:
                pieces.append(data[kept_from:start])
            kept_from = end
        else:
            low = view[position + 1]
            if low < 0x80:
                delta = (low >> 1) ^ -(low & 1)
            else:
                delta, _ = decode_zigzag(data, position + 1, VARLONG_BYTES_MAX)
            if delta > newest:
                newest = delta
        start = end
    pieces.append(data[kept_from:start])
    return newest


_DROP, _TOMBSTONE = bytes((DROP,)), bytes((TOMBSTONE,))


class Newest(msgspec.Struct, frozen=True):
    """The newest offset of each key in the records below ``end_offset``, and the marks of those records."""

    offsets: OffsetMap
    marks: RecordMarks
    end_offset: int


class CleaningRules(msgspec.Struct, frozen=True, kw_only=True):
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


class BatchRecords:
    """The records of a batch, decompressed when they are first needed: those of most batches never are."""

    def __init__(self, buffer: Bytes, position: int, header: BatchHeader, bytes_max: int) -> None:
        self._buffer = buffer
        self._position = position
        self._bytes_max = bytes_max
        self._data: bytes | None = None
        self.header = header

    @property
    def data(self) -> bytes:
        """Raises CorruptBatch."""
        if self._data is None:
            self._data = records_data(self._buffer, self._position, self.header, self._bytes_max)
        return self._data


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
        records = BatchRecords(buffer, position, header, self._rules.decompressed_bytes_max)
        marks = b"" if is_aborted or not header.records_count else self._marks(records)
        kept = len(marks) - marks.count(DROP)
        if not kept:
            if not self._must_stay(header):
                return CleanedBatch(b"", header, 0)
            return _kept(buffer, position, header) if not header.records_count else _emptied(header)
        if TOMBSTONE in marks and not header.has_delete_horizon and self._is_read_whole(header):
            spans = [
                span
                for span, mark in zip(record_spans(records.data, header), marks, strict=True)
                if mark != DROP
            ]
            return _with_horizon(records.data, spans, header, self._horizon)
        if kept == header.records_count:
            return _kept(buffer, position, header)
        data, newest_delta = kept_records(records.data, marks)
        return _thinned(data, kept, newest_delta, header)

    @property
    def _horizon(self) -> int:
        return self._rules.wall_ms + self._rules.delete_retention_ms

    def _marks(self, records: BatchRecords) -> bytes:
        """Return for each record of the batch whether it is kept. Raises CorruptBatch."""
        header = records.header
        drops_tombstones = header.has_delete_horizon and self._rules.wall_ms >= header.base_timestamp
        marks = self._rules.newest.marks.of(header)
        if marks is None:
            return self._looked_up(records, DROP if drops_tombstones else TOMBSTONE)
        return marks.replace(_TOMBSTONE, _DROP) if drops_tombstones else marks

    def _looked_up(self, records: BatchRecords, tombstone: int) -> bytes:
        """Return the marks of a batch whose keys were not put, or not all of them. Raises CorruptBatch.

        ``tombstone``: the mark of a tombstone that is the newest record of its key.
        """
        newest, base_offset = self._rules.newest, records.header.base_offset
        keys, deltas, tombstones = read_keys(records.data, records.header)
        offsets = [base_offset + delta for delta in deltas]
        marks = bytearray(map(operator.lt, offsets, newest.offsets.newest(keys)))  # True is DROP
        for index in tombstones:
            if marks[index] == KEEP:
                marks[index] = tombstone
        if max(offsets) >= newest.end_offset:  # the offset map was full in this batch, or before
            for index, offset in enumerate(offsets):
                if offset >= newest.end_offset:
                    marks[index] = KEEP
        return bytes(marks)

    def _is_read_whole(self, header: BatchHeader) -> bool:
        """Whether the keys of all its records were read, so that this round removes what they replace."""
        return header.last_offset < self._rules.newest.end_offset

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
            return _with_horizon(data, list(record_spans(data, header)), header, self._horizon)
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
    emptied = structs.replace(header, attributes=attributes, base_timestamp=NO_TIMESTAMP, records_count=0)
    data = pack_batch(emptied, b"")
    return CleanedBatch(data, read_header(data), 0)


def _thinned(data: bytes, kept: int, newest_delta: int, header: BatchHeader) -> CleanedBatch:
    """Return the batch with only the ``kept`` records in ``data``; ``newest_delta``: their largest timestamp
    delta."""
    attributes = _attributes(header, has_horizon=header.has_delete_horizon)
    return _packed(data, kept, header, attributes, header.base_timestamp, newest_delta)


def _with_horizon(data: bytes, spans: list[RecordSpan], header: BatchHeader, horizon: int) -> CleanedBatch:
    """Return the batch with only the records ``spans``, and its delete horizon."""
    shift = header.base_timestamp - horizon
    records = b"".join(with_timestamp_delta(data, span, span[2] + shift) for span in spans)
    newest_delta = max(timestamp_delta for _, _, timestamp_delta, *_ in spans)
    return _packed(records, len(spans), header, _attributes(header, has_horizon=True), horizon, newest_delta)


def _attributes(header: BatchHeader, *, has_horizon: bool) -> int:
    return batch_attributes(
        header.codec,
        log_append_time=header.is_log_append_time,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon=has_horizon,
    )


def _packed(
    records: bytes, count: int, header: BatchHeader, attributes: int, base_timestamp: int, newest_delta: int
) -> CleanedBatch:
    """``newest_delta``: the largest timestamp delta, relative to the base timestamp of ``header``."""
    is_fixed = header.is_log_append_time
    rebuilt = structs.replace(
        header,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if is_fixed else header.base_timestamp + newest_delta,
        records_count=count,
    )
    packed = pack_batch(rebuilt, compress(header.codec, records))
    return CleanedBatch(packed, read_header(packed), count)
