"""Why a high watermark does not advance, and the bounds of a valid one.

The rule itself is :meth:`LeaderRole._committable_offset`; here are the values that explain it to operators
(``nilometer replicas``, console, metrics) and the clamp for a high watermark read from a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nilometer.replication.partition import BrokerId, Offset


def clamped_high_watermark(checkpointed: Offset, log_start_offset: Offset, log_end_offset: Offset) -> Offset:
    """A checkpoint may be older or newer than the log beside it (KAFKA-16452)."""
    return max(log_start_offset, min(checkpointed, log_end_offset))


@dataclass(frozen=True, slots=True)
class NotHeld:
    """Every record of the leader is committed."""

    def __str__(self) -> str:
        return "not held"


@dataclass(frozen=True, slots=True)
class UnderMinIsr:
    """Fewer replicas are in sync than ``min.insync.replicas`` asks for (KIP-966)."""

    in_sync: int
    needed: int

    def __str__(self) -> str:
        return f"under min ISR ({self.in_sync} of {self.needed})"


@dataclass(frozen=True, slots=True)
class WaitingFor:
    """These replicas count for the high watermark and do not have the next record yet."""

    replicas: tuple[BrokerId, ...]

    def __str__(self) -> str:
        return f"waiting for {', '.join(map(str, self.replicas))}"


@dataclass(frozen=True, slots=True)
class WaitingForFlush:
    """Only flushed records count, and the leader's own are not flushed yet."""

    def __str__(self) -> str:
        return "waiting for flush"


HighWatermarkHold: TypeAlias = NotHeld | UnderMinIsr | WaitingFor | WaitingForFlush
NOT_HELD = NotHeld()
WAITING_FOR_FLUSH = WaitingForFlush()
