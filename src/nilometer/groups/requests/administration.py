"""Requests of operators: list, describe and delete groups."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.wire.errors import ErrorCode


# ── ListGroups ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class ListGroups:
    states_filter: tuple[str, ...] = ()
    """The states to list, in upper or lower case; empty: all."""
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
    """Why a group rebalanced last, and the member that caused it."""

    reason: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    wall_ms: int
    generation: int
    """The generation before the rebalance."""
    times_in_a_row: int
    """How many rebalances in a row, this one included, the same member has caused."""


@dataclass(frozen=True, slots=True)
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    """The member's metadata for the group's protocol; empty if the group has none."""
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
    """The last rebalance since this coordinator loaded the group; None if there was none."""


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
