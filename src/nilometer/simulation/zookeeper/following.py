"""A simulated server that does not lead: it looks for a leader, or follows one."""

from __future__ import annotations

import asyncio
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
    dial,
)
from nilometer.simulation.zookeeper.server import QUORUM_PORT, Peer, Serving
from nilometer.simulation.zookeeper.tree import Operation, Transaction

# A follower: synchronises with its leader, then logs and acknowledges its proposals and applies commits.
#
# It follows its leader as long as it receives pings from it. It forwards its clients' writes to the leader
# and answers their reads from its own tree.

TRIES = 5
RETRY_S = 0.1


class Following:
    def __init__(self, peer: Peer, vote: Vote) -> None:
        self._peer = peer
        self._vote = vote
        self._end: End | None = None
        self._ended = False
        self._heard_s = peer.loop.time()
        self._patience_s = peer.settings.tick_s * peer.settings.init_limit
        self._watchdog: asyncio.TimerHandle | None = None
        self._synchronise: Synchronise | None = None
        self._pending: dict[int, Transaction] = {}
        """By zxid, the transactions that are proposed and not yet committed."""
        self._touched: dict[int, None] = {}
        self._serving: Serving | None = None
        self._connecting: asyncio.Task[None] | None = None

    # ---- the role

    def begin(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        self._watch()

    def end(self) -> None:
        self._ended = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._end is not None:
            self._end.close()
        if self._serving is not None:
            self._serving.end()

    def on_notification(self, notification: Notification) -> None:
        self._peer.answer_looking(notification, self._vote, State.FOLLOWING)

    def on_client(self, end: End) -> None:
        if self._serving is None:
            end.close()
        else:
            self._serving.accept(end)

    def on_learner(self, end: End) -> None:
        end.close()

    async def _connect(self) -> None:
        peer = self._peer
        host = peer.members.servers[self._vote.server].host.name
        limit_s = peer.settings.tick_s * peer.settings.sync_limit
        for _ in range(TRIES):
            try:
                end = await dial(peer.fabric, peer.process, host, QUORUM_PORT, limit_s)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            self._end = end
            end.on_message, end.on_closed = self._on_message, self._on_closed
            end.send(FollowerInfo(peer.number, peer.database.accepted_epoch))
            return
        self._give_up("its leader cannot be reached")

    def _watch(self) -> None:
        """Start an election if the leader was silent for ``_patience_s``; otherwise arm the timer again."""
        left_s = self._heard_s + self._patience_s - self._peer.loop.time()
        if left_s <= 0:
            self._give_up("its leader is silent")
        else:
            self._watchdog = self._peer.later(left_s + 0.001, self._watch)

    def _give_up(self, reason: str) -> None:
        if not self._ended:
            self._peer.elect(reason)

    def _on_closed(self) -> None:
        self._give_up("its leader closed the connection")

    # ---- messages of the leader

    def _on_message(self, message: Any) -> None:
        if self._ended:
            return
        self._heard_s = self._peer.loop.time()
        match message:
            case Propose(transaction):
                self._pending[transaction.zxid] = transaction
                self._peer.journal.write(transaction, self._on_synced)
            case Commit(zxid):
                self._on_commit(self._pending.pop(zxid))
            case Revalidated(request, timeout_ms):
                if self._serving is not None:
                    self._serving.on_revalidated(request, timeout_ms)
            case Ping():
                touched, self._touched = tuple(self._touched), {}
                self._tell(PingReply(touched))
            case _:
                self._join(message)

    def _join(self, message: Any) -> None:
        """Handle the messages with which a leader brings a new follower up to date."""
        database = self._peer.database
        match message:
            case LeaderInfo(epoch):
                if epoch < database.accepted_epoch:
                    self._give_up("its leader has an old epoch")
                    return
                fresh = epoch > database.accepted_epoch
                database.accepted_epoch = epoch
                self._tell(AckEpoch(database.current_epoch, database.last_zxid, fresh))
            case Synchronise():
                self._synchronise = message
            case NewLeader(epoch):
                assert self._synchronise is not None
                self._take(self._synchronise)
                database.current_epoch = epoch
                low, high = self._peer.settings.fsync_ms
                self._peer.later(
                    self._peer.chance.uniform(low, high) / 1000, lambda: self._tell(AckNewLeader())
                )
            case UpToDate():
                self._patience_s = self._peer.settings.tick_s * self._peer.settings.sync_limit
                self._peer.note(f"follows {self._vote.server} at {database.tree.zxid:x}")
                self._serving = Serving(self._peer, self)
                if self._watchdog is not None:
                    self._watchdog.cancel()
                self._watch()
            case _:
                raise AssertionError(f"a leader does not say {message}")

    def _take(self, synchronise: Synchronise) -> None:
        database = self._peer.database
        if synchronise.snapshot is not None:
            database.replace(synchronise.snapshot.copy())
        else:
            database.truncate(synchronise.truncate_to)
        database.extend(synchronise.transactions)

    def _on_synced(self, zxid: int) -> None:
        if not self._ended:
            self._tell(Ack(zxid))

    def _on_commit(self, transaction: Transaction) -> None:
        if self._serving is not None:
            self._serving.commit(transaction)
        else:  # not yet notified that it is up to date
            self._peer.database.apply(transaction)

    # ---- requests of its clients

    def submit(self, session: int, operation: Operation, origin: Origin) -> None:
        self._tell(Forward(session, operation, origin))

    def revalidate(self, session: int, request: int) -> None:
        self._tell(Revalidate(session, request))

    def touch(self, session: int) -> None:
        self._touched[session] = None

    def check(self, session: int) -> None:
        """Accept every session: only the leader checks them."""

    def _tell(self, message: object) -> None:
        if self._end is not None and not self._ended:
            self._end.send(message)


# Leader election: each server votes for the one with the newest log; after a pause, a majority decides.

FINALIZE_S = 0.2
"""Seconds to wait for a better vote once a majority agrees."""
REPEAT_S = (0.2, 5.0)
"""Seconds between two broadcasts of the own vote: the first pause, which doubles, and the longest."""


class Looking:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._own = Vote(peer.database.current_epoch, peer.database.last_zxid, peer.number)
        self._vote = self._own
        self._votes: dict[int, Vote] = {}
        self._settled: dict[int, Notification] = {}
        """By server, the last notification of each server that leads or follows."""
        self._decides: asyncio.TimerHandle | None = None
        self._repeats: asyncio.TimerHandle | None = None
        self._pause_s = REPEAT_S[0]

    def begin(self) -> None:
        self._peer.round += 1
        self._votes = {self._peer.number: self._vote}
        self._say()
        self._repeat()
        self._count()

    def end(self) -> None:
        for timer in (self._decides, self._repeats):
            if timer is not None:
                timer.cancel()

    def on_client(self, end: End) -> None:
        end.close()  # not serving

    def on_learner(self, end: End) -> None:
        end.close()

    def on_notification(self, notification: Notification) -> None:
        if notification.state is State.LOOKING:
            self._on_looking(notification)
        else:
            self._on_settled(notification)

    def _on_looking(self, notification: Notification) -> None:
        peer = self._peer
        if notification.round < peer.round:
            self._say_to(notification.sender)
            return
        if notification.round > peer.round:
            peer.round = notification.round
            self._votes = {}
            self._change(max(notification.vote, self._own))
        elif notification.vote > self._vote:
            self._change(notification.vote)
        self._votes[notification.sender] = notification.vote
        self._count()

    def _on_settled(self, notification: Notification) -> None:
        self._settled[notification.sender] = notification
        vote = notification.vote
        agreed = [each for each in self._settled.values() if each.vote.server == vote.server]
        leads = self._settled.get(vote.server)
        if len(agreed) < self._peer.members.quorum or leads is None or leads.state is not State.LEADING:
            return
        self._peer.round = notification.round
        self._peer.settle(leads.vote)

    def _change(self, vote: Vote) -> None:
        self._vote = vote
        self._votes[self._peer.number] = vote
        self._say()

    def _count(self) -> None:
        """Start the timer that ends the election if a majority has the same vote as this server.

        A new vote in the meantime restarts the count.
        """
        if self._decides is not None:
            self._decides.cancel()
            self._decides = None
        if sum(vote == self._vote for vote in self._votes.values()) >= self._peer.members.quorum:
            self._decides = self._peer.later(FINALIZE_S, lambda: self._peer.settle(self._vote))

    def _repeat(self) -> None:
        def again() -> None:
            self._say()
            self._repeat()

        self._repeats = self._peer.later(self._pause_s, again)
        self._pause_s = min(2 * self._pause_s, REPEAT_S[1])

    def _say(self) -> None:
        for server in self._peer.members.servers:
            if server != self._peer.number:
                self._say_to(server)

    def _say_to(self, server: int) -> None:
        peer = self._peer
        peer.notify(server, Notification(peer.number, peer.round, self._vote, State.LOOKING))
