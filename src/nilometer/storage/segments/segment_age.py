"""The largest timestamp of a segment, from its time index if that agrees with the log.

Retention and searches by time use it, so a wrong entry would delete records too early, or hide them. The
last entry of the time index is trusted if the batch with its offset has that timestamp, and if no batch in
the tail of the segment (from the last entry of the offset index on) has a larger one. This is cheap if
timestamps increase: both entries are within the last few kilobytes. It does not detect an outdated but
undamaged index file of a segment whose timestamps decrease.

Opens its own files and changes nothing: safe on any thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from nilometer.runtime import File
from nilometer.storage.segments.batch_scan import scan
from nilometer.storage.segments.offset_index import CorruptIndex
from nilometer.storage.segments.segment_files import IndexFiles
from nilometer.storage.segments.time_index import NO_TIMESTAMP
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import BatchHeader, check_batch


class Youngest(NamedTuple):
    """The largest timestamp of a segment, and an offset in the first batch that has it."""

    timestamp: int
    offset: int


def find_youngest(files: IndexFiles, log: File, base_offset: int, size: int) -> Youngest:
    """Return a sealed segment's largest timestamp; -1 and the base offset if no batch has a timestamp.

    ``log`` is the log file, ``size`` its bytes. If the time index is not trusted, every batch is read. Raises
    OSError if ``log`` cannot be read.
    """
    said = Youngest(NO_TIMESTAMP, base_offset)
    with suppress(CorruptIndex, FileNotFoundError):
        said = Youngest(*files.last_time_entry())
        tail = _youngest_of_tail(files, log, size)
        if tail is not None and said.timestamp >= tail.max_timestamp and names_batch(files, log, said, tail):
            return said
    return _look_at_all(log, said, base_offset, size)


def names_batch(files: IndexFiles, log: File, said: Youngest, tail: BatchHeader) -> bool:
    """Return whether the batch at the time index's last entry, ``said``, has that timestamp.

    ``tail`` is the batch with the largest timestamp in the segment's tail. Raises CorruptIndex,
    FileNotFoundError.
    """
    if said.timestamp < 0:
        return tail.max_timestamp < 0
    if _is_in(tail, said):
        return True
    entry = files.load_offsets_apart().lookup_entry(said.offset)
    with suppress(KafkaError):
        for batch in scan(log, 0 if entry is None else entry[1], log.size(), chunk_bytes=64 << 10):
            if batch.header.last_offset >= said.offset:
                return _is_in(batch.header, said)
    return False


def _is_in(batch: BatchHeader, said: Youngest) -> bool:
    return batch.max_timestamp == said.timestamp and batch.base_offset <= said.offset <= batch.last_offset


def _youngest_of_tail(files: IndexFiles, log: File, size: int) -> BatchHeader | None:
    """Return the batch with the largest timestamp from the last offset index entry on.

    None if that entry contradicts the log or the tail is damaged. Raises CorruptIndex.
    """
    last = files.last_offset_entry()
    start = end = 0 if last is None else last[1]
    youngest: BatchHeader | None = None
    try:
        for position, header, _, _ in scan(log, start, size):
            if last is not None and position == start and header.last_offset != last[0]:
                return None
            end = position + header.size
            if youngest is None or header.max_timestamp > youngest.max_timestamp:
                youngest = header
    except KafkaError:
        return None
    return youngest if end == size else None


def _look_at_all(log: File, said: Youngest, base_offset: int, size: int) -> Youngest:
    """Return the largest timestamp of all batches.

    Batches after damage cannot be read: then ``said``, the time index's last entry, is used if larger.
    """
    youngest, end = Youngest(NO_TIMESTAMP, base_offset), 0
    with suppress(KafkaError):
        for position, header, buffer, at in scan(log, 0, size):
            check_batch(buffer, at, header)
            end = position + header.size
            if header.max_timestamp > youngest.timestamp:
                youngest = Youngest(header.max_timestamp, header.last_offset)
    return youngest if end == size or said.timestamp <= youngest.timestamp else said
