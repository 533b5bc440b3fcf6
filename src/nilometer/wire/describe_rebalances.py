"""DescribeRebalances, Nilometer's own API: the last rebalances of groups, their reasons and causing members.

A coordinator answers for the groups that it coordinates. Its history begins when it loaded the group. Fields
may be added; a reader ignores those it does not know.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nilometer.wire.api_keys import NilometerApiKey

KEY = NilometerApiKey.DESCRIBE_REBALANCES


class DescribeRebalancesRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    groups: tuple[str, ...]


class RebalanceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    group_id: str
    error_code: int = 0
    """The error for this group: not the coordinator, no such group."""
    reason: str | None = None
    """None: it has not rebalanced since it was loaded, or has no record of it."""
    member_id: str = ""
    """The member that caused it, by its id at that time."""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    wall_ms: int = 0
    generation: int = 0
    """Before the rebalance."""
    times_in_a_row: int = 0
    """How many rebalances this member caused with no other cause between."""


class DescribeRebalancesResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    groups: tuple[RebalanceState, ...] = ()
