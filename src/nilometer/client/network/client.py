"""One client of a cluster: where the brokers are, which of them to ask, and trying again.

The shell around :class:`~nilometer.client.network.cluster_metadata.ClusterMetadata` and
:class:`~nilometer.client.network.connection_pool.ConnectionPool` that producer, consumer and admin share.
Knows which broker to ask and when to ask again; the callers know what to ask.

Invariants:

- A refresh of the metadata that was asked for begins after it was asked for: its result is newer than the
  request.
- Metadata is refreshed at most once per ``retry.backoff.ms``, however often it is asked for.
- Who leads and who coordinates is asked of another broker each time: a broker that is cut off from the others
  answers with what it knew before, and is the least busy of all because it serves no clients.
- Pauses between attempts follow ``retry.backoff.ms``; no attempt goes on past its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from nilometer.client.network.backoff import Backoff
from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    ClusterMetadata,
    TopicMetadata,
    TopicPartition,
)
from nilometer.client.network.connection import ConnectionLost, MakeRequest
from nilometer.client.network.connection_pool import ConnectionPool
from nilometer.client.network.metadata_exchange import metadata_request, read_metadata
from nilometer.client.settings.client_settings import ClientSettings
from nilometer.client.settings.common_keys import parse_server
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

T = TypeVar("T")

STALE_METADATA = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.replica_not_available,
        ErrorCode.listener_not_found,
        ErrorCode.not_controller,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)
"""Errors after which fresh metadata may name another broker to ask."""

ROUND_ROBIN_APIS = frozenset({ApiKey.METADATA, ApiKey.FIND_COORDINATOR})
"""What a broker may answer from an old picture of the cluster: the next broker is asked the next time."""


class Client:
    """Use as ``async with Client(runtime, settings) as client``, or call :meth:`start` and :meth:`close`."""

    def __init__(self, runtime: Runtime, settings: ClientSettings) -> None:
        if settings.value("bootstrap.servers") is None:
            raise ConfigError("bootstrap.servers", "bootstrap.servers must be given: host:port[,host:port…]")
        self.runtime = runtime
        self.settings = settings
        self.metadata = ClusterMetadata()
        self.topic_errors: dict[str, ErrorCode] = {}
        """What the brokers last said of topics that they would not describe."""
        self.auto_create_topics = False
        self.on_metadata: list[Callable[[ClusterMetadata], None]] = []
        self._bootstrap = [parse_server(text) for text in settings.strings("bootstrap.servers")]
        self._backoff = Backoff(
            settings.integer("retry.backoff.ms"), settings.integer("retry.backoff.max.ms")
        )
        self._topics: dict[str, None] = {}  # in the order they were added: sets iterate by hash
        self._all_topics = False
        self.connections = ConnectionPool(runtime, settings, lambda: self.metadata.brokers)
        self._refresh_lock = asyncio.Lock()
        self._refreshes_begun = 0
        self._refreshed = 0
        self._stale = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._answered_last: dict[int, int] = {}
        """The broker that answered last, by API key, of the APIs in ``ROUND_ROBIN_APIS``."""

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Find the cluster. Raises ConnectionLost when no bootstrap server answers."""
        await self.refresh()
        self._keeper = asyncio.create_task(self._keep_metadata_fresh(), name="client-metadata")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self.connections.close()

    # --- metadata

    def watch_topics(self, topics: Iterable[str]) -> bool:
        """Keep the metadata of ``topics`` from the next refresh on; whether some of them are new."""
        new = [topic for topic in topics if topic not in self._topics]
        self._topics.update(dict.fromkeys(new))
        return bool(new)

    def watch_all_topics(self) -> None:
        """Keep the metadata of every topic there is, from the next refresh on."""
        if not self._all_topics:
            self._all_topics = True
            self.request_refresh()

    def request_refresh(self) -> None:
        """Have the metadata refreshed soon, in the background."""
        self._stale.set()

    async def refresh(self) -> ClusterMetadata:
        """Metadata not older than this call. Raises KafkaError when no broker answers."""
        begun = self._refreshes_begun
        async with self._refresh_lock:
            if self._refreshed <= begun:
                self._refreshes_begun += 1
                number = self._refreshes_begun
                await self._fetch_metadata()
                self._refreshed = number
        return self.metadata

    async def topic(self, name: str, timeout_ms: int) -> TopicMetadata:
        """The metadata of one topic, waiting for it to appear. Raises KafkaError saying why it did not."""
        known = self.metadata.topics.get(name)
        if known is not None and known.partitions:
            return known
        self.watch_topics([name])

        async def look() -> TopicMetadata:
            found = (await self.refresh()).topics.get(name)
            if found is None or not found.partitions:
                code = self.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
                raise KafkaError(code, f"topic {name}")
            return found

        return await self.retry(look, timeout_ms)

    def learn_leader(
        self, partition: TopicPartition, leader_id: int, leader_epoch: int, nodes: Iterable[BrokerNode] = ()
    ) -> bool:
        """Take over a leader that a produce or fetch response named (KIP-951). Returns whether it was
        unknown."""
        changed = self.metadata.with_leader(partition, leader_id, leader_epoch, nodes)
        if changed is self.metadata:
            return False
        self._install(changed)
        return True

    async def _fetch_metadata(self) -> None:
        wanted = None if self._all_topics else self._topics
        create = self.auto_create_topics and wanted is not None
        response = await self.send_to_any(
            ApiKey.METADATA, lambda api: metadata_request(api, wanted, create=create)
        )
        answer = read_metadata(response)
        self.topic_errors = answer.errors
        gone = [name for name, code in answer.errors.items() if code == ErrorCode.unknown_topic_or_partition]
        if wanted is None:
            gone += [name for name in self.metadata.topics if name not in answer.metadata.topics]
        self._install(self.metadata.merged(answer.metadata, gone))

    def _install(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        for listener in self.on_metadata:
            listener(metadata)

    async def _keep_metadata_fresh(self) -> None:
        max_age_s = self.settings.integer("metadata.max.age.ms") / 1000
        failures = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max_age_s):
                    await self._stale.wait()
            self._stale.clear()
            try:
                await self.refresh()
                failures = 0
            except KafkaError:
                self._stale.set()  # no broker answered; the waiters for metadata get the error
                failures += 1
            # At least one pause between refreshes, however often they are asked for.
            await self.pause(max(failures, 1))

    # --- requests

    async def send_to(
        self, node_id: int, api_key: int, make: MakeRequest, *, at_most: int | None = None
    ) -> Message:
        """Ask one broker. Raises KafkaError."""
        connection = await self.connections.get(node_id)
        return await connection.request(api_key, make, at_most=at_most)

    async def send_to_leader(
        self, partition: TopicPartition, api_key: int, make: MakeRequest, *, at_most: int | None = None
    ) -> Message:
        leader = self.metadata.leader(partition)
        if leader is None:
            raise KafkaError(ErrorCode.leader_not_available, f"no leader of {partition} is known")
        return await self.send_to(leader.node_id, api_key, make, at_most=at_most)

    async def send_to_controller(self, api_key: int, make: MakeRequest) -> Message:
        if self.metadata.controller_id not in self.metadata.brokers:
            raise KafkaError(ErrorCode.not_controller, "no controller is known")
        return await self.send_to(self.metadata.controller_id, api_key, make)

    async def send_to_any(self, api_key: int, make: MakeRequest) -> Message:
        """Ask any broker: a connected one, else any known one, else a bootstrap server.

        For the APIs in ``ROUND_ROBIN_APIS`` the broker that answered last comes after the other known ones.
        Raises the KafkaError of the last broker asked.
        """
        error: KafkaError = ConnectionLost("no broker is known")
        for node_id in self._any_order(api_key):
            try:
                response = await self.send_to(node_id, api_key, make)
            except KafkaError as failure:
                if not failure.retriable:
                    raise
                error = failure
            else:
                if api_key in ROUND_ROBIN_APIS:
                    self._answered_last[api_key] = node_id
                return response
        for host, port in self._bootstrap:
            try:
                connection = await self.connections.open(host, port)
            except KafkaError as failure:
                error = failure
                continue
            try:
                return await connection.request(api_key, make)
            except KafkaError as failure:
                if not failure.retriable:
                    raise
                error = failure
            finally:
                connection.close()
        raise error

    def _any_order(self, api_key: int) -> list[int]:
        order = self.connections.by_nearness()
        last = self._answered_last.get(api_key)
        if last in order:
            order.remove(last)
            order.append(last)
        return order

    # --- trying again

    async def retry(self, attempt: Callable[[], Awaitable[T]], timeout_ms: int) -> T:
        """The result of ``attempt``, tried until it succeeds, fails finally, or the time is over.

        Raises the KafkaError of the last attempt.
        """
        clock = self.runtime.clock
        deadline_ms = clock.monotonic_ms() + timeout_ms
        failures, stale = 0, False
        last: KafkaError | None = None
        while True:
            try:
                async with asyncio.timeout(max(deadline_ms - clock.monotonic_ms(), 0) / 1000):
                    if stale:
                        await self.refresh()
                        stale = False
                    return await attempt()
            except TimeoutError:
                reason = f"not done within {timeout_ms} ms" + (f", last because of {last}" if last else "")
                raise KafkaError(ErrorCode.request_timed_out, reason) from last
            except KafkaError as error:
                last = error
                failures += 1
                delay_ms = self._backoff.delay_ms(failures, self.runtime.entropy)
                if not error.retriable or clock.monotonic_ms() + delay_ms >= deadline_ms:
                    raise
                stale = stale or error.code in STALE_METADATA
                await asyncio.sleep(delay_ms / 1000)

    async def pause(self, failures: int) -> None:
        """Wait as long as is fitting after so many failures in a row."""
        await asyncio.sleep(self._backoff.delay_ms(failures, self.runtime.entropy) / 1000)
