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
"""By one connection."""
ALL_REMEMBERED_MAX = 100_000
"""By all connections together, some 600 bytes each. Then a connection remembers its newest ones."""
ALWAYS_REMEMBERED = 16
"""So many a connection remembers in any case."""
SEQUENCES = 2**31


class _Refused(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: ErrorCode
    at_ms: int


class RejectedTotal:
    """How many batches all connections remember."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class RejectedBatches:
    """The first rejected batch of each producer in each partition, of one connection.

    Invariant: the total is the sum of what the connections that are open remember.
    """

    __slots__ = ("_refused", "_total")

    def __init__(self, total: RejectedTotal | None = None) -> None:
        """``total``: of all connections."""
        self._refused: dict[Hashable, _Refused] = {}
        self._total = total or RejectedTotal()

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, partition: Hashable, header: BatchHeader, error: ErrorCode, now_ms: int) -> None:
        """Remember a batch that was rejected with the retriable ``error``."""
        if self.error_before(partition, header, now_ms) is None:
            if self._is_full:
                self._forget(next(iter(self._refused)))
            self._refused[partition, header.producer_id] = _Refused(
                header.producer_epoch, header.base_sequence, error, now_ms
            )
            self._total.count += 1

    @property
    def _is_full(self) -> bool:
        count = len(self._refused)
        return count >= REMEMBERED_MAX or (
            count >= ALWAYS_REMEMBERED and self._total.count >= ALL_REMEMBERED_MAX
        )

    def _forget(self, key: Hashable) -> None:
        del self._refused[key]
        self._total.count -= 1

    def forget_all(self) -> None:
        """Forget all: the connection has ended."""
        self._total.count -= len(self._refused)
        self._refused.clear()

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
        self._forget(key)  # the batch was sent again, or never will be
        return None
