"""Detecting that the owner of a session hangs, by its heartbeat counter and the watcher's own clock.

Time counts only while the watcher itself is running its checks: if the watcher was stopped, or the machine
was suspended with all its brokers, the pause counts as at most one check interval.

Invariant: a session is ended only after ``timeout_ms`` of checks with an unchanged counter.
"""

from __future__ import annotations

import msgspec

from nilometer.coordination.store import SessionName

HEARTBEATS_PER_TIMEOUT = 5
CHECKS_PER_TIMEOUT = 10
VERIFY_FRACTION = 2
"""An owner that has not incremented its counter for timeout / 2 must verify its session before it uses it."""


class _Observation(msgspec.Struct):
    counter: bytes
    checked_ms: int
    silent_ms: int


class LivenessWatch:
    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._check_ms_max = timeout_ms // HEARTBEATS_PER_TIMEOUT
        self._observations: dict[SessionName, _Observation] = {}

    def on_counter(self, session: SessionName, counter: bytes, now_ms: int) -> bool:
        """Record the counter's current value; return True if the session must be ended.

        ``now_ms`` is monotonic time.
        """
        seen = self._observations.get(session)
        if seen is None or seen.counter != counter:
            self._observations[session] = _Observation(counter, now_ms, 0)
            return False
        seen.silent_ms += min(now_ms - seen.checked_ms, self._check_ms_max)
        seen.checked_ms = now_ms
        return seen.silent_ms >= self._timeout_ms

    def forget_all_but(self, sessions: list[SessionName]) -> None:
        self._observations = {name: seen for name, seen in self._observations.items() if name in sessions}
