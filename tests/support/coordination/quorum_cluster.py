"""Members of a coordination store in a metadata quorum, in a simulation: three voters on their own machines,
and the members, which are observers. Time is virtual; messages take a while, and may be cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from nilometer.coordination.quorum.node import OnApplied, QuorumNode
from nilometer.coordination.quorum.peers import PeerRefused, PeerUnavailable, Request
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica
from nilometer.raft.exchange import Timing
from nilometer.raft.quorum_state import identify
from nilometer.raft.recovery import METADATA_LOG, format_folder
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Process, World
from nilometer.storage.names import LOG_SUFFIX
from support.coordination.virtual_cluster import VirtualAgent, VirtualMember

DIRECTORY = "/metadata"
FOLDER = f"{DIRECTORY}/{METADATA_LOG}"
VOTERS = (101, 102, 103)
TIMING = Timing(election_ms=200, fetch_ms=400, resend_ms=100)
ANSWER_S = 2.0
DELAY_S = 0.002


class QuorumAgent(VirtualAgent):
    """Its reads show all that was appended before: they sync first, as callers of the store do."""

    async def read(self, first: int, limit: int) -> list[tuple[int, str]]:
        await self.store.sync()
        return await super().read(first, limit)


class Wire:
    """Passes requests between the nodes of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.nodes: dict[VoterKey, tuple[Process, QuorumNode]] = {}
        self.serving: set[asyncio.Task[None]] = set()
        self.cut: set[frozenset[int]] = set()
        """Pairs of node ids that do not reach each other."""

    def peers_of(self, key: VoterKey) -> Peers:
        return Peers(self, self._world, key)


class Peers:
    def __init__(self, wire: Wire, world: World, own: VoterKey) -> None:
        self._wire = wire
        self._world = world
        self._own = own

    async def ask(self, to: VoterEntry, request: Request) -> Any:
        await asyncio.sleep(self._world.chance.uniform(0, DELAY_S))
        found = self._wire.nodes.get(to.key)
        if self._is_cut(to.key):
            raise PeerUnavailable(f"{to.key} is cut off")
        if found is None or not found[0].alive:
            raise PeerRefused(f"{to.key} is down")
        process, node = found
        answer: asyncio.Future[Any] = self._world.loop.create_future()

        async def serve() -> None:
            try:
                response = await node.serve(request)
            except PeerUnavailable as error:
                if not answer.done():
                    answer.set_exception(error)
                return
            if not answer.done():
                answer.set_result(response)

        def begin() -> None:
            task = self._world.loop.create_task(serve())
            self._wire.serving.add(task)
            task.add_done_callback(self._wire.serving.discard)

        self._world.loop.in_process(0.0, process, begin)
        try:
            async with asyncio.timeout(ANSWER_S):
                response = await answer
        except TimeoutError as error:
            raise PeerUnavailable(f"no answer of {to.key}") from error
        await asyncio.sleep(self._world.chance.uniform(0, DELAY_S))
        if self._is_cut(to.key):
            raise PeerUnavailable(f"{to.key} was cut off")
        return response

    def _is_cut(self, other: VoterKey) -> bool:
        return frozenset((self._own.node_id, other.node_id)) in self._wire.cut


class QuorumCluster:
    """Starts members of one store in a virtual quorum, each on its own virtual machine."""

    kind = "quorum"

    def __init__(self, seed: int, session_timeout_ms: int = 1500) -> None:
        self.world = World(seed)
        self.wire = Wire(self.world)
        self.session_timeout_ms = session_timeout_ms
        self.hosts: dict[int, Host] = {node: self.world.host(f"voter-{node}") for node in VOTERS}
        self.on_applied: OnApplied = lambda _offset, _command, _outcome: None
        """Told of what each voter applies."""
        self.stores: list[QuorumStore] = []
        self.processes: dict[int, Process] = {}
        """Of the voters, the last ones."""
        self._entries: list[VoterEntry] = []
        self._members = 0

    async def start(
        self, broker_id: int | None = None, *, opened: bool = True, cluster_id: str | None = None
    ) -> VirtualMember:
        self._members += 1
        host = self.world.host(f"machine-{self._members}")
        made: asyncio.Future[VirtualMember] = self.world.loop.create_future()

        async def main(runtime: Runtime) -> None:
            node = await self._node(runtime, process, self._members)
            store = QuorumStore(
                runtime, node, cluster_id=cluster_id, session_timeout_ms=self.session_timeout_ms
            )
            self.stores.append(store)
            agent = QuorumAgent(store)
            made.set_result(VirtualMember(self.world, process, agent))
            await self.world.loop.create_future()

        process = host.start(f"member-{self._members}", main)
        member = await made
        if opened:
            await member.call("open")
        if broker_id is not None:
            await member.call("register", broker_id, f"payload of {broker_id}")
        return member

    async def _node(self, runtime: Runtime, process: Process, node_id: int) -> QuorumNode:
        """Return a node that is not started: a voter if its folder says so, else an observer."""
        key = identify(runtime.disk, DIRECTORY, node_id, "cluster", runtime.entropy.uuid())
        is_new = not any(name.endswith(LOG_SUFFIX) for name in runtime.disk.list_directory(FOLDER))
        if is_new and self._entries:
            format_folder(runtime.disk, FOLDER, self._entries, runtime.clock.wall_ms())
        replica = DurableReplica.open(runtime, FOLDER, key, timing=TIMING)
        node = QuorumNode(
            runtime, replica, self.wire.peers_of(key), session_timeout_ms=self.session_timeout_ms
        )
        self.wire.nodes[key] = (process, node)
        return node

    async def start_voter(self, node_id: int) -> Process:
        made: asyncio.Future[None] = self.world.loop.create_future()

        async def main(runtime: Runtime) -> None:
            node = await self._node(runtime, process, node_id)
            node.listen(self.on_applied, lambda: None)
            await node.start()
            made.set_result(None)
            await self.world.loop.create_future()

        process = self.processes[node_id] = self.hosts[node_id].start(f"voter-{node_id}", main)
        await made
        return process

    async def form(self) -> None:
        """Make the folders of the voters, as an operator does, and start them."""
        made: list[asyncio.Future[VoterKey]] = []

        async def identified(runtime: Runtime, node_id: int, done: asyncio.Future[VoterKey]) -> None:
            done.set_result(identify(runtime.disk, DIRECTORY, node_id, "cluster", runtime.entropy.uuid()))

        for node_id, host in self.hosts.items():
            done: asyncio.Future[VoterKey] = self.world.loop.create_future()
            made.append(done)
            host.start(f"format-{node_id}", partial(identified, node_id=node_id, done=done))
        keys = [await one for one in made]
        self._entries = [
            VoterEntry(key, (Endpoint("CONTROLLER", f"host-{key.node_id}", 9093),)) for key in keys
        ]
        for node_id in VOTERS:
            await self.start_voter(node_id)

    def run(self, scenario: Callable[[Any], Awaitable[None]]) -> None:
        async def with_quorum(_world: World) -> None:
            await self.form()
            await scenario(self)

        self.world.run(with_quorum)
        assert self.world.failures == []
