"""The five codecs of record batches.

The framing is the one that Java clients read: snappy in the blocks of the xerial stream (raw snappy is
accepted, too), LZ4 as frames of *independent* blocks (Java rejects linked ones), gzip and zstd without
additional framing.

``decompress`` returns the whole, :func:`pieces` reads it piece by piece for who looks at records and keeps
none.

Invariants: ``decompress`` never allocates more than about ``limit`` bytes, whatever sizes the data declares;
``pieces`` holds a piece and, for zstd, the window that the data declares: up to 128 MiB of what it has read.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, assert_never

import cramjam
import zstandard

from nilometer.wire.errors import BatchTooLarge, CorruptBatch


class Codec(enum.IntEnum):
    """The codec numbers in the attributes of a record batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


Bytes = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""What a reader takes of one batch, unless it has another bound."""
PIECE_BYTES = 128 * 1024
"""Size of a piece of decompressed data; a block of snappy or LZ4 is not divided."""
_GATHERED_MAX = 256
"""How many smaller pieces are gathered at once."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Version 1, independent blocks of at most 64 KB, no checksums, and the header's own checksum."""
_LZ4_MAGIC = int.from_bytes(_LZ4_HEADER[:4], "little")
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x8000_0000
_LZ4_INDEPENDENT, _LZ4_BLOCK_SUM, _LZ4_SIZE, _LZ4_DICTIONARY = 0x20, 0x10, 0x08, 0x01
_LZ4_BLOCKS_MAX = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
"""Size of a block in bytes, by its number in the header."""
_GZIP = 31
"""Window bits: a header and a trailer of gzip, and the largest window."""
_GZIP_INPUT = 16 * 1024
_ZSTD_WINDOW_MAX = 1 << 27
_ZSTD_SOURCE_BYTES = 1 << 20
"""A compressor of zstd takes memory for data of this size: 18 MB at the highest level. Without it that would
be 700 MB, since the size of the data is not known before."""
_FIRST_GUESS_MIN = 16 * 1024
_OUTPUT_FULL = "failed to write whole buffer"


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """Compress ``data``. ``level`` is the codec's own scale, None its default; snappy has none."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=level))
        case Codec.SNAPPY | Codec.LZ4:
            compressor = compressor_of(codec, level)
            return compressor.compress(data) + compressor.flush()
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))
        case _:
            assert_never(codec)


class Compressor(Protocol):
    """Compresses data that arrives piece by piece; each call returns what is ready."""

    def compress(self, data: Bytes, /) -> bytes: ...

    def flush(self) -> bytes:
        """Return the rest, after the last piece."""
        ...


def compressor_of(codec: Codec, level: int | None = None) -> Compressor:
    """Return a compressor; ``level`` as in :func:`compress`."""
    match codec:
        case Codec.NONE:
            return _BlockCompressor(b"", PIECE_BYTES, bytes, b"")
        case Codec.GZIP:
            return zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=_GZIP)
        case Codec.SNAPPY:
            return _BlockCompressor(_XERIAL_HEADER, _XERIAL_BLOCK, _snappy_block, b"")
        case Codec.LZ4:
            return _BlockCompressor(_LZ4_HEADER, _LZ4_BLOCK, partial(_lz4_block, level=level), bytes(4))
        case Codec.ZSTD:
            return _zstd_compressor(level).compressobj()
        case _:
            assert_never(codec)


def _zstd_compressor(level: int | None) -> zstandard.ZstdCompressor:
    if level is None:
        return zstandard.ZstdCompressor()
    parameters = zstandard.ZstdCompressionParameters.from_level(  # pyright: ignore[reportUnknownMemberType]
        level, source_size=_ZSTD_SOURCE_BYTES
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def decompress(codec: Codec, data: Bytes, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompress ``data``. Raises CorruptBatch if it is damaged, BatchTooLarge if it has more than ``limit``
    bytes."""
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


def pieces(codec: Codec, data: Bytes, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[bytes]:
    """Yield the decompressed bytes piece by piece: about ``PIECE_BYTES`` at once, or none yet.

    Each piece is bounded work, mostly without the interpreter's lock. Raises CorruptBatch if the data is
    damaged, BatchTooLarge once more than ``limit`` bytes were read. Of zstd a missing end is not noticed.
    """
    gathered: list[bytes] = []
    total = waiting = 0
    try:
        for count, piece in enumerate(_pieces(codec, memoryview(data), limit), 1):
            total += len(piece)
            if total > limit:
                raise _beyond(limit)
            gathered.append(piece)
            waiting += len(piece)
            if waiting >= PIECE_BYTES:
                yield b"".join(gathered)
                gathered, waiting = [], 0
            elif count % _GATHERED_MAX == 0:
                yield b""
        if waiting:
            yield b"".join(gathered)
    except (cramjam.DecompressionError, zlib.error, zstandard.ZstdError) as error:
        raise CorruptBatch(f"{codec.name.lower()} data is damaged: {error}") from error


def _pieces(codec: Codec, data: memoryview, limit: int) -> Iterator[bytes]:
    match codec:
        case Codec.NONE:
            return (bytes(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES))
        case Codec.GZIP:
            return _gzip_pieces(data)
        case Codec.SNAPPY:
            return _snappy_pieces(data, limit)
        case Codec.LZ4:
            return _lz4_pieces(data)
        case Codec.ZSTD:
            return _zstd_pieces(data)
        case _:
            assert_never(codec)


def _beyond(limit: int) -> BatchTooLarge:
    return BatchTooLarge(f"batch would decompress to more than {limit} bytes")


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


def _gzip_pieces(data: memoryview) -> Iterator[bytes]:
    inflater = zlib.decompressobj(_GZIP)
    for at in range(0, len(data), _GZIP_INPUT):
        rest: Bytes = data[at : at + _GZIP_INPUT]
        while True:
            if inflater.eof and rest:
                inflater = zlib.decompressobj(_GZIP)  # another member follows
            piece = inflater.decompress(rest, PIECE_BYTES)
            yield piece
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if not rest and len(piece) < PIECE_BYTES:
                break
    if not inflater.eof:
        raise CorruptBatch("gzip data ends too early")


def _zstd_pieces(data: memoryview) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(PIECE_BYTES):
            yield piece


def _snappy_pieces(data: memoryview, limit: int) -> Iterator[bytes]:
    for block in _snappy_blocks(data):
        if cramjam.snappy.decompress_raw_len(block) > limit:
            raise _beyond(limit)
        yield bytes(cramjam.snappy.decompress_raw(block))


def _lz4_pieces(data: memoryview) -> Iterator[bytes]:
    """Yield the blocks of one frame. The checksums are not looked at: the batch has one of its own."""
    try:
        magic, flags, size_number = struct.unpack_from("<IBB", data)
        block_max = _LZ4_BLOCKS_MAX.get(size_number >> 4 & 7)
        if magic != _LZ4_MAGIC or flags >> 6 != 1 or block_max is None:
            raise CorruptBatch("LZ4 data does not begin with a frame")
        if not flags & _LZ4_INDEPENDENT:
            raise CorruptBatch("LZ4 blocks depend on one another, which Java clients cannot read")
        at = 7 + (8 if flags & _LZ4_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
        output = bytearray(block_max)
        while True:
            (size,) = struct.unpack_from("<I", data, at)
            at += 4
            if not size:
                return
            block = data[at : at + (size & ~_LZ4_STORED)]
            at += len(block) + (4 if flags & _LZ4_BLOCK_SUM else 0)
            if size & _LZ4_STORED:
                yield bytes(block)
            else:
                count = cramjam.lz4.decompress_block_into(block, output)
                yield bytes(memoryview(output)[:count])
    except struct.error as error:
        raise CorruptBatch(f"LZ4 data ends too early: {error}") from error


def _decompress_snappy(data: Bytes, limit: int) -> bytes:
    blocks = list(_snappy_blocks(memoryview(data)))
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > limit:
        raise _beyond(limit)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of a xerial stream; data in another format is one raw block."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield data
        return
    position = len(_XERIAL_HEADER)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or position + size > len(data):
            raise CorruptBatch(f"snappy block of {size} bytes in {len(data) - position} remaining")
        yield data[position : position + size]
        position += size


class _BlockCompressor:
    """Compresses data in blocks of ``block_bytes``."""

    __slots__ = ("_block_bytes", "_end", "_pack", "_rest", "_start")

    def __init__(
        self, start: bytes, block_bytes: int, pack: Callable[[memoryview], bytes], end: bytes
    ) -> None:
        self._start, self._block_bytes, self._pack, self._end = start, block_bytes, pack, end
        self._rest = b""

    def compress(self, data: Bytes) -> bytes:
        waiting = memoryview(b"".join((self._rest, data)) if self._rest else data)
        whole = len(waiting) - len(waiting) % self._block_bytes
        self._rest = bytes(waiting[whole:])
        return self._packed(waiting[:whole])

    def flush(self) -> bytes:
        return self._packed(memoryview(self._rest)) + self._end

    def _packed(self, data: memoryview) -> bytes:
        size = self._block_bytes
        start, self._start = self._start, b""
        return b"".join((start, *(self._pack(data[at : at + size]) for at in range(0, len(data), size))))


def _snappy_block(raw: memoryview) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(raw))
    return len(block).to_bytes(4, "big") + block


def _lz4_block(raw: memoryview, level: int | None) -> bytes:
    block = bytes(_compress_lz4_block(raw, level))
    if len(block) < len(raw):
        return len(block).to_bytes(4, "little") + block
    return (len(raw) | _LZ4_STORED).to_bytes(4, "little") + bytes(raw)


def _compress_lz4_block(raw: memoryview, level: int | None) -> cramjam.Buffer:
    if level is None:
        return cramjam.lz4.compress_block(raw, store_size=False)
    return cramjam.lz4.compress_block(raw, mode="high_compression", compression=level, store_size=False)
