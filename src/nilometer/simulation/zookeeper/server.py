"""One server of the ensemble: a process that looks for a leader, follows one, or leads.

Invariants: a server has one role at a time; a transaction that it acknowledged to its leader is on its disk;
a change of role closes every connection of its clients.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Process, World
from nilometer.simulation.zookeeper.messages import End, ListeningPort, Notification, State, Vote
from nilometer.simulation.zookeeper.tree import Database, Transaction

CLIENT_PORT = 2181
QUORUM_PORT = 2888


class Settings(msgspec.Struct, frozen=True):
    """The ensemble's settings, named as in ZooKeeper's configuration."""

    tick_ms: int = 2000
    init_limit: int = 10
    sync_limit: int = 5
    min_session_timeout_ms: int = 0
    """0 means two ticks."""
    max_session_timeout_ms: int = 0
    """0 means twenty ticks."""
    fsync_ms: tuple[float, float] = (0.3, 3.0)

    @property
    def tick_s(self) -> float:
        return self.tick_ms / 1000

    def negotiated_ms(self, asked_ms: int) -> int:
        least = self.min_session_timeout_ms or 2 * self.tick_ms
        most = self.max_session_timeout_ms or 20 * self.tick_ms
        return min(max(asked_ms, least), most)


class Role(Protocol):
    def begin(self) -> None: ...

    def on_notification(self, notification: Notification) -> None: ...

    def on_client(self, end: End) -> None: ...

    def on_learner(self, end: End) -> None: ...

    def end(self) -> None: ...


class Roles(NamedTuple):
    """What makes each role of a server."""

    looking: Callable[[Peer], Role]
    following: Callable[[Peer, Vote], Role]
    leading: Callable[[Peer, Vote], Role]


@dataclass(slots=True)
class Members:
    """The servers of the ensemble by number, their settings, and the roles that they take."""

    settings: Settings
    roles: Roles
    servers: dict[int, Server] = field(default_factory=dict[int, "Server"])

    @property
    def quorum(self) -> int:
        return len(self.servers) // 2 + 1


class Server:
    """A server across restarts: its host, its disk, and its current process, if it runs."""

    def __init__(self, world: World, members: Members, number: int, host: Host) -> None:
        self.world = world
        self.members = members
        self.number = number
        self.host = host
        self.name = host.name
        self.database = Database()
        self.process: Process | None = None
        self.peer: Peer | None = None
        self.requests = itertools.count(1)
        """Numbers for waiting requests.

        They are unique across restarts, so an outcome reaches no other one.
        """
        self.lag_s = 0.0
        """Seconds by which it delays the application of committed transactions."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if not self.is_running:
            self.process = self.host.start(self.name, self._main)

    def kill(self) -> None:
        self.peer = None
        if self.process is not None and self.process.alive:
            self.process.crash()

    def pause(self) -> None:
        """Stop the process without ending it, as SIGSTOP does."""
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        """Continue a paused process.

        In half of the cases its overdue timers run before the messages that came meanwhile: threads race.
        """
        if self.process is not None and self.process.paused:
            if self.world.chance.random() < 0.5:
                self.process.held.sort(key=lambda callback: callback.time == 0.0)
            self.process.resume()

    def on_notification(self, notification: Notification) -> None:
        if self.peer is not None:
            self.peer.on_notification(notification)

    async def _main(self, runtime: Runtime) -> None:
        assert self.process is not None
        self.database.load()
        self.peer = Peer(self, self.process)
        self.peer.elect("it starts")
        await asyncio.get_running_loop().create_future()


class Peer:
    """One process of a server: the state that its successive roles share."""

    def __init__(self, server: Server, process: Process) -> None:
        self.server = server
        self.number = server.number
        self.process = process
        self.members = server.members
        self.settings = server.members.settings
        self.fabric = server.world.network
        self.loop = server.world.loop
        self.chance = server.world.chance
        self.database = server.database
        self.journal = Journal(self)
        self.round = 0
        self.role: Role | None = None
        ListeningPort(self.fabric, process, CLIENT_PORT, self._on_client)

    def note(self, what: str) -> None:
        self.server.world.trace.note(self.server.name, what)

    def later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, callback)

    # ---- roles

    def elect(self, reason: str) -> None:
        """Leave the current role and start an election. ``reason`` is for the trace."""
        self.note(f"looks for a leader: {reason}")
        self._leave()
        self._enter(self.members.roles.looking(self))

    def settle(self, vote: Vote) -> None:
        """End the election, which ``vote`` won: lead if it names this server, else follow."""
        self._leave()
        roles = self.members.roles
        role = roles.leading if vote.server == self.number else roles.following
        self._enter(role(self, vote))

    def _leave(self) -> None:
        if self.role is not None:
            self.role.end()
        self.journal.flush()
        self.database.fast_forward()

    def _enter(self, role: Role) -> None:
        self.role = role
        role.begin()

    # ---- messages

    def notify(self, server: int, notification: Notification) -> None:
        """Send one election message to ``server``; it is lost if the link is cut."""
        target = self.members.servers[server]
        source = self.server.host.name
        if not self.fabric.is_cut(source, target.host.name) and target.process is not None:
            delay = self.fabric.delay(source, target.host.name)
            self.loop.in_process(delay, target.process, target.on_notification, notification)

    def on_notification(self, notification: Notification) -> None:
        if self.role is not None:
            self.role.on_notification(notification)

    def answer_looking(self, notification: Notification, vote: Vote, state: State) -> None:
        """Send ``vote``, which names the current leader, to the sender if it looks for a leader."""
        if notification.state is State.LOOKING:
            self.notify(notification.sender, Notification(self.number, self.round, vote, state))

    def open_to_learners(self) -> ListeningPort:
        """Listen for followers, as only a leader does; a follower that connects too early has to retry."""
        return ListeningPort(self.fabric, self.process, QUORUM_PORT, self._on_learner)

    def _on_client(self, end: End) -> None:
        assert self.role is not None
        self.role.on_client(end)

    def _on_learner(self, end: End) -> None:
        assert self.role is not None
        self.role.on_learner(end)


class Journal:
    """Writes proposals to the disk, many with one sync, and calls back when they are synced."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._waiting: list[tuple[Transaction, Callable[[int], None]]] = []
        self._busy = False
        self._flushes = 0

    def write(self, transaction: Transaction, when_synced: Callable[[int], None]) -> None:
        self._peer.database.write(transaction)
        self._waiting.append((transaction, when_synced))
        if not self._busy:
            self._sync()

    def _sync(self) -> None:
        low, high = self._peer.settings.fsync_ms
        batch, self._waiting = self._waiting, []
        self._busy = True
        flushes = self._flushes
        self._peer.later(self._peer.chance.uniform(low, high) / 1000, lambda: self._on_synced(batch, flushes))

    def _on_synced(self, batch: list[tuple[Transaction, Callable[[int], None]]], flushes: int) -> None:
        if flushes != self._flushes:
            return
        self._busy = False
        self._peer.database.synced_to(batch[-1][0].zxid)
        for transaction, when_synced in batch:
            when_synced(transaction.zxid)
        if self._waiting:
            self._sync()

    def flush(self) -> None:
        """Drop all callbacks, also of the sync under way; the caller counts all transactions as synced."""
        self._waiting.clear()
        self._busy = False
        self._flushes += 1
