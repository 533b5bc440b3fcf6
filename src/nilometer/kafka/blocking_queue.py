"""Queues without asyncio: ``for job in queue.jobs(): with job: …``, or ``queue.run(handle)``.

The client's event loop, on a thread of its own, renews the locks, whatever the thread of the work does.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic

from nilometer.client.consumer.fetch_exchange import ConsumerRecord, V
from nilometer.kafka.blocking import Blocking, BlockingDelivery, BlockingTransaction, blocking, in_loop
from nilometer.kafka.formats import Headers
from nilometer.kafka.queue import DRAIN_S, TIME_LIMIT_S, DeadLetter, Jobs, Queue
from nilometer.kafka.queue_jobs import Ended, Job, Pauses
from nilometer.kafka.queue_settings import Duration


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
    """The jobs of ``queue.jobs()``. Iterate in one thread at a time; each job may go to another one."""

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
