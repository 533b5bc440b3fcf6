"""The heads of records are those of the records, and are read in small steps whatever the batch is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nilometer.wire.compression import PIECE_BYTES, Codec
from nilometer.wire.errors import BatchTooLarge, CorruptBatch
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, pack_batch, patched_header, read_header
from nilometer.wire.record_heads import STEP_ITEMS, heads_in, record_heads
from nilometer.wire.records import BatchBuilder, Header, decode_records

RECORD = st.tuples(
    st.integers(0, 2**40),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200) | st.integers(0, 3 * PIECE_BYTES).map(bytes),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
)
Heads = tuple[list[int], list[int], list[int]]


def batch_of(codec: Codec, records: list[tuple[int, bytes | None, bytes | None, list[Header]]]) -> bytes:
    builder = BatchBuilder(codec)
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build(base_offset=7)


def heads_of(batch: bytes) -> Heads:
    found: Heads = ([], [], [])
    for step in record_heads(batch, 0, read_header(batch)):
        assert len(step.timestamps) <= 2 * STEP_ITEMS
        for all_of_them, more in zip(found, step[:3], strict=True):
            all_of_them += more
    return found


def expected(batch: bytes) -> Heads:
    records = decode_records(batch, 0, read_header(batch))
    return (
        [record.offset - 7 for record in records],
        [record.timestamp for record in records],
        [number for number, record in enumerate(records) if record.key is None],
    )


@given(st.sampled_from(Codec), st.lists(RECORD, min_size=1, max_size=12))
def test_the_heads_are_those_of_the_records(
    codec: Codec, records: list[tuple[int, bytes | None, bytes | None, list[Header]]]
) -> None:
    batch = batch_of(codec, records)
    assert heads_of(batch) == expected(batch)


@given(st.lists(RECORD, min_size=1, max_size=5), st.data())
def test_damaged_records_are_refused_or_are_others(
    records: list[tuple[int, bytes | None, bytes | None, list[Header]]], data: st.DataObject
) -> None:
    batch = bytearray(batch_of(Codec.NONE, records))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, min(len(batch), HEADER_BYTES + 400) - 1))
        batch[at] ^= data.draw(st.integers(1, 255))
    damaged = bytes(batch)
    try:
        wanted = expected(damaged)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            heads_of(damaged)
    else:
        assert heads_of(damaged) == wanted


@given(st.lists(RECORD, min_size=1, max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=9))
def test_pieces_may_end_anywhere(
    records: list[tuple[int, bytes | None, bytes | None, list[Header]]], sizes: list[int]
) -> None:
    batch = batch_of(
        Codec.NONE, [(time, key, (value or b"")[:90], more) for time, key, value, more in records]
    )
    found: Heads = ([], [], [])
    for step in heads_in(cut(batch[HEADER_BYTES:], sizes), read_header(batch)):
        for all_of_them, more in zip(found, step[:3], strict=True):
            all_of_them += more
    assert found == expected(batch)


@pytest.mark.parametrize("whole", [True, False])
def test_a_record_that_ends_within_its_fields_is_named(whole: bool) -> None:
    """In one piece, and in two: then its fields are read one by one."""
    records = batch_of(Codec.NONE, [(1, b"k", b"v", [])] * 2)[HEADER_BYTES:]
    size = len(records) // 2
    ended = records[: size + 4]
    ended = ended[:size] + bytes([2 * 3]) + ended[size + 1 :]  # its length is three bytes
    header = read_header(batch_of(Codec.NONE, [(1, b"k", b"v", [])] * 2))
    with pytest.raises(CorruptBatch, match="record 1 has fewer bytes than its fields need"):
        list(heads_in(iter([ended] if whole else [ended[: size + 2], ended[size + 2 :]]), header))


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    while data:
        for size in sizes:
            yield data[:size]
            data = data[size:]
            yield b""


def test_log_append_time_is_that_of_every_record() -> None:
    batch = batch_of(Codec.LZ4, [(5, b"k", b"v", []), (6, None, None, [])])
    start = patched_header(batch, 0, base_offset=7, leader_epoch=1, max_timestamp=9, log_append_time=True)
    assert heads_of(start + batch[HEADER_BYTES:]) == ([0, 1], [9, 9], [1])


@pytest.mark.parametrize("codec", Codec)
def test_a_step_ends_after_some_records(codec: Codec) -> None:
    batch = batch_of(codec, [(1, b"", b"", [])] * 10_000)
    steps = [len(step.timestamps) for step in record_heads(batch, 0, read_header(batch))]
    assert sum(steps) == 10_000
    assert max(steps) <= 2 * STEP_ITEMS


def test_a_step_ends_after_some_headers() -> None:
    """Of one record, and of many: reading them is the same work as reading records."""
    one = batch_of(Codec.ZSTD, [(1, b"k", b"v", [("", None)] * 50_000)])
    assert sum(1 for _ in record_heads(one, 0, read_header(one))) >= 50
    many = batch_of(Codec.ZSTD, [(1, b"k", b"v", [("", None)] * 500)] * 100)
    assert sum(1 for _ in record_heads(many, 0, read_header(many))) >= 33
    assert heads_of(many) == expected(many)


def test_a_large_record_is_passed_over_piece_by_piece() -> None:
    batch = batch_of(Codec.ZSTD, [(1, b"k", bytes(10_000_000), []), (2, bytes(3_000_000), b"", [])])
    header = read_header(batch)
    steps = list(record_heads(batch, 0, header))
    assert len(steps) >= 13_000_000 // PIECE_BYTES
    assert steps[-1].bytes_read == 13_000_027
    with pytest.raises(BatchTooLarge):
        list(record_heads(batch, 0, header, limit=13_000_000))


def test_a_count_that_is_not_that_of_the_records_is_refused() -> None:
    batch = batch_of(Codec.GZIP, [(1, b"k", b"v", [])] * 10)
    header = read_header(batch)
    for count in (9, 11):
        with pytest.raises(CorruptBatch):
            heads_of(with_count(batch, header, count))


def with_count(batch: bytes, header: BatchHeader, count: int) -> bytes:
    return pack_batch(structs.replace(header, records_count=count), batch[HEADER_BYTES:])
