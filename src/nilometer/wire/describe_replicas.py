"""DescribeReplicas, Nilometer's own API: the full state of one broker's replicas.

A broker answers for its own replicas only; a leader adds what it knows of its followers from their fetches.
Offsets and epochs are as everywhere; -1 means *not known*. Fields may be added; a reader ignores those it
does not know.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from nilometer.wire.api_keys import NilometerApiKey

KEY = NilometerApiKey.DESCRIBE_REPLICAS

LEADER = "leader"
FOLLOWER = "follower"
NO_ROLE = "none"
OFFLINE = "offline"

NOT_HELD = "not-held"
UNDER_MIN_ISR = "under-min-isr"
WAITING_FOR_REPLICAS = "waiting-for-replicas"
WAITING_FOR_FLUSH = "waiting-for-flush"

PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class DescribeReplicasRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    topics: tuple[str, ...] | None = None
    """Only these; None for all."""
    partitions: tuple[PartitionNumber, ...] | None = None
    """Only partitions with these numbers; None for all."""


class RemoteReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader knows it, from its fetches."""

    broker_id: int
    broker_epoch: int
    """The broker epoch of the last fetch."""
    log_start_offset: int
    log_end_offset: int
    caught_up_age_ms: int | None
    """For how long it has not been caught up (ms); None: not since this leader's epoch began."""
    is_assigned: bool
    is_eligible: bool
    """Whether that broker epoch may be in sync."""


class HighWatermarkHoldState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the high watermark does not advance."""

    reason: str
    """One of the four above."""
    text: str
    """The same, as text for operators."""
    replicas: tuple[int, ...] = ()
    """The replicas it waits for."""


class LeaderState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that only a leader has."""

    epoch_start_offset: int
    isr: tuple[int, ...]
    """Committed."""
    maximal_isr: tuple[int, ...]
    """The replicas that must have a record before it is committed: the committed ISR and those being
    added."""
    pending_isr: tuple[int, ...] | None
    """The ISR requested from the controller and not decided yet."""
    needed_in_sync: int
    """With fewer in the committed ISR, nothing is committed."""
    hold: HighWatermarkHoldState
    followers: tuple[RemoteReplicaState, ...]


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    partition: int
    broker_id: int
    role: str
    """``leader``, ``follower``, ``none`` (no role yet) or ``offline`` (its log cannot be used)."""
    leader_id: int
    leader_epoch: int
    """The role's; without a role, the metadata's."""
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """By the metadata that this broker has folded."""
    in_sync: bool
    log_start_offset: int = -1
    log_end_offset: int = -1
    flushed_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    size_bytes: int = -1
    epoch_chain: tuple[tuple[int, int], ...] = ()
    """(leader epoch, start offset), oldest first."""
    leader: LeaderState | None = None
    problems: tuple[str, ...] = ()
    """For operators: why it is offline, or which work for it currently fails and is tried again."""


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: int
    broker_epoch: int
    """-1: not registered."""
    controller_id: int
    controller_epoch: int
    metadata_number: int
    """The last entry of the metadata log that this broker has folded."""
    unclean_elections: int


class DescribeReplicasResponse(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    cluster_id: str
    broker: BrokerState
    replicas: tuple[ReplicaState, ...]
    """Ordered by topic and partition."""
