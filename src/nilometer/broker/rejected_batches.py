"""Remembers the rejected batches of idempotent producers on one connection, so that none is overtaken.

A producer has several requests in flight. If a batch is rejected because this broker does not lead yet, and
the broker leads when the next batch arrives, that one has a sequence gap before it.
OUT_OF_ORDER_SEQUENCE_NUMBER would be correct but harmful: some clients (librdkafka) then continue with
another epoch, and send batches of unknown outcome once more, so that a record may be appended twice. So the
later batch is rejected with the error of the earlier one, and the client sends both again, in order.

Pure: sequence numbers and time only.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import BatchHeader

REMEMBERED_MS = 60_000
"""How long a rejection is remembered: by then the producer has sent the batch again, or dropped it."""
REMEMBERED_MAX = 10_000
SEQUENCES = 2**31


class _Refused(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: ErrorCode
    at_ms: int


class RejectedBatches:
    """The first rejected batch of each producer in each partition."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[Hashable, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, partition: Hashable, header: BatchHeader, error: ErrorCode, now_ms: int) -> None:
        """Remember a batch that was rejected with the retriable ``error``."""
        if self.error_before(partition, header, now_ms) is None:
            if len(self._refused) >= REMEMBERED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[partition, header.producer_id] = _Refused(
                header.producer_epoch, header.base_sequence, error, now_ms
            )

    def error_before(self, partition: Hashable, header: BatchHeader, now_ms: int) -> ErrorCode | None:
        """Return the error of an earlier rejected batch of the same producer; None if there is none.

        If ``header`` is the rejected batch itself, sent again, it is forgotten.
        """
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
        del self._refused[key]  # the batch was sent again, or never will be
        return None
