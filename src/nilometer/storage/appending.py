"""Appending batches to a log: as leader, which assigns the offsets, or as follower, which keeps them.

The order matters: check all batches, then write once, then update the state (log end offset, producers,
aborted transactions). A rejected append changes nothing; a failed write fences the log.

Usually only headers are read and changed: a batch is written as its patched header and a view of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from typing_extensions import Buffer

from nilometer.invariants import check
from nilometer.storage.errors import LogFenced, UnexpectedAppendOffset
from nilometer.storage.log_state import KeptRecords, LogState
from nilometer.storage.producers import AppendOrigin, BatchMetadata, ProducerUpdates
from nilometer.storage.record_validation import ReadingAllowance, ValidatedBatch, validate_batches
from nilometer.storage.segments.segment import BatchMark, LogSegment
from nilometer.wire.compression import Bytes
from nilometer.wire.record_batch import (
    ASSIGNED_BYTES,
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    assigned_start,
    batches,
    check_batch,
    patched_header,
)
from nilometer.wire.records import read_end_txn_marker

_CLIENT = AppendOrigin.CLIENT
BUFFERS_MAX = 512
"""Largest number of buffers in one write; the system call accepts 1024."""


class AppendInfo(msgspec.Struct, frozen=True, gc=False):
    """The result of an append. For a ``duplicate`` nothing was written; it has the original's offsets."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int
    log_start_offset: int
    size: int
    duplicate: bool = False


def append_as_leader(
    log: LogState,
    records: Bytes,
    *,
    leader_epoch: int,
    wall_ms: int,
    origin: AppendOrigin = _CLIENT,
    keeps: bool = False,
    allowance: ReadingAllowance | None = None,
    validated: Sequence[ValidatedBatch] | None = None,
) -> AppendInfo:
    """Assign offsets and ``leader_epoch`` to the batches in ``records`` and append them.

    With ``keeps`` they stay in memory for reads, until ``keep_records(None)``. ``allowance``: how much may be
    read of records before they are appended, None for all. Where it is not enough, UnreadRecords is raised,
    and the batches that its steps return are to be passed as ``validated``. Raises KafkaError, with nothing
    changed, if a batch is rejected; LogFenced after a failed write.
    """
    if log.failure is not None or log.awaits_checkpoint:
        log.check_may_grow()
    if validated is None:
        validated = validate_batches(records, log.config, origin, wall_ms, allowance)
    new_timestamp = wall_ms if log.config.is_log_append_time else None
    updates: ProducerUpdates | None = None
    offset = first_offset = log.log_end_offset
    newest = NO_TIMESTAMP
    size = 0
    buffers: list[Buffer] = []
    marks: list[BatchMark] = []
    for batch in validated:
        header = batch.header
        timestamp = header.max_timestamp if new_timestamp is None else new_timestamp
        if header.has_producer_id:
            if origin is _CLIENT and (original := _find_duplicate(log, header)):
                return _duplicate_info(log, original)
            if updates is None:
                updates = log.producers.updates(origin)
            _judge_producer(updates, batch, offset, timestamp)
        _take_buffers(buffers, batch, offset, leader_epoch, new_timestamp)
        last_offset, batch_size = offset + header.last_offset_delta, header.batch_length + LOG_OVERHEAD
        marks.append(BatchMark(last_offset, timestamp, batch_size))
        if timestamp > newest:
            newest = timestamp
        size += batch_size
        offset = last_offset + 1
    try:
        segment = _maybe_roll(log, size, newest, first_offset, offset - 1, wall_ms)
        if leader_epoch != log.epochs.latest_epoch or log.epochs.is_unwritten:
            log.enter_epoch(leader_epoch, first_offset)
        new_size = segment.append(buffers if len(buffers) <= BUFFERS_MAX else [b"".join(buffers)], marks)
        _apply_append(log, segment, new_size, updates, offset, wall_ms)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error
    if keeps:
        log.keep_records(KeptRecords(first_offset, offset, b"".join(buffers), segment, new_size - size))
    append_time = wall_ms if log.config.is_log_append_time else NO_TIMESTAMP
    return AppendInfo(first_offset, offset - 1, newest, append_time, log.log_start_offset, size)


def append_as_follower(log: LogState, records: Bytes, *, wall_ms: int) -> AppendInfo | None:
    """Append the leader's batches unchanged. None if ``records`` contains no complete batch.

    An incomplete last batch is ignored. An empty log accepts a first batch that starts below the log start
    offset: the leader's log start offset may be inside it (KAFKA-6975). Raises UnexpectedAppendOffset,
    CorruptBatch, LogFenced.
    """
    log.check_may_grow()
    updates: ProducerUpdates | None = None
    marks: list[BatchMark] = []
    epochs: list[tuple[int, int]] = []
    position = end = 0
    first_offset = newest = -1
    offset = log.log_end_offset
    leaves_gap = False
    for position, header in batches(records):
        check_batch(records, position, header)
        if not marks:
            first_offset = header.base_offset
        if header.base_offset < offset and not (not marks and _straddles_start(log, header)):
            raise UnexpectedAppendOffset(log.name, header.base_offset, header.last_offset, log.log_end_offset)
        leaves_gap |= header.base_offset > offset
        if header.has_producer_id:
            updates = updates or log.producers.updates(AppendOrigin.REPLICATION)
            judged = ValidatedBatch(records, position, header)
            _judge_producer(updates, judged, header.base_offset, header.max_timestamp)
        if header.partition_leader_epoch >= 0:
            epochs.append((header.partition_leader_epoch, header.base_offset))
        marks.append(BatchMark(header.last_offset, header.max_timestamp, header.size))
        newest = max(newest, header.max_timestamp)
        offset = header.next_offset
        end = position + header.size
    if not marks:
        return None
    try:
        if leaves_gap:
            log.allow_gaps()  # the leader only sends gaps that compaction made
        segment = _maybe_roll(log, end, newest, first_offset, offset - 1, wall_ms)
        for epoch, start_offset in epochs:
            if epoch != log.epochs.latest_epoch or log.epochs.is_unwritten:
                log.enter_epoch(epoch, start_offset)
        new_size = segment.append([memoryview(records)[:end]], marks)
        _apply_append(log, segment, new_size, updates, offset, wall_ms)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error
    return AppendInfo(first_offset, offset - 1, newest, NO_TIMESTAMP, log.log_start_offset, end)


def _straddles_start(log: LogState, header: BatchHeader) -> bool:
    return log.is_empty and log.size == 0 and header.last_offset >= log.log_start_offset


def _find_duplicate(log: LogState, header: BatchHeader) -> BatchMetadata | None:
    entry = log.producers.producers.get(header.producer_id)
    return entry.find_duplicate(header) if entry is not None else None


def _duplicate_info(log: LogState, original: BatchMetadata) -> AppendInfo:
    append_time = original.timestamp if log.config.is_log_append_time else NO_TIMESTAMP
    return AppendInfo(
        original.first_offset,
        original.last_offset,
        original.timestamp,
        append_time,
        log.log_start_offset,
        0,
        duplicate=True,
    )


def _judge_producer(updates: ProducerUpdates, batch: ValidatedBatch, offset: int, timestamp: int) -> None:
    if not batch.header.is_control:
        updates.add_batch(batch.header, offset, timestamp)
    elif (marker := read_end_txn_marker(batch.buffer, batch.position, batch.header)) is not None:
        updates.add_marker(batch.header, offset, marker)


def _take_buffers(
    buffers: list[Buffer], batch: ValidatedBatch, offset: int, leader_epoch: int, new_timestamp: int | None
) -> None:
    """``new_timestamp`` replaces that of all records, unless None."""
    buffer, position, length = memoryview(batch.buffer), batch.position, batch.header.batch_length
    end = position + length + LOG_OVERHEAD
    if new_timestamp is None:
        buffers.append(assigned_start(offset, length, leader_epoch))
        buffers.append(buffer[position + ASSIGNED_BYTES : end])
        return
    buffers.append(
        patched_header(
            buffer,
            position,
            base_offset=offset,
            leader_epoch=leader_epoch,
            max_timestamp=new_timestamp,
            log_append_time=True,
        )
    )
    buffers.append(buffer[position + HEADER_BYTES : end])


def _maybe_roll(
    log: LogState, size: int, newest: int, first_offset: int, last_offset: int, wall_ms: int
) -> LogSegment:
    """Return the segment to append to: the active one, or a new one if it is full, too old, or the offsets
    are too far from its base offset.

    ``size`` is in bytes; ``newest`` is the largest timestamp of the batches to append.
    """
    segment, config = log.segments.active, log.config
    if first_offset < segment.base_offset:
        return _replace_empty(log, segment, first_offset, wall_ms)
    if (
        segment.size > config.segment_bytes - size
        or (segment.size and segment.waited_ms(wall_ms, newest) > config.segment_ms - segment.jitter_ms)
        or segment.is_index_full(config.segment_index_bytes)
        or not segment.can_hold(last_offset)
    ):
        return log.roll(wall_ms, max(first_offset, log.log_end_offset))
    return segment


def _replace_empty(log: LogState, segment: LogSegment, base_offset: int, wall_ms: int) -> LogSegment:
    """Replace the log's only segment, which is empty, by one that starts at ``base_offset``.

    ``base_offset`` is that of a batch that contains the log start offset.
    """
    check(segment.size == 0, "only the first segment of an empty log is replaced", segment.size)
    log.new_segment(base_offset, wall_ms)
    log.segments.remove([segment])
    for path in segment.mark_deleted():
        log.files.disk.remove(path)
    return log.segments.active


def _apply_append(
    log: LogState,
    segment: LogSegment,
    new_size: int,
    updates: ProducerUpdates | None,
    next_offset: int,
    wall_ms: int,
) -> None:
    """Update the log's state after the write.

    The log end offset is set first, so that no offset is used twice if a later step fails; then the segment's
    size, so that a reader on another thread never sees a batch above the log end offset.
    """
    log.extend_to(next_offset, wall_ms)
    segment.size = new_size
    if updates is not None:
        aborted = log.producers.apply(updates)
        if aborted:
            segment.append_aborted(aborted)
    log.producers.map_end_offset = next_offset
