"""Records of ``__transaction_state`` as bytes: there and back, both versions, and bytes that are none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nilometer.storage.names import TopicPartition
from nilometer.transactions.records import TransactionRecord, decode_record, encode_record, encode_value
from nilometer.transactions.transaction import PartitionSet, Transaction, TransactionState
from nilometer.wire.errors import MalformedMessage
from support.properties import examples

PARTITIONS = PartitionSet.of([TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("a", 0)])
ONGOING = Transaction(
    producer_id=2**40,
    producer_epoch=7,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=PARTITIONS,
    started_ms=1_700_000_000_000,
    updated_ms=1_700_000_000_001,
)
SAMPLES = {
    "empty": replace(ONGOING, state=TransactionState.EMPTY, partitions=PartitionSet(), started_ms=-1),
    "ongoing": ONGOING,
    "prepared, with all tags": replace(
        ONGOING,
        state=TransactionState.PREPARE_COMMIT,
        producer_epoch=32_767,
        previous_producer_id=2**40,
        next_producer_id=2**41,
        next_producer_epoch=3,
        version=2,
    ),
    "complete": replace(ONGOING, state=TransactionState.COMPLETE_ABORT, partitions=PartitionSet()),
}
KEY = b"\x00\x00\x00\x02id"


@pytest.mark.parametrize("transaction", SAMPLES.values(), ids=SAMPLES)
def test_a_transaction_there_and_back(transaction: Transaction) -> None:
    record = TransactionRecord("id", transaction)
    key, value = encode_record(record)
    assert key == KEY
    assert decode_record(key, value) == record


def test_the_last_epoch_is_not_kept() -> None:
    _, value = encode_record(TransactionRecord("id", replace(ONGOING, last_producer_epoch=6)))
    assert decode_record(KEY, value) == TransactionRecord("id", ONGOING)


def test_a_tombstone() -> None:
    record = TransactionRecord("id", None)
    assert encode_record(record) == (KEY, None)
    assert decode_record(KEY, None) == record


def test_version_0_byte_by_byte() -> None:
    topics = (
        struct.pack(">i", 2)
        + b"\x00\x01a" + struct.pack(">iii", 2, 0, 1)
        + b"\x00\x01b" + struct.pack(">ii", 1, 2)
    )  # fmt: skip
    value = (
        struct.pack(">hqhib", 0, 2**40, 7, 60_000, 1)
        + topics
        + struct.pack(">qq", 1_700_000_000_001, 1_700_000_000_000)
    )
    assert encode_value(ONGOING, version=0) == value
    assert decode_record(KEY, value) == TransactionRecord("id", ONGOING)


def test_version_1_byte_by_byte() -> None:
    value = (
        struct.pack(">hqhib", 1, 2**40, 7, 60_000, 1)
        + b"\x03" + b"\x02a\x03" + struct.pack(">ii", 0, 1) + b"\x00"
        + b"\x02b\x02" + struct.pack(">i", 2) + b"\x00"
        + struct.pack(">qq", 1_700_000_000_001, 1_700_000_000_000)
        + b"\x02" + b"\x00\x08" + struct.pack(">q", 5) + b"\x02\x02" + struct.pack(">h", 2)
    )  # fmt: skip
    transaction = replace(ONGOING, previous_producer_id=5, version=2)
    assert encode_value(transaction) == value
    of_tomorrow = value[:-15] + b"\x03" + value[-14:] + b"\x09\x01?"
    assert decode_record(KEY, of_tomorrow) == TransactionRecord("id", transaction)


def test_a_key_of_another_version_is_not_read() -> None:
    assert decode_record(b"\x00\x01\x00\x02id", b"whatever") is None


@pytest.mark.parametrize("state", [8, -1])
def test_a_state_that_does_not_exist_is_malformed(state: int) -> None:
    value = struct.pack(">hqhibiqq", 0, 1, 1, 1, state, -1, 1, 1)
    with pytest.raises(MalformedMessage, match="unknown transaction state"):
        decode_record(KEY, value)


def test_a_value_of_another_version_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="version 2"):
        decode_record(KEY, struct.pack(">h", 2) + bytes(40))


@examples(300)
@given(st.sampled_from(list(SAMPLES.values())), st.integers(0, 200), st.integers(0, 255), st.booleans())
def test_damaged_bytes_end_in_a_record_or_in_malformed(
    transaction: Transaction, position: int, byte: int, cut: bool
) -> None:
    value = bytearray(encode_value(transaction))
    position %= len(value)
    if cut:
        del value[position:]
    else:
        value[position] = byte
    try:
        decode_record(KEY, bytes(value))
    except MalformedMessage:
        return
