"""A queue: work for any worker that is free, acknowledged one by one, delivered again when a worker dies, and
buried after so many tries. Its topic has the queue's name, and so has the group of its workers (KIP-932).

    queue = kafka.queue("jobs")
    await queue.put({"invoice": 7})
    await queue.run(handle, concurrency=8)

docs/how-to/work-queue.md has examples, and a table of what is promised.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple

from nilometer.client.consumer.fetch_exchange import ConsumerRecord, V
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery, RecordMetadata
from nilometer.kafka.admin import KafkaAdmin
from nilometer.kafka.clients import Clients, Transaction
from nilometer.kafka.errors import InvalidSetting, LockLost, RecordDeserializationError
from nilometer.kafka.formats import Format, Headers, encoded, to_bytes, to_headers
from nilometer.kafka.queue_jobs import HEADER_PREFIX, HELD_MAX, Backoff, Ended, Job, Pauses, Worker
from nilometer.kafka.queue_settings import (
    ROUND_HEADER,
    Duration,
    Returner,
    dead_letter_topic,
    pauses_among,
    retry_group,
    retry_topic,
    seconds_of,
    settings_of,
)
from nilometer.kafka.records import Reading
from nilometer.runtime import Clock, Runtime
from nilometer.wire.errors import KafkaError

logger = logging.getLogger(__name__)

Handle = Callable[[Job[V]], Awaitable[object] | object]
"""Does a job: a coroutine, or a plain function, which runs in a thread of its own."""

TIME_LIMIT_S = 600.0
DRAIN_S = 30.0
ADDED_HEADERS = (HEADER_PREFIX, ROUND_HEADER)
"""What the names of the headers begin with that a job gets on its way to the dead letters."""
LOOK_S = 0.05
"""How often a worker that drains looks whether a request in flight has brought jobs."""


class DeadLetter(NamedTuple):
    """A job that was buried."""

    record: ConsumerRecord
    """The job as it was put, and the headers ``__dlq.errors.…`` after its own; in the dead-letter topic."""
    reason: str
    deliveries: int

    @classmethod
    def of(cls, record: ConsumerRecord) -> DeadLetter:
        count = (record.header(HEADER_PREFIX + "delivery.count") or b"").decode(errors="replace")
        reason = (record.header(HEADER_PREFIX + "message") or b"").decode(errors="replace")
        return cls(record, reason, int(count) if count.isdecimal() else 0)


class QueueStats(NamedTuple):
    """How full a queue is."""

    waiting: int
    """How many jobs are neither accepted nor buried, those in hand included. The end of a transaction that
    put jobs counts as one until a worker comes to it: the broker counts offsets."""
    dead: int
    """How many dead letters there are that were not put again."""
    postponed: int = 0
    """How many jobs wait in retry topics."""


class Queue(Generic[V]):
    """``kafka.queue("jobs")``."""

    def __init__(self, clients: Clients, name: str, form: Format[V] | None) -> None:
        self._clients = clients
        self.name = name
        self._form = form
        self._stops: list[asyncio.Event] = []
        """One for each :meth:`run`: set when it is to end."""

    # --- putting

    async def put(self, value: V, *, key: bytes | str | None = None, headers: Headers = ()) -> RecordMetadata:
        """Put a job, and return once all in-sync replicas have it. Raises KafkaError, TypeError."""
        return await (await self._enqueue(value, key, headers))

    async def put_many(self, values: Iterable[V]) -> list[RecordMetadata]:
        """Put jobs, together: faster than one after another, and not atomic (see :meth:`put_within`). Raises
        the first error once all have ended."""
        deliveries = [await self._enqueue(value, None, ()) for value in values]
        outcomes = await asyncio.gather(*(_acknowledged(one) for one in deliveries), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    async def put_within(
        self,
        transaction: Transaction[Any, Any],
        value: V,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Put a job as part of a transaction: workers get it once that is committed, or never. Raises as
        ``Transaction.send``."""
        data = await encoded(value, self.name, "value", self._form)
        return await transaction.send_encoded(
            self.name, data, key=key.encode() if isinstance(key, str) else key, headers=headers
        )

    async def _enqueue(self, value: V, key: bytes | str | None, headers: Headers) -> Delivery:
        data = await encoded(value, self.name, "value", self._form)
        producer = await self._clients.producer()
        return await producer.send(
            self.name,
            data,
            key=to_bytes(key, self.name, "key"),
            headers=to_headers(headers, self.name),
        )

    # --- working

    async def run(
        self,
        handle: Handle[V],
        *,
        concurrency: int = 8,
        time_limit: Duration = TIME_LIMIT_S,
        drain: Duration = DRAIN_S,
        pauses: Pauses | None = None,
        until_idle: Duration | None = None,
        max_deliveries: int | None = None,
        lock: Duration | None = None,
    ) -> Ended:
        """Do jobs until :meth:`stop` is called, or the task is cancelled.

        ``handle`` is called for each job, at most ``concurrency`` at a time; no more are acquired. A job
        whose handler returns is accepted. One whose handler raises is held for a pause (``pauses``: by
        default from a second on, doubling, with jitter) and delivered again, to any worker; on its last
        delivery it waits in the next retry topic of the queue, or is buried. After ``time_limit`` a coroutine
        is cancelled, and the job counts as failed; a function in a thread cannot be cancelled: its job is
        given back, and its place stays taken until it returns.

        A stop takes no more jobs, and waits ``drain`` for those in hand; then they are given back.
        ``until_idle``: stop when no job has come for that long, whatever waits in retry topics.
        ``max_deliveries`` and ``lock``, if given, must be the queue's. Returns what became of the jobs.
        Raises KafkaError, InvalidSetting.
        """
        if concurrency < 1:
            raise InvalidSetting(f"concurrency is at least 1, not {concurrency}")
        drain_s = seconds_of(drain, "drain")
        idle_s = None if until_idle is None else seconds_of(until_idle, "until_idle")
        stop = asyncio.Event()
        self._stops.append(stop)  # from now on: a stop may come while the worker joins
        try:
            worker = await self._worker(time_limit, pauses, max_deliveries, lock)
            try:
                await _Runner(worker, handle, concurrency, drain_s, idle_s, stop).run()
            finally:
                await self._clients.close_worker(worker)
        finally:
            self._stops.remove(stop)
        return worker.ended

    def stop(self) -> None:
        """Have each :meth:`run` of this queue take no more jobs, finish those in hand, and return."""
        for stop in self._stops:
            stop.set()

    def jobs(
        self,
        *,
        time_limit: Duration = TIME_LIMIT_S,
        pauses: Pauses | None = None,
        until_idle: Duration | None = None,
        max_deliveries: int | None = None,
        lock: Duration | None = None,
    ) -> Jobs[V]:
        """Return the jobs to iterate over, each to be ended: best by ``async with job:``.

        Locks are renewed until a job ends, at most for ``time_limit``. The arguments are as in :meth:`run`.
        """
        idle_s = None if until_idle is None else seconds_of(until_idle, "until_idle")
        return Jobs(lambda: self._worker(time_limit, pauses, max_deliveries, lock), self._clients, idle_s)

    async def _worker(
        self,
        time_limit: Duration,
        pauses: Pauses | None,
        max_deliveries: int | None,
        lock: Duration | None,
    ) -> Worker[V]:
        time_limit_s = seconds_of(time_limit, "time_limit")
        settings = await settings_of(self._clients.admin, self.name, max_deliveries=max_deliveries, lock=lock)
        clock = Runtime.system().clock
        consumer = self._clients.share_consumer(self.name, self.name)
        worker = Worker(
            consumer,
            settings,
            clock,
            self._clients.send,
            self._form,
            time_limit_s=time_limit_s,
            pauses=pauses or Backoff(),
            returner=self._returner(settings.retry_after_s, clock) if settings.retry_after_s else None,
        )
        try:
            await worker.start()
        except BaseException:
            await consumer.close()
            raise
        self._clients.add_worker(worker)
        return worker

    def _returner(self, pauses_s: Sequence[int], clock: Clock) -> Returner:
        own = {"group.id": retry_group(self.name), "enable.auto.commit": False}
        consumer = self._clients.consumer({**own, "auto.offset.reset": "earliest"})
        return Returner(consumer, self.name, pauses_s, clock, self._clients.send)

    # --- looking after it

    @property
    def _admin(self) -> KafkaAdmin:
        return KafkaAdmin(self._clients.admin)

    async def stats(self) -> QueueStats:
        """Return how many jobs wait, and how many are dead. Raises KafkaError."""
        lags = await self._admin.share_group_lags(self.name, self.name)
        offsets = await self._admin.offsets(self.name)
        waiting = sum(lags.get(index, both.end - both.start) for index, both in offsets.items())
        dead = await self._left(dead_letter_topic(self.name), redrive_group(self.name))
        pauses = pauses_among(await self._admin.topics(), self.name)
        retries = [await self._left(retry_topic(self.name, each), retry_group(self.name)) for each in pauses]
        return QueueStats(waiting, dead, sum(retries))

    async def _left(self, topic: str, group: str) -> int:
        """Return how many records of a topic are after the committed offsets of a group."""
        begins, offsets = await self._begins(topic, group), await self._admin.offsets(topic)
        return sum(both.end - begins[index] for index, both in offsets.items())

    async def dead(self, *, limit: int | None = None) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters that were not put again, the oldest first, ``limit`` at most."""
        topic = dead_letter_topic(self.name)
        begins = await self._begins(topic, redrive_group(self.name))
        count = 0
        reading = Reading(topics=(topic,), offsets=begins, until_end=True)
        records = self._clients.records(reading, read_committed=True)
        async with records:
            async for record in records:
                if limit is not None and count >= limit:
                    return
                count += 1
                yield DeadLetter.of(record)

    async def redrive(self, *, limit: int | None = None, batch: int = 100) -> int:
        """Put dead letters again, the oldest first, without the headers that were added; return how many.

        Each batch is one transaction, which also commits how far the dead letters were put again: each is put
        once, whatever dies. Raises KafkaError.
        """
        topic = dead_letter_topic(self.name)
        group = redrive_group(self.name)
        moved = 0
        reading = Reading(topics=(topic,), group=group, auto_commit=False, until_end=True)
        async with self._clients.records(reading, read_committed=True) as records:
            while limit is None or moved < limit:
                count = batch if limit is None else min(batch, limit - moved)
                found = await records.next_batch(count)
                if not found:
                    break
                async with self._clients.transaction(group) as transaction:
                    for record in found:
                        own = [one for one in record.headers if not one[0].startswith(ADDED_HEADERS)]
                        await transaction.send_encoded(self.name, record.value, key=record.key, headers=own)
                    await transaction.commit_offsets(records)
                moved += len(found)
        return moved

    async def _begins(self, topic: str, group: str) -> dict[int, int]:
        """Return, by partition, where the records begin that are after the committed offsets of a group."""
        offsets = await self._admin.offsets(topic)
        places = {index: TopicPartition(topic, index) for index in offsets}
        committed = await self._admin.group_offsets(group, places.values())
        return {index: max(committed.get(place, 0), offsets[index].start) for index, place in places.items()}


def redrive_group(queue: str) -> str:
    """Return the group, and the transactional id, with which a queue's dead letters are put again."""
    return f"{queue}.redrive"


async def _acknowledged(delivery: Delivery) -> RecordMetadata:
    return await delivery


class Jobs(Generic[V]):
    """The jobs of ``queue.jobs()``. Iterate in one task. ``async with`` gives back what is left."""

    def __init__(
        self, open_worker: Callable[[], Awaitable[Worker[V]]], clients: Clients, idle_s: float | None
    ) -> None:
        self._open_worker = open_worker
        self._clients = clients
        self._idle_s = idle_s
        self._worker: Worker[V] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Jobs[V]:
        await self._opened()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not GeneratorExit:
            await self.close()

    async def _opened(self) -> Worker[V]:
        if self._worker is None:
            self._worker = await self._open_worker()
        return self._worker

    async def close(self) -> None:
        """Give back the jobs that were not ended, and leave the group. Closing again does nothing."""
        self._is_closed = True
        if self._worker is not None:
            await self._clients.close_worker(self._worker)

    def __aiter__(self) -> Jobs[V]:
        return self

    async def __anext__(self) -> Job[V]:
        """Return the next job; wait for it. Raises KafkaError."""
        found = await self.next_batch(1)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def next_batch(self, max_jobs: int = 100) -> list[Job[V]]:
        """Return jobs that are there, at most ``max_jobs``; wait for the first. Empty: none has come for
        ``until_idle``, or this was closed."""
        worker = await self._opened()
        if self._is_closed or worker.is_closed:
            return []
        found = await worker.take(max_jobs, self._idle_s)
        if not found:
            await self.close()
        return found


class _Runner(Generic[V]):
    """One :meth:`Queue.run`."""

    def __init__(
        self,
        worker: Worker[V],
        handle: Handle[V],
        concurrency: int,
        drain_s: float,
        idle_s: float | None,
        stopping: asyncio.Event,
    ) -> None:
        self._worker = worker
        self._handle = handle
        self._is_coroutine = inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(
            getattr(handle, "__call__", None)  # noqa: B004
        )
        self._concurrency = concurrency
        self._drain_s = drain_s
        self._idle_s = idle_s
        self._busy: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopping = stopping

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._busy) - max(0, self._worker.held - HELD_MAX)

    async def run(self) -> None:
        taking = asyncio.create_task(self._take(), name="queue-take")
        stopped = asyncio.create_task(self._stopping.wait(), name="queue-stop")
        try:
            await asyncio.wait((taking, stopped), return_when=asyncio.FIRST_COMPLETED)
            await _cancelled(stopped)
            if not taking.done():
                await _cancelled(taking)
            else:
                taking.result()  # raises what ended it
            await self._drain()
        finally:  # what is still in hand is given back
            await _cancelled(taking)
            await _cancelled(stopped)
            for task in list(self._busy):
                await _cancelled(task)

    async def _take(self) -> None:
        """Begin jobs, as many as there are places; return when none has come for long enough."""
        while True:
            self._changed.clear()
            if self._free <= 0:
                await self._changed.wait()
                continue
            jobs = await self._worker.take(self._free, self._idle_s)
            if not jobs:
                if self._busy:
                    await self._changed.wait()
                    continue
                return
            for job in jobs:
                self._begin(job)

    def _begin(self, job: Job[V]) -> None:
        task = asyncio.create_task(self._do(job), name="queue-job")
        self._busy.add(task)
        job.on_lost = task.cancel
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        self._changed.set()
        if not self._stopping.is_set() and self._free > 0:
            self._worker.consumer.want(self._free)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _drain(self) -> None:
        """Wait for what is in hand, at most until the deadline; give back what never began, but for jobs that
        are not delivered again: these are begun."""
        self._stopping.set()
        self._worker.consumer.want(0)
        await self._worker.release_held()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                while True:
                    await self._settle_late()
                    if not self._busy and not self._worker.consumer.is_fetching:
                        break
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await self._changed.wait()

    async def _settle_late(self) -> None:
        for job in self._worker.take_buffered():
            if job.is_last_delivery:
                self._begin(job)
            else:
                with suppress(LockLost):
                    await job.release()

    # --- one job

    async def _do(self, job: Job[V]) -> None:
        """Do a job, and end it. Whatever happens to it is logged: it concerns no other job."""
        try:
            await self._work(job)
        except asyncio.CancelledError:
            if job.is_lost:
                logger.warning("%r was cancelled: its lock is lost", job)
                return
            if not job.has_ended:  # the worker stops, and the job was not done in time
                await asyncio.shield(self._give_back(job, "the worker was stopped"))
        except LockLost as error:
            logger.warning("%s", error.message)
        except KafkaError as error:
            logger.warning("%r could not be ended, and is delivered again: %s", job, error)

    async def _give_back(self, job: Job[V], reason: str) -> None:
        try:
            await self._worker.give_back(job, reason)
        except KafkaError as error:
            logger.warning("%r was not given back: %s", job, error)

    async def _work(self, job: Job[V]) -> None:
        try:
            await job.decode()
        except RecordDeserializationError as error:
            logger.warning("%r is buried: %s", job, error.message)
            await job.reject(error.message)
            return
        limit = asyncio.timeout(self._worker.time_limit_s)
        thread: asyncio.Future[object] | None = None
        try:
            async with limit:
                if self._is_coroutine:
                    await _awaited(self._handle(job))
                else:
                    thread = _in_thread(self._handle, job)
                    await _awaited(await asyncio.shield(thread))
        except TimeoutError as error:
            late = (
                TimeoutError(f"not done within {self._worker.time_limit_s:g} s") if limit.expired() else error
            )
            await self._failed(job, late)
        # What the program's function raises is for the log, and for the headers of the dead letter.
        except Exception as error:
            await self._failed(job, error)
        else:
            if not job.has_ended:
                await job.accept()
            return
        if thread is not None and not thread.done():  # its place stays taken
            await asyncio.wait((thread,))

    async def _failed(self, job: Job[V], error: BaseException) -> None:
        if job.has_ended:
            logger.warning("The handler of %r raised after it had ended the job: %r", job, error)
            return
        logger.warning("%r failed: %r", job, error)
        await self._worker.on_failure(job, error)


async def _awaited(result: object) -> None:
    if inspect.isawaitable(result):
        await result


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait until it has ended."""
    task.cancel()
    await asyncio.wait((task,))


def _in_thread(handle: Callable[[Job[V]], object], job: Job[V]) -> asyncio.Future[object]:
    """Call a plain function in a daemon thread: one that hangs does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def finish(result: object, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def call() -> None:
        result: object = None
        failure: BaseException | None = None
        try:
            result = context.run(handle, job)
        # Whatever the program's function raises, SystemExit too, is of this job.
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(f"the handler raised {error!r}")
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=call, name="queue-job", daemon=True).start()
    return done
