"""The layout of records in the bytes of a batch, which batches belong to aborted transactions, and what
compaction leaves of one batch. Records are found in the bytes without decoding them.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from struct import iter_unpack
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from nilometer.compiled.widths import BytesView, Int64, let_threads_run
from nilometer.storage.cleaning.offset_map import DROP, KEEP, TOMBSTONE, OffsetMap, RecordMarks
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes, Codec, compress
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.primitives import VARLONG_BYTES_MAX, decode_zigzag, encode_zigzag
from nilometer.wire.record_batch import NO_TIMESTAMP, BatchHeader, batch_attributes, pack_batch, read_header
from nilometer.wire.records import ControlType, read_end_txn_marker, records_data

# The records of a batch in its bytes, found without decoding them: where each begins, what its key is, and
# which follow each other with the same layout.

# The positions of a batch's records in its bytes, found without decoding the records.
#
# For batches that get a delete horizon: it takes the place of the base timestamp, so every timestamp delta
# changes, and nothing else.

RecordSpan: TypeAlias = tuple[int, int, int, int, int, bytes | None, bool]
"""One record: the position of its first byte (its length field) and of the end, the timestamp delta and the
position after it, the offset delta, the key, and whether it has a value. Positions are in the decompressed
bytes of the batch's records."""


def record_spans(data: bytes, header: BatchHeader) -> list[RecordSpan]:
    """Return the span of every record in ``data``, in order. Raises CorruptBatch."""
    try:
        return _spans(data, 0, header.records_count)
    except IndexError as error:
        raise CorruptBatch("a record has fewer bytes than its fields need") from error


def _spans(data: bytes, start_at: int, count: int) -> list[RecordSpan]:
    """Return the spans of the last ``count`` records of ``data``, from ``start_at`` on.

    Integers of one and two bytes, which nearly all are, are decoded inline, since a call for each would take
    a third of the time.
    """
    view: BytesView = data
    data_end: Int64 = len(data)
    start: Int64 = start_at
    low: Int64
    high: Int64
    length: Int64
    position: Int64
    end: Int64
    timestamp_delta: Int64
    behind: Int64
    offset_delta: Int64
    size: Int64
    turns: Int64
    spans: list[RecordSpan] = []
    for turns in range(count):
        if not turns & 0x3FF:
            let_threads_run()
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
        if length < 0 or end > data_end:
            raise CorruptBatch(f"record of {length} bytes in {data_end - position} remaining")
        low = view[position + 1]
        if low < 0x80:
            timestamp_delta, behind = (low >> 1) ^ -(low & 1), position + 2
        else:
            timestamp_delta, behind = decode_zigzag(data, position + 1, VARLONG_BYTES_MAX)
        low = view[behind]
        if low < 0x80:
            offset_delta, position = (low >> 1) ^ -(low & 1), behind + 1
        else:
            high = view[behind + 1]
            if high < 0x80:
                offset_delta = low & 0x7F | high << 7
                offset_delta, position = (offset_delta >> 1) ^ -(offset_delta & 1), behind + 2
            else:
                offset_delta, position = decode_zigzag(data, behind)
        low = view[position]
        if low < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        else:
            size, position = decode_zigzag(data, position)
        key = None
        if size >= 0:
            key = data[position : position + size]
            position += size
        if position >= end:
            raise CorruptBatch(f"a key of {size} bytes exceeds its record")
        low = view[position]
        if low < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        else:
            high = view[position + 1]
            if high < 0x80:
                size = low & 0x7F | high << 7
                size, position = (size >> 1) ^ -(size & 1), position + 2
            else:
                size, position = decode_zigzag(data, position)
        if position + size > end:
            raise CorruptBatch(f"a value of {size} bytes exceeds its record")
        spans.append((start, end, timestamp_delta, behind, offset_delta, key, size >= 0))
        start = end
    if start != data_end:
        raise CorruptBatch(f"{data_end - start} bytes after the last record")
    return spans


def with_timestamp_delta(data: bytes, span: RecordSpan, timestamp_delta: int) -> bytes:
    """Return the record's bytes with another timestamp delta, otherwise unchanged."""
    start, end, _, behind_timestamp, *_ = span
    _, attributes_at = decode_zigzag(data, start)
    body = b"".join(
        (
            data[attributes_at : attributes_at + 1],
            encode_zigzag(timestamp_delta),
            data[behind_timestamp:end],
        )
    )
    return encode_zigzag(len(body)) + body


# Runs of records with the same layout: their keys have one length, and their values.
#
# Such records (counters, readings, identifiers) follow one another at equal distances, and Python reads the
# bytes at equal distances, a *column*, in one call. The first record of a run is decoded. The others belong
# to the run as far as their lengths have the same bytes: each begins where the one before it ends, so none is
# taken for what it is not. Where keys or values differ in length there is no run, and the records are read
# one by one.

RUN_MIN = 16
"""Fewer records than these are read faster one by one."""
RUN_MAX = 256
"""Limits what is read in vain where the records differ."""
_SIZE_MAX = 2
"""Largest size in bytes of an integer that is read by columns."""
_ENDS, _CONTINUES = bytes(range(0x80)), bytes(range(0x80, 0x100))
"""The last byte of an integer, and those before it."""

_TWO_BYTES_FROM, _TWO_BYTES_END = 1 << 6, 1 << 13
"""The offset deltas that have two bytes."""
_ONE = bytes(delta << 1 for delta in range(_TWO_BYTES_FROM))
_LOW = bytes(delta << 1 & 0x7F | 0x80 for delta in range(_TWO_BYTES_END))
_HIGH = bytes(delta >> 6 for delta in range(_TWO_BYTES_END))
"""The bytes of such deltas, in order."""


class UniformRun(NamedTuple):
    """Positions are those in the first record; each following record is ``stride`` bytes further on."""

    start: int
    stride: int
    records: int
    timestamp_at: int
    delta_at: int
    """Of the offset delta."""
    key_size_at: int
    key_at: int
    key_size: int
    """Negative: no record has a key."""
    has_values: bool

    @property
    def end(self) -> int:
        return self.start + self.stride * self.records

    def keys(self, data: bytes) -> list[bytes | None]:
        if self.key_size < 0:
            return [None] * self.records
        before = self.key_at - self.start
        layout = f"{before}x{self.key_size}s{self.stride - before - self.key_size}x"
        return [key for (key,) in iter_unpack(layout, memoryview(data)[self.start : self.end])]

    def offset_deltas(self, data: bytes) -> Sequence[int]:
        """Return the offset deltas; where they rise by one, no integer is decoded but the first."""
        at, size = self.delta_at, self.key_size_at - self.delta_at
        first, _ = decode_zigzag(data, at)
        expected = slice(max(first, 0), max(first, 0) + self.records)
        if size == 1:
            if self._column(data, at) == _ONE[expected]:
                return range(first, first + self.records)
            return [(byte >> 1) ^ -(byte & 1) for byte in self._column(data, at)]
        low, high = self._column(data, at), self._column(data, at + 1)
        if low == _LOW[expected] and high == _HIGH[expected]:
            return range(first, first + self.records)
        return [_decoded(*both) for both in zip(low, high, strict=True)]

    def timestamp_deltas(self, data: bytes, selectors: bytes) -> set[int]:
        """Return the timestamp deltas of the records whose byte in ``selectors`` is not 0."""
        column = self._column(data, self.timestamp_at)
        if self.delta_at - self.timestamp_at == 1:
            return {(byte >> 1) ^ -(byte & 1) for byte in set(itertools.compress(column, selectors))}
        pairs = zip(column, self._column(data, self.timestamp_at + 1), strict=True)
        return {_decoded(*both) for both in set(itertools.compress(pairs, selectors))}

    def _column(self, data: bytes, at: int) -> bytes:
        return data[at : self.end : self.stride]


def find_run(data: bytes, start: int, count: int) -> UniformRun | None:
    """Return the run of at most ``count`` records that begins at ``start``; None if it is too short.

    Raises CorruptBatch or IndexError if the first record cannot be read.
    """
    if count < RUN_MIN:
        return None
    length, attributes_at = decode_zigzag(data, start)
    stride = attributes_at + length - start
    timestamp_at = attributes_at + 1
    _, delta_at = decode_zigzag(data, timestamp_at, VARLONG_BYTES_MAX)
    _, key_size_at = decode_zigzag(data, delta_at)
    key_size, key_at = decode_zigzag(data, key_size_at)
    value_size_at = key_at + max(key_size, 0)
    if max(delta_at - timestamp_at, key_size_at - delta_at) > _SIZE_MAX or value_size_at >= start + stride:
        return None
    value_size, value_at = decode_zigzag(data, value_size_at)
    if value_at + max(value_size, 0) > start + stride:
        return None
    count = min(count, RUN_MAX, (len(data) - start) // stride)
    constant = (
        *range(start, attributes_at),
        *range(key_size_at, key_at),
        *range(value_size_at, value_at),
    )
    count = _count_alike(data, constant, stride, count)
    integers = (timestamp_at, delta_at), (delta_at, key_size_at)
    count = _count_of_sizes(data, integers, stride, count)
    if count < RUN_MIN:
        return None
    return UniformRun(
        start, stride, count, timestamp_at, delta_at, key_size_at, key_at, key_size, value_size >= 0
    )


def _count_alike(data: bytes, positions: Sequence[int], stride: int, count: int) -> int:
    """Return how many of ``count`` records have the same bytes as the first one at all ``positions``."""
    for at in positions:
        if count < RUN_MIN:
            break
        column = data[at : at + stride * count : stride]
        count = len(column) - len(column.lstrip(column[:1]))
    return count


def _count_of_sizes(data: bytes, integers: Sequence[tuple[int, int]], stride: int, count: int) -> int:
    """Return how many of ``count`` records have integers of the same size as the first one.

    ``integers``: the position of each, and the position after it.
    """
    for begin, end in integers:
        for at in range(begin, end):
            column = data[at : at + stride * count : stride]
            if at + 1 < end:
                count = len(column) - len(column.lstrip(_CONTINUES))
            elif not column.isascii():
                count = len(column) - len(column.lstrip(_ENDS))
    return count


def _decoded(low: int, high: int) -> int:
    value = low & 0x7F | high << 7
    return (value >> 1) ^ -(value & 1)


# Reading the keys of a batch's records, and which records are tombstones. Values are not copied.
#
# The cleaner reads every record of a log here: runs of records with the same layout by columns, the others
# one by one.


class RecordKeys(NamedTuple):
    keys: list[bytes | None]
    """The key of each record; None if it has none."""
    deltas: list[int]
    """The offset delta of each record."""
    tombstones: list[int]
    """Which records, counted from 0, have no value."""


def read_keys(data: bytes, header: BatchHeader) -> RecordKeys:
    """Return the keys of a batch's records, which are ``data`` when decompressed. Raises CorruptBatch."""
    found = RecordKeys([], [], [])
    start, left = 0, header.records_count
    try:
        while left and (run := find_run(data, start, left)) is not None:
            if not run.has_values:
                found.tombstones.extend(range(len(found.keys), len(found.keys) + run.records))
            found.keys.extend(run.keys(data))
            found.deltas.extend(run.offset_deltas(data))
            start = run.end
            left -= run.records
        spans, first = _spans(data, start, left), len(found.keys)
        found.deltas.extend([span[4] for span in spans])
        found.keys.extend([span[5] for span in spans])
        found.tombstones.extend([first + index for index, span in enumerate(spans) if not span[6]])
    except IndexError as error:
        raise CorruptBatch("a record has fewer bytes than its fields need") from error
    return found


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

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
NO_DELTA = INT64_MIN
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
        raise CorruptBatch("a record has fewer bytes than its fields need") from error
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
    turns: Int64
    for turns, mark in enumerate(marks):
        if not turns & 0x3FF:
            let_threads_run()
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


# Compacting one batch: keep it unchanged, keep it with fewer records, keep it empty, or drop it.
#
# A batch that is kept does not change its base offset, last offset, producer, sequence and leader epoch, so
# compaction leaves gaps in and between batches. The rules are Kafka's:
#
# - a record is kept if no newer record of its key was read; a record without a key is removed;
# - records of an aborted transaction are removed at once;
# - a record without a value (a tombstone) is kept until the batch's *delete horizon*: the time of the first
#   round that cleans all of the batch, plus ``delete.retention.ms``. It is stored as the batch's base
#   timestamp (KIP-534). Until then every reader can see the deletion. A round whose offset map was full
#   before the end of the batch does not set it, unlike Kafka's: older values of its tombstones may still be
#   read;
# - a transaction marker is kept as long as the log has a batch of its transaction, then until a delete
#   horizon;
# - the last batch of a producer is kept for its sequence number, and the last batch of the cleaned part to
#   mark its end, even if empty. A marker that must be kept is kept with its record, which has the producer's
#   epoch.

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
            if _fits(spans, header, self._horizon):
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


def _fits(spans: list[RecordSpan], header: BatchHeader, horizon: int) -> bool:
    """Whether the timestamps can be told relative to ``horizon``, in 64 bits. Such a distance is that of a
    timestamp which no clock had: the batch keeps its tombstones."""
    shift = header.base_timestamp - horizon
    return all(INT64_MIN <= span[2] + shift <= INT64_MAX for span in spans)


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
    newest = min(max(header.base_timestamp + newest_delta, INT64_MIN), INT64_MAX)
    rebuilt = structs.replace(
        header,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if is_fixed else newest,
        records_count=count,
    )
    packed = pack_batch(rebuilt, compress(header.codec, records))
    return CleanedBatch(packed, read_header(packed), count)
