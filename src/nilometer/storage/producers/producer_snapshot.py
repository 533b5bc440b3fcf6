"""The producer state of a log at one offset, as a file (``<offset>.snapshot``).

Big-endian: version (int16, 1), CRC-32C of all bytes after it (uint32), count (int32), then 46 bytes
for each producer. Only the last batch of a producer is stored. A file with a wrong checksum is rejected
(KAFKA-9892).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

VERSION = 1

_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    pass


class SnapshotEntry(NamedTuple):
    """One producer's fields, in the order of the file. -1 means "none", except in ``offset_delta``."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode(entries: Iterable[SnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _PREFIX.pack(VERSION, crc32c(body)) + body


def decode(data: bytes) -> list[SnapshotEntry]:
    """Parse a snapshot file. Raises CorruptSnapshot."""
    if len(data) < _PREFIX.size + _COUNT.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few")
    version, crc = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"unknown version {version}")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise CorruptSnapshot("the checksum does not match")
    (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    entries = memoryview(data)[_PREFIX.size + _COUNT.size :]
    if count * _ENTRY.size != len(entries):
        raise CorruptSnapshot(f"{len(entries)} bytes cannot be {count} entries")
    return [SnapshotEntry._make(fields) for fields in _ENTRY.iter_unpack(entries)]
