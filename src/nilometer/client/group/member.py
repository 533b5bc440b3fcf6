"""The interface of a group member for the membership, the same for both group protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nilometer.client.group.group_exchange import MemberIdentity
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import ErrorCode

CommitOwned = Callable[[Sequence[TopicPartition]], Awaitable[None]]
"""Commits the positions of partitions before they are given up, if auto commit is on. Raises nothing."""


class Member(Protocol):
    @property
    def identity(self) -> MemberIdentity: ...

    def commit_identity(self) -> MemberIdentity:
        """Return the identity for commits. Raises KafkaError while there is none."""
        ...

    def on_poll_begun(self) -> None: ...

    def on_poll_ended(self) -> None: ...

    def next_wake_ms(self) -> int | None:
        """Return the time at which a waiting poll must call :meth:`poll` again; None: no such time."""
        ...

    async def poll(self, deadline_ms: int) -> None:
        """Perform the rebalance that is due, if any, until ``deadline_ms``.

        Raises KafkaError for errors that a retry does not cure, and the exceptions of the user's callbacks.
        """
        ...

    def request_rejoin(self, reason: str) -> None: ...

    def on_error(self, code: ErrorCode, identity: MemberIdentity) -> None:
        """Handle the error of a commit that was made as ``identity``."""
        ...

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        """Leave the group and notify the coordinator. The caller gives up the partitions.

        A static member may come back, and keeps its place in the group unless it leaves ``for_good``.
        """
        ...
