"""The leader's sessions: when each one expires without a ping, and which server its client uses.

Expiry times are rounded up to whole ticks: a session expires up to one tick after its timeout, never before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nilometer.simulation.zookeeper.server import Peer
from nilometer.simulation.zookeeper.tree import Code, Refusal


@dataclass(slots=True)
class Tracked:
    timeout_s: float
    ends_at_s: float
    owner: int = 0
    """The server through which it was validated last; 0: the next server that checks it becomes the owner."""
    closing: bool = False


class SessionTracker:
    """Tracks the sessions of one leader. A new leader gives each session its full timeout again."""

    def __init__(self, peer: Peer, timeouts_ms: Mapping[int, int], on_expired: Callable[[int], None]) -> None:
        self._peer = peer
        self._on_expired = on_expired
        self._tracked: dict[int, Tracked] = {}
        self._armed = False
        self._ended = False
        for session, timeout_ms in timeouts_ms.items():
            self.add(session, timeout_ms)

    def end(self) -> None:
        self._ended = True

    def add(self, session: int, timeout_ms: int) -> None:
        timeout_s = timeout_ms / 1000
        self._tracked[session] = Tracked(timeout_s, self._end_of(timeout_s))
        if not self._armed:
            self._arm()

    def remove(self, session: int) -> None:
        self._tracked.pop(session, None)

    def touch(self, session: int) -> bool:
        """Restart the timeout of ``session``; return False if it is unknown or closing."""
        tracked = self._tracked.get(session)
        if tracked is None or tracked.closing:
            return False
        tracked.ends_at_s = max(tracked.ends_at_s, self._end_of(tracked.timeout_s))
        return True

    def timeout_ms(self, session: int) -> int:
        return round(self._tracked[session].timeout_s * 1000)

    def move(self, session: int, server: int) -> None:
        """Note that the client now uses ``server``; requests through other servers are rejected."""
        self._tracked[session].owner = server

    def check(self, session: int, server: int) -> None:
        """Check that ``session`` is open and used through ``server``.

        Raises Refusal: SESSION_EXPIRED, SESSION_MOVED.
        """
        tracked = self._tracked.get(session)
        if tracked is None or tracked.closing:
            raise Refusal(Code.SESSION_EXPIRED)
        if not tracked.owner:
            tracked.owner = server
        if tracked.owner != server:
            raise Refusal(Code.SESSION_MOVED)

    def close(self, session: int) -> None:
        if session in self._tracked:
            self._tracked[session].closing = True

    def expire(self, session: int) -> bool:
        """Expire ``session`` now, despite pings; return False if it is unknown or closing."""
        tracked = self._tracked.get(session)
        if tracked is None or tracked.closing:
            return False
        tracked.closing = True
        self._peer.note(f"session {session:x} has expired")
        self._on_expired(session)
        return True

    def _end_of(self, timeout_s: float) -> float:
        tick_s = self._peer.settings.tick_s
        return (math.floor((self._peer.loop.time() + timeout_s) / tick_s) + 1) * tick_s

    def _arm(self) -> None:
        """Set the timer to the earliest expiry of an open session."""
        ends = [tracked.ends_at_s for tracked in self._tracked.values() if not tracked.closing]
        self._armed = bool(ends)
        if ends:
            self._peer.later(max(min(ends) - self._peer.loop.time(), 0.0), self._strike)

    def _strike(self) -> None:
        if self._ended:
            return
        now = self._peer.loop.time()
        for session, tracked in list(self._tracked.items()):
            if tracked.ends_at_s <= now:
                self.expire(session)
        self._arm()
