"""Checks the records of a produce request for one partition: one batch, in a format that its version knows.

Only the fixed start of the batch is checked here; the log checks that it is whole and undamaged. With more
than one batch a duplicate would be ambiguous. A transactional batch without a transaction would block every
``read_committed`` consumer permanently.
"""

from __future__ import annotations

from nilometer.wire.compression import Bytes, Codec
from nilometer.wire.errors import ErrorCode, InvalidRecord, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, MAGIC

FIRST_WITH_ZSTD = 7

_LENGTH = slice(8, 12)
_BEFORE_LENGTH = 12
_MAGIC = 16
_CODEC_AND_FLAGS = 22
_CODEC_MASK = 0x07
_TRANSACTIONAL = 0x10


def check_produced_records(records: Bytes, version: int, *, in_transaction: bool) -> None:
    """Raise KafkaError if ``records`` may not be produced.

    ``version``: that of the Produce request. ``in_transaction``: the request has a transactional id.
    """
    if len(records) < HEADER_BYTES:
        raise InvalidRecord(f"{len(records)} bytes are not a complete record batch")
    if records[_MAGIC] < MAGIC:
        raise InvalidRecord(
            f"a message of magic {records[_MAGIC]}: only record batches (magic 2) are accepted"
        )
    size = _BEFORE_LENGTH + int.from_bytes(records[_LENGTH], "big", signed=True)
    if size > len(records):
        raise InvalidRecord(f"{len(records)} bytes of a record batch of {size}")
    if HEADER_BYTES <= size < len(records):
        raise InvalidRecord("a produce request carries exactly one record batch for a partition")
    flags = records[_CODEC_AND_FLAGS]
    if version < FIRST_WITH_ZSTD and flags & _CODEC_MASK == Codec.ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type,
            f"zstd needs version {FIRST_WITH_ZSTD} of Produce, not {version}",
        )
    if flags & _TRANSACTIONAL and not in_transaction:
        raise KafkaError(
            ErrorCode.transactional_id_authorization_failed,
            "a transactional batch in a request without a transactional id",
        )
