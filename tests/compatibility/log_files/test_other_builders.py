"""Our batches beside those of kafka-python and aiokafka: the same bytes, and each reads the others'."""

from __future__ import annotations

from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest

from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import check_batch, check_produced_batch, read_header
from nilometer.wire.records import BatchBuilder, Record, decode_records

OTHERS = {"kafka-python": kafka_python_records, "aiokafka": aiokafka_records}

RECORDS = [
    Record(
        n, 1_700_000_000_000 + n * 37, None if n % 3 else b"key-%d" % n, None if n % 7 == 6 else b"v" * n * 13
    )
    for n in range(400)
]
WITH_HEADERS = [
    record._replace(headers=(("a", b"1"), ("ä", b"x" * 300)) if record.offset % 2 else ())
    for record in RECORDS
]


def ours(codec: Codec, records: list[Record]) -> bytes:
    builder = BatchBuilder(codec)
    for record in records:
        assert builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build(0, 77, 3, 12, transactional=True)


def theirs(other: Any, codec: Codec, records: list[Record]) -> bytes:
    builder = other.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        batch_size=10_000_000,
    )
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("records", [RECORDS, WITH_HEADERS, RECORDS[:1]], ids=["plain", "headers", "one"])
def test_the_same_bytes_without_compression(name: str, records: list[Record]) -> None:
    other = theirs(OTHERS[name], Codec.NONE, records)
    epoch_differs = slice(12, 16)
    mine = bytearray(ours(Codec.NONE, records))
    mine[epoch_differs] = other[epoch_differs]
    assert bytes(mine) == other


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("codec", Codec)
def test_theirs_are_read_here(name: str, codec: Codec) -> None:
    batch = theirs(OTHERS[name], codec, WITH_HEADERS)
    header = read_header(batch)
    check_batch(batch, 0, header)
    check_produced_batch(header)
    assert header.codec is codec
    assert decode_records(batch, 0, header) == WITH_HEADERS


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("codec", Codec)
def test_ours_are_read_there(name: str, codec: Codec) -> None:
    batch = OTHERS[name].DefaultRecordBatch(bytearray(ours(codec, WITH_HEADERS)))
    assert batch.validate_crc()
    assert batch.producer_id == 77
    read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert read == WITH_HEADERS
