"""Scanning the batches of a log file from a position on, in large reads.

Only headers are parsed; the caller checks the batches' CRCs. The scan ends before an incomplete batch, and
raises the errors of ``read_header`` for bytes that are not a header. In both cases the caller knows the
position of the failure: the end of the last batch it was given.

The CRC of a batch does not cover its base offset, so :func:`in_offset_order` compares it with its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nilometer.runtime import File
from nilometer.wire.errors import CorruptBatch, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, check_batch, read_header

CHUNK_BYTES = 1 << 20


class ScannedBatch(NamedTuple):
    position: int
    """Byte position of the batch in the file."""
    header: BatchHeader
    buffer: bytes
    at: int
    """Byte position of the batch in ``buffer``, which contains all of it."""


def scan(file: File, position: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[ScannedBatch]:
    """Yield the complete batches in bytes ``[position, end)`` of ``file``.

    ``chunk_bytes`` is the size of one read. Raises CorruptBatch, UnsupportedMagic.
    """
    wanted = chunk_bytes
    while end - position >= HEADER_BYTES:
        requested = min(wanted, end - position)
        buffer = file.read_at(position, requested)
        at = incomplete = 0
        while len(buffer) - at >= HEADER_BYTES:
            header = read_header(buffer, at)
            if at + header.size > len(buffer):
                incomplete = header.size
                break
            yield ScannedBatch(position + at, header, buffer, at)
            at += header.size
        position += at
        if incomplete > end - position or (at == 0 and (not incomplete or len(buffer) < requested)):
            return
        wanted = max(chunk_bytes, incomplete)


def in_offset_order(batches: Iterator[ScannedBatch], first_offset: int) -> Iterator[ScannedBatch]:
    """Yield the batches up to the first one whose base offset is damaged.

    ``first_offset``: no batch begins below it. Raises CorruptBatch instead of yielding a batch that begins
    below the end of the batch before it, or that leaves a gap in which the batch after it, which is whole,
    begins. Another gap may be the work of compaction.
    """
    expected = first_offset
    held: ScannedBatch | None = None
    while True:
        try:
            batch = next(batches, None)
        except KafkaError:
            if held is not None:
                yield held
            raise
        if held is not None:
            if batch is not None and _lies_in_gap(batch, held, expected):
                raise _misplaced(held, expected)
            yield held
            expected = held.header.next_offset
        if batch is None:
            return
        if batch.header.base_offset < expected:
            raise _misplaced(batch, expected)
        held = batch


def _lies_in_gap(batch: ScannedBatch, before: ScannedBatch, expected: int) -> bool:
    """Whether a whole ``batch`` begins in the gap that the batch before it leaves after ``expected``."""
    if not expected <= batch.header.base_offset < before.header.base_offset:
        return False
    try:
        check_batch(batch.buffer, batch.at, batch.header)
    except KafkaError:
        return False
    return True


def _misplaced(batch: ScannedBatch, expected: int) -> CorruptBatch:
    return CorruptBatch(f"batch with base offset {batch.header.base_offset}, but {expected} is expected")
