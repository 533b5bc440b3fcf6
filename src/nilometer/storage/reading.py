"""Reading complete batches from an offset on.

A read usually continues where an earlier one ended, and needs one pread. Any other looks up the sparse index
and walks over headers to the batch that contains the offset. The CRC of every returned batch is checked,
because bytes on disk may have changed since they were written. Records before damage are served; a read of
the damage itself raises :class:`CorruptRecordFound`, and nothing after it is ever served.

There are two kinds of read. With ``only_cached``, for the event loop, files come from the shared pool and
``None`` means that the bytes are not in memory. Without it, files are opened for this one read and no shared
state is changed: such a read may run on another thread while the owner appends and deletes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from nilometer.storage.errors import CorruptRecordFound, OffsetInTier, OffsetOutOfRange
from nilometer.storage.log_state import LogState
from nilometer.storage.segments.indexes import CorruptIndex, SegmentIndexes
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.segment_files import NotCached
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    batches,
    check_batch,
    read_header,
    skip_good_batches,
)

# Reading on another thread while the owner of the log may replace segments by cleaned ones, or truncate it.
#
# Such a reader opens an index and a log file by name, one after the other; in between, a replacement may have
# given the name to another file, and a truncation may have shortened it. So if either happened meanwhile, the
# result is dropped, whether it is a value or an error, and the read is repeated.

T = TypeVar("T")


def read_apart(log: LogState, work: Callable[[], T]) -> T:
    """Call ``work`` until no replacement or truncation met it; return its result or raise its error."""
    while True:
        before = log.replacements, log.truncations
        try:
            found = work()
        except (KafkaError, OSError, CorruptIndex):
            if _is_quiet(log, before):
                raise
        else:
            if _is_quiet(log, before):
                return found


def steps_apart(log: LogState, work: Callable[[], Generator[int, None, T]]) -> Generator[int, None, T]:
    """As :func:`read_apart`, for a read in steps, which ``work`` begins; each repetition begins it again."""
    while True:
        before = log.replacements, log.truncations
        try:
            found = yield from work()
        except (KafkaError, OSError, CorruptIndex):
            if _is_quiet(log, before):
                raise
        else:
            if _is_quiet(log, before):
                return found


def _is_quiet(log: LogState, before: tuple[int, int]) -> bool:
    return before[0] % 2 == 0 and (log.replacements, log.truncations) == before


# Finding the batch that contains an offset in one segment, by walking over the batch headers before it.
#
# A header on disk may be damaged. The CRC covers the last offset delta, but not the base offset, and checking
# the CRC of every batch on the way would cost too much. Instead the offsets of adjacent batches are compared:
# each batch must start where the one before ended. If it does not, either compaction left a gap or one of the
# two headers is damaged. In a log that was never compacted it is damage. In a compacted log
#
# - the batch before the gap must have a valid CRC, or the wanted offset may be in it;
# - the batch after the gap must not overlap the next batch, or its base offset is wrong.
#
# An index entry is used if the batch at its position has the entry's offset as its last offset; otherwise the
# walk starts at the beginning of the segment.

ReadBytes = Callable[[int, int], Bytes | None]
"""Reads ``(position, length)`` bytes of the log file; None if they are not in memory (page cache)."""


WALK_BYTES_MAX = 256 << 10
"""So many bytes of batches the event loop walks over to the one that a reader wants, four times as many as
there are between two entries of an index. More follow an entry of an index that was written with a longer
interval, or cannot be read."""


class Outcome(enum.Enum):
    """Why a search in one segment returned no batch."""

    WOULD_WAIT = enum.auto()
    """The bytes are not in memory, and the reader may not wait for the disk."""
    EXHAUSTED = enum.auto()
    """The segment has no batch at or above the offset."""
    UNPROVEN = enum.auto()
    """There is a gap before the first batch that was read: the search must start at an earlier position."""


class Window(NamedTuple):
    """Bytes of a log file from ``position`` on; the first wanted batch is at index ``at`` of ``buffer``."""

    position: int
    buffer: Bytes
    at: int
    header: BatchHeader


class Search(NamedTuple):
    """A search in ``segment`` for the first batch that contains ``offset`` or a higher offset."""

    segment: LogSegment
    offset: int
    size: int
    """Bytes of the segment, read before ``end_offset`` because appends may happen in between."""
    end_offset: int
    """The base offset of the next segment, or the log end offset."""
    wanted: int
    """How many bytes to read at a time."""
    read_bytes: ReadBytes
    may_have_gaps: bool
    walk_bytes: int
    """The search ends, as one that has to wait, when it has walked over more: it would hold the event loop
    for too long."""


def locate_from_entry(search: Search, entry: tuple[int, int] | None) -> Window | Outcome:
    """Find the batch, starting at an index entry (offset, position).

    Starts at the beginning of the segment if there is no entry, or if the batch at the entry's position has
    another last offset. Raises CorruptRecordFound.
    """
    if entry is not None:
        entry_offset, position = entry
        data = search.read_bytes(position, HEADER_BYTES)
        if data is None:
            return Outcome.WOULD_WAIT
        header = _header_or_none(data)
        if header is not None and header.last_offset == entry_offset:
            return _walk(search, position, header.base_offset)
    return _walk(search, 0, search.segment.base_offset, is_start=True)


def locate_from_hint(search: Search, position: int) -> Window | Outcome:
    """Find the batch, starting at ``position``, where an earlier read ended. Raises CorruptRecordFound."""
    return _walk(search, position, search.offset)


def read_header_at(segment: LogSegment, position: int, buffer: Bytes, at: int, offset: int) -> BatchHeader:
    """Read the batch header at ``buffer[at]``; ``position`` is the buffer's place in the file.

    Raises CorruptRecordFound, with ``offset`` as the first offset that cannot be read.
    """
    try:
        return read_header(buffer, at)
    except KafkaError as error:
        raise damage(segment, position + at, offset, str(error)) from error


def damage(segment: LogSegment, position: int, offset: int, reason: str) -> CorruptRecordFound:
    return CorruptRecordFound(segment.log_path, position, offset, reason)


def _walk(search: Search, position: int, floor: int, *, is_start: bool = False) -> Window | Outcome:
    """Walk over the headers from ``position`` to the wanted batch, and check every gap on the way.

    ``floor`` is the offset expected at ``position``. Raises CorruptRecordFound if offsets decrease or a gap
    turns out to be damage.
    """
    segment, offset, size = search.segment, search.offset, search.size
    walk_end = position + search.walk_bytes
    before: tuple[int, BatchHeader] | None = None
    while size - position >= HEADER_BYTES:
        buffer = search.read_bytes(position, min(search.wanted, size - position))
        if buffer is None:
            return Outcome.WOULD_WAIT
        at = 0
        while len(buffer) - at >= HEADER_BYTES:
            header = read_header_at(segment, position, buffer, at, offset)
            base_offset = header.base_offset
            if base_offset < floor:
                raise damage(
                    segment,
                    position + at,
                    floor,
                    f"base offset {base_offset} is below the expected offset {floor}",
                )
            if base_offset > floor:
                if before is None and not is_start:
                    return Outcome.UNPROVEN
                if (outcome := _prove_gap(search, before, position + at, header, floor)) is not None:
                    return outcome
            floor = header.next_offset
            if floor > offset:
                return Window(position, buffer, at, header)
            before = (position + at, header)
            at += header.size
            if walk_end < position + at < size:
                return Outcome.WOULD_WAIT
        if at == 0:
            break
        position += at
    if position != size:
        raise damage(
            segment, position, offset, f"the last batch does not end at the end of the file, byte {size}"
        )
    if floor < search.end_offset:
        if before is None and size:
            return Outcome.UNPROVEN
        if size and not search.may_have_gaps:
            raise damage(
                segment,
                size,
                floor,
                f"offsets up to {search.end_offset}, where the next segment begins, are missing",
            )
        if (outcome := _check_before(search, before)) is not None:
            return outcome
    return Outcome.EXHAUSTED


def _prove_gap(
    search: Search, before: tuple[int, BatchHeader] | None, position: int, behind: BatchHeader, floor: int
) -> Outcome | None:
    """Check the batches on both sides of a gap; ``behind`` is the one after it, at ``position``.

    Returns None if both are intact, else why this cannot be decided. Raises CorruptRecordFound for damage.
    """
    if not search.may_have_gaps:
        raise damage(
            search.segment, position, floor, f"batch with base offset {behind.base_offset} instead of {floor}"
        )
    if (outcome := _check_before(search, before)) is not None:
        return outcome
    following, end_offset = position + behind.size, search.end_offset
    if following < search.size:
        data = search.read_bytes(following, HEADER_BYTES)
        if data is None:
            return Outcome.WOULD_WAIT
        header = _header_or_none(data)
        end_offset = end_offset if header is None else header.base_offset
    if behind.next_offset > end_offset:
        reason = f"batch with offsets {behind.base_offset} to {behind.last_offset}, but {floor} is expected"
        raise damage(search.segment, position, floor, reason)
    return None


def _check_before(search: Search, before: tuple[int, BatchHeader] | None) -> Outcome | None:
    if before is None:
        return None
    position, header = before
    data = search.read_bytes(position, header.size)
    if data is None:
        return Outcome.WOULD_WAIT
    try:
        check_batch(data, 0, header)
    except KafkaError as error:
        raise damage(search.segment, position, header.base_offset, str(error)) from error
    return None


def _header_or_none(data: Bytes) -> BatchHeader | None:
    try:
        return read_header(data)
    except KafkaError:
        return None


READ_AHEAD_BYTES = 4096
"""Bytes read in addition to the requested ones, so that the batches between the index entry and the first
wanted batch need no second read."""
READ_HINTS_MAX = 16
"""How many positions where a read ended are remembered per log."""


BATCHES_MAX = 16_384
"""So many batches are read at once: to check four megabytes of small ones would take 30 ms."""


class LogSlice(NamedTuple):
    """Complete batches as stored in one segment; empty if there is none below the upper bound."""

    records: Bytes
    next_offset: int
    """The offset after the last batch; the requested offset if ``records`` is empty."""
    path: str
    position: int


def read(
    log: LogState,
    offset: int,
    max_bytes: int,
    upper_bound_offset: int,
    *,
    min_one: bool = True,
    only_cached: bool = False,
) -> LogSlice | None:
    """Return complete batches, from the one that contains ``offset``, all below ``upper_bound_offset``.

    With ``min_one`` the first batch may exceed ``max_bytes``. With ``only_cached`` the result is None if the
    bytes are not in memory. Raises OffsetOutOfRange, CorruptRecordFound.
    """
    if only_cached:
        found = _read_kept(log, offset, max_bytes, upper_bound_offset)
        if found is None:
            found = _read_on(log, offset, max_bytes, upper_bound_offset)
        if found is None:
            found = _read(log, offset, max_bytes, upper_bound_offset, min_one, only_cached)
        return found
    return read_apart(log, lambda: _read(log, offset, max_bytes, upper_bound_offset, min_one, only_cached))


def _read_kept(log: LogState, offset: int, max_bytes: int, upper_bound_offset: int) -> LogSlice | None:
    """Return the batches of the append that is being answered, if they are what this read is about."""
    kept = log.kept
    if kept is None or kept.first_offset != offset or log.log_start_offset > offset:
        return None
    size = len(kept.records)
    if kept.next_offset > upper_bound_offset or size > max_bytes:
        return None
    _remember(log, kept.next_offset, kept.segment, kept.position + size)
    return LogSlice(kept.records, kept.next_offset, kept.segment.log_path, kept.position)


def _read_on(log: LogState, offset: int, max_bytes: int, upper_bound_offset: int) -> LogSlice | None:
    """Continue where an earlier read ended, without a search. None if that gives no batch, for any reason:
    :func:`_read` finds it.

    Not in a log that may have gaps: whether a gap is damage takes more than one look.
    """
    hint = log.read_hints.get(offset)
    upper = min(upper_bound_offset, log.log_end_offset)
    if hint is None or log.may_have_gaps or not log.log_start_offset <= offset < upper:
        return None
    segment, position = hint
    length = min(max_bytes, segment.size - position)
    try:
        buffer = segment.open_log().read_at_if_cached(position, length) if length >= HEADER_BYTES else None
    except FileNotFoundError:
        return None
    if buffer is None:
        return None
    end, next_offset, count = skip_good_batches(buffer, 0, len(buffer), offset, upper, BATCHES_MAX)
    if end == 0:
        return None
    _remember(log, next_offset, segment, position + end)
    return LogSlice(_part(buffer, 0, end, count), next_offset, segment.log_path, position)


def _read(
    log: LogState, offset: int, max_bytes: int, upper_bound_offset: int, min_one: bool, only_cached: bool
) -> LogSlice | None:
    log_end_offset = log.log_end_offset
    if not log.log_start_offset <= offset <= log_end_offset:
        raise OffsetOutOfRange(offset, log.log_start_offset, log_end_offset, log.name)
    upper = min(upper_bound_offset, log_end_offset)
    segment = log.segments.floor(offset) or _first_segment(log, offset)
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


def _first_segment(log: LogState, offset: int) -> LogSegment:
    """Return the first segment, which begins above ``offset``. Raises OffsetInTier."""
    segment = log.segments.first
    if log.begins_in_tier and offset < segment.base_offset:
        raise OffsetInTier(offset, log.local_start_offset, log.name)
    return segment


def _read_segment(
    log: LogState,
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
        walk_bytes = WALK_BYTES_MAX if only_cached else size
        search = Search(segment, offset, size, end_offset, wanted, read_bytes, log.may_have_gaps, walk_bytes)
        window = _locate(log, search, only_cached=only_cached)
        if isinstance(window, Outcome):
            return window
        first = window.header
        if first.next_offset > log.log_end_offset:
            raise damage(
                segment,
                window.position + window.at,
                offset,
                f"batch with offsets up to {first.last_offset}, but the log ends at {log.log_end_offset}",
            )
        if first.next_offset > upper or (first.size > max_bytes and not min_one):
            return LogSlice(b"", offset, segment.log_path, window.position + window.at)
        rest = segment.size - window.position - window.at
        if first.size > rest:
            raise damage(
                segment,
                window.position + window.at,
                offset,
                f"batch of {first.size} bytes, but only {rest} bytes remain",
            )
        needed = min(max(first.size, max_bytes), rest)
        if len(window.buffer) - window.at < needed:
            buffer = read_bytes(window.position + window.at, needed)
            if buffer is None:
                return Outcome.WOULD_WAIT
            window = Window(window.position + window.at, buffer, 0, first)
        return _take(log, segment, window, max(max_bytes, first.size), upper, offset)


def _locate(log: LogState, search: Search, *, only_cached: bool) -> Window | Outcome:
    """Find the wanted batch, starting where an earlier read ended at this offset, or else by the index."""
    hint = log.read_hints.get(search.offset)
    if hint is not None and hint[0] is search.segment:
        found = locate_from_hint(search, hint[1])
        if found is not Outcome.UNPROVEN:
            return found
    try:
        find = search.segment.entry_if_cached if only_cached else search.segment.entry_apart
        entry = find(search.offset)
    except NotCached:
        return Outcome.WOULD_WAIT
    except (CorruptIndex, FileNotFoundError):
        entry = None  # it only makes the search shorter
    found = locate_from_entry(search, entry)
    return locate_from_entry(search, None) if found is Outcome.UNPROVEN else found


def _take(
    log: LogState, segment: LogSegment, window: Window, max_bytes: int, upper: int, offset: int
) -> LogSlice:
    """Return the complete, valid batches from the window's first on, within ``max_bytes``, below ``upper``.

    ``offset`` is the requested offset. Raises CorruptRecordFound if the first batch is damaged.
    """
    position, buffer, start, header = window
    limit = min(len(buffer), start + max_bytes)
    # The first batch may start below the requested offset; the caller has checked that it contains it.
    end, next_offset, count = skip_good_batches(buffer, start, limit, header.base_offset, upper, BATCHES_MAX)
    next_offset = max(offset, next_offset)
    try:
        while count < BATCHES_MAX and (end == start or limit - end >= HEADER_BYTES):
            if end > start:
                header = read_header_at(segment, position, buffer, end, next_offset)
            following = end + header.size
            if following > limit or header.next_offset > upper:
                break
            if end > start and not next_offset <= header.base_offset < log.log_end_offset:
                raise damage(
                    segment,
                    position + end,
                    next_offset,
                    f"base offset {header.base_offset}, but {next_offset} is expected",
                )
            leaves_gap = end > start and header.base_offset > next_offset
            if leaves_gap and not (log.may_have_gaps and _is_followed(buffer, following, header)):
                break  # the next read, which starts here, checks whether the gap is damage
            check_batch(buffer, end, header)
            end, next_offset = following, header.next_offset
            count += 1
    except KafkaError as error:
        if end == start:
            if isinstance(error, CorruptRecordFound):
                raise
            raise damage(segment, position + end, next_offset, str(error)) from error
    _remember(log, next_offset, segment, position + end)
    return LogSlice(_part(buffer, start, end, count), next_offset, segment.log_path, position + start)


def _part(buffer: Bytes, start: int, end: int, count: int) -> Bytes:
    """Return ``buffer[start:end]``, which has ``count`` batches; without the rest of the buffer in memory if
    that may be most of it."""
    if start == 0 and end == len(buffer):
        return buffer
    part = memoryview(buffer)[start:end]
    return part if count < BATCHES_MAX else bytes(part)


def _is_followed(buffer: Bytes, position: int, header: BatchHeader) -> bool:
    """Whether the batch after ``header`` is in the buffer, at ``position``, and does not overlap it."""
    if len(buffer) - position < HEADER_BYTES:
        return False
    try:
        return read_header(buffer, position).base_offset >= header.next_offset
    except KafkaError:
        return False


def _remember(log: LogState, next_offset: int, segment: LogSegment, position: int) -> None:
    """Store the position where a read ended: the next read usually starts at ``next_offset``."""
    hints = log.read_hints
    if len(hints) >= READ_HINTS_MAX:
        hints = log.halve_read_hints()
    hints[next_offset] = (segment, position)


def find_indexes(segment: LogSegment) -> SegmentIndexes:
    """Return a segment's indexes, on any thread.

    If the index files are unusable the result is empty indexes: they only make the search shorter.
    """
    try:
        return segment.indexes_apart()
    except (CorruptIndex, FileNotFoundError):
        return SegmentIndexes.empty(segment.base_offset)


@contextmanager
def bytes_of(log: LogState, segment: LogSegment, *, only_cached: bool) -> Generator[ReadBytes, None, None]:
    """Give a function that reads the segment's log file: from the pool, or a file opened for this use."""
    if only_cached:
        yield segment.open_log().read_at_if_cached
        return
    file = log.files.disk.open(segment.log_path, writable=False)
    try:
        yield file.read_at
    finally:
        file.close()


ABORTED_MAX = 1_000
"""Of more aborted transactions only those are returned whose producers have batches among the records."""


def aborted_transactions(
    log: LogState, from_offset: int, upper_bound_offset: int, records: Bytes | None = None
) -> list[AbortedTxn]:
    """Return the aborted transactions that overlap ``[from_offset, upper_bound_offset)``.

    A read-committed consumer skips their records. ``records``: those in the range; if thousands of
    transactions were open then, those of other producers are left out. Raises KafkaError if a transaction
    index is damaged.
    """
    if records is None:
        return _overlapping(log, from_offset, upper_bound_offset)
    found = _overlapping(log, from_offset, upper_bound_offset, at_most=ABORTED_MAX)
    if len(found) > ABORTED_MAX:
        producers = {header.producer_id for _, header in batches(records)}
        found = _overlapping(log, from_offset, upper_bound_offset, producers)
    return found


def _overlapping(
    log: LogState,
    from_offset: int,
    upper_bound_offset: int,
    producers: Collection[int] | None = None,
    at_most: int | None = None,
) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for segment in log.segments.from_offset(from_offset):
        try:
            aborted = segment.aborted()
        except CorruptIndex as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{log.name}: {error}") from error
        entries, is_done = aborted.collect(from_offset, upper_bound_offset, producers, at_most)
        found += entries
        if is_done:
            break
    return found
