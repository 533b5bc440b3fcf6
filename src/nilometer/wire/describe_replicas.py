"""DescribeReplicas, Nilometer's own API: the full state of one broker's replicas.

A broker responds for its own replicas only; a leader adds its followers' state, known from their fetches. An
offset or epoch of -1 means *not known*. Fields may be added; a reader ignores unknown ones.
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
    """Only these topics; None for all."""
    partitions: tuple[PartitionNumber, ...] | None = None
    """Only partitions with these numbers; None for all."""
    segments: bool = False
    """Whether to describe the segments of the logs. A broker does it for a few replicas of a response."""


class RemoteReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader knows it, from its fetches."""

    broker_id: int
    broker_epoch: int
    """The broker epoch of the last fetch."""
    log_start_offset: int
    log_end_offset: int
    caught_up_age_ms: int | None
    """How many ms ago it was last caught up; None: never since this leader epoch started."""
    is_assigned: bool
    is_eligible: bool
    """Whether a broker with that broker epoch may be in the ISR."""


class HighWatermarkHoldState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the high watermark does not advance."""

    reason: str
    """``not-held``, ``under-min-isr``, ``waiting-for-replicas`` or ``waiting-for-flush``."""
    text: str
    """The reason as text for operators."""
    replicas: tuple[int, ...] = ()
    """The replicas that the high watermark waits for."""


class LeaderState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that only a leader has."""

    epoch_start_offset: int
    isr: tuple[int, ...]
    """The committed ISR."""
    maximal_isr: tuple[int, ...]
    """The replicas that must have a record before it is committed: the committed ISR and those being
    added."""
    pending_isr: tuple[int, ...] | None
    """The ISR requested from the controller, until its response."""
    needed_in_sync: int
    """The size of the committed ISR below which no record is committed."""
    hold: HighWatermarkHoldState
    followers: tuple[RemoteReplicaState, ...]


class CompactionState(msgspec.Struct, frozen=True, kw_only=True):
    """The compaction of a replica's log: the round in progress, or the last one since the broker started."""

    in_progress: bool
    age_ms: int
    """How many ms ago the round began if it is in progress, or ended."""
    progress: float
    """From 0 to 1: the share of the bytes to read that are read."""
    bytes_total: int
    """The size of the segments that the round rewrites."""
    bytes_written: int
    records_read: int
    records_kept: int
    end_offset: int = -1
    """The offset up to which the log is clean; -1 unless the round was completed."""
    failure: str = ""
    """Why the last round was not completed."""


class SegmentState(msgspec.Struct, frozen=True, kw_only=True):
    base_offset: int
    size_bytes: int
    """The size of the ``.log`` file."""
    modified_ms: int = -1
    """When that file was last written, in ms since the epoch; -1: not known."""
    largest_timestamp: int = -1
    """The largest timestamp of the segment's batches; -1 also if the broker has not read it yet."""


class SegmentsState(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    """How many segments the log has."""
    newest: tuple[SegmentState, ...]
    """The last of them by base offset, at most :data:`SEGMENTS_MAX`. The last one is active."""


SEGMENTS_MAX = 100
"""How many segments of a log are described."""


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    partition: int
    broker_id: int
    role: str
    """``leader``, ``follower``, ``none`` (no role yet) or ``offline`` (its log cannot be used)."""
    leader_id: int
    leader_epoch: int
    """The role's leader epoch; without a role, the one in the metadata."""
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """The ISR in this broker's metadata."""
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
    compaction: CompactionState | None = None
    """None: the broker has not compacted the log since it started."""
    segments: SegmentsState | None = None
    """None: not requested, or the response describes those of enough other replicas."""
    problems: tuple[str, ...] = ()
    """For operators: why the replica is offline, or which of its tasks currently fail and are retried."""


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: int
    broker_epoch: int
    """-1: not registered."""
    controller_id: int
    controller_epoch: int
    metadata_number: int
    """The number of the last entry of the metadata log that this broker has applied."""
    unclean_elections: int
    stray_folders: tuple[str, ...] = ()
    """The folders of logs that are no replica of this broker: kept until an operator deletes them."""
    longest_turn_us: int = -1
    """The processor time of the longest turn of the broker's event loop since its start."""
    longest_turn: str = ""
    """What ran in it: the API, client and size of a request, or the name of a task."""


NO_BROKER_STATE = BrokerState(
    broker_id=-1,
    broker_epoch=-1,
    controller_id=-1,
    controller_epoch=-1,
    metadata_number=-1,
    unclean_elections=0,
)


class DescribeReplicasResponse(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    cluster_id: str
    broker: BrokerState
    replicas: tuple[ReplicaState, ...]
    """Ordered by topic and partition."""
    error_code: int = 0
    """Kafka's error code; with an error the other fields say nothing."""
