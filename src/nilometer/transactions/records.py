"""The records of ``__transaction_state``: the latest record of a transactional id has its whole state.

Their binary format is Kafka's: TransactionLogKey 0, TransactionLogValue 0 and 1.
"""

from __future__ import annotations

import msgspec

from nilometer.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    PartitionSet,
    Transaction,
    TransactionState,
)
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.value_bytes import Reader, Writer


class TransactionRecord(msgspec.Struct, frozen=True):
    transactional_id: str
    transaction: Transaction | None
    """None: a tombstone, since the id has expired."""


KEY_VERSION = 0
VALUE_VERSION = 1
_FLEXIBLE_SINCE = 1
_TAG_PREVIOUS_PRODUCER_ID = 0
_TAG_NEXT_PRODUCER_ID = 1
_TAG_CLIENT_TRANSACTION_VERSION = 2
_TAG_NEXT_PRODUCER_EPOCH = 3


# ── writing ─────────────────────────────────────────────────────────────────────────────────────
def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return (key, value); a value of None is a tombstone."""
    key = Writer(KEY_VERSION, flexible=False)
    key.string(record.transactional_id)
    transaction = record.transaction
    return key.done(), None if transaction is None else encode_value(transaction)


def encode_value(transaction: Transaction, version: int = VALUE_VERSION) -> bytes:
    """Encode the value; version 0 leaves out the fields that it does not have."""
    writer = Writer(version, flexible=version >= _FLEXIBLE_SINCE)

    def write_topic(topic: tuple[str, list[int]]) -> None:
        name, indexes = topic
        writer.string(name)
        writer.int32s(indexes)
        writer.tags()

    writer.int64(transaction.producer_id)
    writer.int16(transaction.producer_epoch)
    writer.int32(transaction.timeout_ms)
    writer.int8(transaction.state)
    is_empty = transaction.state is TransactionState.EMPTY
    writer.nullable_array(None if is_empty else _by_topic(transaction), write_topic)
    writer.int64(transaction.updated_ms)
    writer.int64(transaction.started_ms)
    writer.tags(*_tags(transaction))
    return writer.done()


def _by_topic(transaction: Transaction) -> list[tuple[str, list[int]]]:
    partitions = transaction.partitions
    return [(topic, partitions.numbers_of(topic).tolist()) for topic in partitions.packed]


def _tags(transaction: Transaction) -> list[tuple[int, bytes]]:
    """Return the tagged fields whose values differ from the defaults."""
    fields = (
        (_TAG_PREVIOUS_PRODUCER_ID, transaction.previous_producer_id, NO_PRODUCER_ID, 8),
        (_TAG_NEXT_PRODUCER_ID, transaction.next_producer_id, NO_PRODUCER_ID, 8),
        (_TAG_CLIENT_TRANSACTION_VERSION, transaction.version, 0, 2),
        (_TAG_NEXT_PRODUCER_EPOCH, transaction.next_producer_epoch, NO_EPOCH, 2),
    )
    return [
        (tag, value.to_bytes(size, "big", signed=True))
        for tag, value, default, size in fields
        if value != default
    ]


# ── reading ─────────────────────────────────────────────────────────────────────────────────────
def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record; None if its key has another version, an unknown type. Raises MalformedMessage."""
    reader = Reader(key)
    if reader.version != KEY_VERSION:
        return None
    transactional_id = reader.string()
    return TransactionRecord(transactional_id, None if value is None else _read_value(value))


def _read_value(value: bytes) -> Transaction:
    reader = Reader(value)
    if not 0 <= reader.version <= VALUE_VERSION:
        raise MalformedMessage(f"version {reader.version} of a transaction's record")
    reader.flexible = reader.version >= _FLEXIBLE_SINCE

    def read_topic() -> tuple[str, tuple[int, ...]]:
        topic = (reader.string(), reader.int32s())
        reader.tags()
        return topic

    producer_id, producer_epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = _state(reader.int8())
    topics = reader.nullable_array(read_topic) or ()
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tags()

    def tagged_id(tag: int) -> int:
        return tags[tag].int64() if tag in tags else NO_PRODUCER_ID

    def tagged_number(tag: int, default: int) -> int:
        return tags[tag].int16() if tag in tags else default

    return Transaction(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=PartitionSet.of_topics(topics),
        started_ms=started_ms,
        updated_ms=updated_ms,
        previous_producer_id=tagged_id(_TAG_PREVIOUS_PRODUCER_ID),
        next_producer_id=tagged_id(_TAG_NEXT_PRODUCER_ID),
        next_producer_epoch=tagged_number(_TAG_NEXT_PRODUCER_EPOCH, NO_EPOCH),
        version=tagged_number(_TAG_CLIENT_TRANSACTION_VERSION, 0),
    )


def _state(number: int) -> TransactionState:
    try:
        return TransactionState(number)
    except ValueError:
        raise MalformedMessage(f"unknown transaction state {number}") from None
