"""Changing the codec of a batch, for topics whose ``compression.type`` is not the producer's.

The uncompressed records do not change, nor do offsets and producer fields in the header. The records pass by
piece by piece: neither they nor the new batch, where that becomes too large, are ever held whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from nilometer.wire.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compressor_of, pieces
from nilometer.wire.errors import BatchTooLarge
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, pack_batch, read_header, with_codec


class Recompression:
    """Compresses the decompressed records of a batch with another codec while they are read."""

    def __init__(
        self, target: Codec, level: int | None = None, size_max: int = DECOMPRESSED_BYTES_MAX
    ) -> None:
        """``size_max``: of the new batch, in bytes."""
        self._target = target
        self._compressor = compressor_of(target, level)
        self._done: list[bytes] = []
        self._size = HEADER_BYTES
        self._size_max = size_max

    def passing(self, decompressed: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces ``decompressed``, each after it was compressed. Raises BatchTooLarge."""
        for piece in decompressed:
            self._add(self._compressor.compress(piece))
            yield piece
        self._add(self._compressor.flush())

    def _add(self, packed: bytes) -> None:
        self._done.append(packed)
        self._size += len(packed)
        if self._size > self._size_max:
            raise BatchTooLarge(f"batch would have more than {self._size_max} bytes in the topic's codec")

    def batch(self, header: BatchHeader) -> bytes:
        """Return the new batch, after the last piece; ``header``: of the former one."""
        return pack_batch(with_codec(header, self._target), b"".join(self._done))


def recompress(
    batch: Bytes, target: Codec, level: int | None = None, limit: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return a batch with its records compressed by ``target``; unchanged if that is its codec already.

    Raises CorruptBatch if the records are damaged or do not fit into ``limit`` bytes.
    """
    header = read_header(batch)
    if header.codec is target:
        return bytes(batch)
    recompression = Recompression(target, level, limit)
    with memoryview(batch) as view, view[HEADER_BYTES : header.size] as data:
        for _ in recompression.passing(pieces(header.codec, data, limit)):
            pass
    return recompression.batch(header)
