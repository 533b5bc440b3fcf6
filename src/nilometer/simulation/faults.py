"""Injecting the faults of a plan into a cluster: starting and ending each at its time, and healing all.

Faults may overlap. A fault beyond what the cluster promises to survive (power loss of too many machines) is
skipped, which the trace shows.

Invariant: after :meth:`FaultDriver.heal` no fault is active, except that of the last log directory.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.invariants import InvariantBroken
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.simulation.cluster import BrokerNode, Cluster, StoreFaults
from nilometer.simulation.disk import DiskUser, HostDisk
from nilometer.simulation.disk_faults import Damage, DiskFaults, damage_index, tear_checkpoint, tear_topic_id
from nilometer.simulation.fault_kinds import (
    LOG_DIR_KINDS,
    QUORUM_KINDS,
    WITH_OTHER,
    EnsembleKind,
    Fault,
    Kind,
)
from nilometer.simulation.network import Fabric
from nilometer.simulation.plan import Plan
from nilometer.simulation.quorum import VOTERS
from nilometer.simulation.stores import ZooKeeperServers
from nilometer.simulation.world import Host, Process
from nilometer.simulation.zookeeper.server import Server

# A fault: replicas that break an invariant at their next event, as a bug in their code would; and its
# checker.
#
# A real bug cannot be planned, so a role is changed to raise InvariantBroken. As for a real one, the broker
# must fence this replica at once and continue with the others.

SETTLE_S = 1.0
"""Seconds within which the replica must have lost its role."""

Role = LeaderRole | FollowerRole
OnBroken = Callable[[Role], Exception]


class InjectedBreach(InvariantBroken):
    """What a role raises that :class:`BrokenInvariants` has changed to break an invariant."""


@dataclass(slots=True)
class _Breach:
    node: BrokerNode
    process: Process
    partition: Partition
    role: Role
    met_s: float | None = None


class BrokenInvariants:
    """Changes roles so that they break an invariant, and checks that they are fenced.

    ``violations`` are the replicas that were not fenced in time.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._open: list[_Breach] = []
        self._breaking_leader = _breaking_leader(self._on_met)
        self._breaking_follower = _breaking_follower(self._on_met)
        self.violations: list[str] = []

    def break_one(self, node: BrokerNode, choice: float) -> str | None:
        """Make one replica of ``node`` break an invariant; return a description, None if it has no replica.

        ``choice``, from 0 to 1, selects the replica.
        """
        found = [
            (partition, role)
            for partition in node.partitions
            if isinstance(role := partition.replica.role, Role) and type(role) in (LeaderRole, FollowerRole)
        ]
        if not found or node.process is None:
            return None
        partition, role = found[int(choice * len(found))]
        leads = isinstance(role, LeaderRole)
        try:
            role.__class__ = self._breaking_leader if leads else self._breaking_follower  # type: ignore[assignment]
        except TypeError:  # the classes of compiled modules cannot be changed
            return f"{partition} of {node.name} breaks no invariant: the modules are compiled"
        self._open.append(_Breach(node, node.process, partition, role))
        return f"{partition} of {node.name} is chosen to break an invariant"

    def excuses(self, error: BaseException) -> bool:
        """Return whether a logged error is one of the injected ones."""
        return isinstance(error, InjectedBreach)

    def look(self) -> None:
        now_s = self._now_s()
        for breach in list(self._open):
            if breach.node.process is not breach.process or breach.partition.replica.role is not breach.role:
                self._open.remove(breach)
            elif breach.met_s is not None and now_s > breach.met_s + SETTLE_S and not breach.process.paused:
                self._open.remove(breach)
                name, partition = breach.node.name, breach.partition
                self.violations.append(
                    f"broken invariant: {name} found one in {partition} and keeps its role"
                )

    def _on_met(self, role: Role) -> Exception:
        for breach in self._open:
            if breach.role is role and breach.met_s is None:
                breach.met_s = self._now_s()
        return InjectedBreach("an invariant that the simulation breaks", ())


def _breaking_leader(on_met: OnBroken) -> type[LeaderRole]:
    class BreakingLeader(LeaderRole):
        __slots__ = ()

        def on_appended(self, *_: Any) -> Any:  # type: ignore[override]
            raise on_met(self)

        def on_follower_fetch(self, *_: Any) -> Any:  # type: ignore[override]
            raise on_met(self)

    return BreakingLeader


def _breaking_follower(on_met: OnBroken) -> type[FollowerRole]:
    class BreakingFollower(FollowerRole):
        __slots__ = ()

        def on_fetch_response(self, *_: Any) -> Any:  # type: ignore[override]
            raise on_met(self)

    return BreakingFollower


# Waiting for the moment that a crash shall hit: one between two disk calls of a process's offloaded work, or
# one while some state of a broker lasts.

VERBS = (None, None, "rename", "sync", "remove", "append")
"""The type of call to wait for; None: any."""
CALLS_SKIPPED_MAX = 30
LEFT_S = 0.001
"""How long the work is suspended then, so that a fault can be injected."""
STATE_LOOK_S = 0.004
"""How often a state is looked for that lasts for a few round trips."""


async def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until ``condition`` holds; return False if it does not within ``limit_s`` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(STATE_LOOK_S)
    except TimeoutError:
        return False
    return True


async def wait_for_work(disk: HostDisk, name: str, chance: random.Random, limit_s: float) -> bool:
    """Wait until offloaded work of the process ``name`` is between two disk calls, chosen at random.

    Returns False if there was no such moment within ``limit_s`` seconds.
    """
    verb, skipped = chance.choice(VERBS), chance.randrange(CALLS_SKIPPED_MAX)
    reached: asyncio.Future[None] = disk.loop.create_future()

    def on_call(process: DiskUser, called: str, path: str) -> None:
        nonlocal skipped
        if process.name != name or (verb is not None and called != verb) or reached.done():
            return
        skipped -= 1
        if skipped < 0 and disk.loop.job is not None:
            reached.set_result(None)
            disk.loop.job.leave(LEFT_S)

    disk.between_calls.append(on_call)
    try:
        async with asyncio.timeout(limit_s):
            await reached
    except TimeoutError:
        return False
    finally:
        disk.between_calls.remove(on_call)
    return True


# Faults of a ZooKeeper ensemble: servers that crash, pause, lag, or are cut off.
#
# Half of the faults affect the leader. Invariant: every fault that has started is ended by
# :meth:`EnsembleFaults.end`, or by healing the ensemble and the network.

LAG_S = 4.0
"""The largest lag of a server."""
WHOLE = 0.5
"""Faults of more than this size affect all links, others one link."""


class EnsembleFaults:
    def __init__(self, store: ZooKeeperServers, network: Fabric) -> None:
        self._ensemble = store.ensemble
        self._network = network
        self._hit: dict[int, Server] = {}
        """The number of a current fault → the server that it affects."""

    def begin(self, fault: Fault, kind: EnsembleKind, broker: Host) -> None:
        server = self._hit[fault.number] = self._chosen(fault)
        match kind:
            case Kind.ZOOKEEPER_CRASH:
                server.kill()
            case Kind.ZOOKEEPER_PAUSE:
                server.pause()
            case Kind.ZOOKEEPER_CUT | Kind.ZOOKEEPER_CUT_CLIENT:
                for source, target in self._links(fault, kind, server, broker):
                    self._network.cut(source, target)
            case Kind.ZOOKEEPER_LAG:
                server.lag_s = LAG_S * fault.size**2
            case _:
                assert_never(kind)

    def end(self, fault: Fault, kind: EnsembleKind, broker: Host) -> None:
        server = self._hit.pop(fault.number)
        match kind:
            case Kind.ZOOKEEPER_CRASH:
                server.start()
            case Kind.ZOOKEEPER_PAUSE:
                server.resume()
            case Kind.ZOOKEEPER_CUT | Kind.ZOOKEEPER_CUT_CLIENT:
                for source, target in self._links(fault, kind, server, broker):
                    self._network.heal(source, target)
            case Kind.ZOOKEEPER_LAG:
                server.lag_s = 0.0
            case _:
                assert_never(kind)

    def _chosen(self, fault: Fault) -> Server:
        servers = self._ensemble.servers
        leader = self._ensemble.leader
        if fault.number % 2 and leader is not None:
            return leader
        return servers[int(fault.size * 1_000_003) % len(servers)]

    def _links(self, fault: Fault, kind: EnsembleKind, server: Server, broker: Host) -> list[tuple[str, str]]:
        """Return the (source, target) links to cut: in both directions, for one fault in four in one only."""
        others = [each.host.name for each in self._ensemble.servers if each is not server]
        if kind is Kind.ZOOKEEPER_CUT:
            own, ends = server.host.name, others if fault.size > WHOLE else others[:1]
        else:
            own, ends = broker.name, [server.host.name, *(others if fault.size > WHOLE else ())]
        links = [(own, end) for end in ends]
        return links if fault.number % 4 == 3 else links + [(end, own) for end in ends]


LOOK_S = 0.5
RESTART_LOOK_S = 5.0
STRIKES_DURING_WORK = frozenset({Kind.CRASH, Kind.POWER})
FAILS_REPLICAS = LOG_DIR_KINDS | {Kind.DISK_ERROR, Kind.DISK_FULL, Kind.INVARIANT}
"""Faults after which a broker takes log directories or a replica offline. A broker that has others continues,
and needs a restart after the fault."""
DURING_WORK_SHARE = 0.6
"""How often STRIKES_DURING_WORK faults wait for a moment between two disk calls of offloaded work …"""
WORK_WAIT_S = 2.0
"""… and how long at most. The others wait as long for a transaction that the broker has decided and not
completed, if there are transactions."""
TAKE_OVER_S = 10.0
"""How long a broker that was hit then stays away at least: longer than its session, so that leaders move."""
LOSES = frozenset({Kind.POWER, Kind.DAMAGE})
"""Faults by which replicas may lose records."""
UNREAD_S = 20.0
"""After this time without a read, a flipped bit is repaired and another one may flip."""


class Client(Protocol):
    """A client program that may be crashed and started again without any state."""

    process: Process | None

    def start(self) -> Process: ...


class FaultDriver:
    def __init__(
        self,
        cluster: Cluster,
        clients: Sequence[Client],
        plan: Plan,
        only: Iterable[int] | None = None,
        has_decided: Callable[[BrokerNode], bool] | None = None,
    ) -> None:
        """``only``: the numbers of the faults to inject, instead of all. ``has_decided``: whether a broker's
        transaction coordinator has decided a transaction and not completed it; None without transactions."""
        self._has_decided = has_decided
        self._cluster = cluster
        self._clients = clients
        self._world = cluster.world
        self._plan = plan
        self._only = None if only is None else frozenset(only)
        self._tasks: list[asyncio.Task[None]] = []
        self._hit: dict[Fault, BrokerNode] = {}
        """Current fault → the broker that it affects: another broker may get that id during the fault."""
        self._paused: Counter[str] = Counter()
        self._disk_faults_by_disk: dict[HostDisk, DiskFaults] = {}
        self._damage = Damage(cluster, plan)
        self._signal_ms = cluster.store_disk.signal_ms
        store = cluster.store
        self._ensemble = (
            EnsembleFaults(store, cluster.world.network) if isinstance(store, ZooKeeperServers) else None
        )
        self.damaged: dict[str, Host] = {}
        """Machines that lost unsynced data, and whose brokers have not caught up since, by name."""
        self._emptied: set[str] = set()
        """Those of them that lost a whole log: flushing each record does not help against that."""
        self.played: Counter[Kind] = Counter()
        self.store_faults = StoreFaults(has_quorum=cluster.quorum is not None)
        self.broken_invariants = BrokenInvariants(self._world.loop.time)
        self.left_out = 0

    def start(self) -> None:
        for fault in self._plan.faults:
            if self._only is None or fault.number in self._only:
                self._tasks.append(asyncio.create_task(self._play(fault)))
        self._tasks.append(asyncio.create_task(self._watch_recovery()))

    async def heal(self) -> None:
        """End every fault except that of the log directory that failed last, and start all brokers."""
        await self._end_tasks()
        self._world.trace.note("faults", "all faults have ended, except that of the last log directory")
        self._world.network.heal_all()
        last = max(
            (fault.number for each in self._disk_faults_by_disk.values() for fault in each.folders), default=0
        )
        for disk_faults in self._disk_faults_by_disk.values():
            disk_faults.active.clear()
            for fault in [fault for fault in disk_faults.folders if fault.number != last]:
                del disk_faults.folders[fault]
        for host in self._cluster.machines:
            host.disk.capacity = 1 << 40
            host.disk.stalled_until = 0.0
            if not host.up:
                self._cluster.power_on(host)
        self._cluster.store.heal()
        self.store_faults.end_all(self._world.loop.time())
        self._cluster.store_disk.stalled_until = 0.0
        self._cluster.store_disk.signal_ms = self._signal_ms
        self._world.network.delay_spike_share = self._plan.delay_spike_share
        for node in self._cluster.known.values():
            if node.process is not None:
                node.process.resume()
            node.start()
        self._tasks = [asyncio.create_task(self._watch_recovery())]

    @property
    def failed_folders(self) -> list[str]:
        """The log directories, of all brokers, that fail at the moment."""
        return [
            folder
            for disk_faults in self._disk_faults_by_disk.values()
            for folder in disk_faults.folders.values()
        ]

    def heal_folders(self) -> None:
        """End the faults of log directories, and restart the brokers that took some offline."""
        self._world.trace.note("faults", "all faults have ended")
        for disk_faults in self._disk_faults_by_disk.values():
            disk_faults.folders.clear()
        self._hit.clear()
        self._tasks.append(asyncio.create_task(self._watch_folders()))

    async def stop(self) -> None:
        await self._end_tasks()

    def repair_damage(self) -> None:
        """Repair damage that was not read."""
        self._damage.undo()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    # ---- one fault

    async def _play(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        lasts_s = fault.duration_s
        if fault.kind in STRIKES_DURING_WORK and self._hits_members(fault):
            lasts_s = max(lasts_s, await self._wait_for_moment(fault))
        if not self._hits_members(fault):
            self.left_out += 1
            return
        if fault.kind is Kind.DAMAGE and not self._may_damage(self._node(fault).host):
            self.left_out += 1
            return
        if fault.kind is Kind.POWER and not self._may_lose_power(self._node(fault).host):
            self.left_out += 1
            self._world.trace.note("faults", f"{fault} would exceed the fault budget: not injected")
            return
        if fault.kind in FAILS_REPLICAS and not self._may_fail_replicas(fault):
            self.left_out += 1
            return
        if fault.kind is Kind.QUORUM_WIPE and not self._may_wipe(self._node(fault)):
            self.left_out += 1
            return
        self._world.trace.note("faults", f"{fault} begins")
        self.played[fault.kind] += 1
        self._hit[fault] = self._chosen(fault)
        if fault.kind in FAILS_REPLICAS and self._broker_survives(fault):
            self.damaged[self._node(fault).host.name] = self._node(fault).host
        self.store_faults.begin(fault, self._world.loop.time())
        self._begin(fault)
        await asyncio.sleep(lasts_s)
        self._world.trace.note("faults", f"{fault} ends")
        self._end(fault)
        self.store_faults.end(fault, self._world.loop.time())
        del self._hit[fault]

    def _begin(self, fault: Fault) -> None:
        network = self._world.network
        match fault.kind:
            case Kind.CRASH | Kind.QUORUM_CRASH:
                self._node(fault).crash()
            case Kind.QUORUM_WIPE:
                node, quorum = self._node(fault), self._cluster.quorum
                assert quorum is not None, f"{fault} is for a quorum"
                node.crash()
                quorum.wipe(node.id, node.host)
            case Kind.CRASH_ALL:
                for node in self._cluster.nodes.values():
                    node.crash()
            case Kind.STOP:
                self._node(fault).stop()
            case Kind.POWER:
                host = self._node(fault).host
                self.damaged[host.name] = host
                self._cluster.power_off(host)
            case Kind.PAUSE | Kind.QUORUM_PAUSE:
                self._pause(self._node(fault))
            case Kind.QUORUM_CUT:
                for link in self._quorum_links(fault):
                    network.cut(*link)
            case Kind.CUT:
                for link in self._links(fault):
                    network.cut(*link)
                    network.cut(*link[::-1])
            case Kind.CUT_ONE_WAY:
                for link in self._links(fault):
                    network.cut(*link)
            case Kind.ISOLATE:
                network.separate([self._node(fault).host.name], self._others(fault))
            case Kind.SLOW:
                for link in self._links(fault):
                    network.slow(*link, 5 + 2_000 * fault.size**3)
            case Kind.RESET:
                for link in self._links(fault):
                    network.reset(*link)
            case Kind.STALL:
                disk = self._node(fault).host.disk
                disk.stalled_until = max(disk.stalled_until, self._world.loop.time() + fault.duration_s)
            case Kind.DISK_ERROR:
                node = self._node(fault)
                self._disk_faults(node.host.disk).active[fault] = node.name
            case Kind.DISK_FULL:
                disk = self._node(fault).host.disk
                disk.capacity = disk.used + int(20_000 * fault.size)
            case Kind.LOG_DIR_ERROR | Kind.LOG_DIR_FULL:
                self._fail_folder(self._node(fault), fault)
            case Kind.CLOCK:
                clock = self._node(fault).host.clock
                clock.skew_ms = int((fault.size - 0.5) * 7_200_000)
            case Kind.STORE:
                name = self._node(fault).name if fault.number % 2 else ""
                self._disk_faults(self._cluster.store_disk).active[fault] = name
            case Kind.STORE_STALL:
                disk = self._cluster.store_disk
                disk.stalled_until = max(disk.stalled_until, self._world.loop.time() + fault.duration_s)
            case Kind.CLIENT_CRASH:
                process = self._client(fault).process
                if process is not None and process.alive:
                    process.crash()
            case Kind.LOSS:
                network.delay_spike_share = 0.3 * fault.size
            case Kind.DAMAGE:
                self._damage.flip(self._node(fault))
            case Kind.INVARIANT:
                self._note(self.broken_invariants.break_one(self._node(fault), fault.size))
            case Kind.INDEX_DAMAGE:
                self._note(damage_index(self._node(fault), self._world.chance))
            case Kind.CHECKPOINT_DAMAGE:
                self._tear_files(self._node(fault))
            case Kind.SESSION:
                self._node(fault).expire_session()
            case Kind.SIGNAL:
                self._cluster.store_disk.signal_ms = (0.5, 15 + 5_000 * fault.size**2)
            case Kind.STORE_UNSURE:
                name = self._node(fault).name if fault.number % 2 else ""
                self._disk_faults(self._cluster.store_disk).active[fault] = name
            case _:
                self._begin_at_ensemble(fault, fault.kind)

    def _tear_files(self, node: BrokerNode) -> None:
        """Tear a checkpoint of the broker, which is killed; and a topic id, if its records may be lost."""
        node.crash()
        self._note(tear_checkpoint(node, self._world.chance))
        if self._may_lose_replica(node.host, whole=True):
            self.damaged[node.host.name] = node.host
            self._emptied.add(node.host.name)
            self._note(tear_topic_id(node, self._world.chance))

    def _begin_at_ensemble(self, fault: Fault, kind: EnsembleKind) -> None:
        assert self._ensemble is not None, f"{fault} is for an ensemble"
        self._ensemble.begin(fault, kind, self._node(fault).host)

    def _end_at_ensemble(self, fault: Fault, kind: EnsembleKind) -> None:
        assert self._ensemble is not None
        self._ensemble.end(fault, kind, self._node(fault).host)

    def _end(self, fault: Fault) -> None:
        network = self._world.network
        match fault.kind:
            case Kind.CRASH | Kind.STOP | Kind.CHECKPOINT_DAMAGE | Kind.QUORUM_CRASH | Kind.QUORUM_WIPE:
                self._node(fault).start()
            case Kind.CRASH_ALL:
                for node in self._cluster.nodes.values():
                    node.start()
            case Kind.POWER:
                host = self._node(fault).host
                if not host.up:
                    self._cluster.power_on(host)
            case Kind.PAUSE | Kind.QUORUM_PAUSE:
                self._resume(self._node(fault))
            case Kind.QUORUM_CUT:
                for link in self._quorum_links(fault):
                    network.heal(*link)
            case Kind.CUT | Kind.CUT_ONE_WAY:
                for link in self._links(fault):
                    network.heal(*link)
                    network.heal(*link[::-1])
            case Kind.ISOLATE:
                name = self._node(fault).host.name
                for other in self._others(fault):
                    network.heal(name, other)
                    network.heal(other, name)
            case Kind.SLOW:
                for link in self._links(fault):
                    network.slow(*link, 0.0)
            case Kind.INVARIANT:
                self._restart_where_folders_failed(self._node(fault).host)
            case Kind.DISK_ERROR:
                self._disk_faults(self._node(fault).host.disk).active.pop(fault, None)
                self._restart_where_folders_failed(self._node(fault).host)
            case Kind.LOG_DIR_ERROR | Kind.LOG_DIR_FULL:
                self._disk_faults(self._node(fault).host.disk).folders.pop(fault, None)
                self._restart_where_folders_failed(self._node(fault).host)
            case Kind.STORE | Kind.STORE_UNSURE:
                self._disk_faults(self._cluster.store_disk).active.pop(fault, None)
            case Kind.LOSS:
                network.delay_spike_share = self._plan.delay_spike_share
            case Kind.SIGNAL:
                self._cluster.store_disk.signal_ms = self._signal_ms
            case Kind.DISK_FULL:
                self._node(fault).host.disk.capacity = 1 << 40
                self._restart_where_folders_failed(self._node(fault).host)
            case Kind.CLIENT_CRASH:
                client = self._client(fault)
                if client.process is not None and not client.process.alive:
                    client.start()
            case Kind.RESET | Kind.STALL | Kind.CLOCK | Kind.STORE_STALL | Kind.SESSION:
                pass
            case Kind.DAMAGE | Kind.INDEX_DAMAGE:
                pass
            case _:
                self._end_at_ensemble(fault, fault.kind)

    # ---- helpers

    def _node(self, fault: Fault) -> BrokerNode:
        """Return the broker that the fault affects; for a link between clients and a broker, the broker."""
        return self._hit.get(fault) or self._cluster.known[fault.target or fault.other]

    def _chosen(self, fault: Fault) -> BrokerNode:
        """Return the broker to affect: for most faults of the quorum its leader's, if it has one."""
        quorum = self._cluster.quorum
        if fault.kind not in QUORUM_KINDS - {Kind.QUORUM_WIPE} or quorum is None or quorum.leader_id is None:
            return self._node(fault)
        return self._cluster.nodes.get(quorum.leader_id) or self._node(fault)

    def _quorum_links(self, fault: Fault) -> list[tuple[str, str]]:
        """Return the (source, target) links to cut between a voter's machine and those of the others: all, or
        all but one; in both directions, for one fault in four in one only."""
        own = self._node(fault).host.name
        others = [name for name in map(self._host_name, VOTERS) if name != own]
        links = [(own, name) for name in others[int(fault.size <= WHOLE) :]]
        return links if fault.number % 4 == 3 else links + [(target, source) for source, target in links]

    async def _wait_for_moment(self, fault: Fault) -> float:
        """Wait for a moment at which the fault does most harm; return how long it must last at least."""
        if fault.size < DURING_WORK_SHARE:
            await self._wait_for_work(self._node(fault))
            return 0.0
        node, has_decided = self._node(fault), self._has_decided
        if has_decided is None or not await wait_until(lambda: has_decided(node), WORK_WAIT_S):
            return 0.0
        self._world.trace.note("faults", f"{node.name} has decided a transaction and not completed it")
        return TAKE_OVER_S

    async def _wait_for_work(self, node: BrokerNode) -> None:
        if await wait_for_work(node.host.disk, node.name, self._world.chance, WORK_WAIT_S):
            self._world.trace.note("faults", f"{node.name} is in the middle of offloaded work")

    def _note(self, what: str | None) -> None:
        if what is not None:
            self._world.trace.note("faults", what)

    def _hits_members(self, fault: Fault) -> bool:
        """Return whether all brokers that the fault affects are members now."""
        who = (fault.target, fault.other) if fault.kind in WITH_OTHER else (fault.target or fault.other,)
        return all(each in self._cluster.nodes for each in who if each)

    def _disk_faults(self, disk: HostDisk) -> DiskFaults:
        if disk not in self._disk_faults_by_disk:
            self._disk_faults_by_disk[disk] = DiskFaults(self._cluster, disk)
        return self._disk_faults_by_disk[disk]

    def _client(self, fault: Fault) -> Client:
        return self._clients[int(fault.size * len(self._clients))]

    def _host_name(self, who: int) -> str:
        return self._cluster.known[who].host.name if who else "clients"

    def _links(self, fault: Fault) -> list[tuple[str, str]]:
        link = self._host_name(fault.target), self._host_name(fault.other)
        return [link] if link[0] != link[1] else []

    def _others(self, fault: Fault) -> list[str]:
        own = self._node(fault).host
        return [host.name for host in self._cluster.machines if host is not own]

    def _pause(self, node: BrokerNode) -> None:
        self._paused[node.name] += 1
        if node.process is not None:
            node.process.pause()

    def _resume(self, node: BrokerNode) -> None:
        self._paused[node.name] -= 1
        if node.process is not None and not self._paused[node.name]:
            node.process.resume()

    def _may_lose_power(self, host: Host) -> bool:
        return host.up and (self._may_lose_replica(host) or self._cluster.one_machine)

    def _may_lose_replica(self, host: Host, *, whole: bool = False) -> bool:
        """Return whether the replicas on ``host`` may lose unsynced records, beside those that have.

        ``whole``: one of them is lost with its synced records."""
        damaged_host = self._damage.host
        machines = {**self.damaged, host.name: host} | (
            {} if damaged_host is None else {damaged_host.name: damaged_host}
        )
        plan = self._plan
        maximum = plan.machines_emptied_max if whole or self._emptied else plan.machines_lost_max
        return len(machines) <= maximum and not self._cluster.one_machine

    def _broker_survives(self, fault: Fault) -> bool:
        """Return whether the broker continues without the failed replicas, instead of ending."""
        return fault.kind is Kind.INVARIANT or len(self._node(fault).folders) > 1

    def _may_fail_replicas(self, fault: Fault) -> bool:
        """Return whether the fault keeps the number of untrusted replicas within the promise.

        A replica that was offline is no longer trusted, as after a power loss. So if the plan has power
        losses or damage, these faults count together.
        """
        if not self._broker_survives(fault) or not LOSES & set(self._plan.kinds):
            return True
        return self._may_lose_power(self._node(fault).host)

    def _may_wipe(self, node: BrokerNode) -> bool:
        """Return whether the broker's voter may lose its disk.

        The others are needed until it is replaced: none may be down for as long as a log directory fails, or
        as it takes an operator to remove a broker.
        """
        quorum = self._cluster.quorum
        if any(one.retired for one in self._cluster.nodes.values()):
            return False
        fails_for_long = bool(LOG_DIR_KINDS & set(self._plan.kinds))
        return quorum is not None and quorum.may_wipe(node.id) and not fails_for_long

    def _may_damage(self, host: Host) -> bool:
        """Return whether damage may be injected: only one machine may have lost data, by damage or power."""
        self._damage.undo(UNREAD_S)
        return host.up and not self.damaged and self._damage.host is None

    async def _watch_recovery(self) -> None:
        """Remove a machine from ``damaged`` once its brokers are in sync in all their partitions."""
        while True:
            for name, host in list(self.damaged.items()):
                if host.up and all(self._has_caught_up(node) for node in self._cluster.nodes_on(host)):
                    self._world.trace.note("faults", f"{name} has caught up")
                    del self.damaged[name]
                    self._emptied.discard(name)
            await asyncio.sleep(LOOK_S)

    # ---- log directories

    def _fail_folder(self, node: BrokerNode, fault: Fault) -> None:
        folder = node.folders[int(fault.size * len(node.folders))]
        self._world.trace.note("faults", f"{folder} of {node.name} fails")
        self._disk_faults(node.host.disk).folders[fault] = folder

    def _restart_where_folders_failed(self, host: Host) -> None:
        for node in self._cluster.nodes_on(host):
            if node.needs_restart:
                self._world.trace.note("faults", f"{node.name} is restarted: {node.failed_folders} failed")
                node.restart()

    def _has_caught_up(self, node: BrokerNode) -> bool:
        fails = any(self._hit.get(fault) is node for fault in self._hit if fault.kind in FAILS_REPLICAS)
        return node.is_in_sync() and not fails and not node.needs_restart

    async def _watch_folders(self) -> None:
        """Restart brokers with offline log directories, as an operator would, also those noticed late."""
        while True:
            for host in self._cluster.machines:
                self._restart_where_folders_failed(host)
            await asyncio.sleep(RESTART_LOOK_S)
