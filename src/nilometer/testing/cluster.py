"""A cluster of broker processes for tests, as a context manager.

The brokers belong to a launcher process (``launcher``), which ends them and removes their data when this
cluster is closed, or when the test process ends in whatever way.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.network.cluster_metadata import PartitionMetadata, metadata_request, read_metadata
from nilometer.client.network.connection import Connection
from nilometer.client.settings import SECURITY_KEYS, ClientSecurity, ClientSettings, client_security
from nilometer.config import ConfigDefinition
from nilometer.identifiers import is_cluster_id
from nilometer.local.local_cluster import broker_environment
from nilometer.runtime import Runtime
from nilometer.runtime.network import SocketNetwork
from nilometer.testing.faults import BrokerFaults, Faults
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

# The error of a test cluster.


class ClusterError(Exception):
    """A broker of the test cluster did not start, stop or respond; the message says which, and why."""


# The test process's side of the launcher: starts it, and sends it requests.

RESPONSE_TIMEOUT_S = 150.0
"""More than the longest operation takes: the launcher has its own time limits."""


class LauncherProcess:
    """A running launcher. Thread-safe: one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "nilometer.testing.launcher"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=broker_environment(os.environ),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C ends the test process, which ends the cluster
            )
        self._control = ours
        self._responses = ours.makefile("rb")

    def request(self, operation: str, timeout_s: float = RESPONSE_TIMEOUT_S, **arguments: object) -> Any:
        """Have the launcher perform an operation; return its result.

        Raises ClusterError. After one for ``timeout_s`` (seconds), the launcher can only be closed.
        """
        line = json.dumps({"operation": operation, **arguments}).encode() + b"\n"
        with self._lock:
            try:
                self._control.settimeout(timeout_s)
                self._control.sendall(line)
                response = self._responses.readline()
            except TimeoutError:
                raise ClusterError(f"{operation}: not done after {timeout_s:g} s") from None
            except OSError as error:
                raise ClusterError(f"the process that owns the brokers does not respond: {error}") from None
        if not response:
            raise ClusterError("the process that owns the brokers has ended; see its error output")
        answer = json.loads(response)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Close the socket, and wait until the launcher has removed everything and ended."""
        self._responses.close()
        self._control.close()
        self._process.wait(RESPONSE_TIMEOUT_S)


Settings = Mapping[str, str | int | float | bool]

HOST = "127.0.0.1"
OWN_HOST = "127.0.2.1"
"""From here this module connects to brokers with faults: no fault affects it."""
BROKERS_MAX = 16
REMOVAL_TIMEOUT_S = 10.0
START_TIMEOUT_S = 120.0
OWN_KEYS = frozenset(
    {
        *("node.id", "broker.id", "listeners", "advertised.listeners", "log.dir", "log.dirs"),
        *("nilometer.coordination", "zookeeper.connect"),
    }
)
"""The broker settings that the cluster itself gives."""
TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""Defaults that differ from Kafka's, so that groups and transactions start at once."""


class Cluster:
    """``with Cluster(brokers=3) as cluster: …``; broker ids count from 1.

    ``settings`` are broker settings under Kafka's keys, the same for all brokers; ``cluster_id`` is random
    by default. With ``secure`` the brokers have TLS, SCRAM and ACLs, and clients need
    :attr:`client_settings`; with ``faults`` a test may inject :attr:`faults` (on Linux). Replication factors
    are 3, or the number of brokers if that is less; ``min.insync.replicas`` is one less, but at least 1.

    Methods raise ClusterError if a broker does not do what they ask for. They may be called from any thread.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        settings: Settings | None = None,
        cluster_id: str | None = None,
        secure: bool = False,
        faults: bool = False,
    ) -> None:
        """Raises ValueError for a number of brokers out of range, a cluster id that is none, and a setting of
        :data:`OWN_KEYS`."""
        if cluster_id is not None and not is_cluster_id(cluster_id):
            raise ValueError(f"{cluster_id!r} is no cluster id: it consists of A-Z a-z 0-9 . _ -")
        if not 1 <= brokers <= BROKERS_MAX:
            raise ValueError(f"brokers must be between 1 and {BROKERS_MAX}, not {brokers}")
        given = {key: _text(value) for key, value in (settings or {}).items()}
        for key in sorted(OWN_KEYS & given.keys()):
            raise ValueError(f"{key} cannot be set: the cluster chooses it")
        self.broker_ids: tuple[int, ...] = tuple(range(1, brokers + 1))
        self._given = given
        self._cluster_id = cluster_id
        self._secure = secure
        self._faults = Faults(self.broker_ids, self._send_faults) if faults else None
        self._connection: dict[str, str] = {}
        self._launcher: LauncherProcess | None = None
        self._folder: Path | None = None
        self._ports: dict[int, int] = {}
        self._async: AsyncCluster | None = None

    # --- start and end

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start all brokers; return when each of them knows all the others. Takes about a second.

        Raises ClusterError, for example for a setting that the broker refuses, or after ``timeout_s``
        seconds; then nothing is left behind.
        """
        if self._launcher is not None:
            raise ClusterError("the cluster has been started already")
        if self._faults is not None and sys.platform != "linux":
            raise ClusterError("faults need Linux, where brokers have addresses of their own on loopback")
        self._launcher = LauncherProcess()
        try:
            opened = self._launcher.request(
                "open",
                timeout_s,
                brokers=len(self.broker_ids),
                settings=self._settings(),
                cluster_id=self._cluster_id,
                secure=self._secure,
                faults=self._faults is not None,
            )
            self._connection = opened["connection"]
            self._folder = Path(opened["folder"])
            self._ports = {int(broker): port for broker, port in opened["ports"].items()}
            self._launcher.request("start", timeout_s, broker_ids=self.broker_ids)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all brokers and remove their data. Closing again does nothing."""
        launcher, self._launcher = self._launcher, None
        folder, self._folder = self._folder, None
        if launcher is not None:
            launcher.close()
        if folder is not None:
            _remove(folder)

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> AsyncCluster:

        self._async = AsyncCluster(self)
        await self._async.start()
        return self._async

    async def __aexit__(self, *_: object) -> None:
        if self._async is not None:
            await self._async.close()

    # --- what tests ask for

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,…`` of all brokers, running or not; the value of Kafka's ``bootstrap.servers``."""
        return ",".join(self.address(broker) for broker in self.broker_ids)

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client under Kafka's keys: ``bootstrap.servers``, and how to connect.

        The user of a secure cluster is one of ``super.users``.
        """
        return {**self._connection, "bootstrap.servers": self.bootstrap_servers}

    def address(self, broker: int) -> str:
        """Return ``host:port`` of one broker; it keeps them when it is restarted."""
        self._opened()
        return f"{HOST}:{self._ports[self._known(broker)]}"

    @property
    def running(self) -> list[int]:
        """The ids of the brokers that run and are not paused."""
        return list(self._opened().request("running"))

    def log(self, broker: int) -> str:
        """Return what a broker has logged so far."""
        self._opened()
        assert self._folder is not None
        path = self._folder / f"broker-{self._known(broker)}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # --- brokers

    def kill(self, broker: int) -> None:
        """End a broker with SIGKILL. Its data and its port remain."""
        self._opened().request("kill", broker_id=self._known(broker))

    def stop(self, broker: int) -> None:
        """Stop a broker with SIGTERM: it hands over its leaderships first. Its data and its port remain."""
        self._opened().request("stop", broker_id=self._known(broker))

    def restart(self, broker: int) -> None:
        """Stop a broker if it runs, and start it; return when all running brokers know each other."""
        self.stop(broker)
        self._opened().request("start", broker_ids=[broker])

    def pause(self, broker: int) -> None:
        """Stop a broker's process (SIGSTOP) until :meth:`resume`: it neither responds nor ends."""
        self._opened().request("pause", broker_id=self._known(broker))

    def resume(self, broker: int) -> None:
        """Continue a paused broker."""
        self._opened().request("resume", broker_id=self._known(broker))

    @property
    def faults(self) -> Faults:
        """What fails in the brokers. Raises ClusterError unless the cluster was made with ``faults=True``."""
        if self._faults is None:
            raise ClusterError("this cluster has no faults to inject: make it with faults=True")
        return self._faults

    # --- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; return when all its replicas are in sync and every running broker knows it.

        ``replication_factor`` is 3 by default, or the number of brokers if that is less. Raises
        nilometer's ``KafkaError``, such as TOPIC_ALREADY_EXISTS.
        """

        run(create_topic(self._servers(), name, partitions, replication_factor, configs or {}))

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the broker that leads a partition; wait while none does.

        Raises nilometer's ``KafkaError``, such as UNKNOWN_TOPIC_OR_PARTITION.
        """

        return run(find_leader(self._servers(), topic, partition))

    # --- helpers

    def _settings(self) -> dict[str, str]:
        from nilometer.local.local_cluster import replication_settings

        replication = replication_settings(len(self.broker_ids))
        coordinators = {
            f"{topic}.{key}": replication[given]
            for topic in ("transaction.state.log", "share.coordinator.state.topic")
            for key, given in (
                ("replication.factor", "offsets.topic.replication.factor"),
                ("min.isr", "min.insync.replicas"),
            )
        }
        return {**replication, **coordinators, **TEST_SETTINGS, **self._given}

    def _send_faults(self, broker: int, faults: BrokerFaults, reset: Sequence[int]) -> None:
        known = msgspec.to_builtins(faults, str_keys=True)
        self._opened().request("faults", broker_id=broker, faults=known, reset=list(reset))

    def _servers(self) -> Servers:
        """Return the running brokers, as this cluster reaches them: cut off from clients or not."""
        runtime = Runtime.system()
        if self._faults is not None:
            runtime = replace(runtime, network=SocketNetwork(OWN_HOST))
        return Servers(self._running(), self._connection, runtime)

    def _running(self) -> dict[int, str]:
        """Return the addresses by id of the running brokers that learn of changes.

        Raises ClusterError if there are none.
        """
        without_store = frozenset[int]() if self._faults is None else self._faults.without_store
        running = {broker: self.address(broker) for broker in self.running if broker not in without_store}
        if not running:
            raise ClusterError(f"no broker runs{' that reaches the store' if without_store else ''}")
        return running

    def _opened(self) -> LauncherProcess:
        if self._launcher is None:
            raise ClusterError("the cluster is not running: use it in `with`, or call start()")
        return self._launcher

    def _known(self, broker: int) -> int:
        if broker not in self.broker_ids:
            raise ValueError(f"there is no broker {broker}: the ids are 1 to {len(self.broker_ids)}")
        return broker


def _remove(folder: Path) -> None:
    """Remove what a launcher has left that was killed. Its brokers end at once, but not before it."""
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# A test cluster whose methods are coroutines: the event loop runs while brokers start and stop.

P = ParamSpec("P")
T = TypeVar("T")


class AsyncCluster:
    """``async with Cluster(brokers=3) as cluster: … await cluster.kill(2)``.

    Each method does what the method of :class:`Cluster` with its name does, and
    raises the same errors. An operation that has begun ends, even if its caller is cancelled.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def start(self) -> None:
        try:
            await _in_thread(self._cluster.start)
        except asyncio.CancelledError:
            await _in_thread(self._cluster.close)
            raise

    async def close(self) -> None:
        await _in_thread(self._cluster.close)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,…`` of all brokers, running or not; the value of Kafka's ``bootstrap.servers``."""
        return self._cluster.bootstrap_servers

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client under Kafka's keys."""
        return self._cluster.client_settings

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self._cluster.broker_ids

    def address(self, broker: int) -> str:
        """Return ``host:port`` of one broker."""
        return self._cluster.address(broker)

    @property
    def faults(self) -> Faults:
        """The faults of the cluster: a call takes a millisecond or two, and is not awaited."""
        return self._cluster.faults

    async def running(self) -> list[int]:
        """Return the ids of the brokers that run and are not paused."""
        return await _in_thread(lambda: self._cluster.running)

    async def log(self, broker: int) -> str:
        return await _in_thread(self._cluster.log, broker)

    async def kill(self, broker: int) -> None:
        await _in_thread(self._cluster.kill, broker)

    async def stop(self, broker: int) -> None:
        await _in_thread(self._cluster.stop, broker)

    async def restart(self, broker: int) -> None:
        await _in_thread(self._cluster.restart, broker)

    async def pause(self, broker: int) -> None:
        await _in_thread(self._cluster.pause, broker)

    async def resume(self, broker: int) -> None:
        await _in_thread(self._cluster.resume, broker)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        await _in_thread(self._cluster.create_topic, name, partitions, replication_factor, configs)

    async def leader(self, topic: str, partition: int = 0) -> int:
        return await _in_thread(self._cluster.leader, topic, partition)


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in a thread. If this is cancelled, wait until the call has ended first."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.gather(call, return_exceptions=True)
        raise


# Topics of a test cluster: creates one and waits until it can be used; finds a leader.

REPLICATION_FACTOR_DEFAULT = -1
TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 30_000
_POLL_S = 0.01


class Servers(NamedTuple):
    """The addresses of the running brokers, by id, and the settings by which clients connect to them."""

    addresses: Mapping[int, str]
    connection: Mapping[str, str]
    runtime: Runtime

    @property
    def security(self) -> ClientSecurity:
        definition = ConfigDefinition.of("client", SECURITY_KEYS)
        return client_security(ClientSettings(definition, self.connection))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in a thread of its own, since the caller's thread may have a running event loop."""
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


async def create_topic(
    servers: Servers,
    name: str,
    partitions: int,
    replication_factor: int | None,
    configs: Mapping[str, str],
) -> None:
    """Create a topic; return when, for each of ``servers``, all replicas on ``servers`` are in sync.

    Raises KafkaError, or ClusterError after 30 s.
    """
    factor = REPLICATION_FACTOR_DEFAULT if replication_factor is None else replication_factor
    config = {
        **servers.connection,
        "bootstrap.servers": ",".join(servers.addresses.values()),
        "default.api.timeout.ms": TIMEOUT_MS,
    }
    async with Admin(servers.runtime, config) as admin:
        await admin.create_topic(NewTopic(name, partitions, factor, configs))
    for server in servers.addresses.values():
        await _wait_in_sync(servers, server, name, partitions)


async def _wait_in_sync(servers: Servers, server: str, topic: str, partitions: int) -> None:
    running = servers.addresses.keys()
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while True:
                known = await _partitions(servers, server, topic)
                if len(known) == partitions and all(_is_in_sync(one, running) for one in known):
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ClusterError(
            f"the replicas of {topic} are not in sync after {TIMEOUT_MS // 1000} s, as {server} reports"
        ) from None


def _is_in_sync(partition: PartitionMetadata, running: Set[int]) -> bool:
    return partition.leader_id in running and set(partition.replicas) & running <= set(
        partition.in_sync_replicas
    )


async def find_leader(servers: Servers, topic: str, partition: int) -> int:
    """Return a partition's leader, as the first of ``servers`` reports it; it is one of them.

    Raises KafkaError, and ClusterError after 30 s.
    """
    addresses = servers.addresses
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while True:
                known = await _partitions(servers, next(iter(addresses.values())), topic)
                if not 0 <= partition < len(known):
                    raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}")
                if known[partition].leader_id in addresses:
                    return known[partition].leader_id
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ClusterError(f"{topic}-{partition} has no leader after {TIMEOUT_MS // 1000} s") from None


async def _partitions(servers: Servers, server: str, topic: str) -> Sequence[PartitionMetadata]:
    """Return a topic's partitions in one broker's metadata; none if it does not know the topic."""
    host, _, port = server.rpartition(":")
    connection = await Connection.open(
        servers.runtime,
        host,
        int(port),
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        setup_timeout_ms=REQUEST_TIMEOUT_MS,
        security=servers.security,
    )
    try:
        response = await connection.request(ApiKey.METADATA, lambda api: metadata_request(api, [topic]))
    finally:
        connection.close()
    known = read_metadata(response).metadata.topics.get(topic)
    return known.partitions if known is not None else ()
