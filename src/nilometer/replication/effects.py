"""What a role asks its shell to do. Plain values; **their order is the durability contract**.

The shell carries out one list of effects from first to last. If one fails, the rest must not happen: the
replica is fenced. An effect holds no reference to the waiting request: a waiting produce is a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from nilometer.replication.isr import AlterPartition
from nilometer.replication.partition import LeaderEpoch, Offset
from nilometer.wire.errors import ErrorCode


# ── leader effects ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class StartEpoch:
    """Enter (epoch, start offset) into the log's epoch chain, before anything is appended."""

    epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class PublishHighWatermark:
    """The leader's ``high_watermark`` has risen: waiting fetches of consumers and followers may be answered.

    It carries no number, so that the hot path allocates nothing: the role has the newest.
    """


@dataclass(frozen=True, slots=True)
class SendAlterPartition:
    """Ask the controller. The answer, or that none came, goes to ``on_alter_partition_answer``."""

    request: AlterPartition


@dataclass(frozen=True, slots=True)
class ReleaseProduce:
    """The produce waiting under ``ticket`` is answered with ``outcome``."""

    ticket: int
    outcome: ErrorCode


# ── follower effects ────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Remove every record from ``offset`` on, and every entry of the epoch chain that starts there or later.

    Entries are trimmed even if no record goes (KAFKA-10706). Producer state follows (KAFKA-12153).
    """

    offset: Offset


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Remove every record and the whole epoch chain; the log starts again at ``start_offset``."""

    start_offset: Offset


@dataclass(frozen=True, slots=True)
class AppendBatches:
    """Append the answer's batches; afterwards the log ends at ``end_offset``."""

    end_offset: Offset


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Never below an earlier one, never above the log end offset."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    offset: Offset


@dataclass(frozen=True, slots=True)
class BackOff:
    """Fetch this partition again after a back-off; ``reason`` is for the log."""

    error: ErrorCode
    reason: str


LeaderEffect: TypeAlias = StartEpoch | PublishHighWatermark | SendAlterPartition | ReleaseProduce
FollowerEffect: TypeAlias = (
    TruncateTo | TruncateFully | AppendBatches | AdvanceHighWatermark | AdvanceLogStart | BackOff
)
Effect: TypeAlias = LeaderEffect | FollowerEffect
Effects: TypeAlias = tuple[Effect, ...]

NO_EFFECTS: Final[Effects] = ()
PUBLISH_HIGH_WATERMARK: Final[Effects] = (PublishHighWatermark(),)
