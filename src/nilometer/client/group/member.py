"""What a group member is for its consumer, with either group protocol: a subscription, the partitions
assigned to it, and the interface of a member.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nilometer.client.group.group_exchange import MemberIdentity
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.client.offsets.positions import Positions
from nilometer.wire.errors import ErrorCode

# The subscription of a group member: topics by name, or all whose name matches a pattern. Pure.


@dataclass(frozen=True, slots=True)
class Subscription:
    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    """Must match the whole topic name; it is matched with all topics of the metadata."""

    def __bool__(self) -> bool:
        return bool(self.names) or self.pattern is not None

    def topics(self, metadata: ClusterMetadata, *, exclude_internal: bool = True) -> tuple[str, ...]:
        """Return the names of the subscribed topics, sorted; a pattern matches the topics of ``metadata``."""
        if self.pattern is None:
            return tuple(sorted(set(self.names)))
        return tuple(
            sorted(
                name
                for name, topic in metadata.topics.items()
                if self.pattern.fullmatch(name) and not (exclude_internal and topic.is_internal)
            )
        )


# The partitions assigned to a consumer, and the user's callbacks when they change.
#
# Adds and removes the consumer's positions around the callbacks: a partition is still assigned while the
# callback for its revocation runs, and is assigned before the callback for its assignment runs.


class RebalanceListener:
    """The user's callbacks for assigned and revoked partitions; override them, as coroutines if needed.

    They run within ``poll``, ``unsubscribe`` or ``close``, and may commit and seek, but not poll. That call
    raises their exceptions, after it has changed the assignment.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Called after each rebalance with the newly assigned partitions, possibly none.

        With an eager assignor these are all assigned partitions.
        """

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Called before ``partitions`` are given up: the last chance to commit their offsets."""

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Called for partitions that another member may own already: a commit would fail.

        By default calls :meth:`on_partitions_revoked`.
        """
        return self.on_partitions_revoked(partitions)


class Ownership:
    def __init__(self, positions: Positions, on_changed: Callable[[Collection[str]], None]) -> None:
        """``on_changed`` is called with the topics of all assigned partitions after each change."""
        self.listener: RebalanceListener | None = None
        self.in_callback = False
        self.revocations = 0
        """How often partitions were given up."""
        self._positions = positions
        self._on_changed = on_changed

    def owned(self) -> list[TopicPartition]:
        return sorted(partition for partition, _ in self._positions.entries())

    async def give_up(self, partitions: Collection[TopicPartition], *, lost: bool = False) -> None:
        """Call the revocation callback (``lost``: the one for lost partitions) and remove ``partitions``.

        They are removed even if the callback raises; its exception is passed on.
        """
        going = sorted(partitions)
        if not going:
            return
        listener = self.listener
        try:
            if listener is not None:
                tell = listener.on_partitions_lost if lost else listener.on_partitions_revoked
                await self._call(tell, going)
        finally:
            self.revocations += 1
            self._assign([one for one in self.owned() if one not in partitions])

    async def take(self, partitions: Collection[TopicPartition]) -> None:
        """Assign ``partitions``, which include all owned ones, and call the callback with the new ones."""
        owned = self.owned()
        added = sorted(set(partitions) - set(owned))
        self._assign(sorted(partitions))
        if self.listener is not None:
            await self._call(self.listener.on_partitions_assigned, added)

    def _assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions.assign(partitions)
        self._on_changed({partition.topic for partition in partitions})

    async def _call(self, callback: Callable[..., Any], partitions: Sequence[TopicPartition]) -> None:
        self.in_callback = True
        try:
            result = callback(partitions)
            if inspect.isawaitable(result):
                await result
        finally:
            self.in_callback = False


# The interface of a group member for the membership, the same for both group protocols.

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
