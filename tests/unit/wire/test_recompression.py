"""A batch in another codec is the same batch."""

from __future__ import annotations

import pytest
from msgspec import structs

from nilometer.wire.compression import Codec
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import check_batch, patched_header, read_header
from nilometer.wire.records import BatchBuilder, decode_records
from support.wire.compressed_batches import recompress


def a_batch(codec: Codec) -> bytes:
    builder = BatchBuilder(codec)
    for number in range(100):
        builder.append(1000 + number, b"key", b"value %d" % number)
    return builder.build(5, 9, 1, 3, transactional=True, partition_leader_epoch=6)


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", Codec)
def test_every_pair_of_codecs(source: Codec, target: Codec) -> None:
    batch = a_batch(source)
    changed = recompress(batch, target)
    before, after = read_header(batch), read_header(changed)
    check_batch(changed, 0, after)
    assert after.codec is target
    same = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert structs.replace(before, **same) == structs.replace(after, **same)
    assert after.is_transactional
    assert decode_records(changed, 0, after) == decode_records(batch, 0, before)


def test_the_same_codec_leaves_the_bytes() -> None:
    batch = a_batch(Codec.LZ4)
    assert recompress(batch, Codec.LZ4) == batch


def test_log_append_time_survives() -> None:
    batch = a_batch(Codec.LZ4)
    start = patched_header(batch, 0, base_offset=5, leader_epoch=6, max_timestamp=77, log_append_time=True)
    changed = recompress(start + batch[61:], Codec.ZSTD)
    header = read_header(changed)
    assert (header.is_log_append_time, header.max_timestamp) == (True, 77)


def test_a_bomb_is_refused() -> None:
    builder = BatchBuilder(Codec.GZIP)
    builder.append(1, None, bytes(5_000_000))
    with pytest.raises(CorruptBatch):
        recompress(builder.build(), Codec.NONE, limit=1_000_000)
