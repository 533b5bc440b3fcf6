"""Leader election: each server votes for the one with the newest log; after a pause, a majority decides."""

from __future__ import annotations

import asyncio

from nilometer.simulation.zookeeper.messages import End, Notification, State, Vote
from nilometer.simulation.zookeeper.server import Peer

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
