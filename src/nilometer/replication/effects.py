"""The actions that a role requests from its shell, as plain values. Durability depends on their order.

The *shell* is the code that uses a role (:mod:`nilometer.replication` describes it). It executes a list of
effects from first to last. If one fails, it must not execute the rest, and the replica is fenced. An effect
has no reference to a waiting request: a waiting produce is a ticket number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.replication.isr import AlterPartition
from nilometer.wire.errors import ErrorCode


# ── leader effects ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class StartEpoch:
    """Add (epoch, start offset) to the log's leader epochs, before any record is appended."""

    epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class PublishHighWatermark:
    """The leader's high watermark has advanced: check which waiting fetches can be completed.

    The offset is not included, so that this frequent effect needs no new object: read ``high_watermark`` of
    the role.
    """


@dataclass(frozen=True, slots=True)
class SendAlterPartition:
    """Send the request to the controller; pass its response or a timeout to ``on_alter_partition_answer``."""

    request: AlterPartition


@dataclass(frozen=True, slots=True)
class ReleaseProduce:
    """Complete the produce request that waits under ``ticket``, with error code ``outcome``."""

    ticket: int
    outcome: ErrorCode


# ── follower effects ────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Remove all records from ``offset`` on, and all leader epoch entries that start there or later.

    Epoch entries are removed even if no record is (KAFKA-10706). Producer state is truncated, too
    (KAFKA-12153).
    """

    offset: Offset


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Remove all records and leader epoch entries; the log starts again at ``start_offset``."""

    start_offset: Offset


@dataclass(frozen=True, slots=True)
class AppendBatches:
    """Append the batches of the fetch response; the log end offset is then ``end_offset``."""

    end_offset: Offset


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Set the follower's high watermark, at most to the log end offset.

    Below an earlier one only after :class:`TruncateFully`, to the new start of the log.
    """

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
