"""The network client that producer, consumer and admin share: metadata, choice of the broker, retries.

Does the I/O around :class:`~nilometer.client.network.cluster_metadata.ClusterMetadata` and
:class:`~nilometer.client.network.connection_pool.ConnectionPool`. It chooses the broker and the time of each
attempt; the callers make the requests and read the responses.

Invariants:

- :meth:`Client.refresh` returns metadata that was requested after the call, never the result of a request
  that was already under way.
- The background task refreshes the metadata at most once per ``retry.backoff.ms``, however often
  :meth:`Client.request_refresh` is called.
- Consecutive Metadata and FindCoordinator requests go to different brokers: a broker that is cut off from the
  others responds with old metadata, and looks the least busy because it serves no clients.
- Pauses between attempts follow ``retry.backoff.ms``; no attempt lasts past its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    ClusterMetadata,
    TopicMetadata,
    TopicPartition,
    metadata_request,
    read_metadata,
)
from nilometer.client.network.connection import ConnectionLost, MakeRequest
from nilometer.client.network.connection_pool import Backoff, ConnectionPool
from nilometer.client.settings import ClientSettings, parse_server
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.runtime.gathering import gather
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError

# Background jobs of one client: at most one of each name at a time; all are cancelled by :meth:`Jobs.close`.
#
# A job handles every KafkaError itself. Any other exception is a bug: it goes to the event loop's exception
# handler, and the job of that name starts again after a pause at the earliest.

AFTER_BUG_S = 1.0
"""Without it, a job whose work is still to be done would fail and be reported thousands of times a second."""


class Jobs:
    def __init__(self, owner: str, on_ended: Callable[[], None]) -> None:
        self._owner = owner
        self._on_ended = on_ended
        self._running: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def start(self, name: str, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start ``job`` as a task, unless one of that name is running or the jobs are closed."""
        if name in self._running or self._closed:
            return
        task = asyncio.create_task(job(), name=f"{self._owner}-{name}")
        self._running[name] = task
        task.add_done_callback(lambda done: self._on_done(name, done))

    async def close(self) -> None:
        self._closed = True
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await gather(*running, return_exceptions=True)

    def _on_done(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_later(AFTER_BUG_S, self._end, name)
            raise error
        self._end(name)

    def _end(self, name: str) -> None:
        del self._running[name]
        if not self._closed:
            self._on_ended()


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
"""Errors after which :meth:`Client.retry` refreshes the metadata: another broker may be the right one now."""

ROUND_ROBIN_APIS = frozenset({ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID})
"""APIs that a broker may serve from old metadata, or not while it does not reach the controller: consecutive
requests go to different brokers."""


class Client:
    """Use as ``async with Client(runtime, settings) as client``, or call :meth:`start` and :meth:`close`."""

    def __init__(self, runtime: Runtime, settings: ClientSettings) -> None:
        if settings.value("bootstrap.servers") is None:
            raise ConfigError("bootstrap.servers", "bootstrap.servers must be given: host:port[,host:port…]")
        self.runtime = runtime
        self.settings = settings
        self.metadata = ClusterMetadata()
        self.topic_errors: dict[str, ErrorCode] = {}
        """The error code of each topic that the last Metadata response did not describe."""
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
        """API key of ``ROUND_ROBIN_APIS`` to the id of the broker that responded last."""

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Fetch the metadata from a bootstrap server and start refreshing it in the background.

        Raises ConnectionLost when no bootstrap server responds.
        """
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
        """Include ``topics`` in every refresh from the next one on. Returns whether any of them is new."""
        new = [topic for topic in topics if topic not in self._topics]
        self._topics.update(dict.fromkeys(new))
        return bool(new)

    def watch_all_topics(self) -> None:
        """Request a refresh, and have it and every later one fetch the metadata of all topics."""
        if not self._all_topics:
            self._all_topics = True
            self.request_refresh()

    def request_refresh(self) -> None:
        """Wake the background task, which refreshes the metadata."""
        self._stale.set()

    async def refresh(self) -> ClusterMetadata:
        """Return metadata that was requested after this call. Raises KafkaError when no broker responds."""
        begun = self._refreshes_begun
        async with self._refresh_lock:
            if self._refreshed <= begun:
                self._refreshes_begun += 1
                number = self._refreshes_begun
                await self._fetch_metadata()
                self._refreshed = number
        return self.metadata

    async def topic(self, name: str, timeout_ms: int) -> TopicMetadata:
        """Return the metadata of one topic; wait up to ``timeout_ms`` for the topic to have partitions.

        Raises KafkaError with the topic's error code if it has none by then.
        """
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

        try:
            return await self.retry(look, timeout_ms)
        except KafkaError as error:
            last = error.__cause__  # The last attempt's error, if the time ran out during another attempt.
            missing = self.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
            if isinstance(last, KafkaError) and last.code is missing:
                raise last from error
            raise

    def learn_leader(
        self, partition: TopicPartition, leader_id: int, leader_epoch: int, nodes: Iterable[BrokerNode] = ()
    ) -> bool:
        """Set the leader that a Produce or Fetch response named (KIP-951).

        Returns whether this changed the metadata: it does not if ``leader_epoch`` is not newer.
        """
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
                self._stale.set()  # No broker responded: try again. Callers of refresh() get their own error.
                failures += 1
            # At least one pause between refreshes, however often request_refresh() is called.
            await self.pause(max(failures, 1))

    # --- requests

    async def send_to(
        self, node_id: int, api_key: int, make: MakeRequest, *, at_most: int | None = None
    ) -> Message:
        """Send a request to one broker and return the response. Raises KafkaError.

        ``at_most`` limits the API version.
        """
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
        """Send a request to one broker after another until one responds; return the response.

        The order: connected brokers, other known brokers, bootstrap servers. For ``ROUND_ROBIN_APIS`` the
        broker that responded last comes after the other known ones. Raises the first error that is not
        retriable, else the error of the last broker.
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
        """Call ``attempt`` until it succeeds and return its result; pause between the calls.

        Raises KafkaError when an attempt fails with an error that is not retriable, or after ``timeout_ms``.
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
                reason = f"not completed within {timeout_ms} ms" + (
                    f"; the last error: {last}" if last else ""
                )
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
        """Wait for the back-off time after ``failures`` failures in a row."""
        await asyncio.sleep(self._backoff.delay_ms(failures, self.runtime.entropy) / 1000)


# Finds out at once whether a topic exists: a client would retry until its timeout for one that does not.
#
# A broker may not know a topic that was created a moment ago, so UNKNOWN_TOPIC_OR_PARTITION is retriable. The
# controller knows every topic: what it does not know does not exist.


async def topic_exists(client: Client, topic: str, timeout_ms: int) -> bool:
    """Return whether ``topic`` exists, and keep its metadata up to date; it is not created.

    If a broker does not know it, the controller decides. Raises KafkaError for a name that no topic can have,
    or if no controller responds within ``timeout_ms``.
    """
    client.watch_topics([topic])
    return topic in (await client.refresh()).topics or await controller_knows(client, topic, timeout_ms)


async def controller_knows(client: Client, topic: str, timeout_ms: int) -> bool:
    """Return whether the controller knows ``topic``. Raises KafkaError as :func:`topic_exists`."""

    async def ask() -> ErrorCode | None:
        response = await client.send_to_controller(
            ApiKey.METADATA, lambda api: metadata_request(api, [topic])
        )
        return read_metadata(response).errors.get(topic)

    code = await client.retry(ask, timeout_ms)
    if code is ErrorCode.unknown_topic_or_partition:
        return False
    if code is not None and code is not ErrorCode.leader_not_available:  # it has no leader yet
        raise KafkaError(code, f"topic {topic}")
    return True


def no_such_topic(topic: str) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic} does not exist")
