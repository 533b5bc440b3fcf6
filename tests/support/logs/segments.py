"""Reads segment files without the storage engine, so that tests can check the bytes in them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import crc32c

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">qi")
_CRC_FROM = 21


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One record batch: its file, position and header fields."""

    path: Path
    position: int
    size: int
    base_offset: int
    leader_epoch: int
    crc_valid: bool
    attributes: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def codec(self) -> str:
        return CODECS[self.attributes & 7]

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def control(self) -> bool:
        return bool(self.attributes & 0x20)


def segment_files(data_dir: Path, topic: str, partition: int) -> list[Path]:
    return sorted((data_dir / f"{topic}-{partition}").glob("*.log"))


def stored_batches(data_dir: Path, topic: str, partition: int) -> list[StoredBatch]:
    """Return all batches of a log; list it again if its broker removes a segment meanwhile."""
    while True:
        paths = segment_files(data_dir, topic, partition)
        try:
            return [batch for path in paths for batch in batches_of(path.read_bytes(), path)]
        except FileNotFoundError:
            continue  # compacted or deleted since it was listed


def batches_of(data: bytes, path: Path) -> Iterator[StoredBatch]:
    """Yield every complete batch of one segment, up to preallocated zeros or a torn tail."""
    position = 0
    while position + _HEADER.size <= len(data):
        base_offset, length = _LENGTH.unpack_from(data, position)
        size = length + _LENGTH.size
        if length < _HEADER.size - _LENGTH.size or position + size > len(data):
            return
        fields = _HEADER.unpack_from(data, position)
        yield StoredBatch(
            path=path,
            position=position,
            size=size,
            base_offset=base_offset,
            leader_epoch=fields[2],
            crc_valid=crc32c.crc32c(memoryview(data)[position + _CRC_FROM : position + size]) == fields[4],
            attributes=fields[5],
            last_offset=base_offset + fields[6],
            max_timestamp=fields[8],
            producer_id=fields[9],
            producer_epoch=fields[10],
            base_sequence=fields[11],
            records_count=fields[12],
        )
        position += size
