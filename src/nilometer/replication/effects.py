"""The actions that a role requests from its shell, as plain values. Durability depends on their order.

The *shell* is the code that uses a role (:mod:`nilometer.replication` describes it). It executes a list of
effects from first to last. If one fails, it must not execute the rest, and the replica is fenced. An effect
has no reference to a waiting request: a waiting produce is a ticket number.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.replication.isr import AlterPartition
from nilometer.wire.errors import ErrorCode


# ── leader effects ──────────────────────────────────────────────────────────────────────────────
class StartEpoch(msgspec.Struct, frozen=True):
    """Add (epoch, start offset) to the log's leader epochs, before any record is appended."""

    epoch: LeaderEpoch
    start_offset: Offset


class PublishHighWatermark(msgspec.Struct, frozen=True):
    """The leader's high watermark has advanced: check which waiting fetches can be completed.

    The offset is not included, so that this frequent effect needs no new object: read ``high_watermark`` of
    the role.
    """


class SendAlterPartition(msgspec.Struct, frozen=True):
    """Send the request to the controller; pass its response or a timeout to ``on_alter_partition_answer``."""

    request: AlterPartition


class ReleaseProduce(msgspec.Struct, frozen=True):
    """Complete the produce request that waits under ``ticket``, with error code ``outcome``."""

    ticket: int
    outcome: ErrorCode


# ── follower effects ────────────────────────────────────────────────────────────────────────────
class TruncateTo(msgspec.Struct, frozen=True):
    """Remove all records from ``offset`` on, and all leader epoch entries that start there or later.

    Whole batches are removed: the log may end below ``offset`` if that lies within one.
    Epoch entries are removed even if no record is (KAFKA-10706). Producer state is truncated, too
    (KAFKA-12153).
    """

    offset: Offset


class TruncateFully(msgspec.Struct, frozen=True):
    """Remove all records and leader epoch entries; the log starts again at ``start_offset``."""

    start_offset: Offset


class AppendBatches(msgspec.Struct, frozen=True):
    """Append the batches of the fetch response; the log end offset is then ``end_offset``."""

    end_offset: Offset


class AdvanceHighWatermark(msgspec.Struct, frozen=True):
    """Set the follower's high watermark, at most to the log end offset.

    Below an earlier one only after :class:`TruncateFully`, to the new start of the log.
    """

    offset: Offset


class AdvanceLogStart(msgspec.Struct, frozen=True):
    offset: Offset


class BackOff(msgspec.Struct, frozen=True):
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
