"""The metadata quorum of a simulated cluster: three voters, in the processes of the brokers with their ids.

A voter starts and ends with its broker's process and machine. Its log is in a metadata log directory of its
own, ``/metadata/ID``, on the broker's disk: a broker that is killed loses what is not synced there, more than
a real one. Other brokers are observers. Where a broker has been removed for ever, its voter goes on as a
process of its own, as a node with ``process.roles=controller`` would.

A voter whose disk was lost comes back as an observer, with another directory id. An operator then replaces
it: the former voter is removed from the quorum, and the new one added.

Three parts: :class:`QuorumLedger` checks what the nodes promise; the nodes ask each other by frames over the
simulated network (:class:`SimulatedPeers`); :class:`QuorumVoters` starts, kills and replaces them.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import pickle
import random
import struct
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, cast

import msgspec

from nilometer.cluster.image import ClusterImage
from nilometer.coordination.quorum.commands import Append, AppliedState, Command, End, Outcome, encode
from nilometer.coordination.quorum.node import SNAPSHOT_BYTES, OnApplied, QuorumNode
from nilometer.coordination.quorum.peers import Fetched, PeerUnavailable, Request
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import CoordinationError, OutcomeUnknown, SessionName, StoreUnavailable
from nilometer.identifiers import BrokerId, LeaderEpoch, Offset
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica, QuorumStopped, Turn
from nilometer.raft.exchange import BeginEpochRequest, ChangeRefused, Timing
from nilometer.raft.leading import Leading
from nilometer.raft.quorum_state import claim, identify
from nilometer.raft.recovery import METADATA_LOG, format_folder
from nilometer.raft.voters import VoterKey
from nilometer.replication.epochs import NO_DIVERGENCE
from nilometer.runtime import Disk, Listener, Runtime
from nilometer.simulation.world import Host, Process, World
from nilometer.storage.directories.log_directory import MetaProperties, new_directory_id
from nilometer.storage.errors import LogFenced

# Whether the metadata quorum keeps what it has promised. The invariants, from what its nodes do and say:
#
# - *state-machine safety*: every node applies the same command at an offset, with the same outcome, in the
#   order of offsets; also after restarts;
# - *one leader an epoch*;
# - *an acknowledged append is in the log, under its number; a refused one never is* (ONE_WINNER,
#   FALSE_IS_FINAL), whatever has been lost meanwhile;
# - *one controller an epoch*: no two sessions have entries that count in one epoch of the controllership;
# - *a node stops for its disk's errors alone*: never for a broken invariant, or for damage.

VIOLATIONS_MAX = 20


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12).digest()


class QuorumLedger:
    """Checks a metadata quorum: that all its nodes apply the same commands, and an epoch has one leader.

    ``violations`` are the findings; ``applied`` and ``epochs`` are how much was checked.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._commands: dict[Offset, tuple[bytes, Outcome]] = {}
        self._applied_by: dict[str, Offset] = {}
        """The last offset that a process has applied."""
        self._leaders: dict[LeaderEpoch, int] = {}
        self._entries: dict[int, bytes] = {}
        """The digest of each entry, by its number, as the commands make them."""
        self._appended: dict[int, bytes] = {}
        """Of the acknowledged appends."""
        self._refused: set[tuple[int, bytes]] = set()
        self._unknown: set[tuple[int, bytes]] = set()
        """Those that may be there although the same entry is refused when it is sent again."""
        self._controllers: dict[int, tuple[int, str]] = {}
        """By controller epoch, the broker and the incarnation whose entries were applied."""
        self._stopped: set[tuple[int, str]] = set()
        self.violations: list[str] = []

    @property
    def epochs(self) -> int:
        """How many epochs had a leader that was seen."""
        return len(self._leaders)

    @property
    def applied(self) -> int:
        return len(self._commands)

    def on_applied(self, owner: str, offset: Offset, command: Command, outcome: Outcome) -> None:
        last = self._applied_by.get(owner)
        if last is not None and offset <= last:
            self._note(f"{owner} applies offset {offset} after {last}")
        self._applied_by[owner] = offset
        made = _digest(encode(command)), outcome
        known = self._commands.setdefault(offset, made)
        if known != made:
            self._note(f"{owner} applies another command, or with another outcome, at offset {offset}")
        elif isinstance(command, Append) and outcome is Outcome.DONE:
            self._on_entry(command.number, command.data)

    def _on_entry(self, number: int, data: bytes) -> None:
        digest = _digest(data)
        known = self._entries.setdefault(number, digest)
        if known != digest:
            self._note(f"entry {number} of the metadata was given twice")

    def on_answered(self, number: int, data: bytes, is_appended: bool) -> None:
        """An append was acknowledged, or refused for good."""
        if is_appended:
            known = self._appended.setdefault(number, _digest(data))
            if known != _digest(data):
                self._note(f"entry {number} of the metadata was acknowledged to two writers")
        else:
            self._refused.add((number, _digest(data)))

    def on_unknown(self, number: int, data: bytes) -> None:
        """An append had no outcome that its writer learned."""
        self._unknown.add((number, _digest(data)))

    def on_leader(self, node_id: int, epoch: LeaderEpoch) -> None:
        known = self._leaders.setdefault(epoch, node_id)
        if known != node_id:
            self._note(f"nodes {known} and {node_id} both lead epoch {epoch}")

    def on_controller(self, epoch: int, broker_id: int, incarnation: str) -> None:
        """A broker's image has applied entries of this controller."""
        known = self._controllers.setdefault(epoch, (broker_id, incarnation))
        if known != (broker_id, incarnation):
            self._note(f"entries of brokers {known[0]} and {broker_id} count in controller epoch {epoch}")

    def on_stopped(self, node_id: int, failure: Exception) -> None:
        cause: BaseException = failure.reason if isinstance(failure, QuorumStopped) else failure
        text = f"node {node_id} has stopped: {cause!r}"
        is_expected = isinstance(cause, OSError | LogFenced | StoreUnavailable)
        if not is_expected and (node_id, text) not in self._stopped:
            self._stopped.add((node_id, text))
            self._note(text)

    def judge(self, state: AppliedState) -> list[str]:
        """Compare what was acknowledged with what is there, at rest."""
        found = {
            entry.number: entry.data
            for entry in state.entries(state.first_number, state.next_number, 1 << 40)
        }
        wrong: list[str] = []
        for number, digest in self._appended.items():
            if number >= state.first_number and (number not in found or _digest(found[number]) != digest):
                wrong.append(f"quorum: entry {number} was acknowledged, and is not there")
        for number, digest in sorted(self._refused - self._unknown):
            if number in found and _digest(found[number]) == digest:
                wrong.append(f"quorum: entry {number} was refused, and is there")
        return wrong[:VIOLATIONS_MAX]

    def _note(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"quorum: at {self._now():.3f} s {what}")


# How the nodes of a simulated metadata quorum ask each other: by frames over the connections of the
# simulated network. A cut, slow or reset link does to them what it does to the brokers' other connections.
#
# A frame is a length, and a pickled value: requests and responses are the structs of the product. The real
# wire has Kafka's messages instead.
#
# Invariants: a response belongs to one request, by its number; a request that is not answered in time ends
# its connection, as Kafka's client does, so that a later response is not read.

REQUEST_TIMEOUT_S = 2.0
"""``controller.quorum.request.timeout.ms``."""
_LENGTH = struct.Struct(">I")
Serve = Callable[[Request], Awaitable[Any]]


class _Frames(asyncio.Protocol):
    """One end of a connection."""

    def __init__(self) -> None:
        self._received = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received)
            end = _LENGTH.size + length
            if len(received) < end:
                return
            frame = pickle.loads(bytes(received[_LENGTH.size : end]))
            del received[:end]
            self.on_frame(frame)

    def on_frame(self, frame: Any) -> None:
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(self, frame: Any) -> None:
        """Send it, if the connection is still open."""
        if self.transport is not None and self.is_open:
            data = pickle.dumps(frame)
            self.transport.write(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Served(_Frames):
    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self._serve = serve
        self._answering: set[asyncio.Task[None]] = set()

    def on_frame(self, frame: Any) -> None:
        task = asyncio.create_task(self._answer(*frame))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what was asked on it, as the listener of a real controller does."""
        super().connection_lost(exc)
        for task in self._answering:
            task.cancel()

    async def _answer(self, number: int, request: Request) -> None:
        try:
            response = await self._serve(request)
        except PeerUnavailable as error:
            self.send((number, None, str(error)))
        else:
            self.send((number, response, None))


def _read(response: Any) -> Any:
    """Return the response as its sender had it: the product knows NO_DIVERGENCE by its identity."""
    if isinstance(response, Fetched) and response.response.diverging == NO_DIVERGENCE:
        return response._replace(response=response.response._replace(diverging=NO_DIVERGENCE))
    return response


class _Asking(_Frames):
    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}

    def on_frame(self, frame: Any) -> None:
        number, response, error = frame
        future = self._open.pop(number, None)
        if future is not None and not future.done():
            if error is None:
                future.set_result(_read(response))
            else:
                future.set_exception(PeerUnavailable(error))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        still_open, self._open = self._open, {}
        for future in still_open.values():
            if not future.done():
                future.set_exception(PeerUnavailable("the connection was lost"))

    async def ask(self, request: Request) -> Any:
        if not self.is_open:
            raise PeerUnavailable("the connection was lost")
        number = next(self._numbers)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        self.send((number, request))
        try:
            return await future
        finally:
            self._open.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # it is known, also if the request was given up at the same moment


class SimulatedPeers:
    """The other nodes, as one process reaches them; one connection to each."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._connections: dict[VoterKey, _Asking] = {}
        self._connecting: dict[VoterKey, asyncio.Lock] = {}

    async def ask(self, to: VoterEntry, request: Request) -> Any:
        connection: _Asking | None = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                connection = await self._connection(to)
                return await connection.ask(request)
        except TimeoutError as error:
            if connection is not None:
                connection.close()
            raise PeerUnavailable(f"{to.key} did not answer within {REQUEST_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise PeerUnavailable(f"{to.key} cannot be reached: {error}") from error

    async def _connection(self, to: VoterEntry) -> _Asking:
        async with self._connecting.setdefault(to.key, asyncio.Lock()):
            known = self._connections.get(to.key)
            if known is not None and known.is_open:
                return known
            (endpoint,) = to.endpoints
            made = await self._runtime.network.connect(_Asking, endpoint.host, endpoint.port)
            assert isinstance(made, _Asking)
            self._connections[to.key] = made
            return made


async def serve_peers(runtime: Runtime, port: int, serve: Serve) -> Listener:
    """Listen for the other nodes, and answer each request with what ``serve`` returns."""
    listener = await runtime.network.listen(lambda: _Served(serve), "", port)
    await listener.start()
    return listener


VOTERS = (1, 2, 3)
PORT = 9292
RESTART_S = 1.0
OPERATOR_S = 0.5
"""How often the operator looks for voters to replace."""


class QuorumPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The time-outs of the quorum, and of the brokers' sessions."""

    timing: Timing = Timing()
    session_timeout_ms: int = 6_000
    snapshot_bytes: int = SNAPSHOT_BYTES
    """A snapshot of the metadata log is made after so many bytes."""


class ObservedNode(QuorumNode):
    """A node that listens for the others, and whose ledger is told of what it applies."""

    def __init__(
        self,
        *args: Any,
        owner: str,
        ledger: QuorumLedger,
        port: int,
        endpoints: Callable[[BrokerId], tuple[Endpoint, ...]],
        **options: Any,
    ) -> None:
        """``endpoints``: where the node with an id listens; a leader says that of itself."""
        super().__init__(*args, **options)
        self._endpoints = endpoints
        self._owner = owner
        self._ledger = ledger
        self._port = port
        self._listener: Listener | None = None
        self.is_closed = False

    def listen(self, on_applied: OnApplied, on_changed: Any) -> None:
        def applied(offset: Offset, command: Command, outcome: Outcome) -> None:
            self._ledger.on_applied(self._owner, offset, command, outcome)
            on_applied(offset, command, outcome)

        super().listen(applied, on_changed)

    async def start(self) -> None:
        await super().start()
        self._listener = await serve_peers(self._runtime, self._port, self._serve_one)

    async def _serve_one(self, request: Request) -> Any:
        if isinstance(request, BeginEpochRequest):
            self.on_announced(request, self._endpoints(request.leader))
        return await self.serve(request)

    async def close(self) -> None:
        self.is_closed = True
        await super().close()
        if self._listener is not None:
            self._listener.close()


class ObservedStore(QuorumStore):
    """A store whose acknowledged and refused appends are noted."""

    def __init__(self, runtime: Runtime, node: ObservedNode, ledger: QuorumLedger, timeout_ms: int) -> None:
        super().__init__(runtime, node, session_timeout_ms=timeout_ms)
        self._ledger = ledger

    async def append(self, expected_next: int, entry: bytes) -> bool:
        try:
            is_appended = await super().append(expected_next, entry)
        except OutcomeUnknown:
            self._ledger.on_unknown(expected_next, entry)
            raise
        self._ledger.on_answered(expected_next, entry, is_appended)
        return is_appended


class Member(msgspec.Struct):
    """The newest process of a voter or an observer."""

    process: Process
    node: ObservedNode


class QuorumVoters:
    """The quorum of a cluster: a :class:`~nilometer.simulation.stores.ClusterStore`."""

    def __init__(self, world: World, plan: QuorumPlan, hosts: dict[int, Host]) -> None:
        """``hosts``: the machines of the voters."""
        self.plan = plan
        self.ledger = QuorumLedger(world.loop.time)
        self.members: dict[int, Member] = {}
        """By broker id."""
        self._world = world
        self._hosts = hosts
        self._chance = random.Random(f"{world.seed}/quorum")
        self._keys = {node_id: self._new_key(node_id) for node_id in hosts}
        self._first = [self._entry(node_id, key) for node_id, key in self._keys.items()]
        """The voters with which the quorum begins."""
        self._formatted: set[int] = set()
        self._wiped: set[int] = set()
        """The voters that have lost their disk, and have not been replaced yet."""
        self._ended_by_hand: set[SessionName] = set()
        self._alone: dict[int, Process] = {}
        """The processes of voters without a broker."""

    def _new_key(self, node_id: int) -> VoterKey:
        return VoterKey(BrokerId(node_id), new_directory_id(uuid.UUID(int=self._chance.getrandbits(128))))

    # ---- of every store

    def start(self) -> None:
        """Start the operator; the voters start with their brokers."""
        self._operate()

    def heal(self) -> None:
        """Start the voters that have no broker; the others are started with theirs."""
        for node_id in list(self._alone):
            self._start_alone(node_id)

    def of(self, process: Process, runtime: Runtime) -> QuorumStore:
        node_id = int(process.name.removeprefix("broker-"))
        node = self._node(node_id, process, runtime)
        return ObservedStore(runtime, node, self.ledger, self.plan.session_timeout_ms)

    def expire_session(self, broker_id: int) -> None:
        state, leader = self.state, self.leader
        live = None if state is None else state.session_of(broker_id)
        if live is None or leader is None:
            return
        name = SessionName(broker_id, live.incarnation)
        self._ended_by_hand.add(name)

        async def end() -> None:
            try:
                await leader.node.propose(End(name))
            except CoordinationError as error:
                self._world.trace.note("quorum", f"session {name} is perhaps not ended: {error}")

        self._world.loop.in_process(0.0, leader.process, lambda: self._world.loop.create_task(end()))

    def entries(self) -> list[tuple[int, bytes]] | None:
        state = self.state
        if state is None:
            return []
        if state.snapshot is not None:
            return None
        found = state.entries(0, state.next_number, 1 << 40)
        return [(entry.number, entry.data) for entry in found]

    def entry_count(self) -> int:
        return 0 if self.state is None else self.state.next_number

    def holds_ended_session(self, broker_id: int, incarnation: int) -> bool:
        name = SessionName(broker_id, incarnation)
        return name not in self._ended_by_hand and self.state is not None and not self.state.is_live(name)

    # ---- of the quorum

    @property
    def state(self) -> AppliedState | None:
        """What the node that has applied most has applied: all of it is committed."""
        nodes = [member.node for member in self.members.values()]
        newest = max(nodes, key=lambda node: node.applied, default=None)
        return None if newest is None else newest.state

    @property
    def running(self) -> Iterator[tuple[int, Member]]:
        return ((node_id, each) for node_id, each in sorted(self.members.items()) if each.process.alive)

    @property
    def leader(self) -> Member | None:
        """The leader of the newest epoch that is alive."""
        leaders = [member for _, member in self.running if member.node.leads]
        return max(leaders, key=lambda member: member.node.epoch, default=None)

    @property
    def leader_id(self) -> int | None:
        leader = self.leader
        return None if leader is None else leader.node.replica.core.key.node_id

    def look(self, images: Iterable[ClusterImage]) -> None:
        """Check who leads, whose entries the brokers' ``images`` have applied, and why nodes have stopped."""
        for image in images:
            of = image.controllership
            self.ledger.on_controller(of.controller_epoch, of.controller_id, of.incarnation)
        for node_id, member in self.running:
            node = member.node
            if node.leads:
                self.ledger.on_leader(node_id, node.epoch)
            if node.failure is not None and not node.is_closed:
                self.ledger.on_stopped(node_id, node.failure)

    def not_converged(self) -> list[str]:
        """Return why the quorum is not at rest: no leader that commits, or members that lag behind."""
        leader = self.leader
        if leader is None:
            return ["the metadata quorum has no leader"]
        committed = leader.node.replica.high_watermark
        behind = [
            f"node {node_id} has applied {member.node.applied} of {committed} offsets of the metadata log"
            for node_id, member in self.running
            if member.node.applied < committed and member.node.failure is None
        ]
        role = leader.node.replica.core.role
        if isinstance(role, Leading) and committed <= role.epoch_start:
            behind.append(f"the leader of epoch {leader.node.epoch} of the quorum has committed nothing")
        return behind + [f"voter {node_id}, which lost its disk, is not replaced" for node_id in self._wiped]

    def judge(self) -> list[str]:
        """Return what is wrong at rest."""
        state = self.state
        return self.ledger.violations + ([] if state is None else self.ledger.judge(state))

    # ---- voters that lose their disk

    def may_wipe(self, node_id: int) -> bool:
        """Return whether a voter may lose its disk: the others have all that is committed."""
        return node_id in self._keys and node_id not in self._alone and not self._wiped

    @property
    def is_replacing(self) -> bool:
        """Whether a voter that lost its disk is not replaced yet."""
        return bool(self._wiped)

    def wipe(self, node_id: int, host: Host) -> None:
        """Remove the metadata log directory of a voter, whose process is dead."""
        self._world.trace.note("quorum", f"voter {self._keys[node_id]} loses its disk")
        host.disk.wipe(_directory(node_id))
        self._formatted.discard(node_id)
        self._wiped.add(node_id)

    def _operate(self) -> None:
        """Replace voters that came back without their log; look again soon."""
        for node_id in sorted(self._wiped):
            member, leader = self.members[node_id], self.leader
            if member.process.alive and leader is not None and node_id in self._formatted:
                self._replace(node_id, member.node.replica.core.key, leader)
        if not self._world.is_over:
            self._world.loop.in_process(OPERATOR_S, None, self._operate)

    def _replace(self, node_id: int, new: VoterKey, leader: Member) -> None:
        old, replica = self._keys[node_id], leader.node.replica
        voters = replica.core.voters
        change: Callable[[], ChangeRefused | Turn[None]]
        if new == old or (new in voters.latest and voters.latest_offset < replica.high_watermark):
            self._world.trace.note("quorum", f"voter {new} takes the place of {old}")
            self._keys[node_id] = new
            self._wiped.discard(node_id)
            return
        if old in voters.latest:
            change = partial(replica.remove_voter, old)
        else:
            change = partial(replica.add_voter, self._entry(node_id, new))
        node = leader.node

        async def make() -> None:
            with suppress(QuorumStopped):
                await node.change_voters(change)

        self._world.loop.in_process(0.0, leader.process, lambda: self._world.loop.create_task(make()))

    # ---- processes

    def on_crash(self, node_id: int, host: Host) -> None:
        """The broker's process was killed: what it has not synced of its metadata log may be lost, too."""
        if host.up:
            host.disk.lose_unsynced(_directory(node_id))

    def on_removed(self, node_id: int) -> None:
        """The broker has been removed for ever: its voter goes on alone."""
        if node_id in self._keys:
            self._start_alone(node_id)

    def on_power(self, host: Host) -> None:
        for node_id in [one for one in self._alone if self._hosts[one] is host]:
            self._start_alone(node_id)

    def _start_alone(self, node_id: int) -> None:
        host = self._hosts[node_id]
        running = self._alone.get(node_id)
        if not host.up or (running is not None and running.alive):
            return

        async def main(runtime: Runtime) -> None:
            node = self._node(node_id, process, runtime)
            node.listen(lambda _offset, _command, _outcome: None, lambda: None)
            await node.start()
            while node.failure is None:
                await node.wait_change()
            await node.close()

        process = self._alone[node_id] = host.start(f"voter-{node_id}", main)
        process.exited.add_done_callback(
            lambda _: self._world.loop.in_process(RESTART_S, None, partial(self._start_again, node_id))
        )

    def _start_again(self, node_id: int) -> None:
        if not self._world.is_over:
            self._start_alone(node_id)

    def _node(self, node_id: int, process: Process, runtime: Runtime) -> ObservedNode:
        """Open the folder of a node. Raises OSError, CorruptCheckpoint, QuorumDamaged."""
        directory, folder = _directory(node_id), f"{_directory(node_id)}/{METADATA_LOG}"
        if node_id not in self._formatted:
            self._format(runtime, node_id, directory, folder)
            self._formatted.add(node_id)
        key = identify(runtime.disk, directory, BrokerId(node_id), None, runtime.entropy.uuid())
        replica = DurableReplica.open(runtime, folder, key, timing=self.plan.timing)
        node = ObservedNode(
            runtime,
            replica,
            SimulatedPeers(runtime),
            session_timeout_ms=self.plan.session_timeout_ms,
            snapshot_bytes=self.plan.snapshot_bytes,
            owner=f"{process.name} ({process.pid})",
            ledger=self.ledger,
            port=PORT + node_id,
            endpoints=self._endpoints_of,
        )
        self.members[node_id] = Member(process, node)
        return node

    def _format(self, runtime: Runtime, node_id: int, directory: str, folder: str) -> None:
        """Make the folder of a node, as an operator does: a voter's with the id that the others know."""
        disk = runtime.disk
        if disk.exists(folder):
            disk.remove_tree(folder)  # the first attempt failed
        _make_durable(disk, directory)
        key = self._keys.get(node_id)
        if key is not None and node_id not in self._wiped:
            claim(disk, directory, MetaProperties(BrokerId(node_id), None, key.directory_id))
        else:
            identify(disk, directory, BrokerId(node_id), None, runtime.entropy.uuid())
        format_folder(disk, folder, self._first, runtime.clock.wall_ms())

    def _entry(self, node_id: int, key: VoterKey) -> VoterEntry:
        return VoterEntry(key, self._endpoints_of(node_id))

    def _endpoints_of(self, node_id: int) -> tuple[Endpoint, ...]:
        return (Endpoint("CONTROLLER", self._hosts[node_id].name, PORT + node_id),)


def _directory(node_id: int) -> str:
    return f"/metadata/{node_id}"


def _make_durable(disk: Disk, directory: str) -> None:
    disk.make_directories(directory)
    for path in (directory, "/metadata", "/"):
        disk.sync_directory(path)
