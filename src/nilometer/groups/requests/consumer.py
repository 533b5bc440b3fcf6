"""Requests of members of a consumer group, and requests that describe such groups (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from nilometer.wire.errors import ErrorCode


# ── ConsumerGroupHeartbeat (KIP-848) ────────────────────────────────────────────────────────────
class TopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID
    partitions: tuple[int, ...]


class ConsumerGroupHeartbeat(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    """None: unchanged. The same holds for the other fields that may be None."""
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None
    """The partitions that the member owns."""
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    """Version 1 and later: the member generates its own id."""
    peer: tuple[str, int] | None = None
    """The client's address and port: they tell its connections apart. None: not known."""


NAME_BYTES = 100
"""About what a name takes in memory beside its characters."""


def subscription_bytes(names: Iterable[str]) -> int:
    """Return about how much memory the names of a member's topics take."""
    return sum(NAME_BYTES + len(name) for name in names)


class ConsumerGroupHeartbeatReply(msgspec.Struct, frozen=True):
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicPartitions, ...] | None = None
    is_repeat: bool = False
    """The assignment is sent only in case the reply that had it was lost."""


# ── ConsumerGroupDescribe (KIP-848) ─────────────────────────────────────────────────────────────
class ConsumerGroupDescribe(msgspec.Struct, frozen=True):
    group_ids: tuple[str, ...]


class DescribedTopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


class DescribedConsumerGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[DescribedTopicPartitions, ...]
    target_assignment: tuple[DescribedTopicPartitions, ...]
    member_type: int
    """-1 unknown, 0 a member of the classic protocol, 1 of the consumer protocol."""


class DescribedConsumerGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumerGroupMember, ...] = ()


class ConsumerGroupDescribeReply(msgspec.Struct, frozen=True):
    groups: tuple[DescribedConsumerGroup, ...]
