"""The reasons why a high watermark does not advance, and the valid range of a checkpointed one.

The rule itself is :meth:`LeaderRole._committable_offset`; the values here explain it to operators
(DescribeReplicas, and with it ``nilometer replicas``).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nilometer.identifiers import BrokerId, Offset


def clamped_high_watermark(checkpointed: Offset, log_start_offset: Offset, log_end_offset: Offset) -> Offset:
    """Limit a checkpointed high watermark to the log's range: it may be older or newer (KAFKA-16452)."""
    return max(log_start_offset, min(checkpointed, log_end_offset))


class NotHeld(msgspec.Struct, frozen=True):
    """The high watermark is at the log end offset: every record is committed."""

    def __str__(self) -> str:
        return "not held"


class UnderMinIsr(msgspec.Struct, frozen=True):
    """Fewer replicas are in sync than ``min.insync.replicas`` requires (KIP-966)."""

    in_sync: int
    needed: int

    def __str__(self) -> str:
        return f"under min ISR ({self.in_sync} of {self.needed})"


class WaitingFor(msgspec.Struct, frozen=True):
    """The high watermark does not rise because ``replicas``, which count for it, lack the next record."""

    replicas: tuple[BrokerId, ...]

    def __str__(self) -> str:
        return f"waiting for {', '.join(map(str, self.replicas))}"


class WaitingForFlush(msgspec.Struct, frozen=True):
    """The high watermark does not rise because only flushed records count for it, and the next record is not
    flushed yet on the leader."""

    def __str__(self) -> str:
        return "waiting for flush"


HighWatermarkHold: TypeAlias = NotHeld | UnderMinIsr | WaitingFor | WaitingForFlush
NOT_HELD = NotHeld()
WAITING_FOR_FLUSH = WaitingForFlush()
