"""Several Nilometer brokers that form one cluster: real processes on free loopback ports.

Broker ids count from 1. Brokers are killed, stopped, paused and started by id; their metadata is requested
from each running broker. `operate` runs operations with Nilometer's admin client.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from nilometer.client.admin.admin import Admin, NewTopic, ResourceType
from nilometer.client.network.cluster_metadata import (
    ClusterMetadata,
    PartitionMetadata,
    metadata_request,
    read_metadata,
)
from nilometer.client.network.connection import Connection
from nilometer.identifiers import NO_LEADER
from nilometer.local.local_cluster import replication_settings
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import KafkaError

from ..eventually import eventually
from ..ports import free_ports
from .nilometer_broker import NilometerBroker, Place

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 2_000
OPERATION_TIMEOUT_MS = 20_000


class NilometerCluster:
    """`with NilometerCluster(folder) as cluster: … cluster.kill(2)`.

    ``coordination`` is a value of `nilometer.coordination`; by default the brokers share a folder next to
    their data. ``overrides`` are settings of all brokers, ``own_overrides`` those of single brokers by id.
    """

    def __init__(
        self,
        folder: Path | str,
        brokers: int = 3,
        overrides: Mapping[str, str] | None = None,
        *,
        coordination: str | None = None,
        own_overrides: Mapping[int, Mapping[str, str]] | None = None,
        places: Mapping[int, Place] | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()
        self.coordination = coordination or f"local:{self.folder / 'coordination'}"
        self._shared = {
            "nilometer.coordination": self.coordination,
            **replication_settings(brokers),
            **(overrides or {}),
        }
        self._own = own_overrides or {}
        self._places = places or {}
        self.brokers: dict[int, NilometerBroker] = {}
        for broker_id, port in enumerate(free_ports(brokers), start=1):
            self._configure(broker_id, port)
        self._paused: dict[int, None] = {}
        self._client_loop = _LoopThread()

    def _configure(self, broker_id: int, port: int) -> None:
        settings = {**self._shared, **self._own.get(broker_id, {})}
        self.brokers[broker_id] = NilometerBroker(
            self.folder / f"broker-{broker_id}", settings, port, broker_id, self._places.get(broker_id)
        )

    # --- brokers

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, running or not."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def running(self) -> list[int]:
        """The ids of the brokers whose processes run and are not paused."""
        return [
            broker_id
            for broker_id, broker in self.brokers.items()
            if broker.alive() and broker_id not in self._paused
        ]

    def start(self, *broker_ids: int) -> None:
        """Start brokers in parallel (default: all that are down) and wait until they are ready."""
        wanted = broker_ids or tuple(one for one, broker in self.brokers.items() if not broker.alive())
        for broker_id in wanted:
            self.brokers[broker_id].launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until all brokers that were launched are ready."""
        for broker in self.brokers.values():
            broker.wait_ready()

    def add_broker(self, overrides: Mapping[str, str] | None = None) -> int:
        """Configure one more broker and start it; return its id."""
        broker_id = max(self.brokers) + 1
        self._own = {**self._own, broker_id: overrides or {}}
        self._configure(broker_id, free_ports(1)[0])
        self.start(broker_id)
        return broker_id

    def kill(self, *broker_ids: int) -> None:
        """Kill brokers with SIGKILL, all at about the same time."""
        for broker_id in broker_ids:
            os.kill(self.brokers[broker_id].pid, signal.SIGKILL)
        for broker_id in broker_ids:
            self._paused.pop(broker_id, None)
            self.brokers[broker_id].kill()

    def stop(self, broker_id: int) -> int:
        """Stop a broker with SIGTERM; return its exit code."""
        self.resume(broker_id)
        return self.brokers[broker_id].stop()

    def pause(self, broker_id: int) -> None:
        self._paused[broker_id] = None
        os.kill(self.brokers[broker_id].pid, signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        if broker_id in self._paused:
            del self._paused[broker_id]
            os.kill(self.brokers[broker_id].pid, signal.SIGCONT)

    def output(self) -> str:
        """The output of all brokers, for messages about failures."""
        return "\n".join(f"── broker {one} ──\n{broker.output}" for one, broker in self.brokers.items())

    # --- requests to the cluster

    def operate(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Call ``work`` with an admin client of the cluster; return its result or raise its exception."""

        async def with_admin() -> T:
            async with Admin(
                Runtime.system(),
                {
                    "bootstrap.servers": self.bootstrap,
                    "request.timeout.ms": OPERATION_TIMEOUT_MS // 2,
                    "default.api.timeout.ms": OPERATION_TIMEOUT_MS,
                    "socket.connection.setup.timeout.ms": REQUEST_TIMEOUT_MS,
                },
            ) as admin:
                return await work(admin)

        return self._client_loop.run(with_admin())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 3,
        configs: Mapping[str, str] | None = None,
        assignments: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        """Create a topic and wait until every running broker has its metadata with all replicas in sync."""
        topic = (
            NewTopic(name, configs=configs or {}, assignments=assignments)
            if assignments
            else NewTopic(name, partitions, min(replication_factor, len(self.brokers)), configs or {})
        )
        self.operate(lambda admin: admin.create_topic(topic))
        self.wait_full_isr(name)

    def metadata_of(self, broker_id: int, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Return one broker's metadata of the cluster. Raises KafkaError if it does not respond."""
        broker = self.brokers[broker_id]
        names = None if topics is None else list(topics)

        async def ask() -> ClusterMetadata:
            connection = await Connection.open(
                Runtime.system(),
                broker.host,
                broker.port,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                setup_timeout_ms=REQUEST_TIMEOUT_MS,
            )
            try:
                response = await connection.request(ApiKey.METADATA, lambda api: metadata_request(api, names))
                return read_metadata(response).metadata
            finally:
                connection.close()

        return self._client_loop.run(ask())

    def topics(self) -> list[str]:
        """Return the names of all topics, including internal ones."""
        return list(self.operate(lambda admin: admin.list_topics()))

    def topic_setting(self, topic: str, key: str) -> str | None:
        """Return the effective value of a topic's config ``key``."""
        return self.operate(lambda admin: admin.describe_configs(ResourceType.TOPIC, topic))[key].value

    def partition(self, topic: str, partition: int = 0) -> PartitionMetadata | None:
        """Return a partition's metadata from the first running broker that responds; None if unknown."""
        for broker_id in self.running:
            try:
                known = self.metadata_of(broker_id, [topic]).topics.get(topic)
            except KafkaError:
                continue
            return known.partitions[partition] if known and partition < len(known.partitions) else None
        return None

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        known = self.partition(topic, partition)
        return known.leader_id if known is not None and known.leader_id != NO_LEADER else None

    def controller(self) -> int | None:
        """Return the controller's id if all running brokers agree on a running one, else None."""
        running = self.running
        found = {self._controller_seen_by(broker_id) for broker_id in running}
        return next(iter(found)) if len(found) == 1 and found <= set(running) else None

    def _controller_seen_by(self, broker_id: int) -> int | None:
        try:
            return self.metadata_of(broker_id, []).controller_id
        except KafkaError:
            return None

    # --- waiting

    def wait_full_isr(self, topic: str, timeout_s: float = 20.0) -> None:
        """Wait until, for every running broker, each partition has a leader and all replicas in sync."""
        eventually(
            lambda: all(self._is_full(broker_id, topic) for broker_id in self.running),
            f"all replicas of {topic} in sync",
            timeout_s,
        )

    def wait_settled(self, timeout_s: float = 20.0) -> None:
        """Wait until that holds for every topic: the controller has handled everything that happened."""
        for name in self.metadata_of(self.running[0]).topics:
            self.wait_full_isr(name, timeout_s)

    def _is_full(self, broker_id: int, topic: str) -> bool:
        try:
            known = self.metadata_of(broker_id, [topic]).topics.get(topic)
        except KafkaError:
            return False
        return known is not None and all(
            one.leader_id in one.replicas and set(one.in_sync_replicas) == set(one.replicas)
            for one in known.partitions
        )

    def wait_leader(
        self, topic: str, partition: int = 0, *, other_than: int | None = None, timeout_s: float = 60.0
    ) -> int:
        """Wait for a running leader (other than ``other_than``) and return its broker id."""
        found: list[int] = []

        def is_led() -> bool:
            leader = self.leader_of(topic, partition)
            if leader is None or leader == other_than or leader not in self.running:
                return False
            found.append(leader)
            return True

        eventually(is_led, f"a leader of {topic}-{partition} other than {other_than}", timeout_s)
        return found[-1]

    # --- beginning and end

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(self.output()[-20_000:])
        self.close()

    def close(self) -> None:
        """Kill all running brokers, and close the client's event loop."""
        self.kill(*(one for one, broker in self.brokers.items() if broker.alive()))
        self._client_loop.close()


class _LoopThread:
    """An event loop in a thread, for clients."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
