"""DescribeReplicas, Nilometer's own API: what one broker knows of its own replicas, in full.

A broker answers for itself alone: a leader tells of its followers what their fetches told it, nobody tells
of replicas elsewhere. Offsets and epochs are as everywhere; -1 stands for *not known*. Fields may be added;
a reader ignores those it does not know.
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
    """The life of the broker that fetched last."""
    log_start_offset: int
    log_end_offset: int
    caught_up_age_ms: int | None
    """For how long it has not had everything that the leader has; None: not since the leader took office."""
    is_assigned: bool
    is_eligible: bool
    """Whether that life of the broker may be in sync."""


class HighWatermarkHoldState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the high watermark is not further."""

    reason: str
    """One of the four above."""
    text: str
    """The same, for people."""
    replicas: tuple[int, ...] = ()
    """Whom it waits for."""


class LeaderState(msgspec.Struct, frozen=True, kw_only=True):
    """What only a leader knows."""

    epoch_start_offset: int
    isr: tuple[int, ...]
    """Committed."""
    maximal_isr: tuple[int, ...]
    """Those who must have a record before it counts: the committed ISR and whoever is being added."""
    pending_isr: tuple[int, ...] | None
    """What the controller has been asked for and has not decided yet."""
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
    """``leader``, ``follower``, ``none`` (not told of a role yet) or ``offline`` (its log cannot be used)."""
    leader_id: int
    leader_epoch: int
    """Of the role; without one, of the metadata."""
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """As the metadata that this broker has folded says."""
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
    """For people: why it is offline, or what its broker fails to do for it at present and tries again."""


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
