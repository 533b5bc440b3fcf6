"""Machine code that copies the headers of record batches into a table: a row per batch, a column per field.

Imported only when the first bytes are read, since numba takes a third of a second to import. Reads only
headers, and checks only the magic and the length.

Invariant: no byte outside ``data`` is read, whatever lengths it contains.
"""

# pyright: basic, reportUntypedFunctionDecorator=false

from __future__ import annotations

import numpy as np

from nilometer.pipeline.decode.decode_kernels import compiled

HEADER_BYTES = 61
MAGIC = 2

POSITION = 0
SIZE = 1
BASE_OFFSET = 2
LEADER_EPOCH = 3
CRC = 4
ATTRIBUTES = 5
LAST_OFFSET_DELTA = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
BASE_SEQUENCE = 11
RECORDS_COUNT = 12
FIELDS = 13


@compiled
def _number(data, position, size):
    """Read a signed big-endian integer of ``size`` bytes."""
    raw = np.uint64(0)
    for index in range(size):
        raw = (raw << np.uint64(8)) | np.uint64(data[position + index])
    unused = np.uint64(64 - 8 * size)
    return np.int64(raw << unused) >> np.int64(unused)


@compiled
def walk(data, position, rows):
    """Fill ``rows`` with the whole batches from ``position`` on.

    Returns (rows filled, position after the last one, whether the next bytes may be a batch). Stops before
    bytes that are no batch header (the third value is then False), before an incomplete batch, or when the
    rows are full.
    """
    count = 0
    end = np.int64(len(data))
    position = np.int64(position)
    while count < len(rows) and end - position >= HEADER_BYTES:
        length = _number(data, position + 8, 4)
        if data[position + 16] != MAGIC or length < HEADER_BYTES - 12:
            return count, position, False
        size = length + 12
        if size > end - position:
            break
        row = rows[count]
        row[POSITION] = position
        row[SIZE] = size
        row[BASE_OFFSET] = _number(data, position, 8)
        row[LEADER_EPOCH] = _number(data, position + 12, 4)
        row[CRC] = _number(data, position + 17, 4) & 0xFFFFFFFF
        row[ATTRIBUTES] = _number(data, position + 21, 2)
        row[LAST_OFFSET_DELTA] = _number(data, position + 23, 4)
        row[BASE_TIMESTAMP] = _number(data, position + 27, 8)
        row[MAX_TIMESTAMP] = _number(data, position + 35, 8)
        row[PRODUCER_ID] = _number(data, position + 43, 8)
        row[PRODUCER_EPOCH] = _number(data, position + 51, 2)
        row[BASE_SEQUENCE] = _number(data, position + 53, 4)
        row[RECORDS_COUNT] = _number(data, position + 57, 4)
        count += 1
        position += size
    return count, position, True
