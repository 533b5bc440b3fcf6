"""A worker's jobs without a broker: locks that end, last deliveries, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.consumer.share_consumer import AcquiredRecord
from nilometer.client.consumer.share_session import AcknowledgedRecord, SharePartition
from nilometer.kafka.errors import InvalidSetting, KafkaError, LockLost, RecordDeserializationError
from nilometer.kafka.formats import JSON
from nilometer.kafka.queue_jobs import HELD_MAX, Backoff, Ended, Job, Worker
from nilometer.kafka.queue_settings import QueueSettings, seconds_of
from nilometer.share.partition_events import AcknowledgeType
from nilometer.wire.errors import ErrorCode

NONE = ErrorCode.none
PARTITION = SharePartition(UUID(int=1), 0)
LOCK_MS = 30_000
PAUSE_S = 3600.0


class FakeClock:
    now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    wall_ms = monotonic_us = thread_cpu_us = monotonic_ms


class FakeConsumer:
    """Notes in ``events`` what is acknowledged."""

    group_id = "jobs"
    lock_ms = LOCK_MS
    renews = True
    is_assigned = True

    def __init__(self, events: list[object]) -> None:
        self._events = events
        self.answer = NONE
        self.acquired: list[AcquiredRecord] = []

    async def start(self) -> None: ...

    async def close(self) -> None:
        self._events.append("closed")

    async def take(self, _max_records: int) -> list[AcquiredRecord]:
        if not self.acquired:
            await asyncio.Event().wait()
        return self.take_buffered()

    def take_buffered(self) -> list[AcquiredRecord]:
        taken, self.acquired = self.acquired, []
        return taken

    def acknowledge(self, acquired: AcquiredRecord, kind: AcknowledgeType) -> asyncio.Future[ErrorCode]:
        self._events.append((kind.name, acquired.record.offset))
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        answer.set_result(self.answer)
        return answer


class World:
    def __init__(
        self,
        *,
        max_deliveries: int = 3,
        brokers_bury: bool = False,
        pause_s: float = 0.0,
        retry_after_s: tuple[int, ...] = (),
    ) -> None:
        self.events: list[object] = []
        self.clock = FakeClock()
        self.consumer = FakeConsumer(self.events)
        self.failing: KafkaError | None = None
        self.next_offset = 0
        settings = QueueSettings(
            max_deliveries=max_deliveries,
            lock_ms=LOCK_MS,
            brokers_bury=brokers_bury,
            retry_after_s=retry_after_s,
        )
        consumer: Any = self.consumer
        self.worker: Worker[Any] = Worker(
            consumer,
            settings,
            self.clock,
            self.send,
            JSON,
            time_limit_s=600,
            pauses=Backoff(pause_s, pause_s),
        )

    async def send(self, topic: str, value: bytes | None, *, key: bytes | None, headers: Any) -> object:
        if self.failing is not None:
            raise self.failing
        self.events.append((topic, value, key, dict(headers)))
        return None

    def acquire(self, *deliveries: int, value: bytes = b"7", rounds: int = 0) -> None:
        for count in deliveries:
            offset, self.next_offset = self.next_offset, self.next_offset + 1
            headers = (("h", b"1"), *([("__retry.round", str(rounds).encode())] if rounds else ()))
            record = ConsumerRecord("jobs", 0, offset, 0, 0, b"k", value, headers, 0)
            key = AcknowledgedRecord(PARTITION, offset)
            ends_ms = self.clock.now_ms + LOCK_MS
            self.consumer.acquired.append(AcquiredRecord(record, key, count, ends_ms))

    async def job(self, deliveries: int = 1, value: bytes = b"7", rounds: int = 0) -> Job[Any]:
        self.acquire(deliveries, value=value, rounds=rounds)
        [job] = await self.worker.take(1)
        return job

    def said(self) -> Sequence[object]:
        return [event[0] for event in self.events if isinstance(event, tuple)]


async def test_a_body_that_ends_well_accepts_and_waits_for_the_answer():
    world = World()
    async with await world.job() as job:
        assert (job.value, job.key, job.headers, job.deliveries) == (7, b"k", (("h", b"1"),), 1)
    assert world.events == [("ACCEPT", 0)]
    assert world.worker.ended == Ended(accepted=1)
    world.consumer.answer = ErrorCode.invalid_record_state
    with pytest.raises(LockLost, match="another worker has it"):
        async with await world.job():
            pass
    world.consumer.answer = ErrorCode.network_exception
    with pytest.raises(LockLost, match="is not known"):
        async with await world.job():
            pass
    assert world.worker.ended == Ended(accepted=1, lost=2)


async def test_a_job_that_was_ended_in_the_body_is_not_ended_again():
    world = World()
    async with await world.job() as job:
        await job.release()
    assert world.events == [("RELEASE", 0)]
    with pytest.raises(KafkaError, match="was ended already"):
        await job.renew()


async def test_a_lock_that_has_ended_is_lost_although_the_broker_says_nothing():
    world = World()
    job = await world.job()
    world.clock.now_ms += LOCK_MS - 1
    await job.renew()
    world.clock.now_ms += LOCK_MS
    with pytest.raises(LockLost):
        await job.accept()
    other, cancelled = await world.job(), []
    other.on_lost = lambda: cancelled.append("cancelled")
    world.clock.now_ms += LOCK_MS
    events = len(world.events)
    with pytest.raises(LockLost):
        await other.renew()
    assert (other.is_lost, cancelled, world.events[events:]) == (True, ["cancelled"], [])
    with pytest.raises(LockLost):
        await other.accept()
    assert world.events[events:] == []


async def test_on_its_last_delivery_a_job_is_buried_and_never_released():
    world = World(max_deliveries=2)
    job = await world.job(deliveries=2)
    assert job.is_last_delivery
    await job.release("the worker leaves")
    headers = {
        "h": b"1",
        "__dlq.errors.topic": b"jobs",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": b"jobs",
        "__dlq.errors.delivery.count": b"2",
        "__dlq.errors.message": b"the worker leaves",
    }
    assert world.events == [("dlq.jobs", b"7", b"k", headers), ("ACCEPT", 0)]
    assert world.worker.ended == Ended(buried=1)


async def test_brokers_that_bury_are_told_to():
    world = World(max_deliveries=2, brokers_bury=True)
    await (await world.job(deliveries=2)).release()
    await (await world.job()).reject()
    assert world.events == [("REJECT", 0), ("REJECT", 1)]
    assert world.worker.ended == Ended(buried=2)


@pytest.mark.parametrize("brokers_bury", [True, False])
async def test_on_its_last_delivery_a_job_goes_to_the_retry_topic_of_its_round(brokers_bury: bool):
    world = World(max_deliveries=2, brokers_bury=brokers_bury, retry_after_s=(60, 3600))
    await (await world.job()).release()
    await (await world.job(deliveries=2)).release()
    await world.worker.on_failure(await world.job(deliveries=2, rounds=1), ValueError("no"))
    headers = [{"h": b"1", "__retry.round": count} for count in (b"1", b"2")]
    assert world.events == [
        ("RELEASE", 0),
        *(("retry.jobs.60", b"7", b"k", headers[0]), ("ACCEPT", 1)),
        *(("retry.jobs.3600", b"7", b"k", headers[1]), ("ACCEPT", 2)),
    ]
    assert world.worker.ended == Ended(released=1, postponed=2)
    await (await world.job(deliveries=2, rounds=2)).release()
    await (await world.job(deliveries=1)).reject()
    assert world.worker.ended == Ended(released=1, postponed=2, buried=2)


async def test_a_job_that_was_delivered_too_often_does_not_go_to_a_retry_topic():
    world = World(max_deliveries=2, retry_after_s=(60,))
    world.acquire(3, 1)
    await world.worker.take(2)
    await world.worker.release_held()
    assert world.said() == ["dlq.jobs", "ACCEPT"]


async def test_a_job_whose_dead_letter_was_not_written_does_not_end():
    world = World()
    job = await world.job()
    world.failing = KafkaError(ErrorCode.not_enough_replicas, "no")
    with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
        await job.reject()
    assert (world.events, job.has_ended) == ([], False)


async def test_a_job_that_was_delivered_too_often_is_buried_before_anything_is_done():
    world = World(max_deliveries=2)
    world.acquire(3, 2)
    [job] = await world.worker.take(2)
    assert job.deliveries == 2
    await world.worker.release_held()
    assert world.said() == ["dlq.jobs", "ACCEPT"]
    world.acquire(3)
    assert await world.worker.take(1, idle_s=0.01) == []


async def test_a_job_that_failed_is_held_before_it_is_released():
    world = World(pause_s=PAUSE_S)
    with pytest.raises(ZeroDivisionError):
        async with await world.job():
            raise ZeroDivisionError
    await asyncio.sleep(0)
    assert (world.worker.held, world.events) == (1, [])
    await world.worker.close()
    assert world.events == [("RELEASE", 0), "closed"]
    assert world.worker.held == 0


async def test_the_jobs_that_are_held_are_bounded():
    world = World(pause_s=PAUSE_S)
    world.acquire(*[1] * (HELD_MAX + 1))
    for job in await world.worker.take(HELD_MAX + 1):
        await world.worker.on_failure(job, ZeroDivisionError())
    assert (world.worker.held, world.said()) == (HELD_MAX, ["RELEASE"])
    await world.worker.close()


async def test_a_worker_that_is_closed_gives_back_what_it_has():
    world = World(max_deliveries=2)
    world.acquire(1, 2)
    await world.worker.take(2)
    world.acquire(1)
    await world.worker.close()
    await world.worker.close()
    assert sorted(map(str, world.said())) == ["ACCEPT", "RELEASE", "RELEASE", "dlq.jobs"]


async def test_a_value_of_another_format_is_an_error_where_it_is_read():
    job = await World().job(value=b"no json")
    with pytest.raises(RecordDeserializationError, match="the value of jobs-0 at offset 0"):
        await job.decode()


def test_pauses_double_with_jitter():
    backoff = Backoff(1.0, 5.0)
    for delivery, longest in ((1, 1), (2, 2), (3, 4), (4, 5), (500, 5)):
        found = [backoff.after(delivery) for _ in range(50)]
        assert longest / 2 <= min(found) < max(found) <= longest
    assert Backoff(0, 0).after(3) == 0
    with pytest.raises(ValueError, match="not negative"):
        Backoff(-1)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("30s", 30), ("500ms", 0.5), ("2 h", 7200), ("1.5m", 90), ("7d", 604_800), (3, 3), (0.5, 0.5)],
)
def test_durations_of_queues(given: str | float, seconds: float):
    assert seconds_of(given, "lock") == seconds
    assert seconds_of(timedelta(seconds=seconds), "lock") == seconds


@pytest.mark.parametrize("given", ["30", "s", "-1s", "1e9s", "1w", -1, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused_by_name(given: str | float):
    with pytest.raises(InvalidSetting, match="lock is a duration"):
        seconds_of(given, "lock")
