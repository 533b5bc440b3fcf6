"""The five codecs of record batches.

The framing is the one that Java clients read: snappy in the blocks of the xerial stream (raw snappy is
accepted, too), LZ4 as frames of *independent* blocks (Java rejects linked ones), gzip and zstd without
additional framing.

Invariant: ``decompress`` never allocates more than about ``limit`` bytes, whatever sizes the data declares.
"""

from __future__ import annotations

import enum
import struct
from typing import assert_never

import cramjam

from nilometer.wire.errors import CorruptBatch


class Codec(enum.IntEnum):
    """The codec numbers in the attributes of a record batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


Bytes = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Version 1, independent blocks of at most 64 KB, no checksums, and the header's own checksum."""
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x8000_0000
_FIRST_GUESS_MIN = 16 * 1024
_OUTPUT_FULL = "failed to write whole buffer"


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """Compress ``data``. ``level`` is the codec's own scale, None its default; snappy has none."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=level))
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data, level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))
        case _:
            assert_never(codec)


def decompress(codec: Codec, data: Bytes, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompress ``data``. Raises CorruptBatch if it is damaged or has more than ``limit`` bytes."""
    try:
        match codec:
            case Codec.NONE:
                if len(data) > limit:
                    raise _beyond(limit)
                return bytes(data)
            case Codec.SNAPPY:
                return _decompress_snappy(data, limit)
            case Codec.GZIP | Codec.LZ4 | Codec.ZSTD:
                return _decompress_growing(codec, data, limit)
            case _:
                assert_never(codec)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"{codec.name.lower()} data is damaged: {error}") from error


def _beyond(limit: int) -> CorruptBatch:
    return CorruptBatch(f"batch would decompress to more than {limit} bytes")


def _decompress_growing(codec: Codec, data: Bytes, limit: int) -> bytes:
    """Decompress into a buffer that grows until the data fits: a size in the data cannot be trusted."""
    into = {
        Codec.GZIP: cramjam.gzip.decompress_into,
        Codec.LZ4: cramjam.lz4.decompress_into,
        Codec.ZSTD: cramjam.zstd.decompress_into,
    }[codec]
    room = min(limit, max(_FIRST_GUESS_MIN, 6 * len(data)))
    while True:
        output = bytearray(room)
        try:
            size = into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise
            if room >= limit:
                raise _beyond(limit) from error
            room = min(limit, room * 4)
        else:
            return bytes(memoryview(output)[:size])


def _compress_snappy(data: Bytes) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Bytes, limit: int) -> bytes:
    blocks = _snappy_blocks(memoryview(data))
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > limit:
        raise _beyond(limit)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _snappy_blocks(data: memoryview) -> list[memoryview]:
    """Return the blocks of a xerial stream; data in another format is returned as one raw block."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return [data]
    blocks: list[memoryview] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or position + size > len(data):
            raise CorruptBatch(f"snappy block of {size} bytes in {len(data) - position} remaining")
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _compress_lz4(data: Bytes, level: int | None) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK):
        raw = view[start : start + _LZ4_BLOCK]
        block = bytes(_compress_lz4_block(raw, level))
        if len(block) < len(raw):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(raw) | _LZ4_STORED).to_bytes(4, "little"), bytes(raw))
    parts.append(bytes(4))
    return b"".join(parts)


def _compress_lz4_block(raw: memoryview, level: int | None) -> cramjam.Buffer:
    if level is None:
        return cramjam.lz4.compress_block(raw, store_size=False)
    return cramjam.lz4.compress_block(raw, mode="high_compression", compression=level, store_size=False)
