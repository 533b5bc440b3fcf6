"""Small batches that are large when decompressed; and batches with another codec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

from msgspec import structs

from nilometer.wire.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compressor_of, pieces
from nilometer.wire.primitives import encode_zigzag
from nilometer.wire.record_batch import HEADER_BYTES, pack_batch, read_header, with_codec
from nilometer.wire.records import BatchBuilder, Recompression

MIB = 1 << 20
TIMESTAMP = 1_700_000_000_000


def batch_of(codec: Codec, count: int, pieces: Iterable[bytes]) -> bytes:
    """A batch whose decompressed records are ``pieces``."""
    builder = BatchBuilder()
    builder.append(TIMESTAMP, b"k", b"v")
    header = structs.replace(read_header(builder.build()), records_count=count, last_offset_delta=count - 1)
    compressor = compressor_of(codec)
    data = b"".join([*map(compressor.compress, pieces), compressor.flush()])
    return pack_batch(with_codec(header, codec), data)


def one_record(size: int) -> Iterator[bytes]:
    head = b"\x00\x00\x00" + encode_zigzag(1) + b"k" + encode_zigzag(size)
    return chain(
        (encode_zigzag(len(head) + size + 1) + head,),
        repeat(bytes(MIB), size // MIB),
        (bytes(size % MIB + 1),),
    )


def many_records(count: int) -> Iterator[bytes]:
    for index in range(count):
        delta = encode_zigzag(index)
        yield encode_zigzag(6 + len(delta)) + b"\x00\x00" + delta + b"\x02k\x01\x00"


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
