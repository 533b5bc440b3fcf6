"""Walking the batches of a log file from a position on, in large reads.

Only headers are read; the caller checks whether a batch is undamaged. The walk ends before
a batch that is not whole, and raises what ``read_header`` raises for bytes that are no header, so the
caller knows the first position it could not pass (the end of the last batch it was given).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nilometer.runtime import File
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, read_header

CHUNK_BYTES = 1 << 20


class ScannedBatch(NamedTuple):
    position: int
    """Where the batch lies in the file."""
    header: BatchHeader
    buffer: bytes
    at: int
    """Where the batch lies in ``buffer``, which holds it whole."""


def scan(file: File, position: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[ScannedBatch]:
    """The whole batches in ``[position, end)`` of ``file``. Raises CorruptBatch, UnsupportedMagic."""
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
