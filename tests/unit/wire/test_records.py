"""Records and the batches built of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nilometer.wire.compression import Codec
from nilometer.wire.errors import CorruptBatch, InvalidRecord
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    batch_attributes,
    batches,
    check_batch,
    check_produced_batch,
    pack_batch,
    read_header,
)
from nilometer.wire.records import (
    SCANNED_RECORDS,
    BatchBuilder,
    NumberedHeaders,
    Record,
    decode_records,
    records_between,
    records_data,
)

ONE_RECORD = bytes.fromhex(
    "0000000000000000"  # base offset
    "00000041"  # batch length: 49 bytes of header and 16 of records
    "ffffffff"  # partition leader epoch
    "02"  # magic
    "881918b5"  # crc
    "0000"  # attributes
    "00000000"  # last offset delta
    "0000018bcfe56800"  # base timestamp: 1700000000000
    "0000018bcfe56800"  # max timestamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000001"  # records count
    "1e"  # record length: 15
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "026b"  # key "k"
    "047676"  # value "vv"
    "02"  # one header
    "0268"  # its name "h"
    "067a7a7a"  # and value "zzz"
)

keys_and_values = st.none() | st.binary(max_size=40)
timestamps = st.integers(0, 2**62)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
some_records = st.lists(
    st.tuples(timestamps, keys_and_values, keys_and_values, headers), min_size=1, max_size=20
)


def test_bytes_of_one_record() -> None:
    builder = BatchBuilder()
    assert builder.append(1_700_000_000_000, b"k", b"vv", (("h", b"zzz"),))
    assert builder.estimated_size == len(ONE_RECORD)
    assert builder.build().hex() == ONE_RECORD.hex()


def test_reading_those_bytes() -> None:
    header = read_header(ONE_RECORD)
    check_batch(ONE_RECORD, 0, header)
    assert decode_records(ONE_RECORD, 0, header) == [
        Record(0, 1_700_000_000_000, b"k", b"vv", (("h", b"zzz"),))
    ]


@given(some_records, st.sampled_from(Codec), st.integers(0, 2**40))
def test_round_trip(records: list[tuple], codec: Codec, base_offset: int) -> None:
    builder = BatchBuilder(codec)
    for record in records:
        assert builder.append(*record)
    batch = b"before" + builder.build(base_offset, 7, 1, 0) + b"behind"
    header = read_header(batch, 6)
    check_batch(batch, 6, header)
    check_produced_batch(header)
    assert header.size == len(batch) - 12
    assert header.max_timestamp == max(timestamp for timestamp, *_ in records)
    assert decode_records(batch, 6, header) == [
        Record(base_offset + n, *record) for n, record in enumerate(records)
    ]


def test_long_batches_leave_the_table_of_short_integers() -> None:
    builder = BatchBuilder()
    for number in range(9000):
        builder.append(5000 - number, None, b"x" * (number % 5000))
    batch = builder.build(3)
    records = decode_records(batch, 0, read_header(batch))
    assert [(r.offset, r.timestamp, len(r.value or b"")) for r in records] == [
        (3 + n, 5000 - n, n % 5000) for n in range(9000)
    ]


def test_estimated_size_is_exact_without_compression() -> None:
    builder = BatchBuilder()
    for number in range(300):
        builder.append(number * 50, b"%d" % number, b"v" * number, [("n", None)] * (number % 3))
        assert builder.estimated_size == len(builder.build())


def test_a_full_batch_refuses_and_is_unchanged() -> None:
    builder = BatchBuilder(size_max=200)
    assert builder.append(10, None, b"x" * 100)
    before = builder.build()
    assert not builder.append(20, None, b"x" * 100)
    assert (builder.records_count, builder.max_timestamp) == (1, 10)
    assert builder.build() == before
    assert builder.append(11, None, b"x" * 10)


def test_a_record_larger_than_the_batch_goes_alone() -> None:
    builder = BatchBuilder(size_max=200)
    assert builder.append(10, None, b"x" * 1000)
    assert not builder.append(10, None, b"")


def test_building_again_with_another_sequence() -> None:
    builder = BatchBuilder()
    builder.append(1, None, b"x")
    for sequence in (0, 2**31 - 1):
        header = read_header(builder.build(0, 5, 0, sequence, transactional=True))
        assert (header.producer_id, header.base_sequence, header.is_transactional) == (5, sequence, True)


def test_an_empty_batch_is_not_built() -> None:
    with pytest.raises(ValueError, match="needs a record"):
        BatchBuilder().build()


def test_sequences_wrap() -> None:
    builder = BatchBuilder()
    for _ in range(3):
        builder.append(1, None, b"x")
    assert read_header(builder.build(0, 5, 0, 2**31 - 2)).last_sequence == 0
    assert read_header(builder.build()).last_sequence == -1


def a_header(**changes: int) -> BatchHeader:
    header = BatchHeader(0, 0, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    return structs.replace(header, **changes)


@pytest.mark.parametrize(
    "records",
    [
        b"",
        b"\x10",
        b"\x0f",
        b"\x80\x80\x80\x80\x80\x01",
        b"\x0e\x00\x00\x00\x01\x01\x00" + b"\x00",
        b"\x0c\x00\x00\x00\x01\x01\x02",
        b"\x0c\x00\x00\x00\x01\x20\x00",
        b"\x0c\x00\x00\x00\x03\x01\x00",
        b"\x10\x00\x00\x00\x01\x01\x02\x01\x00",
        b"\x0c\x00\x00\x00\x01\x01\x00\x00",
    ],
    ids=[
        "nothing",
        "length beyond the end",
        "negative length",
        "length too long",
        "record longer than its fields",
        "headers missing",
        "value beyond the record",
        "key of length -2",
        "header without a name",
        "bytes after the last record",
    ],
)
def test_damaged_records(records: bytes) -> None:
    batch = pack_batch(a_header(), records)
    with pytest.raises(CorruptBatch):
        decode_records(batch, 0, read_header(batch))


def test_a_header_name_that_is_not_utf_8_is_read_as_java_reads_it() -> None:
    batch = pack_batch(a_header(), b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01")
    (record,) = decode_records(batch, 0, read_header(batch))
    assert record.headers == (("\ufffd", None),)


@given(st.binary(max_size=60), st.integers(0, 2**31 - 1))
def test_any_bytes_are_records_or_corrupt(data: bytes, count: int) -> None:
    batch = pack_batch(a_header(records_count=count), data)
    try:
        records = decode_records(batch, 0, read_header(batch))
    except CorruptBatch:
        return
    assert len(records) == count


@given(some_records, st.sampled_from(Codec), st.data())
def test_damage_behind_the_crc_never_escapes_as_another_error(
    records: list[tuple], codec: Codec, data: st.DataObject
) -> None:
    """With a right CRC over wrong bytes, as a faulty producer could send."""
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(*record)
    batch = bytearray(builder.build())
    position = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[position] ^= data.draw(st.integers(1, 255))
    damaged = pack_batch(read_header(batch), batch[HEADER_BYTES:])
    header = read_header(damaged)
    check_batch(damaged, 0, header)
    try:
        decode_records(damaged, 0, header, limit=100_000)
    except CorruptBatch:
        pass


def test_records_of_a_bomb_are_not_decompressed() -> None:
    builder = BatchBuilder(Codec.ZSTD)
    builder.append(1, None, bytes(50_000_000))
    batch = builder.build()
    assert len(batch) < 10_000
    with pytest.raises(CorruptBatch, match="more than 1000000 bytes"):
        records_data(batch, 0, read_header(batch), 1_000_000)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"records_count": 0, "last_offset_delta": 0}, "0 records"),
        ({"records_count": 1, "last_offset_delta": 1}, "last offset delta"),
        ({"attributes": batch_attributes(control=True)}, "control"),
        ({"producer_id": 4, "producer_epoch": 0, "base_sequence": -1}, "sequence -1"),
        ({"producer_id": 4, "producer_epoch": -1, "base_sequence": 0}, "epoch -1"),
        ({"attributes": batch_attributes(transactional=True)}, "producer id"),
    ],
)
def test_what_a_producer_may_not_send(changes: dict[str, int], reason: str) -> None:
    check_produced_batch(a_header())
    with pytest.raises(InvalidRecord, match=reason):
        check_produced_batch(a_header(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"records_count": -1},
        {"records_count": 2},
        {"last_offset_delta": -1, "records_count": 0},
        {"attributes": 5},
        {"attributes": 7},
    ],
)
def test_batches_that_contradict_themselves(changes: dict[str, int]) -> None:
    batch = pack_batch(a_header(**changes), b"")
    with pytest.raises(CorruptBatch):
        check_batch(batch, 0, read_header(batch))


def test_a_batch_thinned_by_compaction_is_whole() -> None:
    batch = pack_batch(a_header(records_count=0, last_offset_delta=9), b"")
    ((_, header),) = batches(batch)
    check_batch(batch, 0, header)
    assert (header.next_offset, decode_records(batch, 0, header)) == (10, [])


def test_a_batch_length_below_the_header_is_corrupt() -> None:
    batch = bytearray(ONE_RECORD)
    for length in (0, 48, -1):
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptBatch):
            list(batches(batch))


def test_a_length_beyond_the_buffer_is_incomplete_not_corrupt() -> None:
    batch = bytearray(ONE_RECORD)
    batch[8:12] = (2**31 - 1).to_bytes(4, "big")
    assert list(batches(batch)) == []
    with pytest.raises(CorruptBatch):
        check_batch(batch, 0, read_header(batch))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_some_records_of_a_batch_are_decoded_and_the_others_passed_over(codec: Codec) -> None:
    builder = BatchBuilder(codec)
    for number in range(SCANNED_RECORDS + 500):
        headers = [("h", b"%d" % number)] if number % 3 else []
        builder.append(1_000 + number, b"k" if number % 2 else None, b"%d" % number, headers)
    batch = builder.build(base_offset=100)
    header = read_header(batch)
    whole = decode_records(batch, 0, header)
    for first, last in ((0, 99), (100, 100), (105, 1_300), (1_598, 5_000), (1_600, 5_000)):
        steps = records_between(batch, 0, header, first, last, 1 << 20)
        yields: list[int] = []
        while True:
            try:
                yields.append(next(steps))
            except StopIteration as ended:
                assert ended.value == [one for one in whole if first <= one.offset <= last]
                break
        assert len(yields) == (2 if last >= SCANNED_RECORDS + 100 else 1), "each step is bounded work"
    with pytest.raises(CorruptBatch):
        list(records_between(batch, 0, header, 100, 100, 1_000))
    broken = structs.replace(header, records_count=header.records_count + 1)
    with pytest.raises(CorruptBatch):
        list(records_between(batch, 0, broken, 0, 5_000, 1 << 20))


@given(
    values=st.lists(st.binary(max_size=60), min_size=1, max_size=30),
    key=st.one_of(st.none(), st.binary(max_size=5)),
    first=st.sampled_from([0, 9, 4_095, 10**12]),
    room=st.integers(0, 900),
    bytes_max=st.integers(0, 900),
    value_max=st.integers(20, 60),
)
def test_numbered_records_are_those_added_one_by_one(
    values: list[bytes], key: bytes | None, first: int, room: int, bytes_max: int, value_max: int
) -> None:
    headers = NumberedHeaders((("path", b"/a"), ("none", None)), "line", first, (("source", b"x"),))
    together = BatchBuilder(size_max=HEADER_BYTES + room)
    together.append(7, None, b"before")
    limit = min(HEADER_BYTES + room, together.estimated_size + bytes_max)
    alone = BatchBuilder(size_max=limit)
    alone.append(7, None, b"before")
    reached = together.append_numbered(9, key, values, 1, headers, bytes_max, value_max)
    for index in range(1, reached):
        assert alone.append(9, key, values[index], headers.of(index))
    if reached < len(values) and len(values[reached]) <= value_max:
        assert not alone.append(9, key, values[reached], headers.of(reached))
    assert all(len(value) <= value_max for value in values[1:reached])
    assert together.build() == alone.build()
