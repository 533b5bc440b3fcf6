"""Blocking calls for reading a cluster from a Spark process: the client runs in its own thread.

Reads metadata and offsets by timestamp, and fetches a range of a partition, with the next Fetch request in
flight while the last response is decoded. Never decodes records, and does not depend on Spark.

Invariants: a process has one client per set of settings, which is made when first used and kept, so that a
micro-batch needs no new connections; a Fetch request names the topic by id, so that records of another topic
with the same name are never returned; a fetch of a range reaches its end or raises an error.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import (
    TopicMetadata,
    TopicPartition,
    metadata_request,
    read_metadata,
)
from nilometer.client.network.connection_pool import FETCH_CHANNEL
from nilometer.client.offset_queries import (
    CONSUMER_REPLICA_ID,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_offsets,
)
from nilometer.client.settings import ClientSettings
from nilometer.pipeline.errors import DataLoss, SourceError
from nilometer.pipeline.source.positions import OffsetRange
from nilometer.pipeline.source.source_options import EARLIEST, LATEST, Selection
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message
from nilometer.wire.record_batch import batches

T = TypeVar("T")

TOPIC_WAIT_MS = 5_000
"""How long a topic may be missing before it counts as deleted: brokers' metadata may lag."""
GAP_ANSWERS = 2
"""After so many empty responses in a row below the high watermark, the offsets count as compacted."""

_shared: dict[tuple[tuple[str, str], ...], ClusterReader] = {}
_shared_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Fetched:
    offset: int
    """The first wanted offset: earlier records of the first batch are deleted, or were read already."""
    records: bytes | memoryview
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of the aborted transactions in ``records``; only for read_committed."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """An empty Fetch response to a client that exceeds its quota."""

    seconds: float
    """The time to wait before the next request."""


class ClusterReader:
    """The blocking interface; :meth:`shared` returns one. ``consumer`` are consumer settings."""

    def __init__(self, consumer: Iterable[tuple[str, str]]) -> None:
        self._settings = ClientSettings(CONSUMER_CONFIG_DEFINITION, dict(consumer))
        self._timeout_ms = self._settings.integer("default.api.timeout.ms")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nilometer-client", daemon=True)
        self._thread.start()
        self._client: Client | None = None

    @classmethod
    def shared(cls, consumer: tuple[tuple[str, str], ...]) -> ClusterReader:
        """Return this process's reader for these settings; make it at the first call."""
        with _shared_lock:
            reader = _shared.get(consumer)
            if reader is None:
                reader = _shared[consumer] = cls(consumer)
            return reader

    def close(self) -> None:
        with _shared_lock:
            for key, reader in list(_shared.items()):
                if reader is self:
                    del _shared[key]
        if self._client is not None:
            self._submit(self._client.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- blocking calls

    def topics(self, selection: Selection) -> dict[str, TopicMetadata]:
        """Return the selected topics that exist; wait for missing ones up to ``TOPIC_WAIT_MS`` each."""
        return self._run(self._topics(selection), "metadata")

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, per partition, the offset for the wanted timestamp (ms), EARLIEST or LATEST; -1: none."""
        return self._run(self._offsets(wanted), "offsets") if wanted else {}

    def are_known(self, topics: Mapping[str, TopicMetadata]) -> bool:
        """Whether the last metadata has the same topic ids for ``topics``. Sends no request."""
        return self._run(self._are_known(topics), "metadata")

    def fetch(self, wanted: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Fetched]:
        """Yield the record sets of a range, in order; the next one is fetched while the last is in use.

        Raises SourceError; DataLoss if records are missing and ``fail_on_data_loss`` is set.
        """
        fetcher = _RangeFetcher(self._settings, wanted, fail_on_data_loss)
        under_way = self._submit(self._with_client(fetcher.fetch))
        try:
            while True:
                fetched = self._result(under_way, str(wanted.part))
                if fetched.next_offset < wanted.end:
                    under_way = self._submit(self._with_client(fetcher.fetch))
                yield fetched
                if fetched.next_offset >= wanted.end:
                    return
        finally:
            under_way.cancel()

    # --- in the client's thread

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        return self._result(self._submit(work), what)

    def _result(self, future: Future[T], what: str) -> T:
        try:
            return future.result()
        except KafkaError as error:
            servers = ",".join(self._settings.strings("bootstrap.servers"))
            raise SourceError(f"reading {what} from {servers} failed: {error}") from error

    async def _started(self) -> Client:
        if self._client is None:
            client = Client(Runtime.system(), self._settings)
            await client.start()
            self._client = client
        return self._client

    async def _with_client(self, work: Callable[[Client], Awaitable[T]]) -> T:
        return await work(await self._started())

    async def _topics(self, selection: Selection) -> dict[str, TopicMetadata]:
        client = await self._started()
        names = selection.names
        if names is None:
            response = await client.send_to_any(ApiKey.METADATA, lambda api: metadata_request(api, None))
            topics = read_metadata(response).metadata.topics
            matching = [name for name in sorted(topics) if not topics[name].is_internal]
            names = tuple(name for name in matching if selection.matches(name))
        client.watch_topics(names)
        await client.refresh()
        found: dict[str, TopicMetadata] = {}
        for name in names:
            try:
                found[name] = await client.topic(name, TOPIC_WAIT_MS)
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_topic_or_partition:
                    raise
        return found

    async def _are_known(self, topics: Mapping[str, TopicMetadata]) -> bool:
        known = (await self._started()).metadata.topics
        return all(known.get(name, topic).topic_id == topic.topic_id for name, topic in topics.items())

    async def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        client = await self._started()
        client.watch_topics(sorted({part.topic for part in wanted}))
        return await _list_offsets(client, wanted, _isolation_level(self._settings), self._timeout_ms)


def _isolation_level(settings: ClientSettings) -> int:
    return READ_COMMITTED if settings.string("isolation.level") == "read_committed" else READ_UNCOMMITTED


async def _list_offsets(
    client: Client, wanted: Mapping[TopicPartition, int], isolation_level: int, timeout_ms: int
) -> dict[TopicPartition, int]:
    listed = await list_offsets(client, wanted, isolation_level, timeout_ms)
    return {part: answer.offset for part, answer in listed.items()}


class _RangeFetcher:
    """Fetches one range, response by response, and keeps its position."""

    def __init__(self, settings: ClientSettings, wanted: OffsetRange, fail_on_data_loss: bool) -> None:
        self._settings = settings
        self._timeout_ms = settings.integer("default.api.timeout.ms")
        self._isolation_level = _isolation_level(settings)
        self._wanted = wanted
        self._partition = wanted.part
        self._fail_on_data_loss = fail_on_data_loss
        self._offset = wanted.start
        self._empty_answers = 0
        self._ends_early = ""
        """The error text if the last response showed a log that ends before the wanted end; else empty."""

    async def fetch(self, client: Client) -> Fetched:
        """Return the next record set. If data may be lost, skips offsets that do not exist any more.

        Raises DataLoss otherwise, and KafkaError after the timeout. Waiting because of a quota does not count
        towards the timeout (KIP-219).
        """
        client.watch_topics([self._wanted.topic])
        while True:
            self._ends_early = ""
            try:
                outcome = await client.retry(lambda: self._attempt(client), self._timeout_ms)
            except KafkaError:
                if not self._ends_early:
                    raise
                # No new leader has these offsets: an unclean election has truncated the log.
                outcome = self._lost(self._ends_early, self._wanted.end)
            if isinstance(outcome, Fetched):
                self._offset = outcome.next_offset
                return outcome
            await asyncio.sleep(outcome.seconds)

    async def _attempt(self, client: Client) -> Fetched | Throttled:
        self._ends_early = ""
        topic = client.metadata.topics.get(self._wanted.topic)
        if topic is not None and self._wanted.topic_id not in ("", str(topic.topic_id)):
            # A process that Spark reuses may know the topic from before the plan.
            topic = (await client.refresh()).topics.get(self._wanted.topic)
        if topic is None:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"topic {self._wanted.topic} does not exist"
            )
        if self._wanted.topic_id and str(topic.topic_id) != self._wanted.topic_id:
            return self._lost(f"topic {self._wanted.topic} was deleted and created again", self._wanted.end)
        leader = client.metadata.leader(self._partition)
        if leader is None:
            raise KafkaError(
                ErrorCode.leader_not_available,
                f"{self._partition} has no leader: start the brokers of its replicas",
            )
        connection = await client.connections.get(leader.node_id, FETCH_CHANNEL)
        response = await connection.request(ApiKey.FETCH, lambda api: self._request(api, topic.topic_id))
        if response.error_code != ErrorCode.none:
            raise KafkaError(response.error_code, f"the leader of {self._partition} rejected the fetch")
        answers = [answer for topic in response.responses for answer in topic.partitions]
        if not answers and response.throttle_time:
            return Throttled(response.throttle_time.total_seconds())
        if not answers:
            raise KafkaError(
                ErrorCode.network_exception,
                f"the Fetch response of broker {leader.node_id} does not contain {self._partition}",
            )
        answer = answers[0]
        if answer.error_code == ErrorCode.offset_out_of_range:
            return await self._out_of_range(client)
        if answer.error_code != ErrorCode.none:
            raise KafkaError(answer.error_code, f"the leader of {self._partition} rejected the fetch")
        return self._fetched(answer)

    def _fetched(self, answer: Message) -> Fetched:
        records = answer.records or b""
        next_offset = self._offset
        for _, header in batches(records):
            next_offset = max(next_offset, header.next_offset)
        if next_offset > self._offset:
            self._empty_answers = 0
            aborted = answer.aborted_transactions or ()
            named = tuple((one.producer_id, one.first_offset) for one in aborted)
            return Fetched(self._offset, records, next_offset, named)
        if records:
            raise KafkaError(
                ErrorCode.corrupt_message, f"{self._partition} has no complete batch at offset {self._offset}"
            )
        readable = answer.high_watermark
        if self._isolation_level == READ_COMMITTED:
            readable = min(readable, answer.last_stable_offset)
        if readable < self._wanted.end:
            # Perhaps a new leader whose high watermark is not up to date yet: retry.
            self._ends_early = (
                f"{self._partition} can be read up to offset {readable} only, not to {self._wanted.end}"
            )
            raise KafkaError(ErrorCode.offset_not_available, self._ends_early)
        self._empty_answers += 1
        next_offset = self._wanted.end if self._empty_answers >= GAP_ANSWERS else self._offset
        return Fetched(self._offset, b"", next_offset)

    async def _out_of_range(self, client: Client) -> Fetched:
        part = self._partition
        earliest = await self._list_offset(client, EARLIEST)
        if earliest > self._offset:
            until = min(earliest, self._wanted.end)
            return self._lost(
                f"offsets {self._offset} to {until - 1} of {part} are no longer available: "
                f"its log starts at {earliest}",
                until,
            )
        latest = await self._list_offset(client, LATEST)
        return self._lost(
            f"offsets {self._offset} to {self._wanted.end - 1} of {part} are no longer available: "
            f"its log ends at {latest}",
            self._wanted.end,
        )

    async def _list_offset(self, client: Client, which: int) -> int:
        part = self._partition
        found = await _list_offsets(client, {part: which}, self._isolation_level, self._timeout_ms)
        return found[part]

    def _lost(self, what: str, next_offset: int) -> Fetched:
        if self._fail_on_data_loss:
            raise DataLoss(what)
        return Fetched(self._offset, b"", next_offset)

    def _request(self, api: Api, topic_id: UUID | None) -> Message:
        partition = api.make_request(
            "FetchPartition",
            partition=self._partition.partition,
            current_leader_epoch=-1,
            fetch_offset=self._offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=self._settings.integer("max.partition.fetch.bytes"),
        )
        topic = api.make_request(
            "FetchTopic", topic=self._partition.topic, topic_id=topic_id, partitions=(partition,)
        )
        replica: dict[str, Any] = {"replica_id": CONSUMER_REPLICA_ID}
        if api.version >= 15:
            replica = {
                "replica_state": api.make_request(
                    "ReplicaState", replica_id=CONSUMER_REPLICA_ID, replica_epoch=-1
                )
            }
        return api.request(
            **replica,
            max_wait_ms=self._settings.integer("fetch.max.wait.ms"),
            min_bytes=self._settings.integer("fetch.min.bytes"),
            max_bytes=self._settings.integer("fetch.max.bytes"),
            isolation_level=self._isolation_level,
            session_id=0,
            session_epoch=-1,
            topics=(topic,),
        )
