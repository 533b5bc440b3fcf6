"""What a role and its shell exchange, as plain values: the partition's metadata, a follower's fetch, the
leader's results, the effects, and the reasons why a high watermark does not advance.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from nilometer.identifiers import (
    FIRST_LEADER_EPOCH,
    FIRST_PARTITION_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
)
from nilometer.replication.epochs import EpochEnd
from nilometer.replication.isr import AlterPartition
from nilometer.wire.errors import ErrorCode

# The metadata of one partition that its replicas need.
#
# :class:`PartitionRegistration` is a protocol that the metadata layer's own class fulfils.
# :class:`Registration` is a plain class for code without a metadata layer (the model check, test scenarios).
# Both epochs only increase: the partition epoch with every change, the leader epoch with every new leader.

EligibleBrokers: TypeAlias = Mapping[BrokerId, BrokerEpoch]
"""The broker epoch of every broker that may be in an ISR: registered, not fenced, not shutting down.

Invariant, kept by the metadata layer: a broker that was removed returns only with a higher broker epoch, so a
rejected broker epoch stays rejected.
"""


class PartitionRegistration(Protocol):
    @property
    def replicas(self) -> tuple[BrokerId, ...]:
        """The assigned replicas (AR) in order of preference for leadership."""
        ...

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The committed in-sync replicas. May include brokers that are no longer assigned (KAFKA-9672)."""
        ...

    @property
    def leader(self) -> BrokerId: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def partition_epoch(self) -> PartitionEpoch: ...


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`PartitionRegistration` as a plain value."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = FIRST_LEADER_EPOCH
    partition_epoch: PartitionEpoch = FIRST_PARTITION_EPOCH


# A follower's fetch, as the follower sends it and the leader receives it.


class FollowerFetch(NamedTuple):
    """A fetch from ``fetch_offset``, which acknowledges all records below it.

    The follower keeps it, and passes it with its response to ``on_fetch_response``. The last two fields are
    its own and not sent.
    """

    replica: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset
    leader: BrokerId = NO_LEADER
    number: int = 0
    """Distinguishes the fetches of one role."""

    def is_sent_like(self, other: FollowerFetch) -> bool:
        """Whether a leader that has ``other`` in its fetch session need not be sent this fetch."""
        return (
            self.fetch_offset == other.fetch_offset
            and self.leader_epoch == other.leader_epoch
            and self.last_fetched_epoch == other.last_fetched_epoch
            and self.log_start_offset == other.log_start_offset
        )


# A leader's decisions: how to respond to a follower's fetch, and to a produce with acks=all.


class ServeFetch(NamedTuple):
    """Respond with records from the fetch offset up to ``end_offset`` (the leader's log end offset).

    ``high_watermark`` is the value before this fetch was processed: an advance caused by this fetch reaches
    the follower one fetch later (R-13). If there are no records to send, the fetch may wait; with
    ``has_update`` the response is sent soon, with :meth:`LeaderRole.send_high_watermark`.
    """

    end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    has_update: bool
    """Whether there are records to send, or a high watermark above the one last sent to this follower."""
    went_back: bool = False
    """Whether an earlier fetch with the same broker epoch had a higher offset. Then this fetch is late (from
    a connection abandoned since), or the follower lost records; its next fetch shows which."""


class DivergingFetch(msgspec.Struct, frozen=True):
    """Respond with the diverging epoch and no records. The fetch offset is not an acknowledgement."""

    diverging: EpochEnd


class RejectFetch(msgspec.Struct, frozen=True):
    """Respond with an error; ``reason`` describes the fetch."""

    error: ErrorCode
    reason: str


FetchResult: TypeAlias = ServeFetch | DivergingFetch | RejectFetch


class Pending(enum.Enum):
    """The type of :data:`PENDING`."""

    PENDING = enum.auto()


PENDING: Final = Pending.PENDING
"""The records are not committed yet: a replica that counts has not fetched them, or too few are in sync."""

AcksAllOutcome: TypeAlias = ErrorCode | Pending
"""The error code for a produce with acks=all, or PENDING."""


# The actions that a role requests from its shell, as plain values. Durability depends on their order.
#
# The *shell* is the code that uses a role (:mod:`nilometer.replication` describes it). It executes a list of
# effects from first to last. If one fails, it must not execute the rest, and the replica is fenced. An effect
# has no reference to a waiting request: a waiting produce is a ticket number.


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
    """Send the request to the controller; ``on_alter_partition_response`` gets its response, or a timeout."""

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


class StartInTier(msgspec.Struct, frozen=True):
    """Let the log go on behind records that the leader has in remote storage only; the leader's log begins at
    ``log_start_offset``. The shell calls :meth:`FollowerRole.on_started_in_tier` when that is done, whose
    high watermark is then the end of the log, or :meth:`FollowerRole.give_up_start_in_tier`; the role fetches
    nothing before.
    """

    log_start_offset: Offset


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
    TruncateTo
    | TruncateFully
    | StartInTier
    | AppendBatches
    | AdvanceHighWatermark
    | AdvanceLogStart
    | BackOff
)
Effect: TypeAlias = LeaderEffect | FollowerEffect
Effects: TypeAlias = tuple[Effect, ...]

NO_EFFECTS: Final[Effects] = ()
PUBLISH_HIGH_WATERMARK: Final[Effects] = (PublishHighWatermark(),)


# The reasons why a high watermark does not advance, and the valid range of a checkpointed one.
#
# The rule itself is :meth:`LeaderRole._committable_offset`; the values here explain it to operators
# (DescribeReplicas, and with it ``nilometer replicas``).


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
