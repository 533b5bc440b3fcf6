"""Scanning the batches of a log file from a position on, in large reads.

Only headers are parsed; the caller checks the batches' CRCs. The scan ends before an incomplete batch, and
raises the errors of ``read_header`` for bytes that are not a header. In both cases the caller knows the
position of the failure: the end of the last batch it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nilometer.runtime import File
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, read_header

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
