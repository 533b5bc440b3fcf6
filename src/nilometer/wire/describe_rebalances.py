"""DescribeRebalances, Nilometer's own API: the last rebalance of each group, its reason and causing member.

A broker responds for the groups that it coordinates; it keeps the history from when it loaded the group.
Fields may be added; a reader ignores unknown ones.
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
    """The error for this group, for example that the broker is not its coordinator."""
    reason: str | None = None
    """None: the group has not rebalanced since it was loaded, or the rebalance was not recorded."""
    member_id: str = ""
    """The id of the member that caused the rebalance, at that time."""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    wall_ms: int = 0
    generation: int = 0
    """The generation before the rebalance."""
    times_in_a_row: int = 0
    """How many consecutive rebalances this member caused."""


class DescribeRebalancesResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    groups: tuple[RebalanceState, ...] = ()
