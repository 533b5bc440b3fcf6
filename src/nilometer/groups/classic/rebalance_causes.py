"""Why a group rebalanced last, and which member caused it.

A group that keeps rebalancing has a cause that repeats: a member that joins again and again with other
metadata, misses its heartbeats, or never sends SyncGroup. DescribeRebalances shows it.
"""

from __future__ import annotations

import msgspec

from nilometer.groups.classic.member import ClassicMember
from nilometer.groups.requests import LastRebalance


class RebalanceCause(msgspec.Struct, frozen=True):
    """The reason of a rebalance, and the member that caused it, as it was then; it may have left since."""

    reason: str
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""

    def __str__(self) -> str:
        """Return the cause as the log has it."""
        if not self.member_id:
            return self.reason
        instance = f" (instance {self.group_instance_id})" if self.group_instance_id is not None else ""
        client = f", client {self.client_id!r} at {self.client_host}" if self.client_host else ""
        return f"{self.reason}: member {self.member_id}{instance}{client}"

    @classmethod
    def by(cls, member: ClassicMember, reason: str) -> RebalanceCause:
        return cls(reason, member.member_id, member.group_instance_id, member.client_id, member.client_host)

    def is_same_member(self, last: LastRebalance) -> bool:
        """Whether the same member caused the last rebalance.

        A static member is the same under all its member ids. A dynamic member that joins with a new id each
        time is recognised by client id and host; several such clients on one host count as one.
        """
        if self.group_instance_id is not None or last.group_instance_id is not None:
            return self.group_instance_id == last.group_instance_id
        if self.member_id == last.member_id:
            return True
        return bool(self.client_id) and (self.client_id, self.client_host) == (
            last.client_id,
            last.client_host,
        )


def last_rebalance(
    cause: RebalanceCause, previous: LastRebalance | None, wall_ms: int, generation: int
) -> LastRebalance:
    repeats = previous is not None and cause.is_same_member(previous)
    return LastRebalance(
        cause.reason,
        cause.member_id,
        cause.group_instance_id,
        cause.client_id,
        cause.client_host,
        wall_ms,
        generation,
        previous.times_in_a_row + 1 if repeats and previous is not None else 1,
    )
