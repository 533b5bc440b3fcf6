"""Codecs: what goes in comes out, damage and bombs are noticed, Java's framing is kept."""

from __future__ import annotations

import gzip
import random

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nilometer.wire.compression import PIECE_BYTES, Codec, compress, compressor_of, decompress, pieces
from nilometer.wire.errors import BatchTooLarge, CorruptBatch

SOME_DATA = [
    b"",
    b"x",
    b"hello world " * 1000,
    random.Random(1).randbytes(200_000),
    b"a" * 70_000 + random.Random(2).randbytes(70_000),
]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", SOME_DATA, ids=len)
def test_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, compress(codec, memoryview(data)), limit=len(data)) == data


@given(st.sampled_from(Codec), st.binary(max_size=2000))
def test_round_trip_of_anything(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, (1, 9)), (Codec.LZ4, (1, 9, 12)), (Codec.ZSTD, (-5, 1, 19))]
)
def test_levels(codec: Codec, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, SOME_DATA[2], level)) == SOME_DATA[2]


@given(st.sampled_from(Codec), st.binary(max_size=300))
def test_any_bytes_are_data_or_corrupt(codec: Codec, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, limit=10_000)) <= 10_000
    except CorruptBatch:
        pass


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_truncated_data_is_corrupt(codec: Codec) -> None:
    whole = compress(codec, SOME_DATA[4])
    for cut in (1, 100, len(whole) // 2):
        with pytest.raises(CorruptBatch):
            decompress(codec, whole[:-cut])


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_above_the_limit_is_refused(codec: Codec) -> None:
    packed = compress(codec, bytes(300_000))
    assert decompress(codec, packed, limit=300_000) == bytes(300_000)
    with pytest.raises(CorruptBatch, match="299999"):
        decompress(codec, packed, limit=299_999)


def test_a_snappy_block_that_claims_gigabytes() -> None:
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20))


def test_snappy_is_framed_as_java_does_and_raw_is_read_too() -> None:
    packed = compress(Codec.SNAPPY, SOME_DATA[2])
    assert packed[:16] == b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
    assert int.from_bytes(packed[16:20], "big") == len(packed) - 20
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(SOME_DATA[2]))) == SOME_DATA[2]


def test_lz4_frames_have_independent_blocks_and_no_checksums() -> None:
    packed = compress(Codec.LZ4, SOME_DATA[4])
    assert packed[:7] == bytes.fromhex("04224d18604082")
    assert packed[-4:] == bytes(4)
    assert bytes(cramjam.lz4.decompress(packed)) == SOME_DATA[4]


def test_foreign_frames_are_read() -> None:
    data = SOME_DATA[4]
    assert decompress(Codec.GZIP, gzip.compress(data)) == data
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(data))) == data
    assert decompress(Codec.ZSTD, bytes(cramjam.zstd.compress(data, level=3))) == data
    assert gzip.decompress(compress(Codec.GZIP, data)) == data


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", SOME_DATA, ids=len)
def test_the_pieces_are_the_whole(codec: Codec, data: bytes) -> None:
    assert b"".join(pieces(codec, compress(codec, data))) == data
    compressor = compressor_of(codec)
    parts = [compressor.compress(data[at : at + 1000]) for at in range(0, len(data), 1000)]
    assert decompress(codec, b"".join([*parts, compressor.flush()])) == data


@pytest.mark.parametrize("level", [None, 3, 19, 22])
def test_a_frame_of_zstd_names_a_small_window_at_every_level(level: int | None) -> None:
    """As large as its window or larger is the memory of who compresses, and of who decompresses."""
    compressor = compressor_of(Codec.ZSTD, level)
    frame = compressor.compress(bytes(5_000_000)) + compressor.flush()
    assert zstandard.get_frame_parameters(frame).window_size <= 1 << 21
    assert decompress(Codec.ZSTD, frame) == bytes(5_000_000)


@pytest.mark.parametrize("codec", Codec)
def test_a_piece_is_small_whatever_the_whole_is(codec: Codec) -> None:
    found = [len(piece) for piece in pieces(codec, compress(codec, bytes(5_000_000)))]
    assert sum(found) == 5_000_000
    assert max(found) <= 2 * PIECE_BYTES


@pytest.mark.parametrize("codec", Codec)
def test_nothing_is_read_beyond_the_limit(codec: Codec) -> None:
    packed = compress(codec, bytes(50_000_000))
    read = 0
    with pytest.raises(BatchTooLarge, match="1000000"):
        for piece in pieces(codec, packed, limit=1_000_000):
            read += len(piece)
    assert read <= 1_000_000


@given(st.sampled_from(Codec), st.binary(max_size=300))
def test_the_pieces_of_any_bytes_are_data_or_corrupt(codec: Codec, data: bytes) -> None:
    try:
        assert sum(map(len, pieces(codec, data, limit=10_000))) <= 10_000
    except CorruptBatch:
        pass


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_truncated_data_has_no_pieces_to_its_end(codec: Codec) -> None:
    whole = compress(codec, SOME_DATA[4])
    for cut in (1, 100, len(whole) // 2):
        with pytest.raises(CorruptBatch):
            list(pieces(codec, whole[:-cut]))


def test_members_of_gzip_follow_one_another() -> None:
    packed = gzip.compress(b"abc") + gzip.compress(b"") + gzip.compress(b"d" * 300_000)
    assert b"".join(pieces(Codec.GZIP, packed)) == b"abc" + b"d" * 300_000


def test_blocks_without_content_do_not_make_a_piece_long_work() -> None:
    """Each 256 of them end a piece, even if it is empty."""
    frame = compress(Codec.LZ4, b"")[:7] + b"\x01\x00\x00\x00\x00" * 10_000 + bytes(4)
    found = list(pieces(Codec.LZ4, frame))
    assert b"".join(found) == b""
    assert len(found) >= 10_000 // 256


def test_lz4_blocks_that_depend_on_one_another_are_refused() -> None:
    linked = bytes(cramjam.lz4.compress(SOME_DATA[2]))
    assert not linked[4] & 0x20
    with pytest.raises(CorruptBatch, match="Java"):
        list(pieces(Codec.LZ4, linked))
