"""The client without asyncio: ``with nilometer.connect(...) as kafka``, for scripts, notebooks and threads.

An event loop on a thread of its own runs the client. Each method here has the name of a coroutine of the
client, runs it there, and waits for its result; nothing is done twice. Methods may be called from any thread;
records are iterated over in one thread at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from nilometer.client.consumer.fetch_exchange import ConsumerRecord, K, V
from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery, RecordMetadata
from nilometer.client.settings import GivenConfig
from nilometer.kafka.admin import KafkaAdmin
from nilometer.kafka.clients import KS, VS, ConnectionSettings, Transaction
from nilometer.kafka.connection import Kafka, TypedProducer
from nilometer.kafka.formats import JSON, FormatLike, Headers
from nilometer.kafka.queue import DRAIN_S, TIME_LIMIT_S, DeadLetter, Jobs, Queue
from nilometer.kafka.queue_jobs import Ended, Job, Pauses
from nilometer.kafka.queue_settings import Duration
from nilometer.kafka.records import BATCH_RECORDS_MAX, Record, Records

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")


class LoopThread:
    """An event loop that runs in a thread until it is closed."""

    def __init__(self) -> None:
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="nilometer-client", daemon=True
        )
        self._thread.start()
        self._loop = self._started.result()

    async def _serve(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    def run(self, work: Awaitable[R]) -> R:
        """Return the result of ``work``, or raise its exception. Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("the client's own thread cannot wait for it: use another thread")

        async def main() -> R:
            return await work

        future = asyncio.run_coroutine_threadsafe(main(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class Blocking(Generic[W]):
    """What its methods run in the loop: an object of the client."""

    def __init__(self, loop: LoopThread, inner: W) -> None:
        self.loop = loop
        self.inner = inner


def blocking(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """Return the method that waits for ``method`` of the inner object."""

    @functools.wraps(method)
    def call(self: Blocking[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.loop.run(method(self.inner, *args, **kwargs))

    return call


def in_loop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return the method that calls ``method`` of the inner object, which does not wait, in the loop."""

    @functools.wraps(method)
    def call(self: Blocking[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return method(self.inner, *args, **kwargs)

        return self.loop.run(work())

    return call


class BlockingDelivery(Blocking[Delivery]):
    """The acknowledgement of a record to come."""

    def done(self) -> bool:
        return self.inner.done()

    def result(self) -> RecordMetadata:
        """Wait for the acknowledgement. Raises the KafkaError that the record failed with."""
        return self.loop.run(self.inner)


def _delivering(
    method: Callable[Concatenate[Any, P], Awaitable[Delivery]],
) -> Callable[Concatenate[Any, P], BlockingDelivery]:
    @functools.wraps(method)
    def call(self: Blocking[Any], *args: P.args, **kwargs: P.kwargs) -> BlockingDelivery:
        return BlockingDelivery(self.loop, self.loop.run(method(self.inner, *args, **kwargs)))

    return call


class BlockingRecords(Blocking[Records[K, V]], Generic[K, V]):
    """The records of ``kafka.consume``: ``for record in …``."""

    def __enter__(self) -> BlockingRecords[K, V]:
        self.loop.run(self.inner.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def __iter__(self) -> BlockingRecords[K, V]:
        return self

    def __next__(self) -> Record[K, V]:
        if self.inner.has_buffered:
            return self.inner.next_buffered()  # only calls of this thread change the buffer
        batch = self.next_batch(1)
        if not batch:
            raise StopIteration
        return batch[0]

    def batches(self, max_records: int = BATCH_RECORDS_MAX) -> Iterator[list[Record[K, V]]]:
        while batch := self.next_batch(max_records):
            yield batch

    def next_batch(self, max_records: int = BATCH_RECORDS_MAX) -> list[Record[K, V]]:
        return self.loop.run(self.inner.next_batch(max_records))

    def process(
        self, handle: Callable[[Record[K, V]], None], *, attempts: int = 3, pause_ms: int = 100
    ) -> None:
        async def in_thread(record: Record[K, V]) -> None:
            await asyncio.to_thread(handle, record)

        self.loop.run(self.inner.process(in_thread, attempts=attempts, pause_ms=pause_ms))

    @property
    def assignment(self) -> list[TopicPartition]:
        return self.inner.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        return self.inner.paused

    open = blocking(Records[Any, Any].open)
    close = blocking(Records[Any, Any].close)
    commit = blocking(Records[Any, Any].commit)
    committed = blocking(Records[Any, Any].committed)
    position = blocking(Records[Any, Any].position)
    beginning_offsets = blocking(Records[Any, Any].beginning_offsets)
    end_offsets = blocking(Records[Any, Any].end_offsets)
    offsets_for_times = blocking(Records[Any, Any].offsets_for_times)
    seek = in_loop(Records[Any, Any].seek)
    seek_to_beginning = in_loop(Records[Any, Any].seek_to_beginning)
    seek_to_end = in_loop(Records[Any, Any].seek_to_end)
    pause = in_loop(Records[Any, Any].pause)
    resume = in_loop(Records[Any, Any].resume)


class BlockingAdmin(Blocking[KafkaAdmin]):
    """``kafka.admin``: topics, configurations, groups and offsets."""

    cluster = blocking(KafkaAdmin.cluster)
    create_topic = blocking(KafkaAdmin.create_topic)
    delete_topic = blocking(KafkaAdmin.delete_topic)
    add_partitions = blocking(KafkaAdmin.add_partitions)
    topics = blocking(KafkaAdmin.topics)
    topic = blocking(KafkaAdmin.topic)
    offsets = blocking(KafkaAdmin.offsets)
    topic_configs = blocking(KafkaAdmin.topic_configs)
    set_topic_configs = blocking(KafkaAdmin.set_topic_configs)
    broker_configs = blocking(KafkaAdmin.broker_configs)
    set_broker_configs = blocking(KafkaAdmin.set_broker_configs)
    groups = blocking(KafkaAdmin.groups)
    group = blocking(KafkaAdmin.group)
    delete_group = blocking(KafkaAdmin.delete_group)
    group_offsets = blocking(KafkaAdmin.group_offsets)
    set_group_offsets = blocking(KafkaAdmin.set_group_offsets)
    delete_group_offsets = blocking(KafkaAdmin.delete_group_offsets)
    create_queue = blocking(KafkaAdmin.create_queue)
    share_group_lags = blocking(KafkaAdmin.share_group_lags)


class ThreadListener(RebalanceListener):
    """Calls a listener in a thread other than the loop's, so that it may call the methods that wait."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_partitions_assigned, partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_partitions_revoked, partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_partitions_lost, partitions)


def _reading(
    method: Callable[Concatenate[Any, P], Records[K, V]],
) -> Callable[Concatenate[Any, P], BlockingRecords[K, V]]:
    @functools.wraps(method)
    def call(self: Blocking[Any], *args: P.args, **kwargs: P.kwargs) -> BlockingRecords[K, V]:
        listener = kwargs.get("listener")
        if isinstance(listener, RebalanceListener):
            kwargs["listener"] = ThreadListener(listener)
        return BlockingRecords(self.loop, in_loop(method)(self, *args, **kwargs))

    return call


class BlockingProducer(Blocking[TypedProducer[KS, VS]], Generic[KS, VS]):
    """``kafka.producer(value=JSON)``."""

    send = blocking(TypedProducer[KS, VS].send)
    enqueue = _delivering(TypedProducer[KS, VS].enqueue)
    flush = blocking(TypedProducer[KS, VS].flush)


class BlockingTransaction(Blocking[Transaction[KS, VS]], Generic[KS, VS]):
    """``with kafka.transaction("billing-1") as transaction``."""

    send = _delivering(Transaction[KS, VS].send)

    def commit_offsets(self, records: BlockingRecords[Any, Any]) -> None:
        self.loop.run(self.inner.commit_offsets(records.inner))


class BlockingKafka(Blocking[Kafka]):
    """``with nilometer.connect("host:port") as kafka``: the methods of ``Kafka``, which wait."""

    send = blocking(Kafka.send)
    enqueue = _delivering(Kafka.enqueue)
    flush = blocking(Kafka.flush)
    consume = _reading(Kafka.consume)

    def producer(
        self, *, key: FormatLike[KS] | None = None, value: FormatLike[VS] | None = None
    ) -> BlockingProducer[KS, VS]:
        return BlockingProducer(self.loop, self.inner.producer(key=key, value=value))

    def queue(self, name: str, *, value: FormatLike[V] = JSON) -> BlockingQueue[V]:

        return BlockingQueue(self.loop, self.inner.queue(name, value=value))

    @contextmanager
    def transaction(
        self,
        transactional_id: str,
        *,
        key: FormatLike[KS] | None = None,
        value: FormatLike[VS] | None = None,
    ) -> Generator[BlockingTransaction[KS, VS], None, None]:
        block = self.inner.transaction(transactional_id, key=key, value=value)
        transaction = self.loop.run(block.__aenter__())
        try:
            yield BlockingTransaction(self.loop, transaction)
        except BaseException as error:
            if not self.loop.run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.loop.run(block.__aexit__(None, None, None))

    @property
    def admin(self) -> BlockingAdmin:
        return BlockingAdmin(self.loop, self.inner.admin)


class Connection(Kafka):
    """What :func:`connect` returns: ``async with`` opens a Kafka, and ``with`` a BlockingKafka."""

    _blocking: BlockingKafka | None = None

    def __enter__(self) -> BlockingKafka:
        """Connect from a thread, without asyncio. Raises ConnectionLost if no bootstrap server responds."""
        loop = LoopThread()
        try:
            loop.run(self.__aenter__())
        except BaseException:
            loop.close()
            raise
        self._blocking = BlockingKafka(loop, self)
        return self._blocking

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            try:
                blocking.loop.run(self.close(failed=kind is not None))
            finally:
                blocking.loop.close()


def connect(
    bootstrap_servers: str | Sequence[str],
    *,
    client_id: str = "nilometer",
    settings: GivenConfig | None = None,
) -> Connection:
    """Return a connection to the cluster: for ``async with``, or for ``with`` without asyncio.

    ``bootstrap_servers``: ``"host:port,…"``, or a sequence of ``"host:port"``. ``settings`` are those of
    Kafka's producers, consumers and admin clients, under Kafka's keys (``"linger.ms": 0``); each is given to
    the clients that have it. Raises InvalidSetting.
    """
    servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    return Connection(ConnectionSettings(servers, client_id, settings or {}))


# Queues without asyncio: ``for job in queue.jobs(): with job: …``, or ``queue.run(handle)``.
#
# The client's event loop, on a thread of its own, renews the locks, whatever the thread of the work does.


class BlockingJob(Blocking[Job[V]], Generic[V]):
    """One delivery of a job: ``with job:``."""

    def __enter__(self) -> BlockingJob[V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.loop.run(self.inner.__aexit__(kind, error, traceback))

    @property
    def value(self) -> V:
        return self.inner.value

    @property
    def record(self) -> ConsumerRecord:
        return self.inner.record

    @property
    def key(self) -> bytes | None:
        return self.inner.key

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return self.inner.headers

    @property
    def deliveries(self) -> int:
        return self.inner.deliveries

    @property
    def rounds(self) -> int:
        return self.inner.rounds

    @property
    def is_last_delivery(self) -> bool:
        return self.inner.is_last_delivery

    @property
    def is_lost(self) -> bool:
        return self.inner.is_lost

    accept = blocking(Job[Any].accept)
    release = blocking(Job[Any].release)
    reject = blocking(Job[Any].reject)
    renew = blocking(Job[Any].renew)


class BlockingJobs(Blocking[Jobs[V]], Generic[V]):
    """The jobs of ``queue.jobs()``. One thread at a time may iterate; it may pass jobs to other threads."""

    def __enter__(self) -> BlockingJobs[V]:
        self.loop.run(self.inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> BlockingJobs[V]:
        return self

    def __next__(self) -> BlockingJob[V]:
        found = self.next_batch(1)
        if not found:
            raise StopIteration
        return found[0]

    def next_batch(self, max_jobs: int = 100) -> list[BlockingJob[V]]:
        return [BlockingJob(self.loop, one) for one in self.loop.run(self.inner.next_batch(max_jobs))]

    close = blocking(Jobs[Any].close)


class BlockingQueue(Blocking[Queue[V]], Generic[V]):
    """``kafka.queue("jobs")``: the methods of ``Queue``, which wait."""

    put = blocking(Queue[V].put)
    put_many = blocking(Queue[V].put_many)
    stats = blocking(Queue[V].stats)
    redrive = blocking(Queue[V].redrive)
    stop = in_loop(Queue[V].stop)

    @property
    def name(self) -> str:
        return self.inner.name

    def put_within(
        self,
        transaction: BlockingTransaction[Any, Any],
        value: V,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
    ) -> BlockingDelivery:
        work = self.inner.put_within(transaction.inner, value, key=key, headers=headers)
        return BlockingDelivery(self.loop, self.loop.run(work))

    def run(
        self,
        handle: Callable[[BlockingJob[V]], object],
        *,
        concurrency: int = 8,
        time_limit: Duration = TIME_LIMIT_S,
        drain: Duration = DRAIN_S,
        pauses: Pauses | None = None,
        until_idle: Duration | None = None,
        max_deliveries: int | None = None,
        lock: Duration | None = None,
    ) -> Ended:
        """Do jobs as ``Queue.run`` does, each in a thread of its own, until another thread, or a signal's
        handler in one, calls :meth:`stop`. Ctrl-C gives the jobs in hand back."""

        def in_thread(job: Job[V]) -> None:
            handle(BlockingJob(self.loop, job))

        return self.loop.run(
            self.inner.run(
                in_thread,
                concurrency=concurrency,
                time_limit=time_limit,
                drain=drain,
                pauses=pauses,
                until_idle=until_idle,
                max_deliveries=max_deliveries,
                lock=lock,
            )
        )

    def jobs(
        self,
        *,
        time_limit: Duration = TIME_LIMIT_S,
        pauses: Pauses | None = None,
        until_idle: Duration | None = None,
        max_deliveries: int | None = None,
        lock: Duration | None = None,
    ) -> BlockingJobs[V]:
        jobs = self.inner.jobs(
            time_limit=time_limit,
            pauses=pauses,
            until_idle=until_idle,
            max_deliveries=max_deliveries,
            lock=lock,
        )
        return BlockingJobs(self.loop, jobs)

    def dead(self, *, limit: int | None = None) -> list[DeadLetter]:
        async def listed() -> list[DeadLetter]:
            return [one async for one in self.inner.dead(limit=limit)]

        return self.loop.run(listed())
