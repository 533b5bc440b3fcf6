"""What a group member is for its consumer, with either group protocol, and when its heartbeats and polls are
due.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nilometer.client.group.group_exchange import MemberIdentity
from nilometer.client.group.group_settings import GroupConfig
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.client.positions import Positions
from nilometer.runtime import Clock
from nilometer.wire.errors import ErrorCode

# The heartbeats of a group member, with either group protocol: when they and the polls are due, and the
# background task that sends them.

# The deadlines of a group member's heartbeats, session and polls (SPEC C-5). Pure.
#
# The *session*: a heartbeat is due every ``heartbeat.interval.ms``; a coordinator that answers none of them
# for ``session.timeout.ms`` is looked up again. The *poll*: a consumer that is not polled for
# ``max.poll.interval.ms`` leaves the group, although it sends heartbeats, so that others get its partitions.
#
# Invariant: the poll deadline cannot pass while a poll is running, however long that takes.


class Liveness:
    def __init__(
        self, *, session_timeout_ms: int, heartbeat_interval_ms: int, max_poll_interval_ms: int
    ) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._heartbeat_due_ms = 0
        self._session_ends_ms = 0
        self._poll_ends_ms = 0
        self._polling = 0

    def on_joined(self, now_ms: int) -> None:
        """Start a new session; the first heartbeat is due one interval from now."""
        self._session_ends_ms = now_ms + self._session_timeout_ms
        self._heartbeat_due_ms = now_ms + self._heartbeat_interval_ms

    def on_heartbeat_sent(self, now_ms: int) -> None:
        self._heartbeat_due_ms = now_ms + self._heartbeat_interval_ms

    def on_heartbeat_answered(self, now_ms: int) -> None:
        self._session_ends_ms = now_ms + self._session_timeout_ms

    def on_heartbeat_failed(self, now_ms: int, pause_ms: int) -> None:
        """Make the next heartbeat due after ``pause_ms``, at most one interval, to keep the session."""
        self._heartbeat_due_ms = now_ms + min(pause_ms, self._heartbeat_interval_ms)

    def heartbeat_every(self, interval_ms: int) -> None:
        """Set the heartbeat interval that the coordinator requires."""
        self._heartbeat_interval_ms = interval_ms

    def on_poll_begun(self) -> None:
        self._polling += 1

    def on_poll_ended(self, now_ms: int) -> None:
        self._polling -= 1
        self._poll_ends_ms = now_ms + self._max_poll_interval_ms

    def heartbeat_is_due(self, now_ms: int) -> bool:
        return now_ms >= self._heartbeat_due_ms

    def session_is_over(self, now_ms: int) -> bool:
        return now_ms >= self._session_ends_ms

    def poll_is_late(self, now_ms: int) -> bool:
        return not self._polling and now_ms >= self._poll_ends_ms

    def next_deadline_ms(self) -> int:
        """Return the earliest time at which a heartbeat is due, the session ends or the poll is late."""
        due_ms = min(self._heartbeat_due_ms, self._session_ends_ms)
        return due_ms if self._polling else min(due_ms, self._poll_ends_ms)


# The background task that sends a group member's heartbeats, with either group protocol.
#
# :class:`Liveness` decides when a heartbeat is due; the member makes the
# request and evaluates the response.
#
# Invariant: at most one task sends heartbeats for a member, and it runs until the member leaves.

logger = logging.getLogger("nilometer.client.group.heartbeats")

POLL_TIMEOUT_REASON = "the time between polls was longer than max.poll.interval.ms"
"""The reason for which a member leaves that sends heartbeats but is not polled."""


class HeartbeatSource(Protocol):
    """The part of a member that :class:`Heartbeats` calls."""

    def wants_heartbeats(self) -> bool:
        """Whether heartbeats must be sent now: the member is in its group, or joining it by heartbeat."""
        ...

    def has_changes_to_report(self) -> bool:
        """Whether a heartbeat must be sent before the next one is due."""
        ...

    def beat(self, now_ms: int) -> Awaitable[None]:
        """Send one heartbeat and handle its response."""
        ...

    def on_session_over(self, now_ms: int) -> bool:
        """Handle that no heartbeat response came within ``session.timeout.ms``; False: ignore it."""
        ...

    def leave_on_poll_timeout(self) -> Awaitable[None]:
        """Leave the group because of :data:`POLL_TIMEOUT_REASON`."""
        ...


class Heartbeats:
    def __init__(self, clock: Clock, config: GroupConfig, member: HeartbeatSource) -> None:
        self.liveness = Liveness(
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            max_poll_interval_ms=config.max_poll_interval_ms,
        )
        self._clock = clock
        self._config = config
        self._member = member
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._sleeps_until_ms = 0

    def on_poll_begun(self) -> None:
        self.liveness.on_poll_begun()

    def on_poll_ended(self) -> None:
        self.liveness.on_poll_ended(self._clock.monotonic_ms())
        if self.liveness.next_deadline_ms() < self._sleeps_until_ms:
            self.wake()

    def wake(self) -> None:
        """Wake the task: a deadline or the member's subscription or partitions may have changed."""
        self._changed.set()

    def begin(self) -> None:
        """Start a session, and the background task if it is not running."""
        self.liveness.on_joined(self._clock.monotonic_ms())
        self.wake()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_alive(), name="group-heartbeat")

    async def end(self) -> None:
        """Stop the background task, unless this is called from within it."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_alive(self) -> None:
        member, liveness = self._member, self.liveness
        while True:
            self._changed.clear()
            now_ms = self._clock.monotonic_ms()
            if not member.wants_heartbeats():
                await self._changed.wait()
            elif liveness.poll_is_late(now_ms):
                self._warn_of_poll_timeout()
                await member.leave_on_poll_timeout()
            elif member.has_changes_to_report() or liveness.heartbeat_is_due(now_ms):
                await member.beat(now_ms)
            elif not (liveness.session_is_over(now_ms) and member.on_session_over(now_ms)):
                self._sleeps_until_ms = liveness.next_deadline_ms()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(self._sleeps_until_ms - now_ms, 1) / 1000):
                        await self._changed.wait()

    def _warn_of_poll_timeout(self) -> None:
        logger.warning(
            "Group %s: no poll for max.poll.interval.ms (%d): leaving, so that others get the partitions. "
            "Poll more often, or take fewer records at a time (max.poll.records).",
            self._config.group_id,
            self._config.max_poll_interval_ms,
        )


# What a group member is for its consumer, with either group protocol: a subscription, the partitions
# assigned to it, and the interface of a member.

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

    They run within ``poll``, ``unsubscribe`` or ``close``, which raises their exceptions after it has changed
    the assignment. They may commit and seek, but call none of these three.
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
