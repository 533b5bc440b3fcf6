"""Batches into Arrow columns: the same records as the plain decoder gives, and an error for every damage."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.pipeline.decode.column_decoder import ColumnDecoder, arrow_schema
from nilometer.wire.compression import Codec
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import BatchHeader, batch_attributes, pack_batch, read_header
from nilometer.wire.records import BatchBuilder, Record, decode_records
from support.properties import examples

SLOW_START = examples(60)

optional_bytes = st.none() | st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(max_size=6), optional_bytes), max_size=3)
records_lists = st.lists(
    st.tuples(st.integers(0, 2**41), optional_bytes, optional_bytes, header_lists), min_size=1, max_size=30
)


def build(records, codec=Codec.NONE, base_offset=0, **fields) -> bytes:
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(*record)
    return builder.build(base_offset, **fields)


def plain(batch: bytes) -> list[Record]:
    return decode_records(batch, 0, read_header(batch))


def columns(batch: bytes, start: int, end: int, **options) -> list[pa.RecordBatch]:
    decoder = ColumnDecoder("events", 3, start, end, with_headers=True, **options)
    return [*decoder.add(batch), *decoder.take()]


def row_of(record: Record) -> dict:
    return {
        "key": record.key,
        "value": record.value,
        "topic": "events",
        "partition": 3,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": 0,
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
    }


def rows_in(arrow_batches: list[pa.RecordBatch]) -> list[dict]:
    rows = []
    for batch in arrow_batches:
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(with_headers=True))
        micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
        rows += [dict(row, timestamp=at // 1000) for row, at in zip(batch.to_pylist(), micros, strict=True)]
    return rows


@SLOW_START
@given(st.lists(records_lists, min_size=1, max_size=4), st.sampled_from(Codec), st.data())
def test_same_records_as_the_plain_decoder(batches_of_records, codec, data):
    offset, parts, expected = data.draw(st.integers(0, 2**40)), [], []
    first = offset
    for records in batches_of_records:
        parts.append(build(records, codec, offset))
        expected += plain(parts[-1])
        offset += len(records) + data.draw(st.integers(0, 3))
    start = data.draw(st.integers(first, offset))
    end = data.draw(st.integers(start, offset))
    rows_max = data.draw(st.integers(1, 40))
    arrow_batches = columns(b"".join(parts), start, end, rows_max=rows_max)
    assert rows_in(arrow_batches) == [row_of(one) for one in expected if start <= one.offset < end]
    assert all(0 < batch.num_rows <= rows_max for batch in arrow_batches)


@pytest.mark.parametrize("codec", Codec)
def test_each_codec(codec):
    records = [(1_700_000_000_000 + n, b"key %d" % n, b"value " * n, [("n", b"%d" % n)]) for n in range(500)]
    batch = build(records, codec, 1000)
    assert rows_in(columns(batch, 1000, 1500)) == [row_of(one) for one in plain(batch)]


@SLOW_START
@given(records_lists, st.data())
def test_damaged_records_behind_a_good_crc_end_in_an_error_or_in_records(records, data):
    """The CRC only says that the bytes are those that were sent: a producer may have sent anything."""
    batch = build(records)
    header = read_header(batch)
    section = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 4))):
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    section = section[: data.draw(st.integers(0, len(section)))]
    changed = pack_batch(header, bytes(section))
    try:
        rows = rows_in(columns(changed, 0, 2**40))
    except CorruptBatch:
        return
    assert len(rows) == header.records_count


@SLOW_START
@given(st.binary(max_size=300), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_random_bytes_as_records_never_crash(section, records_count, last_offset_delta):
    header = BatchHeader(
        0, 0, 0, 2, 0, batch_attributes(Codec.NONE), last_offset_delta, 0, 0, -1, -1, -1, records_count
    )
    try:
        arrow_batches = columns(pack_batch(header, section), 0, 2**40)
    except CorruptBatch:
        return
    assert sum(batch.num_rows for batch in arrow_batches) == records_count


def varint(value: int) -> bytes:
    raw, out = (value << 1) ^ (value >> 63), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def one_record(*parts: bytes) -> bytes:
    body = b"\x00" + b"".join(parts)
    return varint(len(body)) + body


TS, DELTA, NULL, NO_HEADERS = varint(0), varint(0), varint(-1), varint(0)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (varint(2**40), "beyond the end"),
        (b"\xff" * 12, "varint"),
        (varint(0), "does not fit"),
        (one_record(TS, DELTA, varint(50), b"abc"), "impossible length"),
        (one_record(TS, DELTA, NULL, varint(-2), NO_HEADERS), "impossible length"),
        (one_record(TS, DELTA, NULL, varint(2**62), NO_HEADERS), "impossible length"),
        (one_record(TS, DELTA, NULL, NULL, varint(2**31)), "number of headers"),
        (one_record(TS, DELTA, NULL, NULL, varint(1), varint(-1), NULL), "no key"),
        (one_record(TS, DELTA, NULL, NULL, varint(1), varint(9), b"k"), "impossible length"),
        (one_record(TS, DELTA, NULL, NULL, NO_HEADERS, b"more"), "does not fit"),
        (one_record(TS, varint(7), NULL, NULL, NO_HEADERS), "outside its batch"),
        (one_record(TS, DELTA, NULL, NULL, NO_HEADERS) + b"x", "left over"),
    ],
)
def test_each_damage_is_named_with_the_offset_of_its_batch(section, reason):
    header = BatchHeader(41, 0, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    with pytest.raises(CorruptBatch, match=reason) as error:
        columns(pack_batch(header, section), 0, 100)
    assert "batch at offset 41" in str(error.value)


def test_a_flipped_bit_is_found_by_the_crc():
    batch = bytearray(build([(0, b"k", b"v", [])], base_offset=7))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match=r"batch at offset 7: computed CRC"):
        columns(bytes(batch), 0, 10)


def test_control_batches_and_gaps_move_the_position_but_give_no_rows():
    decoder = ColumnDecoder("events", 0, 0, 100)
    record = [(5, b"k", b"v", [])]
    record_set = (
        build(record, base_offset=3)
        + build(record, base_offset=10, control=True)
        + build(record, base_offset=20)
    )
    arrow_batches = [*decoder.add(record_set), *decoder.take()]
    assert [row["offset"] for batch in arrow_batches for row in batch.to_pylist()] == [3, 20]
    assert decoder.next_offset == 21


def test_a_batch_cut_off_at_the_end_of_a_response_waits_for_the_next_fetch():
    decoder = ColumnDecoder("events", 0, 0, 100)
    whole = build([(1, None, b"a", [])]) + build([(1, None, b"b", [])], base_offset=1)
    first = [*decoder.add(whole[:-5]), *decoder.take()]
    assert [row["value"] for batch in first for row in batch.to_pylist()] == [b"a"]
    assert decoder.next_offset == 1


def test_log_append_time_is_every_records_timestamp_also_beside_create_time():
    appended = BatchHeader(
        1, 0, 0, 2, 0, batch_attributes(Codec.NONE, log_append_time=True), 0, 5, 99, -1, -1, -1, 1
    )
    created = build([(7, None, b"a", [])])
    decoder = ColumnDecoder("events", 0, 0, 10)
    (batch,) = [*decoder.add(created + pack_batch(appended, created[61:])), *decoder.take()]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [7_000, 99_000]
    assert batch.column("timestampType").to_pylist() == [0, 1]


def test_a_record_without_a_timestamp_lies_a_millisecond_before_the_epoch():
    (batch,) = columns(build([(-1, None, b"a", [])]), 0, 1)
    epoch_distance = batch.column("timestamp").to_pylist()[0].timestamp()
    assert timedelta(seconds=epoch_distance) == timedelta(milliseconds=-1)


def test_header_keys_that_are_no_utf8_become_replacement_characters():
    section = one_record(TS, DELTA, NULL, NULL, varint(1), varint(2), b"\xffk", varint(1), b"v")
    header = BatchHeader(0, 0, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    (batch,) = columns(pack_batch(header, section), 0, 1)
    assert batch.column("headers").to_pylist() == [[{"key": "\ufffdk", "value": b"v"}]]


def test_importing_the_package_imports_neither_spark_nor_numba():
    check = (
        "import sys, nilometer.pipeline.decode.column_decoder, nilometer.pipeline;"
        "sys.exit(any(name in sys.modules for name in ('numba', 'pyspark', 'pandas', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_decoding_does_not_import_pandas():
    check = (
        "import sys; from nilometer.pipeline.decode import column_decoder as it; it.warm_up();"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_records_before_the_offset_skipped_to_are_left_out_of_a_batch_that_goes_on_behind_it():
    decoder = ColumnDecoder("events", 0, 0, 100)
    decoder.skip_to(3)
    arrow_batches = [*decoder.add(build([(1, None, b"%d" % n, []) for n in range(5)])), *decoder.take()]
    assert [row["offset"] for batch in arrow_batches for row in batch.to_pylist()] == [3, 4]
