"""Markers that end transactions."""

from __future__ import annotations

import pytest

from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import HEADER_BYTES, check_batch, read_header
from nilometer.wire.records import (
    BatchBuilder,
    ControlType,
    EndTxnMarker,
    Record,
    build_end_txn_marker,
    control_type,
    decode_records,
    end_txn_marker,
    read_end_txn_marker,
)


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_reads_back(kind: ControlType) -> None:
    marker = EndTxnMarker(kind, 7, 99)
    batch = build_end_txn_marker(marker, producer_id=5, producer_epoch=2, base_offset=40)
    header = read_header(batch)
    check_batch(batch, 0, header)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (header.producer_id, header.producer_epoch, header.base_offset) == (5, 2, 40)
    (record,) = decode_records(batch, 0, header)
    assert (record.key, record.value) == (b"\x00\x00\x00" + bytes([kind]), b"\x00\x00\x00\x00\x00\x07")
    assert end_txn_marker(record) == read_end_txn_marker(batch, 0, header) == marker


def test_other_control_records_are_no_markers() -> None:
    assert end_txn_marker(Record(0, 0, b"\x00\x00\x00\x02", b"")) is None
    assert control_type(Record(0, 0, b"\x00\x01\x00\x63", b"")) is ControlType.UNKNOWN
    with pytest.raises(ValueError, match="LEADER_CHANGE"):
        build_end_txn_marker(EndTxnMarker(ControlType.LEADER_CHANGE, 0, 0), producer_id=1, producer_epoch=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\x00\x00\x00", b""),
        (b"\xff\xff\x00\x01", b"\x00\x00\x00\x00\x00\x07"),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x07"),
    ],
)
def test_damaged_markers(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        end_txn_marker(Record(0, 0, key, value))
    builder = BatchBuilder()
    builder.append(0, key, value)
    batch = builder.build(0, 5, 2, transactional=True, control=True)
    assert read_end_txn_marker(batch, 0, read_header(batch)) is None


def test_an_empty_control_batch_has_no_marker() -> None:
    """Compaction leaves one where it has removed a marker."""
    batch = build_end_txn_marker(EndTxnMarker(ControlType.COMMIT, 7, 99), producer_id=5, producer_epoch=2)
    emptied = bytearray(batch[:HEADER_BYTES])
    emptied[57:61] = bytes(4)
    assert read_end_txn_marker(emptied, 0, read_header(emptied)) is None
