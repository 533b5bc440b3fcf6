"""Requests of those who look at groups and remove them."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.wire.errors import ErrorCode


# ── ListGroups ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class ListGroups:
    states_filter: tuple[str, ...] = ()
    """Empty: all. Upper and lower case are the same."""
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str
    """``classic`` or ``consumer``."""


@dataclass(frozen=True, slots=True)
class ListGroupsReply:
    groups: tuple[ListedGroup, ...] = ()
    error_code: ErrorCode = ErrorCode.none


# ── DescribeGroups ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DescribeGroups:
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LastRebalance:
    """Why a group rebalanced last, and who made it: the culprit, if it keeps doing so."""

    reason: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    wall_ms: int
    generation: int
    """Before the rebalance."""
    times_in_a_row: int
    """How many rebalances, this one included, the same member caused with no other cause between."""


@dataclass(frozen=True, slots=True)
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    """Empty unless the group has chosen a protocol."""
    member_assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    last_rebalance: LastRebalance | None = None
    """Since this coordinator loaded the group."""


@dataclass(frozen=True, slots=True)
class DescribeGroupsReply:
    groups: tuple[DescribedGroup, ...]


# ── DeleteGroups ────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DeleteGroups:
    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    group_id: str
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class DeleteGroupsReply:
    results: tuple[DeletedGroup, ...]
