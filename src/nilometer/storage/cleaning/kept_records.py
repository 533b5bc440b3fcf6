"""Copying the records of a batch that are kept, unchanged, into the bytes of a new batch."""

from __future__ import annotations

import re

from nilometer.storage.cleaning.record_marks import DROP
from nilometer.storage.cleaning.uniform_records import UniformRun, find_run
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.varint import VARLONG_BYTES_MAX, decode_zigzag

_KEPT = re.compile(rb"[^\x01]+", re.DOTALL)
"""Marks of neighbours that are kept: none of them is DROP."""
_IS_KEPT = bytes(mark != DROP for mark in range(256))


def kept_records(data: bytes, marks: bytes) -> tuple[bytes, int]:
    """Return the bytes of the records that are kept, and their largest timestamp delta.

    ``marks``: a mark for each record in ``data``, at least one of which is kept. Raises CorruptBatch.
    """
    pieces: list[bytes] = []
    timestamps: set[int] = set()
    index = start = 0
    try:
        while (run := find_run(data, start, len(marks) - index)) is not None:
            part = marks[index : index + run.records]
            _copy_run(data, run, part, pieces)
            timestamps |= run.timestamp_deltas(data, part.translate(_IS_KEPT))
            index, start = index + run.records, run.end
        _copy_singly(data, start, marks[index:], pieces, timestamps)
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error
    return b"".join(pieces), max(timestamps)


def _copy_run(data: bytes, run: UniformRun, marks: bytes, pieces: list[bytes]) -> None:
    start, stride = run.start, run.stride
    for kept in _KEPT.finditer(marks):
        first, last = kept.span()
        pieces.append(data[start + first * stride : start + last * stride])


def _copy_singly(data: bytes, start: int, marks: bytes, pieces: list[bytes], timestamps: set[int]) -> None:
    """Copy records one by one, neighbours together. Raises CorruptBatch, IndexError."""
    kept_from = start
    for mark in marks:
        if (low := data[start]) < 0x80:
            length, position = (low >> 1) ^ -(low & 1), start + 1
        elif (high := data[start + 1]) < 0x80:
            length = low & 0x7F | high << 7
            length, position = (length >> 1) ^ -(length & 1), start + 2
        else:
            length, position = decode_zigzag(data, start)
        end = position + length
        if mark == DROP:
            if kept_from < start:
                pieces.append(data[kept_from:start])
            kept_from = end
        else:
            if (low := data[position + 1]) < 0x80:
                timestamps.add((low >> 1) ^ -(low & 1))
            else:
                timestamps.add(decode_zigzag(data, position + 1, VARLONG_BYTES_MAX)[0])
        start = end
    pieces.append(data[kept_from:start])
