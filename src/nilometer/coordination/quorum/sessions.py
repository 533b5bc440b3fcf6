"""The leader's duty for sessions: it answers renewals, and ends the sessions whose time-out is over."""

from __future__ import annotations

from typing import Protocol

from nilometer.coordination.quorum.commands import AppliedState, Command, End, Outcome, Register
from nilometer.coordination.quorum.leases import SessionBook
from nilometer.coordination.store import SessionName
from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.runtime import Clock


class Node(Protocol):
    """A node of the quorum, for :class:`SessionKeeper`."""

    state: AppliedState

    @property
    def leads(self) -> bool: ...
    @property
    def epoch(self) -> LeaderEpoch: ...
    async def confirm_leadership(self) -> bool: ...


class SessionKeeper:
    """Keeps the sessions while its node leads; in each epoch with a new book."""

    def __init__(self, node: Node, clock: Clock, timeout_ms: int) -> None:
        self._node = node
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._epoch = LeaderEpoch(-1)
        self._book: SessionBook | None = None

    def look(self) -> list[SessionName]:
        """Return the sessions whose end is to be proposed now; nothing if this node does not lead."""
        node, now_ms = self._node, self._clock.monotonic_ms()
        if not node.leads:
            self._book = None
            return []
        if self._book is None or self._epoch != node.epoch:
            live = [SessionName(one.broker_id, one.incarnation) for one in node.state.sessions()]
            self._book = SessionBook(self._timeout_ms, live, now_ms)
            self._epoch = node.epoch
        return self._book.take_expired(now_ms)

    @property
    def next_look_ms(self) -> int | None:
        """When to look again at the latest, of the monotonic clock."""
        return None if self._book is None else self._book.next_end_ms

    def on_applied(self, offset: Offset, command: Command, outcome: Outcome) -> None:
        if self._book is None or outcome is not Outcome.DONE:
            return
        if isinstance(command, Register):
            live = self._node.state.session_of(command.broker_id)
            if live is not None and live.incarnation == offset:
                self._book.on_registered(SessionName(command.broker_id, offset), self._clock.monotonic_ms())
        elif isinstance(command, End):
            self._book.on_ended(command.session)

    async def renew(self, name: SessionName) -> bool:
        """Return whether the session is live for one time-out more, from its owner's request on."""
        arrived_ms, book = self._clock.monotonic_ms(), self._book
        if book is None or not await self._node.confirm_leadership() or self._book is not book:
            return False
        return book.renew(name, arrived_ms)
