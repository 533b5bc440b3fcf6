"""Requests about committed offsets, for groups of either protocol."""

from __future__ import annotations

from uuid import UUID

import msgspec

from nilometer.coordinators.effects import Producer
from nilometer.groups.requests.classic import NO_GENERATION, NO_MEMBER_ID
from nilometer.wire.errors import ErrorCode


# ── OffsetCommit ────────────────────────────────────────────────────────────────────────────────
class OffsetCommitPartition(msgspec.Struct, frozen=True):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


class OffsetCommitTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetCommitPartition, ...]
    topic_id: UUID | None = None


class OffsetCommit(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetCommitTopic, ...]
    """The topics, all of which exist: names and ids were looked up before."""
    generation_id_or_member_epoch: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    """The retention time of the offsets, which versions 2 to 4 may set; -1: the broker's."""
    knows_member_epochs: bool = True
    """Version 9 and later: the client handles GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848)."""
    producer: Producer | None = None
    """For TxnOffsetCommit: the offsets count once this producer's transaction is committed."""

    @property
    def is_transactional(self) -> bool:
        return self.producer is not None

    @property
    def names_member(self) -> bool:
        return (
            self.generation_id_or_member_epoch >= 0
            or self.member_id != NO_MEMBER_ID
            or self.group_instance_id is not None
        )


class OffsetCommitPartitionReply(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: ErrorCode


class OffsetCommitTopicReply(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetCommitPartitionReply, ...]
    topic_id: UUID | None = None


class OffsetCommitReply(msgspec.Struct, frozen=True):
    topics: tuple[OffsetCommitTopicReply, ...]
    """The request's topics and partitions in the same order; an error of the whole request is set at each."""


# ── OffsetFetch ─────────────────────────────────────────────────────────────────────────────────
class OffsetFetchTopic(msgspec.Struct, frozen=True):
    name: str
    partition_indexes: tuple[int, ...]
    topic_id: UUID | None = None
    """Set in versions with topic ids: offsets of an earlier topic of the same name are not returned."""


class OffsetFetch(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None = None
    """None: all topics with committed offsets."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class OffsetFetchPartitionReply(msgspec.Struct, frozen=True):
    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.none


class OffsetFetchTopicReply(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetFetchPartitionReply, ...]
    topic_id: UUID | None = None
    """The id in the request; if all topics were requested, the id in the commit, or None."""


class OffsetFetchReply(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    topics: tuple[OffsetFetchTopicReply, ...] = ()


# ── OffsetDelete ────────────────────────────────────────────────────────────────────────────────
class OffsetDeleteTopic(msgspec.Struct, frozen=True):
    name: str
    partition_indexes: tuple[int, ...]


class OffsetDelete(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]


class OffsetDeletePartitionReply(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: ErrorCode


class OffsetDeleteTopicReply(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetDeletePartitionReply, ...]


class OffsetDeleteReply(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    topics: tuple[OffsetDeleteTopicReply, ...] = ()
