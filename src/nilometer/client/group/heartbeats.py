"""Heartbeats of a group member, sent in the background with either group protocol.

A shell around :class:`~nilometer.client.group.liveness.Liveness`, which says what is due. What a heartbeat
says and what its answer means is the member's.

Invariant: at most one task beats for a member, and it goes on until the member leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

from nilometer.client.group.group_config import GroupConfig
from nilometer.client.group.liveness import Liveness
from nilometer.runtime import Clock

logger = logging.getLogger(__name__)

POLL_TIMEOUT_REASON = "the time between polls was longer than max.poll.interval.ms"
"""Why a member leaves although it still sends heartbeats."""


class HeartbeatSource(Protocol):
    """What a member says to its heartbeats."""

    def wants_heartbeats(self) -> bool:
        """Whether it is in its group now."""
        ...

    def has_changes_to_report(self) -> bool:
        """Whether there is something to say before a heartbeat is due."""
        ...

    def beat(self, now_ms: int) -> Awaitable[None]: ...

    def on_session_over(self, now_ms: int) -> bool:
        """No heartbeat was answered for a whole session; whether that is done with."""
        ...

    def leave_on_poll_timeout(self) -> Awaitable[None]:
        """Its user has not polled for too long: see :data:`POLL_TIMEOUT_REASON`."""
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
        """Something has changed that the member may have to say."""
        self._changed.set()

    def begin(self) -> None:
        """A session begins."""
        self.liveness.on_joined(self._clock.monotonic_ms())
        self.wake()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_alive(), name="group-heartbeat")

    async def end(self) -> None:
        """Return when no more is sent; the task goes on if it is the one that asks."""
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
