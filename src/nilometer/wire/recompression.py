"""Changing the codec of a batch, for topics whose ``compression.type`` is not the producer's.

The uncompressed records do not change, nor do offsets, timestamps and producer fields in the header.
"""

from __future__ import annotations

from nilometer.wire.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compress
from nilometer.wire.record_batch import pack_batch, read_header, with_codec
from nilometer.wire.records import records_data


def recompress(
    batch: Bytes, target: Codec, level: int | None = None, limit: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return a batch with its records compressed by ``target``; unchanged if that is its codec already.

    Raises CorruptBatch if the records are damaged or do not fit into ``limit`` bytes.
    """
    header = read_header(batch)
    if header.codec is target:
        return bytes(batch)
    records = records_data(batch, 0, header, limit)
    return pack_batch(with_codec(header, target), compress(target, records, level))
