"""Searching offsets by timestamp, for ListOffsets.

Every search opens its own files and changes no shared state: it may run on another thread. It is done in
steps, since there may be many batches between an index entry and the record, and many records in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from nilometer.runtime import File
from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.log_state import LogState
from nilometer.storage.reading import find_indexes, steps_apart
from nilometer.storage.segments.batch_scan import ScannedBatch, in_offset_order, scan
from nilometer.storage.segments.indexes import SegmentIndexes
from nilometer.storage.segments.segment import LogSegment
from nilometer.wire.errors import CorruptBatch, KafkaError
from nilometer.wire.record_batch import NO_TIMESTAMP, check_batch
from nilometer.wire.record_heads import record_heads


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int
    """-1 if the batch has none."""


SearchSteps: TypeAlias = Generator[int, None, TimestampOffset | None]
"""A search; yields after each step how many bytes of the present batch are decompressed."""

_STEP_BATCHES = 100
"""How many headers of batches one step reads."""


def offset_for_timestamp(log: LogState, timestamp: int) -> SearchSteps:
    """Find the first record, from the log start offset on, with a timestamp of at least ``timestamp``.

    Each step may block.
    """
    return _beside_deletions(log, lambda segments: _first_not_before(log, segments, timestamp))


def offset_of_max_timestamp(log: LogState) -> SearchSteps:
    """Find the first record with the log's largest timestamp; None if no record has a timestamp.

    Each step may block.
    """
    return _beside_deletions(log, lambda segments: _first_of_newest(log, segments))


def _beside_deletions(log: LogState, search: Callable[[Sequence[LogSegment]], SearchSteps]) -> SearchSteps:
    """Run ``search`` on the log's segments, and again if one of them was removed or replaced meanwhile."""
    segments: Sequence[LogSegment] = ()

    def look() -> SearchSteps:
        nonlocal segments
        segments = tuple(log.segments)
        return search(segments)

    while True:
        try:
            return (yield from steps_apart(log, look))
        except FileNotFoundError:
            if not log.has_lost(segments):
                raise


def _first_not_before(log: LogState, segments: Sequence[LogSegment], timestamp: int) -> SearchSteps:
    for segment in segments:
        if segment.largest_timestamp() < timestamp or not segment.size:
            continue
        indexes = find_indexes(segment)
        start = max(_start(log, segment, indexes, timestamp), _log_start(log, segment, indexes))
        with _batches(log, segment, start) as batches:
            for number, batch in enumerate(batches, 1):
                if number % _STEP_BATCHES == 0:
                    yield 0
                header = batch.header
                if header.max_timestamp < timestamp or header.last_offset < log.log_start_offset:
                    _check(segment, batch)  # or a damaged header could hide the wanted record
                    continue
                found = yield from _first_in(
                    log, segment, batch, lambda at: at >= timestamp, log.log_start_offset
                )
                if found is not None:
                    return found
    return None


def _first_of_newest(log: LogState, segments: Sequence[LogSegment]) -> SearchSteps:
    segment = max(segments, key=lambda segment: segment.max_timestamp)
    newest = segment.max_timestamp
    if newest < 0:
        return None
    indexes = find_indexes(segment)
    start = _before(log, segment, indexes, segment.offset_of_max_timestamp)
    found = yield from _first_with(log, segment, start, newest)
    if found is None:
        found = yield from _look_at_all(log, segments)
    return found


def _look_at_all(log: LogState, segments: Sequence[LogSegment]) -> SearchSteps:
    """Find the record by reading all headers of the log.

    Needed if the batch with the largest timestamp has no records: compaction kept only its header.
    """
    newest, holder = NO_TIMESTAMP, segments[0]
    for segment in segments:
        with _batches(log, segment, 0) as batches:
            for number, batch in enumerate(batches, 1):
                if number % _STEP_BATCHES == 0:
                    yield 0
                _check(segment, batch)
                if batch.header.records_count and batch.header.max_timestamp > newest:
                    newest, holder = batch.header.max_timestamp, segment
    if newest < 0:
        return None
    return (yield from _first_with(log, holder, 0, newest))


def _first_with(log: LogState, segment: LogSegment, position: int, newest: int) -> SearchSteps:
    """Find the first record with timestamp ``newest`` from byte ``position`` of the segment on."""
    with _batches(log, segment, position) as batches:
        for number, batch in enumerate(batches, 1):
            if number % _STEP_BATCHES == 0:
                yield 0
            if batch.header.max_timestamp != newest:
                _check(segment, batch)
                continue
            found = yield from _first_in(log, segment, batch, lambda at: at == newest, 0)
            if found is not None:
                return found
    return None


def _first_in(
    log: LogState,
    segment: LogSegment,
    batch: ScannedBatch,
    is_wanted: Callable[[int], bool],
    offset_min: int,
) -> SearchSteps:
    """Find the batch's first record from ``offset_min`` on with a timestamp that ``is_wanted``.

    Raises CorruptRecordFound, also for a batch that decompresses to too much.
    """
    _check(segment, batch)
    header = batch.header
    try:
        for heads in record_heads(batch.buffer, batch.at, header, log.config.max_decompressed_message_bytes):
            for delta, timestamp in zip(heads.offset_deltas, heads.timestamps, strict=True):
                if is_wanted(timestamp) and header.base_offset + delta >= offset_min:
                    return TimestampOffset(
                        timestamp, header.base_offset + delta, header.partition_leader_epoch
                    )
            yield heads.bytes_read
    except KafkaError as error:
        raise CorruptRecordFound(segment.log_path, batch.position, header.base_offset, str(error)) from error
    return None


def _start(log: LogState, segment: LogSegment, indexes: SegmentIndexes, timestamp: int) -> int:
    """Return a byte position at which to start the search for ``timestamp``.

    0, the segment's start, if the indexes contradict the log.
    """
    time_entry = indexes.times.lookup_entry(timestamp)
    if time_entry is None:
        return 0
    newest, offset = time_entry
    entry = indexes.offsets.lookup_entry(offset)
    if entry is None:
        return 0
    with _batches(log, segment, entry[1]) as batches:
        try:
            for batch in batches:
                header = batch.header
                if batch.position == entry[1] and header.last_offset != entry[0]:
                    return 0
                if header.last_offset >= offset:
                    _check(segment, batch)
                    return entry[1] if header.base_offset <= offset and header.max_timestamp == newest else 0
        except KafkaError:
            return 0  # the search itself reports the damage if it gets that far
    return 0


def _log_start(log: LogState, segment: LogSegment, indexes: SegmentIndexes) -> int:
    """Return a byte position in the segment with no offset at or above the log start offset before it."""
    if log.log_start_offset <= segment.base_offset:
        return 0
    return _before(log, segment, indexes, log.log_start_offset - 1)


def _before(log: LogState, segment: LogSegment, indexes: SegmentIndexes, offset: int) -> int:
    """Return a byte position at or before the batch that contains ``offset``, by the offset index.

    0, the segment's start, if the index has no entry or contradicts the log.
    """
    entry = indexes.offsets.lookup_entry(offset)
    if entry is None:
        return 0
    with _batches(log, segment, entry[1]) as batches:
        try:
            first = next(batches, None)
        except KafkaError:
            return 0
    return entry[1] if first is not None and first.header.last_offset == entry[0] else 0


@contextmanager
def _batches(
    log: LogState, segment: LogSegment, position: int
) -> Generator[Iterator[ScannedBatch], None, None]:
    file = log.files.disk.open(segment.log_path, writable=False)
    try:
        yield batches_in_order(log, segment, file, position, segment.size)
    finally:
        file.close()


def batches_in_order(
    log: LogState, segment: LogSegment, file: File, position: int, size: int
) -> Iterator[ScannedBatch]:
    """Yield the batches in bytes ``[position, size)``; each has the offsets that its header says.

    The CRC covers neither the base offset nor the length of a batch: a gap is damage in a log that was never
    compacted, and so is a last batch that does not end at ``size``. Raises CorruptRecordFound.
    """
    expected = segment.base_offset
    is_exact = position == 0
    try:
        for batch in in_offset_order(scan(file, position, size, chunk_bytes=64 << 10), expected):
            base_offset = batch.header.base_offset
            if is_exact and base_offset > expected and not log.may_have_gaps:
                raise CorruptBatch(f"batch with base offset {base_offset}, but {expected} is expected")
            yield batch
            position = batch.position + batch.header.size
            expected, is_exact = batch.header.next_offset, True
        if position != size:
            raise CorruptBatch(f"the last batch does not end at byte {size}")
    except KafkaError as error:
        raise CorruptRecordFound(segment.log_path, position, expected, str(error)) from error


def _check(segment: LogSegment, batch: ScannedBatch) -> None:
    try:
        check_batch(batch.buffer, batch.at, batch.header)
    except KafkaError as error:
        raise CorruptRecordFound(
            segment.log_path, batch.position, batch.header.base_offset, str(error)
        ) from error
