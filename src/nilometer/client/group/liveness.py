"""The deadlines of a group member's heartbeats, session and polls (SPEC C-5). Pure.

The *session*: a heartbeat is due every ``heartbeat.interval.ms``; a coordinator that answers none of them for
``session.timeout.ms`` is looked up again. The *poll*: a consumer that is not polled for
``max.poll.interval.ms`` leaves the group, although it sends heartbeats, so that others get its partitions.

Invariant: the poll deadline cannot pass while a poll is running, however long that takes.
"""

from __future__ import annotations


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
