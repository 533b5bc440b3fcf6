"""A job of a queue, and the worker that holds it: locks are renewed, ends are written, dead jobs are buried.

Invariants:

- A job ends once: accepted, released, buried, or lost. What comes after that is an error.
- On its last permitted delivery a job is never released: it would be archived without a word. It goes to the
  retry topic of its round, or is buried.
- A dead letter or a retry that this client writes is acknowledged before its job ends: it may be written
  twice, if the worker dies in between, and never not at all.
- Renewals do not depend on the thread in which the work is done.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, cast

from nilometer.client.consumer.fetch_exchange import ConsumerRecord, V
from nilometer.client.consumer.share_consumer import AcquiredRecord, ShareConsumer
from nilometer.client.consumer.share_session import AcknowledgedRecord
from nilometer.kafka.errors import LockLost, RecordDeserializationError
from nilometer.kafka.formats import Format, Headers, from_bytes
from nilometer.kafka.queue_settings import (
    QueueSettings,
    Returner,
    dead_letter_topic,
    of_next_round,
    retry_topic,
    round_of,
)
from nilometer.kafka.records import Send
from nilometer.runtime import Clock
from nilometer.share.partition_events import AcknowledgeType
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

HEADER_PREFIX = "__dlq.errors."
REASON_CHARACTERS_MAX = 1_000
HELD_MAX = 1_000
"""So many failed jobs of one worker wait for their next delivery; a further one is released at once."""
TOO_OFTEN = "delivered too often: a worker died, or did not end it in time"
TICKS_PER_LOCK = 6
"""How often in a lock's time the worker looks which locks to renew: each is renewed after a third of it."""
TICK_S_MAX = 1.0


class Pauses(Protocol):
    """How long a job that failed is held before it is delivered again."""

    def after(self, delivery: int) -> float:
        """Return seconds, for the ``delivery``-th failure."""
        ...


class Backoff:
    """Pauses that double, up to the longest, with jitter: from half of each pause to all of it."""

    def __init__(self, first_s: float = 1.0, longest_s: float = 60.0) -> None:
        """``first_s`` 0: no pauses."""
        if first_s < 0 or longest_s < first_s:
            raise ValueError("pauses are not negative, and the longest is not shorter than the first")
        self._first_s = first_s
        self._longest_s = longest_s

    def after(self, delivery: int) -> float:
        whole = min(self._first_s * 2 ** min(delivery - 1, 30), self._longest_s)
        return random.uniform(whole / 2, whole)


class Ended(NamedTuple):
    """What became of the jobs that a worker took. Those that are not counted were not ended by it."""

    accepted: int = 0
    released: int = 0
    """They are delivered again."""
    postponed: int = 0
    """They wait in a retry topic, and are put again."""
    buried: int = 0
    lost: int = 0
    """Their end was not written, as far as is known: they are delivered again, unless it was."""


class Job(Generic[V]):
    """A delivery of a job. ``async with job:`` accepts it at the end, or gives it back if the body raises."""

    def __init__(
        self, worker: Worker[V], acquired: AcquiredRecord, form: Format[V] | None, keep_until_ms: int
    ) -> None:
        self._worker = worker
        self.acquired = acquired
        self._form = form
        self._value: list[V] = []
        self.keep_until_ms = keep_until_ms
        """On the monotonic clock: until then the lock is renewed."""
        self.lock_ends_ms = acquired.lock_ends_ms
        self.has_ended = False
        """Whether it was accepted, released or buried, or is about to be."""
        self.is_lost = False
        """Whether the lock is known to be lost."""
        self.on_lost: Callable[[], object] | None = None

    @property
    def record(self) -> ConsumerRecord:
        """The job as a record: topic, partition, offset, timestamp, key, value as bytes, headers."""
        return self.acquired.record

    @property
    def value(self) -> V:
        """What was put, as the queue's format reads it. Raises RecordDeserializationError."""
        if not self._value:
            try:
                self._value.append(cast("V", from_bytes(self.record.value, self._form)))
            # The format is the program's function: whatever it raises, the job is of another format.
            except Exception as error:
                raise RecordDeserializationError(self.record, "value", error) from error
        return self._value[0]

    async def decode(self) -> V:
        """Return :attr:`value`; a format that may wait for a registry of schemas runs in another thread."""
        if self._form is not None and self._form.waits_to_decode(self.record.value):
            return await asyncio.to_thread(lambda: self.value)
        return self.value

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return self.record.headers

    @property
    def deliveries(self) -> int:
        """How often the job was delivered, this time included."""
        return self.acquired.delivery_count

    @property
    def rounds(self) -> int:
        """How often the job came back from a retry topic: its deliveries begin with 1 each time."""
        return round_of(self.record)

    @property
    def is_last_delivery(self) -> bool:
        """Whether it is not delivered again: if it fails now, it waits in a retry topic, or is buried."""
        return self.deliveries >= self._worker.settings.max_deliveries

    def __repr__(self) -> str:
        record = self.record
        return f"job {record.topic}-{record.partition} at offset {record.offset}, delivery {self.deliveries}"

    # --- its end

    async def accept(self) -> None:
        """The work is done. Returns when the broker has written that. Raises LockLost."""
        await self._worker.end(self, AcknowledgeType.ACCEPT)

    async def release(self, reason: str = "released on its last delivery") -> None:
        """Have the job delivered again, at once, to any worker. On the last permitted delivery it waits in
        the next retry topic, or is buried, with ``reason``. Raises LockLost, KafkaError."""
        await self._worker.give_back(self, reason)

    async def reject(self, reason: str = "rejected") -> None:
        """Bury the job: it goes to the dead-letter topic, and is not delivered again. Raises LockLost,
        KafkaError."""
        await self._worker.bury(self, reason)

    async def renew(self) -> None:
        """Begin the lock again, which the worker otherwise does by itself. Raises LockLost."""
        await self._worker.renew(self)

    async def __aenter__(self) -> Job[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self.has_ended or kind is GeneratorExit:
            return
        if error is None:
            await self.accept()
        elif not self.is_lost:
            await self._worker.on_failure(self, error)


_COUNTED = {
    AcknowledgeType.ACCEPT: "accepted",
    AcknowledgeType.RELEASE: "released",
    AcknowledgeType.REJECT: "buried",
}


class Worker(Generic[V]):
    """A member of the queue's group, with the jobs that it holds. Use it in one event loop."""

    def __init__(
        self,
        consumer: ShareConsumer,
        settings: QueueSettings,
        clock: Clock,
        send: Send,
        form: Format[V] | None,
        *,
        time_limit_s: float,
        pauses: Pauses,
        returner: Returner | None = None,
    ) -> None:
        """``returner``: of a queue with retry topics."""
        self.settings = settings
        self.consumer = consumer
        self.time_limit_s = time_limit_s
        self.pauses = pauses
        self._clock = clock
        self._send = send
        self._form = form
        self._jobs: dict[AcknowledgedRecord, Job[V]] = {}
        """Those that have not ended, whose locks are renewed."""
        self._held: dict[Job[V], asyncio.Task[None]] = {}
        """Those that failed and are released after a pause, and those that are being buried."""
        self._is_stopping = asyncio.Event()
        """Set: nothing is held any more."""
        self._returner = returner
        self._tasks: list[asyncio.Task[None]] = []
        """They run from the start to the end."""
        self._is_closed = False
        self.ended = Ended()

    async def start(self) -> None:
        """Join the group. Raises KafkaError."""
        await self.consumer.start()
        self._tasks.append(asyncio.create_task(self._keep_locks(), name="queue-locks"))
        if self._returner is not None:
            self._tasks.append(asyncio.create_task(self._returner.run(), name="queue-retries"))

    async def close(self) -> None:
        """Give back what was not ended, and leave the group."""
        if self._is_closed:
            return
        self._is_closed = True
        await self.release_held()
        self.take_buffered()
        await self._ended(list(self._held.values()))
        for job in list(self._jobs.values()):
            try:
                await self.give_back(job, "the worker was closed")
            except KafkaError as error:
                logger.info("%r was not given back: %s", job, error)
        for task in self._tasks:
            task.cancel()
        await self._ended(self._tasks)
        await self.consumer.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def held(self) -> int:
        return len(self._held)

    # --- taking

    async def take(self, max_jobs: int, idle_s: float | None = None) -> list[Job[V]]:
        """Return jobs, at least one and at most ``max_jobs``; wait for the first. Raises KafkaError.

        Empty if no job has come for ``idle_s`` (None: it waits), counted since the group has given this
        worker partitions and jobs of retry topics that were due are put again, and while no failed job waits
        for its next delivery.
        """
        while True:
            acquired: list[AcquiredRecord] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(idle_s):
                    acquired = await self.consumer.take(max_jobs)
            if jobs := self._begun(acquired):
                return jobs
            if not acquired and self._is_settled:
                return []

    @property
    def _is_settled(self) -> bool:
        """Whether no jobs come by what this worker does itself."""
        has_looked = self._returner is None or self._returner.has_looked
        return has_looked and self.consumer.is_assigned and not self._held

    def take_buffered(self) -> list[Job[V]]:
        """Return the jobs that were acquired and not taken yet, without waiting."""
        return self._begun(self.consumer.take_buffered())

    def _begun(self, acquired: list[AcquiredRecord]) -> list[Job[V]]:
        """Return jobs, whose locks are kept from now on; without those that were delivered too often, which
        are buried before anything is done."""
        jobs: list[Job[V]] = []
        for one in acquired:
            job = self._job(one)
            self._jobs[one.key] = job
            if job.deliveries > self.settings.max_deliveries:
                logger.warning("%r is buried: it was delivered too often", job)
                self._keep(job, self._quietly(job, TOO_OFTEN, self.bury))
            else:
                jobs.append(job)
        return jobs

    def _job(self, acquired: AcquiredRecord) -> Job[V]:
        keep_until_ms = self._clock.monotonic_ms() + round(self.time_limit_s * 1000)
        return Job(self, acquired, self._form, keep_until_ms)

    # --- ending

    async def end(self, job: Job[V], kind: AcknowledgeType, counted: str | None = None) -> None:
        """Accept, release or reject; count it as the field ``counted`` of Ended. Raises LockLost."""
        if job.has_ended:
            raise KafkaError(ErrorCode.invalid_request, f"{job!r} was ended already")
        job.has_ended = True
        self._jobs.pop(job.acquired.key, None)
        code = ErrorCode.invalid_record_state
        if not job.is_lost:
            is_late = self._is_late(job)
            answer = await self.consumer.acknowledge(job.acquired, kind)
            code = code if is_late else answer
        outcome = "lost" if code is not ErrorCode.none else counted or _COUNTED[kind]
        self.ended = self.ended._replace(**{outcome: getattr(self.ended, outcome) + 1})
        if code is not ErrorCode.none:
            raise _lock_lost(job, code)

    def _is_late(self, job: Job[V]) -> bool:
        """Whether the lock has ended by this side's clock. A broker does not always know: it ignores, without
        an error, what is said of records that another worker has ended and that are done with."""
        return self._clock.monotonic_ms() >= job.lock_ends_ms

    async def give_back(self, job: Job[V], reason: str) -> None:
        """Release a job. On its last permitted delivery move it to the retry topic of its round, or bury it.
        Raises LockLost, KafkaError."""
        pauses = self.settings.retry_after_s
        if not job.is_last_delivery:
            await self.end(job, AcknowledgeType.RELEASE)
        elif job.rounds < len(pauses):
            topic = retry_topic(job.record.topic, pauses[job.rounds])
            logger.info("%r is put again after %d s: %s", job, pauses[job.rounds], reason)
            await self._move(job, topic, of_next_round(job.record), "postponed")
        else:
            await self.bury(job, reason)

    async def bury(self, job: Job[V], reason: str) -> None:
        """Reject a job that the brokers bury; else write its dead letter, and accept it. Raises LockLost,
        KafkaError if the dead letter was not written: then the job is delivered again."""
        if self.settings.brokers_bury:
            await self.end(job, AcknowledgeType.REJECT)
            return
        headers = [*job.record.headers, *self._about(job, reason)]
        await self._move(job, dead_letter_topic(job.record.topic), headers, "buried")

    async def _move(self, job: Job[V], topic: str, headers: Headers, counted: str) -> None:
        """Write a job to another topic, and accept it. Raises LockLost, KafkaError if it was not written."""
        if job.has_ended:
            raise KafkaError(ErrorCode.invalid_request, f"{job!r} was ended already")
        await self._send(topic, job.record.value, key=job.record.key, headers=headers)
        await self.end(job, AcknowledgeType.ACCEPT, counted)

    def _about(self, job: Job[V], reason: str) -> list[tuple[str, bytes]]:
        record = job.record
        about = {
            "topic": record.topic,
            "partition": str(record.partition),
            "offset": str(record.offset),
            "group": self.consumer.group_id,
            "delivery.count": str(job.deliveries),
            "message": reason[:REASON_CHARACTERS_MAX],
        }
        return [(HEADER_PREFIX + name, text.encode()) for name, text in about.items()]

    async def on_failure(self, job: Job[V], error: BaseException) -> None:
        """Hold a job for a pause, and release it then; on its last permitted delivery end it at once. This
        raises nothing: the error of the work is what counts."""
        reason = f"{type(error).__qualname__}: {error}"
        pause_s = self.pauses.after(job.deliveries)
        if job.is_last_delivery or self._is_stopping.is_set() or pause_s <= 0 or len(self._held) >= HELD_MAX:
            await self._give_back_quietly(job, reason)
            return
        logger.info("%r failed, and is delivered again in %.1f s: %s", job, pause_s, reason)
        job.keep_until_ms = self._clock.monotonic_ms() + round(pause_s * 1000) + (self.consumer.lock_ms or 0)
        self._keep(job, self._hold(job, pause_s, reason))

    def _keep(self, job: Job[V], work: Coroutine[Any, Any, None]) -> None:
        """Do what ends a job in the background; :meth:`close` waits for it."""
        task = asyncio.create_task(work, name="queue-end")
        self._held[job] = task
        task.add_done_callback(lambda _done: self._held.pop(job, None))

    async def _hold(self, job: Job[V], pause_s: float, reason: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_stopping.wait()  # the worker stops: it is released now
        await self._give_back_quietly(job, reason)

    async def release_held(self) -> None:
        """Release the jobs that wait for their next delivery, and those that fail from now on at once."""
        self._is_stopping.set()
        await self._ended(list(self._held.values()))

    async def _ended(self, tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _give_back_quietly(self, job: Job[V], reason: str) -> None:
        await self._quietly(job, reason, self.give_back)

    async def _quietly(
        self, job: Job[V], reason: str, end: Callable[[Job[V], str], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await end(job, reason)
        except KafkaError as error:
            logger.warning("%r failed (%s), and was not given back: %s", job, reason, error)

    # --- locks

    async def renew(self, job: Job[V]) -> None:
        """Begin the lock again. Raises LockLost."""
        if job.has_ended:
            raise KafkaError(ErrorCode.invalid_request, f"{job!r} was ended already")
        if not self.consumer.renews:
            raise KafkaError(
                ErrorCode.unsupported_version, "these brokers renew no locks: it needs Kafka 4.2 or newer"
            )
        sent_ms = self._clock.monotonic_ms()
        code = ErrorCode.invalid_record_state
        if not self._is_late(job):
            code = await self.consumer.acknowledge(job.acquired, AcknowledgeType.RENEW)
        if code is ErrorCode.none:
            job.lock_ends_ms = sent_ms + self.consumer.lock_ms
            return
        lost = _lock_lost(job, code)
        if not job.has_ended:
            job.is_lost = True
            self._jobs.pop(job.acquired.key, None)
            if job.on_lost is not None:
                job.on_lost()
        raise lost

    async def _keep_locks(self) -> None:
        renewals: dict[Job[V], asyncio.Task[None]] = {}
        while True:
            lock_ms = self.consumer.lock_ms
            tick_s = min(lock_ms / 1000 / TICKS_PER_LOCK, TICK_S_MAX) if lock_ms else TICK_S_MAX
            await asyncio.sleep(tick_s)
            if not self.consumer.renews:
                continue
            now_ms = self._clock.monotonic_ms()
            for job in list(self._jobs.values()):
                is_due = now_ms >= job.lock_ends_ms - lock_ms * 2 // 3
                if is_due and now_ms < job.keep_until_ms and job not in renewals:
                    task = asyncio.create_task(self._renew_quietly(job), name="queue-renewal")
                    renewals[job] = task
                    task.add_done_callback(lambda _done, job=job: renewals.pop(job, None))

    async def _renew_quietly(self, job: Job[V]) -> None:
        try:
            await self.renew(job)
        except KafkaError as error:
            if not job.has_ended:
                logger.warning("The lock of %r was not renewed: %s", job, error)


def _lock_lost(job: Job[Any], code: ErrorCode) -> LockLost:
    why = "another worker has it, or its end was written: make the work safe to repeat"
    if code is not ErrorCode.invalid_record_state:
        why = "it is not known whether the broker has written its end; if not, it is delivered again"
    return LockLost(code, f"{job!r}: the lock is lost ({code.name}): {why}")
