"""How long sessions are live: the leader's book of them, the owner's own judgement, and the leader's duty to
end those whose time-out is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nilometer.coordination.quorum.commands import AppliedState, Command, End, Outcome, Register
from nilometer.coordination.store import SessionName
from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.runtime import Clock

# How long sessions are live: the leader's book of them, and the owner's own judgement. Pure.
#
# An owner renews its session at the leader. The leader *answers a renewal only after it was still the leader
# when the renewal arrived*: a majority of the voters has fetched since, in its epoch. So a deposed leader
# that was stopped and goes on renews nothing. The owner counts from *when it sent* the renewal that was
# answered, and stops before the time-out is over (DOUBT_STOPS); the leader counts from when it arrived, which
# is later.
#
# A new leader ends no session before one whole time-out after its election: it does not know what its
# predecessor has answered.

DRIFT = 10
"""The owner gives up a tenth of the time-out before the leader: two clocks do not run alike."""


class SessionBook:
    """What the leader of an epoch knows of the sessions. All times are of its monotonic clock, in ms."""

    def __init__(self, timeout_ms: int, live: Iterable[SessionName], elected_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._ends_ms = dict.fromkeys(live, elected_ms + timeout_ms)

    def on_registered(self, name: SessionName, now_ms: int) -> None:
        """Its registration was applied. A former session of the broker has ended with it."""
        for former in [one for one in self._ends_ms if one.broker_id == name.broker_id]:
            del self._ends_ms[former]
        self._ends_ms[name] = now_ms + self._timeout_ms

    def on_ended(self, name: SessionName) -> None:
        self._ends_ms.pop(name, None)

    def renew(self, name: SessionName, arrived_ms: int) -> bool:
        """A majority has confirmed that this was the leader when a renewal arrived. Return whether it may be
        answered; False: the session has ended, or is about to."""
        ends_ms = self._ends_ms.get(name)
        if ends_ms is None:
            return False
        self._ends_ms[name] = max(ends_ms, arrived_ms + self._timeout_ms)
        return True

    def take_expired(self, now_ms: int) -> list[SessionName]:
        """Return the sessions whose time-out is over, to propose their end. From now on their renewals are
        refused: an owner that was answered would act beyond its end."""
        expired = sorted(name for name, ends_ms in self._ends_ms.items() if ends_ms <= now_ms)
        for name in expired:
            del self._ends_ms[name]
        return expired

    @property
    def next_end_ms(self) -> int | None:
        """When the next session's time-out is over."""
        return min(self._ends_ms.values(), default=None)


class OwnLease:
    """How long the owner of a session may act, by its own monotonic clock in ms."""

    def __init__(self, timeout_ms: int, registered_ms: int) -> None:
        """``registered_ms``: when the registration was sent that was applied."""
        self._lasts_ms = timeout_ms - timeout_ms // DRIFT
        self._sent_ms = registered_ms

    def on_renewed(self, sent_ms: int) -> None:
        """The renewal was answered that was sent at ``sent_ms``. Answers may come in any order."""
        self._sent_ms = max(self._sent_ms, sent_ms)

    def is_live(self, now_ms: int) -> bool:
        return now_ms < self._sent_ms + self._lasts_ms


# The leader's duty for sessions: it answers renewals, and ends the sessions whose time-out is over.


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
