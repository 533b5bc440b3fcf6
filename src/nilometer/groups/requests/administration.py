"""Requests of operators: list, describe and delete groups."""

from __future__ import annotations

import msgspec

from nilometer.wire.errors import ErrorCode


# ── ListGroups ──────────────────────────────────────────────────────────────────────────────────
class ListGroups(msgspec.Struct, frozen=True):
    states_filter: frozenset[str] = frozenset()
    """The states to list, in lower case; empty: all."""
    types_filter: frozenset[str] = frozenset()
    """The types to list, in lower case; empty: all."""


class ListedGroup(msgspec.Struct, frozen=True):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str
    """``classic`` or ``consumer``."""


class ListGroupsReply(msgspec.Struct, frozen=True):
    groups: tuple[ListedGroup, ...] = ()
    error_code: ErrorCode = ErrorCode.none


# ── DescribeGroups ──────────────────────────────────────────────────────────────────────────────
class DescribeGroups(msgspec.Struct, frozen=True):
    groups: tuple[str, ...]


class LastRebalance(msgspec.Struct, frozen=True):
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


class DescribedGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    """The member's metadata for the group's protocol; empty if the group has none."""
    member_assignment: bytes


class DescribedGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    last_rebalance: LastRebalance | None = None
    """The last rebalance since this coordinator loaded the group; None if there was none."""


class DescribeGroupsReply(msgspec.Struct, frozen=True):
    groups: tuple[DescribedGroup, ...]


# ── DeleteGroups ────────────────────────────────────────────────────────────────────────────────
class DeleteGroups(msgspec.Struct, frozen=True):
    groups_names: tuple[str, ...]


class DeletedGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode


class DeleteGroupsReply(msgspec.Struct, frozen=True):
    results: tuple[DeletedGroup, ...]
