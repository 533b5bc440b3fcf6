"""Batches of idempotent producers that were refused on one connection, so that no later batch overtakes them.

A producer has several requests in flight. If one is refused because this broker does not lead yet, and it
leads when the next one arrives, that one has a gap before it. OUT_OF_ORDER_SEQUENCE_NUMBER would be correct
but harmful: some clients (librdkafka) then continue under another epoch, and send batches of unknown outcome
once more, so that a record may be there twice. So the batch is refused with the error of the one before it,
and the client sends both again, in their order.

Knows sequence numbers and time. Never touches logs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import BatchHeader

REMEMBERED_MS = 60_000
"""How long a refusal counts: by then the producer has sent the batch again, or has given it up."""
REMEMBERED_MAX = 10_000
SEQUENCES = 2**31


class _Refused(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: ErrorCode
    at_ms: int


class RefusedBatches:
    """By producer and partition, the first missing batch."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[Hashable, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, partition: Hashable, header: BatchHeader, error: ErrorCode, now_ms: int) -> None:
        """This batch was not appended, and its producer will send it again."""
        if self.error_before(partition, header, now_ms) is None:
            if len(self._refused) >= REMEMBERED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[partition, header.producer_id] = _Refused(
                header.producer_epoch, header.base_sequence, error, now_ms
            )

    def error_before(self, partition: Hashable, header: BatchHeader, now_ms: int) -> ErrorCode | None:
        """Why a batch that comes before this one was refused, if one was."""
        key = partition, header.producer_id
        refused = self._refused.get(key)
        if refused is None:
            return None
        ahead = (header.base_sequence - refused.base_sequence) % SEQUENCES
        if (
            refused.producer_epoch == header.producer_epoch
            and 0 < ahead < SEQUENCES // 2
            and now_ms - refused.at_ms < REMEMBERED_MS
        ):
            return refused.error
        del self._refused[key]  # it arrives again, or never
        return None
