"""A test cluster whose methods are coroutines: the event loop runs while brokers start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from nilometer.testing.cluster import Cluster

P = ParamSpec("P")
T = TypeVar("T")


class AsyncCluster:
    """``async with Cluster(brokers=3) as cluster: … await cluster.kill(2)``.

    Each method does what the method of :class:`~nilometer.testing.cluster.Cluster` with its name does, and
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
