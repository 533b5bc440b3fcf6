"""What a membership asks of its member, whichever protocol that speaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nilometer.client.group.group_exchange import MemberIdentity
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import ErrorCode

CommitOwned = Callable[[Sequence[TopicPartition]], Awaitable[None]]
"""Commits the positions of partitions that are about to go, where that is automatic. Raises nothing."""


class Member(Protocol):
    @property
    def identity(self) -> MemberIdentity: ...

    def commit_identity(self) -> MemberIdentity:
        """The identity to commit with. Raises KafkaError while there is none."""
        ...

    def on_poll_begun(self) -> None: ...

    def on_poll_ended(self) -> None: ...

    def next_wake_ms(self) -> int | None:
        """When a poll that waits has something to do, if nothing happens before."""
        ...

    async def poll(self, deadline_ms: int) -> None:
        """Go through whatever rebalance is due, until ``deadline_ms``. Raises KafkaError for what will not
        pass by itself, and what callbacks raise."""
        ...

    def request_rejoin(self, reason: str) -> None: ...

    def on_error(self, code: ErrorCode, identity: MemberIdentity) -> None:
        """Handle the error of a commit that was made as ``identity``."""
        ...

    async def leave(self, reason: str) -> None:
        """Leave the group, and notify the coordinator. The caller gives the partitions up."""
        ...
