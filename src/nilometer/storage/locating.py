"""Finding the batch that contains an offset in one segment, by walking over the batch headers before it.

A header on disk may be damaged. The CRC covers the last offset delta, but not the base offset, and checking
the CRC of every batch on the way would cost too much. Instead the offsets of adjacent batches are compared:
each batch must start where the one before ended. If it does not, either compaction left a gap or one of the
two headers is damaged. In a log that was never compacted it is damage. In a compacted log

- the batch before the gap must have a valid CRC, or the wanted offset may be in it;
- the batch after the gap must not overlap the next batch, or its base offset is wrong.

An index entry is used if the batch at its position has the entry's offset as its last offset; otherwise the
walk starts at the beginning of the segment.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.segments.segment import LogSegment
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, check_batch, read_header

ReadBytes = Callable[[int, int], Bytes | None]
"""Reads ``(position, length)`` bytes of the log file; None if they are not in memory (page cache)."""


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
