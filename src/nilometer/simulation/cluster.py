"""A simulated cluster of brokers: machines, the broker processes on them, and their supervisors.

The brokers are the real ones; only the runtime is replaced. There are two layouts:

- *one machine*: all brokers and the coordination folder are on it, as with ``nilometer up``;
- *a machine per broker*: the coordination folder is on a separate disk that all machines reach and that never
  loses power.

Instead of the folder the coordination store may be an ensemble of ZooKeeper servers, on their own machines,
or a metadata quorum of three of the brokers.

Each broker has a supervisor that starts it again when its process ended unexpectedly, as systemd would.
Brokers join (:meth:`Cluster.add`) and leave permanently (:meth:`Cluster.remove`).

Invariants: a broker that must stay down (stopped, crashed, without power) is not started until this is
allowed again; a retired one is never started again.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from nilometer.broker.broker import Broker
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.settings.access_config_keys import STANDARD_AUTHORIZER
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import BrokerIdInUse, OutcomeUnknown, StoreUnavailable
from nilometer.identifiers import BrokerId
from nilometer.invariants import check
from nilometer.replication.leader import LeaderRole
from nilometer.runtime import Runtime
from nilometer.security.principal import ANONYMOUS
from nilometer.security.sasl import PLAIN_MODULE
from nilometer.simulation.disk import FolderNode, HostDisk
from nilometer.simulation.fault_kinds import ENSEMBLE_KINDS, FOLDER_KINDS, QUORUM_KINDS, Fault, Kind
from nilometer.simulation.loop import ATOMIC, Pace
from nilometer.simulation.quorum import VOTERS, QuorumPlan, QuorumVoters
from nilometer.simulation.recorded_starts import RecordedStarts, serve
from nilometer.simulation.stores import ClusterStore, EnsemblePlan, FolderStore, ZooKeeperServers
from nilometer.simulation.world import Host, Process, World

# Unexpected ends of brokers, and whether a fault excuses them.
#
# An end is excused if every log directory of that broker has failed, or if its coordination store has a
# fault; a fault of another broker's disk or of a single log directory is no excuse.

STORE_GRACE_S = 30.0
"""How long after a fault of the store a broker may end because of it: longer than a start waits for the
store."""
ENDS_BROKERS = FOLDER_KINDS - {Kind.SIGNAL} | ENSEMBLE_KINDS
PART_OF_QUORUM = frozenset(
    {
        Kind.CRASH,
        Kind.CRASH_ALL,
        Kind.STOP,
        Kind.POWER,
        Kind.PAUSE,
        Kind.CUT,
        Kind.CUT_ONE_WAY,
        Kind.ISOLATE,
        Kind.SLOW,
        Kind.LOSS,
        Kind.STALL,
        Kind.DISK_ERROR,
        Kind.DISK_FULL,
        Kind.CHECKPOINT_DAMAGE,
        *QUORUM_KINDS,
    }
)
"""Faults of brokers and links that leave a metadata quorum without a majority, or a broker without its
leader."""
DATA = "/data"


class UnexpectedExit(msgspec.Struct, frozen=True):
    error: BaseException | None
    """The exception of its main function; None if it returned."""
    at_s: float
    folders: tuple[str, ...]
    """All log directories of the broker."""
    failed_places: frozenset[str]
    """The places where the process got disk errors: the first two names of each path."""

    def is_excused(self, store_faults: Iterable[Kind]) -> bool:
        """Return whether a fault explains the end; ``store_faults``: the store's faults at that time."""
        if all(folder in self.failed_places or DATA in self.failed_places for folder in self.folders):
            return True  # a start makes the folder durable that all log directories are in
        if any(not place.startswith(DATA) for place in self.failed_places):
            return True  # the disk of a store that is a folder
        affecting = frozenset(store_faults)
        cause = self.error.__cause__ if self.error is not None else None
        if isinstance(cause, BrokerIdInUse):
            # A ZooKeeper fault is no excuse for this error: a broker's start waits for the end of its own
            # earlier session. A folder on a stalled disk may still show that session.
            return not FOLDER_KINDS.isdisjoint(affecting)
        if isinstance(cause, StoreUnavailable | OutcomeUnknown) and not PART_OF_QUORUM.isdisjoint(affecting):
            return True
        return not ENDS_BROKERS.isdisjoint(affecting)

    def __str__(self) -> str:
        return "it stopped" if self.error is None else repr(self.error)


class StoreFaults:
    """The times and kinds of the coordination store's faults."""

    def __init__(self, *, has_quorum: bool = False) -> None:
        kinds = FOLDER_KINDS | ENSEMBLE_KINDS
        self._kinds = kinds | PART_OF_QUORUM if has_quorum else kinds
        self._spans: dict[Fault, tuple[float, float]] = {}

    def begin(self, fault: Fault, now_s: float) -> None:
        if fault.kind in self._kinds:
            self._spans[fault] = (now_s, float("inf"))

    def end(self, fault: Fault, now_s: float) -> None:
        if fault in self._spans:
            begun_s, ended_s = self._spans[fault]
            self._spans[fault] = (begun_s, min(ended_s, now_s))

    def end_all(self, now_s: float) -> None:
        for fault in self._spans:
            self.end(fault, now_s)

    def affecting_at(self, at_s: float) -> frozenset[Kind]:
        """Return the kinds of store faults that may affect brokers at that time."""
        return frozenset(
            fault.kind
            for fault, (begun_s, ended_s) in self._spans.items()
            if begun_s <= at_s <= ended_s + STORE_GRACE_S
        )


PORT, GUEST_PORT = 9092, 9192
RESTART_S = (0.5, 3.0)
"""How long a supervisor waits before it restarts a broker that ended unexpectedly (seconds)."""
POLL_S = 0.25


def guest_password(user: str) -> str:
    return f"password of {user}"


class BrokerNode:
    """One broker of the cluster, with all its incarnations (processes), one after the other."""

    def __init__(self, cluster: Cluster, broker_id: int, host: Host, folder_count: int = 1) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.name = f"broker-{broker_id}"
        self.host = host
        self.port = PORT + broker_id
        self.guest_port = GUEST_PORT + broker_id
        """Of the listener on which users log in, if the cluster has users."""
        self.folders = tuple(f"/data/{broker_id}{suffix}" for suffix in ("", "-b", "-c")[:folder_count])
        """The broker's log directories."""
        self.wanted = False
        """Whether the supervisor must keep it running."""
        self.leaving = False
        """Whether it will be removed: no replica may be moved onto it."""
        self.retired = False
        """Whether its supervisor must never start it again."""
        self.process: Process | None = None
        self.broker: Broker | None = None
        """The broker object while it serves, for the checkers."""
        self.incarnations = 0
        self.unexpected_exits: list[UnexpectedExit] = []
        """The ends of its processes that were not requested."""
        self._stop: asyncio.Event | None = None

    def places_of(self, partition: str) -> list[str]:
        """Return the paths of its folders of a partition such as ``topic-0``, in any log directory."""
        paths = (f"{folder}/{partition}" for folder in self.folders)
        return [path for path in paths if isinstance(self.host.disk.find(path), FolderNode)]

    def place_of(self, partition: str) -> str | None:
        """Return the path of the folder that it uses of a partition; None if it has none. At the end of a
        move between log directories there are two for a moment, and what is appended is in the new one."""
        hosted = (one.log.folder for one in self.partitions if str(one) == partition)
        return next(hosted, None) or next(iter(self.places_of(partition)), None)

    def directory_of(self, path: str) -> str | None:
        """Return the log directory that ``path`` is in; None if it is in none of this broker's."""
        return next((each for each in self.folders if f"{path}/".startswith(f"{each}/")), None)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def is_serving(self) -> bool:
        return self.is_running and self.broker is not None

    @property
    def settings(self) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://{self.host.name}:{self.port}",
            "log.dirs": ",".join(self.folders),
            "node.id": str(self.id),
            "add.partitions.to.txn.retry.backoff.max.ms": "0",  # the programs repeat their requests
            **self.cluster.settings,
            **(self._user_settings if self.cluster.users else {}),
        }

    @property
    def _user_settings(self) -> dict[str, str]:
        """The settings of brokers with users and ACLs; clients that do not log in have all rights."""
        users = " ".join(f'user_{user}="{guest_password(user)}"' for user in self.cluster.users)
        name = self.host.name
        return {
            "listeners": f"PLAINTEXT://{name}:{self.port},SASL_PLAINTEXT://{name}:{self.guest_port}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": str(ANONYMOUS),
            "nilometer.audit.log.dir": f"/audit/{self.id}",
        }

    @property
    def image(self) -> ClusterImage | None:
        """The broker's metadata image; None while it does not serve."""
        return (
            self.broker.parts.control.metadata.image if self.broker is not None and self.is_running else None
        )

    @property
    def failed_folders(self) -> list[str]:
        """The log directories that the serving broker has taken offline until its next restart."""
        if self.broker is None or not self.is_running:
            return []
        directories = self.broker.parts.given.directories.logs.directories
        return [each.path for each in directories if each.failure is not None]

    @property
    def needs_restart(self) -> bool:
        """Whether the broker has taken replicas offline until its next restart."""
        if self.broker is None or not self.is_running:
            return False
        return bool(self.failed_folders or self.broker.parts.replication.replicas.offline.by_topic())

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that the serving broker hosts."""
        return (
            list(self.broker.parts.replication.replicas)
            if self.broker is not None and self.is_running
            else []
        )

    def log_start(self, partition: str) -> int:
        """Return the log start offset of its replica of a partition such as ``topic-0``; 0 if it has none."""
        return next((each.log.log_start_offset for each in self.partitions if str(each) == partition), 0)

    @property
    def is_open_to_replicas(self) -> bool:
        return not self.leaving and self.incarnations > 0

    def is_in_sync(self) -> bool:
        """Return whether it serves and is, by its own metadata, in the ISR of all its partitions."""
        image = self.image
        if image is None:
            return False
        assigned = image.partitions_on(BrokerId(self.id))
        return all(self.id in state.isr and state.has_leader for _, state in assigned)

    def expire_session(self) -> None:
        """End the broker's session in the coordination store, as if it were dead."""
        self.cluster.store.expire_session(self.id)

    def holds_ended_session(self) -> bool:
        """Return whether the broker considers a session live that the store has ended (a violation)."""
        if self.process is None or not self.process.alive or self.process.paused or self.broker is None:
            return False
        if self.cluster.recorded is not None:
            return False  # a session that is asked may look at the disk: input of which replay knows nothing
        session = self.broker.parts.control.session
        if not session.is_live():
            return False
        return self.cluster.store.holds_ended_session(self.id, session.current.name.incarnation)

    # ---- operations

    @property
    def is_installed(self) -> bool:
        return all(isinstance(self.host.disk.find(folder), FolderNode) for folder in self.folders)

    async def install(self) -> None:
        """Create its log directories."""
        await self.host.start("set-up", lambda runtime: _make_folders(runtime, self.folders)).exited

    def start(self) -> None:
        """Start it, and have the supervisor keep it running."""
        if self.retired:
            return
        self.wanted = True
        if self.host.up and not self.is_running:
            self._launch()

    def crash(self) -> None:
        """Kill the process, as ``kill -9``. The supervisor does not restart it before :meth:`start`."""
        self.wanted = False
        if self.process is not None and self.process.alive:
            self.process.crash()
            self.cluster.on_crash(self)
        self.broker = None

    def stop(self) -> None:
        """Shut the broker down cleanly; it stays down."""
        self.wanted = False
        if self.process is not None:
            self.process.signal(signal.SIGTERM)

    def restart(self) -> None:
        """Shut the broker down cleanly and have the supervisor start it again."""
        if self.process is not None and self.is_running and self.wanted:
            self.process.signal(signal.SIGTERM)

    def _launch(self) -> None:
        self.incarnations += 1
        self.broker = None
        process = self.host.start(self.name, self._main)
        self.process = process
        process.exited.add_done_callback(lambda _: self._on_exit(process))

    def _on_exit(self, process: Process) -> None:
        if process is not self.process:
            return
        self.broker = None
        error = process.exited.result()
        if self.wanted:
            if self._stop is None or not self._stop.is_set():
                places = frozenset(process.failed_places)
                now_s = self.cluster.world.loop.time()
                self.unexpected_exits.append(UnexpectedExit(error, now_s, self.folders, places))
            delay = self.cluster.world.chance.uniform(*RESTART_S)
            self.cluster.world.loop.in_process(delay, None, self._start_again)

    def _start_again(self) -> None:
        if self.wanted:
            self.start()

    async def _main(self, runtime: Runtime) -> None:
        process = self.process
        assert process is not None
        config = BrokerConfig(self.settings)
        config.transactions = replace(config.transactions, first_epoch=self.cluster.first_epoch)

        async def main(runtime: Runtime) -> None:
            stop = self._stop = asyncio.Event()
            await serve(config, runtime, self.cluster.store.of(process, runtime), stop, self._tell)

        if self.cluster.recorded is None:
            await main(runtime)
        else:
            await self.cluster.recorded.new(process, config).run(main)

    def _tell(self, broker: Broker | None) -> None:
        self.broker = broker
        if broker is not None:
            self.cluster.world.trace.note(self.name, "serves")


class Cluster:
    def __init__(
        self,
        world: World,
        *,
        brokers: int = 3,
        one_machine: bool = False,
        settings: Mapping[str, str] | None = None,
        pace: Pace = ATOMIC,
        ensemble: EnsemblePlan | None = None,
        quorum: QuorumPlan | None = None,
        folders: Sequence[int] = (1,),
        first_epoch: int = 0,
        users: Sequence[str] = (),
        recorded: RecordedStarts | None = None,
    ) -> None:
        """``users``: those who log in on a listener of their own, and have the rights that ACLs give them.
        ``pace``: the timing of offloaded work on the brokers' machines; ``ensemble``: use ZooKeeper as
        coordination store instead of a folder; ``quorum``: use a metadata quorum; ``folders``: numbers
        of log directories, used in turn; ``recorded``: gets a recording of each start of a broker."""
        self.world = world
        self.one_machine = one_machine
        self.pace = pace
        self._folders = tuple(folders)
        self.first_epoch = first_epoch
        self.users = tuple(users)
        self.recorded = recorded
        self.settings = dict(settings or {})
        self.nodes: dict[int, BrokerNode] = {}
        """The current members, by broker id."""
        self.known: dict[int, BrokerNode] = {}
        """All members that there ever were."""
        for broker_id in range(1, brokers + 1):
            self._enlist(self._new_node(broker_id))
        first = self.nodes[1].host
        self.store_disk: HostDisk = first.disk if one_machine else world.shared_disk("coordination")
        self.quorum: QuorumVoters | None = None
        self.store: ClusterStore
        if quorum is not None:
            voters = {node_id: self.nodes[node_id].host for node_id in VOTERS}
            self.store = self.quorum = QuorumVoters(world, quorum, voters)
        elif ensemble is not None:
            self.store = ZooKeeperServers(world, ensemble)
        else:
            self.store = FolderStore(self.store_disk)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{node.host.name}:{node.port}" for node in self.nodes.values())

    @property
    def machines(self) -> list[Host]:
        return list(dict.fromkeys(node.host for node in self.known.values()))

    @property
    def newest_image(self) -> ClusterImage | None:
        """The image of the broker that has applied most metadata entries."""
        images = [node.image for node in self.known.values()]
        return max((image for image in images if image is not None), key=lambda i: i.number, default=None)

    def leads(self, partition: Partition) -> bool:
        """Return whether the broker of ``partition`` leads it."""
        if self.recorded is None:
            return partition.is_led_here
        # A session that is asked may look at the disk: input of which replay knows nothing.
        return isinstance(partition.replica.role, LeaderRole)

    @property
    def open_to_replicas(self) -> list[int]:
        """The ids of the members that replicas may be moved onto."""
        return [node.id for node in self.nodes.values() if node.is_open_to_replicas]

    def nodes_on(self, host: Host) -> list[BrokerNode]:
        return [node for node in self.known.values() if node.host is host]

    def _new_node(self, broker_id: int) -> BrokerNode:
        host = self.world.host("machine" if self.one_machine else f"machine-{broker_id}")
        host.disk.pace = self.pace
        return BrokerNode(self, broker_id, host, self._folders[(broker_id - 1) % len(self._folders)])

    def _enlist(self, node: BrokerNode) -> None:
        self.nodes[node.id] = self.known[node.id] = node

    async def add(self, broker_id: int) -> BrokerNode:
        """Add and start a new member, on its own machine unless all share one."""
        node = self._new_node(broker_id)
        while not node.is_installed:
            if node.host.up:
                await node.install()
            await asyncio.sleep(POLL_S)
        self._enlist(node)
        node.start()
        return node

    def remove(self, node: BrokerNode) -> None:
        """Remove a broker from the cluster's ``nodes``. It must be ``retired``: never started again."""
        check(node.retired, "a broker that is removed does not come back", node.name)
        self.nodes.pop(node.id, None)
        if self.quorum is not None:
            self.quorum.on_removed(node.id)

    def on_crash(self, node: BrokerNode) -> None:
        """A broker's process was killed."""
        if self.quorum is not None:
            self.quorum.on_crash(node.id, node.host)

    async def set_up(self) -> None:
        """Create the folders, start the store and all brokers, and wait until they serve."""
        self.store.start()
        for node in self.nodes.values():
            await node.install()
        for node in self.nodes.values():
            node.start()
        await self.until_serving(self.nodes)

    async def until_serving(self, broker_ids: Iterable[int]) -> None:
        wanted = list(broker_ids)
        while not all(self.nodes[broker_id].is_serving for broker_id in wanted):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def power_off(self, host: Host) -> None:
        for node in self.nodes_on(host):
            node.wanted = False
            node.broker = None
        host.power_off()

    def power_on(self, host: Host) -> None:
        host.power_on()
        if self.quorum is not None:
            self.quorum.on_power(host)
        for node in self.nodes_on(host):
            node.start()


async def _make_folders(runtime: Runtime, folders: Iterable[str]) -> None:
    """Create the folders durably, as the installation of a machine does."""
    for folder in folders:
        runtime.disk.make_directories(folder)
    for path in (*folders, "/data", "/"):
        runtime.disk.sync_directory(path)
