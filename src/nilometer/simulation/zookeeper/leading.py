"""A leader: agrees with a majority on a new epoch, synchronises the followers, then orders all writes,
and ends the sessions whose clients are silent.

A proposal is committed when a majority has it on disk and all earlier proposals are committed. A leader that
has not heard from a majority for ``syncLimit`` of its own ticks steps down; until then it acts as the leader.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nilometer.simulation.zookeeper.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Commit,
    End,
    FollowerInfo,
    Forward,
    LeaderInfo,
    NewLeader,
    Notification,
    Origin,
    Ping,
    PingReply,
    Propose,
    Revalidate,
    Revalidated,
    State,
    Synchronise,
    UpToDate,
    Vote,
)
from nilometer.simulation.zookeeper.server import Peer, Serving
from nilometer.simulation.zookeeper.tree import (
    CloseSession,
    Code,
    CreateSession,
    Operation,
    Refusal,
    Refuse,
    Transaction,
)

# The leader's sessions: when each one expires without a ping, and which server its client uses.
#
# Expiry times are rounded up to whole ticks: a session expires up to one tick after its timeout, never
# before.


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


EPOCH_SHIFT = 32


@dataclass(eq=False, slots=True)
class Learner:
    """What a leader knows about one connected follower."""

    end: End
    server: int = 0
    heard_at_tick: int = 0
    acked_epoch: AckEpoch | None = None
    forwarding: bool = False
    """Whether the leader sends it every new proposal and commit."""
    synced: bool = False


@dataclass(slots=True)
class Proposal:
    transaction: Transaction
    acks: set[int] = field(default_factory=set[int])


class Leading:
    def __init__(self, peer: Peer, vote: Vote) -> None:
        self._peer = peer
        self._vote = vote
        self._ended = False
        self._learners: list[Learner] = []
        self._accepted: dict[int, int] = {peer.number: peer.database.accepted_epoch}
        """By server, the newest epoch that it has accepted: this server and the connected followers."""
        self._epoch: int | None = None
        self._established = False
        """Whether a majority has acknowledged the epoch."""
        self._serving: Serving | None = None
        self._sessions: SessionTracker | None = None
        self._counter = 0
        self._proposals: deque[Proposal] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self._half_ticks = 0
        self._door = peer.open_to_learners()

    # ---- the role

    def begin(self) -> None:
        patience_s = self._peer.settings.tick_s * self._peer.settings.init_limit
        self._timers.append(self._peer.later(patience_s, self._check_serving))
        self._agree()

    def end(self) -> None:
        self._ended = True
        self._door.close()
        for timer in self._timers:
            timer.cancel()
        if self._sessions is not None:
            self._sessions.end()
        if self._serving is not None:
            self._serving.end()
        for learner in self._learners:
            learner.end.close()

    def on_notification(self, notification: Notification) -> None:
        self._peer.answer_looking(notification, self._vote, State.LEADING)

    def on_client(self, end: End) -> None:
        if self._serving is None:
            end.close()
        else:
            self._serving.accept(end)

    def on_learner(self, end: End) -> None:
        learner = Learner(end, heard_at_tick=self._half_ticks)
        self._learners.append(learner)
        end.on_message = lambda message: self._on_message(learner, message)
        end.on_closed = lambda: self._on_gone(learner)

    def _on_gone(self, learner: Learner) -> None:
        if learner in self._learners:
            self._learners.remove(learner)

    def _check_serving(self) -> None:
        if self._serving is None:
            self._peer.elect("no majority follows it")

    @property
    def is_serving(self) -> bool:
        return self._serving is not None

    def end_session(self, session: int) -> bool:
        """Expire ``session`` now; return False if it is unknown or already ending."""
        return self._sessions is not None and self._sessions.expire(session)

    # ---- a new epoch

    def _agree(self) -> None:
        """Choose the new epoch once a majority of the servers is connected, and send it to the followers.

        It is higher than every epoch that one of these servers has accepted.
        """
        if self._epoch is None:
            if len(self._accepted) < self._peer.members.quorum:
                return
            self._epoch = max(self._accepted.values()) + 1
            self._peer.database.accepted_epoch = self._epoch
            for learner in self._learners:
                if learner.server:
                    learner.end.send(LeaderInfo(self._epoch))
        if self._peer.members.quorum == 1:
            self._establish()

    def _on_info(self, learner: Learner, server: int, accepted_epoch: int) -> None:
        for other in [each for each in self._learners if each.server == server and each is not learner]:
            self._on_gone(other)
            other.end.close()
        learner.server = server
        if self._epoch is not None:
            learner.end.send(LeaderInfo(self._epoch))
        else:
            self._accepted[server] = accepted_epoch
            self._agree()

    def _on_ack_epoch(self, learner: Learner, ack: AckEpoch) -> None:
        database = self._peer.database
        learner.acked_epoch = ack
        if self._established:
            self._bring_up_to_date(learner, ack)
            return
        own = database.current_epoch, database.last_zxid
        if ack.counts and (ack.current_epoch, ack.last_zxid) > own:
            self._peer.elect("a follower has newer transactions")
            return
        acked = [each for each in self._learners if each.acked_epoch is not None and each.acked_epoch.counts]
        if len(acked) + 1 >= self._peer.members.quorum:
            self._establish()

    def _establish(self) -> None:
        assert self._epoch is not None
        self._established = True
        self._peer.database.current_epoch = self._epoch
        for learner in self._learners:
            if learner.acked_epoch is not None:
                self._bring_up_to_date(learner, learner.acked_epoch)
        self._serve()

    def _bring_up_to_date(self, learner: Learner, ack: AckEpoch) -> None:
        assert self._epoch is not None
        database = self._peer.database
        committed = self._proposals[0].transaction.zxid - 1 if self._proposals else database.last_zxid
        start = database.position_before(min(ack.last_zxid, committed))
        if start is None:
            learner.end.send(
                Synchronise(0, tuple(database.between(database.base.zxid, committed)), database.base)
            )
        else:
            learner.end.send(Synchronise(start, tuple(database.between(start, committed))))
        learner.end.send(NewLeader(self._epoch))
        for proposal in self._proposals:
            learner.end.send(Propose(proposal.transaction))
        learner.forwarding = True

    def _on_ack_new_leader(self, learner: Learner) -> None:
        learner.synced = True
        if self._serving is not None:
            learner.end.send(UpToDate())
        else:
            self._serve()

    def _serve(self) -> None:
        """Start to serve clients once a majority has the log with which this epoch begins."""
        followers = [learner for learner in self._learners if learner.synced]
        if self._serving is not None or len(followers) + 1 < self._peer.members.quorum:
            return
        peer = self._peer
        peer.note(f"leads in epoch {self._epoch} from {peer.database.tree.zxid:x} on")
        self._sessions = SessionTracker(peer, peer.database.tree.sessions, self._expire)
        self._serving = Serving(peer, self)
        for learner in followers:
            learner.end.send(UpToDate())
        self._tick()

    def _tick(self) -> None:
        """Run every half tick: drop silent followers and ping the others; step down without a majority.

        Silence is measured in ticks counted here, so the time for which the leader was paused does not count.
        """
        peer = self._peer
        self._half_ticks += 1
        for learner in list(self._learners):
            if self._half_ticks - learner.heard_at_tick > 2 * peer.settings.sync_limit:
                self._on_gone(learner)
                learner.end.close()
        heard = sum(learner.synced for learner in self._learners)
        if self._half_ticks % 2 and heard + 1 < peer.members.quorum:
            peer.elect("a majority of the servers no longer responds")
            return
        for learner in self._learners:
            if learner.synced:
                learner.end.send(Ping())
        self._timers = [peer.later(peer.settings.tick_s / 2, self._tick)]

    # ---- messages of followers

    def _on_message(self, learner: Learner, message: Any) -> None:
        if self._ended:
            return
        learner.heard_at_tick = self._half_ticks
        match message:
            case Ack(zxid):
                self._on_ack(learner.server, zxid)
            case Forward(session, operation, origin):
                self._order(session, operation, origin, learner.server)
            case Revalidate(session, request):
                learner.end.send(Revalidated(request, self._revalidated(session, learner.server)))
            case PingReply(touched):
                for session in touched:
                    self.touch(session)
            case FollowerInfo(server, accepted_epoch):
                self._on_info(learner, server, accepted_epoch)
            case AckEpoch():
                self._on_ack_epoch(learner, message)
            case AckNewLeader():
                self._on_ack_new_leader(learner)
            case _:
                raise AssertionError(f"a follower does not send {message}")

    # ---- the order of all writes

    def _order(self, session: int, operation: Operation, origin: Origin | None, server: int) -> None:
        """Propose ``operation`` with the next zxid.

        ``server`` is the one that the client is connected to; 0 for the expiry of a session. If the check of
        the session fails, a ``Refuse`` is proposed instead, so that the error keeps the request's place.
        """
        assert self._sessions is not None
        assert self._epoch is not None
        try:
            if isinstance(operation, CreateSession):
                self._sessions.add(session, operation.timeout_ms)
                self._sessions.move(session, server)
            elif server:
                self._sessions.check(session, server)
        except Refusal as refusal:
            operation = Refuse(refusal.code)
        if isinstance(operation, CloseSession):
            self._sessions.close(session)
        self._counter += 1
        zxid = (self._epoch << EPOCH_SHIFT) + self._counter
        proposal = Proposal(Transaction(zxid, session, operation, origin))
        self._proposals.append(proposal)
        for learner in self._learners:
            if learner.forwarding:
                learner.end.send(Propose(proposal.transaction))
        self._peer.journal.write(proposal.transaction, self._on_own_sync)

    def _on_own_sync(self, zxid: int) -> None:
        if not self._ended:
            self._on_ack(self._peer.number, zxid)

    def _on_ack(self, server: int, zxid: int) -> None:
        for proposal in self._proposals:
            if proposal.transaction.zxid == zxid:
                proposal.acks.add(server)
                break
        while self._proposals and len(self._proposals[0].acks) >= self._peer.members.quorum:
            self._commit(self._proposals.popleft())

    def _commit(self, proposal: Proposal) -> None:
        assert self._serving is not None
        assert self._sessions is not None
        for learner in self._learners:
            if learner.forwarding:
                learner.end.send(Commit(proposal.transaction.zxid))
        if isinstance(proposal.transaction.operation, CloseSession):
            self._sessions.remove(proposal.transaction.session)
        self._serving.commit(proposal.transaction)

    def _expire(self, session: int) -> None:
        self._order(session, CloseSession(), None, 0)

    def _revalidated(self, session: int, server: int) -> int:
        if self._sessions is None or not self._sessions.touch(session):
            return 0
        self._sessions.move(session, server)
        return self._sessions.timeout_ms(session)

    # ---- requests of its own clients

    def submit(self, session: int, operation: Operation, origin: Origin) -> None:
        self._order(session, operation, origin, self._peer.number)

    def revalidate(self, session: int, request: int) -> None:
        assert self._serving is not None
        self._serving.on_revalidated(request, self._revalidated(session, self._peer.number))

    def touch(self, session: int) -> None:
        if self._sessions is not None:
            self._sessions.touch(session)

    def check(self, session: int) -> None:
        assert self._sessions is not None
        self._sessions.check(session, self._peer.number)
