"""Requests of members of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.wire.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER_ID = ""


# ── JoinGroup ───────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class JoinGroupProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroup:
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


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupReply:
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
@dataclass(frozen=True, slots=True)
class SyncGroupAssignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroup:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """The assignments of all members, from the leader; else empty."""


@dataclass(frozen=True, slots=True)
class SyncGroupReply:
    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# ── Heartbeat ───────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Heartbeat:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    error_code: ErrorCode


# ── LeaveGroup ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class LeaveGroupMember:
    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    group_id: str
    members: tuple[LeaveGroupMember, ...]
    """Exactly one in versions 0 to 2."""


@dataclass(frozen=True, slots=True)
class LeaveGroupMemberReply:
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveGroupReply:
    error_code: ErrorCode
    members: tuple[LeaveGroupMemberReply, ...] = ()
    """Versions 0 to 2 have no such field: the only member's error is the response's error."""
