"""Machine code that decodes the records of many batches in two passes over the decompressed bytes.

Imported only when the first batch is decoded, since numba takes a third of a second to import. A *section* is
the records of one batch; sections are the rows of a table, whose columns are listed below. Never touches
Arrow.

Invariants: ``measure`` checks everything: it reads no byte outside a section, whatever its records contain,
and returns an error number, or OK with exact sizes. ``fill`` checks nothing: it may run only on sections
that ``measure`` has accepted, into arrays of at least the measured sizes. Every array of bytes is read-only
``uint8``.
"""

# pyright: basic, reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

OK = 0
PAST_THE_END = 1
VARINT_TOO_LONG = 2
RECORD_LENGTH = 3
FIELD_LENGTH = 4
HEADER_COUNT = 5
HEADER_KEY = 6
BYTES_LEFT = 7
OFFSET_DELTA = 8

ERROR_TEXTS = {
    PAST_THE_END: "a record extends beyond the end of the batch",
    VARINT_TOO_LONG: "a varint has too many bytes",
    RECORD_LENGTH: "a record's length does not fit its fields",
    FIELD_LENGTH: "a key or value has an impossible length",
    HEADER_COUNT: "a record has an impossible number of headers",
    HEADER_KEY: "a header has no key",
    BYTES_LEFT: "bytes are left over after the last record",
    OFFSET_DELTA: "a record's offset is outside its batch",
}

# The columns of the table of sections.
START = 0
END = 1
RECORDS_COUNT = 2
LAST_OFFSET_DELTA = 3
FIRST_DELTA = 4
"""Records before this offset delta are left out, ..."""
UNTIL_DELTA = 5
"""... and those from this one on."""
BASE_OFFSET = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
ATTRIBUTES = 9
LEADER_EPOCH = 10
PRODUCER_ID = 11
SECTION_FIELDS = 12

_LOG_APPEND_TIME = 0x08

# The indexes of the array of sizes that ``measure`` fills; ``fill`` counts the filled ones by the same.
ROWS = 0
KEY_BYTES = 1
VALUE_BYTES = 2
HEADERS = 3
HEADER_KEY_BYTES = 4
HEADER_VALUE_BYTES = 5
NULL_KEYS = 6
NULL_VALUES = 7
NULL_HEADER_VALUES = 8
SIZES = 9


_CACHES: set[Path] = set()


def compiled(function: Callable[..., Any]) -> Any:
    """Compile ``function`` to machine code, with a cache on disk if possible.

    numba keeps its cache next to this file or else in the user's cache folder. If neither is writable, each
    process compiles again.
    """
    try:
        made = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
    _CACHES.add(Path(str(made.stats.cache_path)))
    return made


def cache_folders() -> list[Path]:
    """Return the folders in which numba keeps the machine code of this module."""
    return sorted(_CACHES)


@compiled
def _varint(data, position, end):
    """Read a zigzag varint; return (value, next position).

    The next position is minus an error number if the varint is cut or too long.
    """
    raw = np.uint64(0)
    shift = np.uint64(0)
    for _ in range(10):
        if position >= end:
            return np.int64(0), np.int64(-PAST_THE_END)
        byte = np.uint64(data[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            return value, np.int64(position)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-VARINT_TOO_LONG)


@compiled
def _measure_headers(data, position, end, sizes):
    """Check the headers of one record and add up their sizes; return (error, next position)."""
    count, position = _varint(data, position, end)
    if position < 0:
        return -position, position
    if count < 0 or count > end - position:
        return HEADER_COUNT, position
    for _ in range(count):
        length, position = _varint(data, position, end)
        if position < 0:
            return -position, position
        if length < 0:
            return HEADER_KEY, position
        if length > end - position:
            return FIELD_LENGTH, position
        position += length
        sizes[HEADER_KEY_BYTES] += length
        length, position = _varint(data, position, end)
        if position < 0:
            return -position, position
        if length < -1 or length > end - position:
            return FIELD_LENGTH, position
        if length >= 0:
            position += length
            sizes[HEADER_VALUE_BYTES] += length
        else:
            sizes[NULL_HEADER_VALUES] += 1
    sizes[HEADERS] += count
    return OK, position


@compiled
def _measure_section(data, section, with_headers, sizes, scratch):
    """Check every record of a section and add up the sizes of the wanted ones; return an error number."""
    last_offset_delta = section[LAST_OFFSET_DELTA]
    first_delta, until_delta = section[FIRST_DELTA], section[UNTIL_DELTA]
    position, size = section[START], section[END]
    for _ in range(section[RECORDS_COUNT]):
        length, position = _varint(data, position, size)
        if position < 0:
            return -position
        if length < 0 or length > size - position:
            return PAST_THE_END
        end = position + length
        if length < 1:
            return RECORD_LENGTH
        position += 1  # attributes: none are defined
        _, position = _varint(data, position, end)
        if position < 0:
            return -position
        delta, position = _varint(data, position, end)
        if position < 0:
            return -position
        if delta < 0 or delta > last_offset_delta:
            return OFFSET_DELTA
        key, position = _varint(data, position, end)
        if position < 0:
            return -position
        if key < -1 or key > end - position:
            return FIELD_LENGTH
        position += max(key, 0)
        value, position = _varint(data, position, end)
        if position < 0:
            return -position
        if value < -1 or value > end - position:
            return FIELD_LENGTH
        position += max(value, 0)
        wanted = first_delta <= delta < until_delta
        error, position = _measure_headers(data, position, end, sizes if wanted and with_headers else scratch)
        if error != OK:
            return error
        if position != end:
            return RECORD_LENGTH
        if wanted:
            sizes[ROWS] += 1
            sizes[KEY_BYTES] += max(key, 0)
            sizes[VALUE_BYTES] += max(value, 0)
            sizes[NULL_KEYS] += key < 0
            sizes[NULL_VALUES] += value < 0
    if position != size:
        return BYTES_LEFT
    return OK


@compiled
def measure(data, sections, with_headers, sizes):
    """Check all records of ``sections`` and add up the sizes of the wanted ones in ``sizes``.

    Returns (error, number of the section); ``sizes`` is valid only if the error is OK.
    """
    scratch = np.zeros(SIZES, np.int64)
    for number in range(len(sections)):
        error = _measure_section(data, sections[number], with_headers, sizes, scratch)
        if error != OK:
            return error, number
    return OK, len(sections)


@compiled
def _copy(source, start, length, target, at):
    # Unsigned, so that numba omits the check for negative indexes and the loop becomes a block copy.
    source_at, target_at = np.uint64(start), np.uint64(at)
    for i in range(np.uint64(length)):
        target[target_at + i] = source[source_at + i]


@compiled
def _set_bit(bits, index):
    bits[index >> 3] |= np.uint8(1 << (index & 7))


@compiled
def _fill_headers(data, position, end, at, arrays):
    """Append the headers of one record to the columns; return their number. ``at`` counts what is filled."""
    key_offsets, key_data, value_offsets, value_data, value_valid = arrays
    count, position = _varint(data, position, end)
    for _ in range(count):
        length, position = _varint(data, position, end)
        _copy(data, position, length, key_data, at[HEADER_KEY_BYTES])
        position += length
        at[HEADER_KEY_BYTES] += length
        length, position = _varint(data, position, end)
        if length >= 0:
            _copy(data, position, length, value_data, at[HEADER_VALUE_BYTES])
            _set_bit(value_valid, at[HEADERS])
            position += length
            at[HEADER_VALUE_BYTES] += length
        at[HEADERS] += 1
        key_offsets[at[HEADERS]] = at[HEADER_KEY_BYTES]
        value_offsets[at[HEADERS]] = at[HEADER_VALUE_BYTES]
    return count


@compiled
def _fill_section(
    data, section, with_keys, with_values, with_headers, at, offsets, timestamps, keys, values, lists, headers
):
    key_offsets, key_data, key_valid = keys
    value_offsets, value_data, value_valid = values
    list_offsets, list_valid = lists
    first_delta, until_delta = section[FIRST_DELTA], section[UNTIL_DELTA]
    base_offset, base_timestamp = section[BASE_OFFSET], section[BASE_TIMESTAMP]
    max_timestamp = section[MAX_TIMESTAMP]
    log_append_time = section[ATTRIBUTES] & _LOG_APPEND_TIME != 0
    position, size = section[START], section[END]
    for _ in range(section[RECORDS_COUNT]):
        length, position = _varint(data, position, size)
        end = position + length
        timestamp_delta, position = _varint(data, position + 1, end)
        delta, position = _varint(data, position, end)
        if delta < first_delta or delta >= until_delta:
            position = end
            continue
        row = at[ROWS]
        offsets[row] = base_offset + delta
        timestamp = max_timestamp if log_append_time else base_timestamp + timestamp_delta
        timestamps[row] = timestamp * 1000
        key, position = _varint(data, position, end)
        if with_keys:
            if key >= 0:
                _copy(data, position, key, key_data, at[KEY_BYTES])
                _set_bit(key_valid, row)
                at[KEY_BYTES] += key
            key_offsets[row + 1] = at[KEY_BYTES]
        position += max(key, 0)
        value, position = _varint(data, position, end)
        if with_values:
            if value >= 0:
                _copy(data, position, value, value_data, at[VALUE_BYTES])
                _set_bit(value_valid, row)
                at[VALUE_BYTES] += value
            value_offsets[row + 1] = at[VALUE_BYTES]
        position += max(value, 0)
        if with_headers:
            if _fill_headers(data, position, end, at, headers) > 0:
                _set_bit(list_valid, row)
            list_offsets[row + 1] = at[HEADERS]
        at[ROWS] += 1
        position = end


@compiled
def fill(
    data,
    sections,
    with_keys,
    with_values,
    with_headers,
    at,
    offsets,
    timestamps,
    row_sections,
    keys,
    values,
    lists,
    headers,
):
    """Append the wanted records to the columns; ``at`` has the filled sizes and is advanced.

    Timestamps become microseconds; with LogAppendTime every record has the batch's maximum timestamp.
    ``row_sections`` is set to the number of rows of each section.
    """
    for number in range(len(sections)):
        before = at[ROWS]
        _fill_section(
            data,
            sections[number],
            with_keys,
            with_values,
            with_headers,
            at,
            offsets,
            timestamps,
            keys,
            values,
            lists,
            headers,
        )
        row_sections[number] = at[ROWS] - before
