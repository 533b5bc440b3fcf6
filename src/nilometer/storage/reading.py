"""Whole batches from an offset on, and offsets by time.

A read starts at the sparse index, walks headers to the batch that holds the offset, and usually needs
one pread. The CRC of every returned batch has been checked: bytes on disk may have changed since
they were written. Records before damage are served; the damage itself raises
:class:`CorruptRecordFound`, and nothing after it is ever served.

There are two kinds of read. With ``only_cached``, for the event loop, the shared pool is used and ``None``
means that the read would wait for the device. Without, files are opened for this one read and no shared
state is changed: safe on another thread, beside the owner's appends and deletions.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from nilometer.storage.beside_replacements import read_apart
from nilometer.storage.errors import CorruptRecordFound, OffsetOutOfRange
from nilometer.storage.local_log import LocalLog
from nilometer.storage.locating import (
    Outcome,
    ReadBytes,
    Search,
    Window,
    damage,
    locate_from_entry,
    locate_from_hint,
    read_header_at,
)
from nilometer.storage.segments.index_cache import SegmentIndexes
from nilometer.storage.segments.offset_index import CorruptIndex
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.transaction_index import AbortedTxn, collect
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, check_batch, read_header, skip_good_batches

READ_AHEAD_BYTES = 4096
"""Read beyond what was asked for, so that the batches before the first wanted one cost no second read."""
READ_HINTS_MAX = 16


class LogSlice(NamedTuple):
    """Whole batches as they lie in one segment; empty where there is nothing below the upper bound."""

    records: Bytes
    next_offset: int
    """The offset behind the last batch; the offset asked for where ``records`` is empty."""
    path: str
    position: int


def read(
    log: LocalLog, offset: int, max_bytes: int, upper_bound_offset: int, *, min_one: bool, only_cached: bool
) -> LogSlice | None:
    if only_cached:
        return _read(log, offset, max_bytes, upper_bound_offset, min_one, only_cached)
    return read_apart(log, lambda: _read(log, offset, max_bytes, upper_bound_offset, min_one, only_cached))


def _read(
    log: LocalLog, offset: int, max_bytes: int, upper_bound_offset: int, min_one: bool, only_cached: bool
) -> LogSlice | None:
    log_end_offset = log.log_end_offset
    if not log.log_start_offset <= offset <= log_end_offset:
        raise OffsetOutOfRange(offset, log.log_start_offset, log_end_offset, log.name)
    upper = min(upper_bound_offset, log_end_offset)
    segment = log.segments.floor(offset) or log.segments.first
    nothing = LogSlice(b"", offset, segment.log_path, segment.size)
    following: LogSegment | None = segment if offset < upper else None
    while following is not None:
        segment = following
        higher = log.segments.higher(segment.base_offset)
        try:
            found = _read_segment(log, segment, higher, offset, max_bytes, upper, min_one, only_cached)
        except FileNotFoundError:
            if not log.has_lost((segment,)):
                raise
            return _read(log, offset, max_bytes, upper_bound_offset, min_one, only_cached)
        if found is Outcome.WOULD_WAIT:
            return None
        if isinstance(found, LogSlice):
            return found
        following = higher
    return nothing


def _read_segment(
    log: LocalLog,
    segment: LogSegment,
    higher: LogSegment | None,
    offset: int,
    max_bytes: int,
    upper: int,
    min_one: bool,
    only_cached: bool,
) -> LogSlice | Outcome:
    with bytes_of(log, segment, only_cached=only_cached) as read_bytes:
        size = segment.size
        end_offset = higher.base_offset if higher is not None else log.log_end_offset
        wanted = max_bytes + READ_AHEAD_BYTES
        search = Search(segment, offset, size, end_offset, wanted, read_bytes, log.may_have_gaps)
        window = _locate(log, search, only_cached=only_cached)
        if isinstance(window, Outcome):
            return window
        first = window.header
        if first.next_offset > log.log_end_offset:
            raise damage(segment, window.position + window.at, offset, "a batch beyond the end of the log")
        if first.next_offset > upper or (first.size > max_bytes and not min_one):
            return LogSlice(b"", offset, segment.log_path, window.position + window.at)
        rest = segment.size - window.position - window.at
        if first.size > rest:
            raise damage(segment, window.position + window.at, offset, f"{first.size} bytes in {rest} left")
        needed = min(max(first.size, max_bytes), rest)
        if len(window.buffer) - window.at < needed:
            buffer = read_bytes(window.position + window.at, needed)
            if buffer is None:
                return Outcome.WOULD_WAIT
            window = Window(window.position + window.at, buffer, 0, first)
        return _take(log, segment, window, max(max_bytes, first.size), upper, offset)


def _locate(log: LocalLog, search: Search, *, only_cached: bool) -> Window | Outcome:
    """From where the last read of this reader ended, or else from the sparse index."""
    hint = log.read_hints.get(search.offset)
    if hint is not None and hint[0] is search.segment:
        found = locate_from_hint(search, hint[1])
        if found is not Outcome.UNPROVEN:
            return found
    indexes = find_indexes(log, search.segment, only_cached=only_cached)
    if indexes is None:
        return Outcome.WOULD_WAIT
    found = locate_from_entry(search, indexes.offsets.lookup_entry(search.offset))
    return locate_from_entry(search, None) if found is Outcome.UNPROVEN else found


def _take(
    log: LocalLog, segment: LogSegment, window: Window, max_bytes: int, upper: int, offset: int
) -> LogSlice:
    """The whole, undamaged batches from the window's first on, within ``max_bytes`` and below ``upper``."""
    position, buffer, start, header = window
    limit = min(len(buffer), start + max_bytes)
    # The first batch may begin before the offset that was asked for; the caller has seen that it holds it.
    end, next_offset = skip_good_batches(buffer, start, limit, header.base_offset, upper)
    next_offset = max(offset, next_offset)
    try:
        while end == start or limit - end >= HEADER_BYTES:
            if end > start:
                header = read_header_at(segment, position, buffer, end, next_offset)
            following = end + header.size
            if following > limit or header.next_offset > upper:
                break
            if end > start and not next_offset <= header.base_offset < log.log_end_offset:
                raise damage(segment, position + end, next_offset, "offsets do not follow")
            leaves_gap = end > start and header.base_offset > next_offset
            if leaves_gap and not (log.may_have_gaps and _is_followed(buffer, following, header)):
                break  # only a read of its own can prove the gap, or find that it is damage
            check_batch(buffer, end, header)
            end, next_offset = following, header.next_offset
    except KafkaError as error:
        if end == start:
            if isinstance(error, CorruptRecordFound):
                raise
            raise damage(segment, position + end, next_offset, str(error)) from error
    _remember(log, next_offset, segment, position + end)
    whole = start == 0 and end == len(buffer)
    return LogSlice(
        buffer if whole else memoryview(buffer)[start:end], next_offset, segment.log_path, position + start
    )


def _is_followed(buffer: Bytes, position: int, header: BatchHeader) -> bool:
    """Whether the batch after ``header`` is in the buffer, and begins where ``header`` ends or later."""
    if len(buffer) - position < HEADER_BYTES:
        return False
    try:
        return read_header(buffer, position).base_offset >= header.next_offset
    except KafkaError:
        return False


def _remember(log: LocalLog, next_offset: int, segment: LogSegment, position: int) -> None:
    """Where the next read of this reader will start."""
    hints = log.read_hints
    if len(hints) >= READ_HINTS_MAX:
        log.read_hints = hints = {}
    hints[next_offset] = (segment, position)


def find_indexes(log: LocalLog, segment: LogSegment, *, only_cached: bool) -> SegmentIndexes | None:
    """A segment's indexes; empty ones where its files cannot be used, since they only shorten the search."""
    try:
        return segment.indexes(only_cached=True) if only_cached else segment.indexes_apart()
    except (CorruptIndex, FileNotFoundError):
        return SegmentIndexes.empty(segment.base_offset)


@contextmanager
def bytes_of(log: LocalLog, segment: LogSegment, *, only_cached: bool) -> Generator[ReadBytes, None, None]:
    if only_cached:
        yield segment.open_log().read_at_if_cached
        return
    file = log.files.disk.open(segment.log_path, writable=False)
    try:
        yield file.read_at
    finally:
        file.close()


def aborted_transactions(log: LocalLog, from_offset: int, upper_bound_offset: int) -> list[AbortedTxn]:
    """Those that overlap ``[from_offset, upper_bound_offset)``: what a read-committed fetch skips.

    Raises KafkaError where one of their indexes is damaged: it is unknown what to skip.
    """
    found: list[AbortedTxn] = []
    for segment in log.segments.from_offset(from_offset):
        try:
            aborted = segment.aborted()
        except CorruptIndex as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{log.name}: {error}") from error
        entries, is_done = collect(aborted, from_offset, upper_bound_offset)
        found += entries
        if is_done:
            break
    return found
