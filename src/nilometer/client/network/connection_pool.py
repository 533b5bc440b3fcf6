"""Connections to the brokers of one cluster, made when first needed and made again when lost.

Reads a broker's address from the metadata for each attempt, since brokers move, and pauses between attempts.
The caller chooses the broker.

Invariants:

- There is at most one connection per broker and channel, and at most one attempt at a time to make it; all
  callers that wait for it share the attempt, and none of them can cancel it for the others.
- A broker that could not be reached is tried again no sooner than ``reconnect.backoff.ms`` later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nilometer.client.network.cluster_metadata import BrokerNode
from nilometer.client.network.connection import Connection, ConnectionLost, FinalizedFeatures
from nilometer.client.settings import ClientSettings, client_security
from nilometer.runtime import Entropy, Runtime
from nilometer.wire.errors import KafkaError

# The pause before a retry: exponential, with jitter, bounded (KIP-580).

MULTIPLIER = 2
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that start at ``initial_ms`` and double up to ``max_ms``, each off by up to a fifth."""

    initial_ms: int
    max_ms: int

    def delay_ms(self, failures: int, entropy: Entropy) -> int:
        """Return the pause after ``failures`` failures in a row: 0 if there was none.

        ``entropy`` is the source of randomness for the jitter.
        """
        if failures < 1:
            return 0
        # The exponent is bounded: a long series of failures must not compute huge numbers.
        base = min(self.initial_ms * MULTIPLIER ** min(failures - 1, 30), self.max_ms)
        return min(round(base * entropy.uniform(1 - JITTER, 1 + JITTER)), self.max_ms)


MAIN_CHANNEL = "main"
FETCH_CHANNEL = "fetch"
"""The connection for Fetch requests: they wait at the broker, and later requests would wait after them."""

_Key = tuple[int, str]


@dataclass(slots=True)
class _Reconnect:
    """Failed attempts in a row to reach one broker, and the event loop's time before which none is made."""

    failures: int = 0
    not_before: float = 0.0


class ConnectionPool:
    def __init__(
        self, runtime: Runtime, settings: ClientSettings, brokers: Callable[[], Mapping[int, BrokerNode]]
    ) -> None:
        self._runtime = runtime
        self._brokers = brokers
        self._client_id = settings.string("client.id")
        self._request_timeout_ms = settings.integer("request.timeout.ms")
        self._setup_timeout_ms = settings.integer("socket.connection.setup.timeout.ms")
        self._backoff = Backoff(
            settings.integer("reconnect.backoff.ms"), settings.integer("reconnect.backoff.max.ms")
        )
        self._open: dict[_Key, Connection] = {}
        self._connecting: dict[_Key, asyncio.Task[Connection]] = {}
        self._reconnects: dict[int, _Reconnect] = {}
        self._security = client_security(settings)
        self._closed = False
        self.features = FinalizedFeatures()
        """The cluster's features with the highest epoch that any broker has returned."""

    async def get(self, node_id: int, channel: str = MAIN_CHANNEL) -> Connection:
        """Return the open connection to a broker on ``channel``; make it if needed. Raises KafkaError."""
        connection = self.existing(node_id, channel)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectionLost("the client is closed")
        key = (node_id, channel)
        task = self._connecting.get(key)
        if task is None:
            task = asyncio.create_task(self._connect(key), name=f"connect-{node_id}-{channel}")
            self._connecting[key] = task
            task.add_done_callback(lambda done: self._on_attempt_ended(key, done))
        return await asyncio.shield(task)

    def existing(self, node_id: int, channel: str = MAIN_CHANNEL) -> Connection | None:
        """Return the open connection to a broker, or None. Closes one to an address that has changed."""
        connection = self._open.get((node_id, channel))
        if connection is None or connection.closed:
            return None
        node = self._brokers().get(node_id)
        if node is not None and (node.host, node.port) != (connection.host, connection.port):
            connection.close("the broker's address changed")
            return None
        return connection

    async def open(self, host: str, port: int) -> Connection:
        """Open a connection to an address; the caller owns and closes it. Raises KafkaError."""
        connection = await Connection.open(
            self._runtime,
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=self._request_timeout_ms,
            setup_timeout_ms=self._setup_timeout_ms,
            security=self._security,
        )
        self.features = self.features.newer(connection.features)
        return connection

    def by_nearness(self) -> list[int]:
        """Return the ids of all known brokers, in the order in which to try them.

        First the connected ones, by requests in flight; then the others, by failed attempts in a row, in
        random order where these are equal.
        """
        connected: list[tuple[int, int]] = []
        others: list[tuple[int, int, int]] = []
        for node_id in sorted(self._brokers()):
            connection = self.existing(node_id)
            if connection is not None:
                connected.append((connection.in_flight, node_id))
            else:
                state = self._reconnects.get(node_id)
                chance = self._runtime.entropy.below(1 << 16)
                others.append((state.failures if state is not None else 0, chance, node_id))
        return [node_id for _, node_id in sorted(connected)] + [node_id for *_, node_id in sorted(others)]

    async def close(self) -> None:
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
            with suppress(asyncio.CancelledError, KafkaError):
                await task
        for connection in list(self._open.values()):
            connection.close()

    async def _connect(self, key: _Key) -> Connection:
        node_id, _ = key
        state = self._reconnects.setdefault(node_id, _Reconnect())
        loop = asyncio.get_running_loop()
        if (wait := state.not_before - loop.time()) > 0:
            await asyncio.sleep(wait)
        node = self._brokers().get(node_id)
        if node is None:
            raise ConnectionLost(f"no broker {node_id} is known")
        try:
            connection = await self.open(node.host, node.port)
        except KafkaError:
            state.failures += 1
            delay_ms = self._backoff.delay_ms(state.failures, self._runtime.entropy)
            state.not_before = loop.time() + delay_ms / 1000
            raise
        state.failures, state.not_before = 0, 0.0
        self._open[key] = connection
        connection.on_lost = lambda lost: self._on_lost(key, lost)
        return connection

    def _on_attempt_ended(self, key: _Key, task: asyncio.Task[Connection]) -> None:
        del self._connecting[key]
        if not task.cancelled():
            task.exception()  # Mark it as retrieved: every waiter got the error, and there may be none.

    def _on_lost(self, key: _Key, lost: Connection) -> None:
        if self._open.get(key) is lost:
            del self._open[key]
