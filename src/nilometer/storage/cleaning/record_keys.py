"""Reading the keys of a batch's records, and which records are tombstones. Values are not copied.

The cleaner reads every record of a log here: runs of records with the same layout by columns (see
:mod:`~nilometer.storage.cleaning.uniform_records`), the others one by one, with integers of one and two
bytes, which nearly all are, decoded inline, since a call for each would take a third of the time.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.storage.cleaning.uniform_records import find_run
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.varint import VARLONG_BYTES_MAX, decode_zigzag


class RecordKeys(NamedTuple):
    keys: list[bytes | None]
    """The key of each record; None if it has none."""
    deltas: list[int]
    """The offset delta of each record."""
    tombstones: list[int]
    """Which records, counted from 0, have no value."""


def read_keys(data: bytes, header: BatchHeader) -> RecordKeys:
    """Return the keys of a batch's records, which are ``data`` when decompressed. Raises CorruptBatch."""
    found = RecordKeys([], [], [])
    start, left = 0, header.records_count
    try:
        while left and (run := find_run(data, start, left)) is not None:
            if not run.has_values:
                found.tombstones.extend(range(len(found.keys), len(found.keys) + run.records))
            found.keys.extend(run.keys(data))
            found.deltas.extend(run.offset_deltas(data))
            start = run.end
            left -= run.records
        end = _read_singly(data, start, left, found)
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error
    if end != len(data):
        raise CorruptBatch(f"{len(data) - end} bytes after the last record")
    return found


def _read_singly(data: bytes, start: int, count: int, found: RecordKeys) -> int:
    """Add ``count`` records from ``start`` on to ``found``; return the position after them.

    Raises CorruptBatch, IndexError.
    """
    data_end, first = len(data), len(found.keys)
    add_key, add_delta = found.keys.append, found.deltas.append
    for index in range(first, first + count):
        if (low := data[start]) < 0x80:
            length, position = (low >> 1) ^ -(low & 1), start + 1
        elif (high := data[start + 1]) < 0x80:
            length = low & 0x7F | high << 7
            length, position = (length >> 1) ^ -(length & 1), start + 2
        else:
            length, position = decode_zigzag(data, start)
        end = position + length
        if length < 0 or end > data_end:
            raise CorruptBatch(f"record of {length} bytes in {data_end - position} remaining")
        if data[position + 1] < 0x80:
            position += 2
        else:
            _, position = decode_zigzag(data, position + 1, VARLONG_BYTES_MAX)
        if (low := data[position]) < 0x80:
            delta, position = (low >> 1) ^ -(low & 1), position + 1
        elif (high := data[position + 1]) < 0x80:
            delta = low & 0x7F | high << 7
            delta, position = (delta >> 1) ^ -(delta & 1), position + 2
        else:
            delta, position = decode_zigzag(data, position)
        add_delta(delta)
        if (low := data[position]) < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        else:
            size, position = decode_zigzag(data, position)
        if size >= 0:
            add_key(data[position : position + size])
            position += size
        else:
            add_key(None)
        if position >= end:
            raise CorruptBatch(f"a key of {size} bytes exceeds its record")
        if (low := data[position]) < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        elif (high := data[position + 1]) < 0x80:
            size = low & 0x7F | high << 7
            size, position = (size >> 1) ^ -(size & 1), position + 2
        else:
            size, position = decode_zigzag(data, position)
        if position + size > end:
            raise CorruptBatch(f"a value of {size} bytes exceeds its record")
        if size < 0:
            found.tombstones.append(index)
        start = end
    return start
