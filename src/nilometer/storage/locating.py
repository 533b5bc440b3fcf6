"""Finding the batch of an offset in one segment, by the headers before it.

A header at rest may have changed. The CRC covers the last offset delta, but not the base offset, and to
check the CRC of every batch on the way would cost too much. So the way goes by agreement: each batch begins
where the one before ended. Where two do not agree, compaction left a gap, or one of the headers is damaged.
In a log that compaction never came through it is damage. In others

- the batch before the gap must have a good CRC, or the offset sought may lie in it;
- the batch behind the gap must not reach into the one after it, or its base offset is wrong.

An index entry is believed where the batch at its position says the same; else the walk begins at the start.
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
"""Position and length; None where the read would wait for the device."""


class Outcome(enum.Enum):
    WOULD_WAIT = enum.auto()
    EXHAUSTED = enum.auto()
    """The segment has nothing at or above the offset."""
    UNPROVEN = enum.auto()
    """There is a gap where the search began: it has to begin earlier."""


class Window(NamedTuple):
    """Bytes of a log file, and the first wanted batch in them."""

    position: int
    buffer: Bytes
    at: int
    header: BatchHeader


class Search(NamedTuple):
    """What is sought in ``segment``: the first batch that holds ``offset`` or something above it."""

    segment: LogSegment
    offset: int
    size: int
    """Bytes of the segment: read before ``end_offset``, as appends come meanwhile."""
    end_offset: int
    """Where the segment ends: the next one's base offset, or the end of the log."""
    wanted: int
    """Bytes to read at once."""
    read_bytes: ReadBytes
    may_have_gaps: bool


def locate_from_entry(search: Search, entry: tuple[int, int] | None) -> Window | Outcome:
    """From an index entry (offset, position); from the start if the entry and the batch there disagree."""
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
    """From where the batch that begins at the offset was when the one before it was read."""
    return _walk(search, position, search.offset)


def read_header_at(segment: LogSegment, position: int, buffer: Bytes, at: int, offset: int) -> BatchHeader:
    """Raises CorruptRecordFound."""
    try:
        return read_header(buffer, at)
    except KafkaError as error:
        raise damage(segment, position + at, offset, str(error)) from error


def damage(segment: LogSegment, position: int, offset: int, reason: str) -> CorruptRecordFound:
    return CorruptRecordFound(segment.log_path, position, offset, reason)


def _walk(search: Search, position: int, floor: int, *, is_start: bool = False) -> Window | Outcome:
    """Offsets must rise from ``floor`` on; every gap on the way is proven."""
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
                raise damage(segment, position + at, floor, "offsets go back")
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
        raise damage(segment, position, offset, f"no batch ends at the end of the file, {size}")
    if floor < search.end_offset:
        if before is None and size:
            return Outcome.UNPROVEN
        if size and not search.may_have_gaps:
            raise damage(segment, size, floor, f"the next segment begins at {search.end_offset}")
        if (outcome := _check_before(search, before)) is not None:
            return outcome
    return Outcome.EXHAUSTED


def _prove_gap(
    search: Search, before: tuple[int, BatchHeader] | None, position: int, behind: BatchHeader, floor: int
) -> Outcome | None:
    """None where the batches on both sides of the gap are as they were written."""
    if not search.may_have_gaps:
        raise damage(search.segment, position, floor, f"a batch of offset {behind.base_offset}")
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
        reason = f"a batch from {behind.base_offset} to {behind.last_offset} where {floor} is due"
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
