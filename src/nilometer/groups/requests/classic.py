"""Requests of members of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.wire.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER_ID = ""


# ── JoinGroup ───────────────────────────────────────────────────────────────────────────────────
class JoinGroupProtocol(msgspec.Struct, frozen=True):
    name: str
    metadata: bytes


def metadata_bytes(protocols: Sequence[JoinGroupProtocol]) -> int:
    """Return how many bytes a member's protocols hold, names included."""
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


class JoinGroup(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    """The protocols that the member supports, in its order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Version 0 has no rebalance timeout: it is the session timeout then."""
    group_instance_id: str | None = None
    reason: str = ""
    client_id: str = ""
    client_host: str = ""
    requires_known_member_id: bool = False
    """Version 4 and later: a member without an id gets one, and must join again with it (KIP-394)."""
    supports_skipping_assignment: bool = False
    """Version 9 and later: the response may instruct the leader to keep the assignment (KIP-814)."""


class JoinGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupReply(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    member_id: str = NO_MEMBER_ID
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    """None with every error; versions before 7 have the empty string instead."""
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()
    """All members of the group, for the leader; else empty."""


# ── SyncGroup ───────────────────────────────────────────────────────────────────────────────────
class SyncGroupAssignment(msgspec.Struct, frozen=True):
    member_id: str
    assignment: bytes


class SyncGroup(msgspec.Struct, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """The assignments of all members, from the leader; else empty."""


class SyncGroupReply(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# ── Heartbeat ───────────────────────────────────────────────────────────────────────────────────
class Heartbeat(msgspec.Struct, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatReply(msgspec.Struct, frozen=True):
    error_code: ErrorCode


# ── LeaveGroup ──────────────────────────────────────────────────────────────────────────────────
class LeaveGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


class LeaveGroup(msgspec.Struct, frozen=True):
    group_id: str
    members: tuple[LeaveGroupMember, ...]
    """Exactly one in versions 0 to 2."""


class LeaveGroupMemberReply(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


class LeaveGroupReply(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    members: tuple[LeaveGroupMemberReply, ...] = ()
    """Versions 0 to 2 have no such field: the only member's error is the response's error."""
