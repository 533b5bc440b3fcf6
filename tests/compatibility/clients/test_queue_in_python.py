"""The queue in Python on Nilometer, on Apache Kafka, and on Apache Kafka whose brokers do not bury.

The same tests on each: what they say is the promise of docs/how-to/work-queue.md.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import nilometer
from nilometer.kafka import Kafka
from nilometer.testing import Cluster
from support.eventually import becomes
from support.kafka.apache_kafka import ApacheKafka, run_tool
from support.share.queue_worker import EXIT_CODE, next_line, say, worker

SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
}
FEATURES = "org.apache.kafka.tools.FeatureCommand"
WAIT_S = 120
NO_PAUSES = nilometer.Backoff(0, 0)
NILOMETER, KAFKA, NOT_BURYING = "nilometer", "apache-kafka", "apache-kafka-without-dead-letters"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(NILOMETER, marks=pytest.mark.quick),
        pytest.param(KAFKA, marks=pytest.mark.java),
        pytest.param(NOT_BURYING, marks=pytest.mark.java),
    ],
)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == NILOMETER:
        with Cluster(settings=SETTINGS) as cluster:
            yield cluster.bootstrap_servers
        return
    apache = ApacheKafka(tmp_path_factory.mktemp("kafka"), overrides=SETTINGS)
    try:
        apache.start()
        if request.param == NOT_BURYING:
            arguments = ("downgrade", "--feature", "share.version=1")
            run_tool(FEATURES, "--bootstrap-server", apache.bootstrap, *arguments)
        yield apache.bootstrap
    finally:
        apache.kill()  # its data is not used any more


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return re.sub("[^a-z0-9]+", "-", request.node.originalname.removeprefix("test_")).strip("-")


@asynccontextmanager
async def queue_of(
    servers: str,
    name: str,
    *,
    partitions: int = 2,
    max_deliveries: int = 3,
    lock: str = "60s",
    retry_after: Sequence[str] = (),
) -> AsyncIterator[tuple[Kafka, nilometer.Queue[Any]]]:
    async with asyncio.timeout(WAIT_S), nilometer.connect(servers) as kafka:
        await kafka.admin.create_queue(
            name,
            partitions=partitions,
            replication_factor=1,
            max_deliveries=max_deliveries,
            lock=lock,
            retry_after=retry_after,
        )
        yield kafka, kafka.queue(name)


async def none_is_left(queue: nilometer.Queue[Any]) -> None:
    async def is_so() -> bool:
        return (await queue.stats()).waiting == 0

    await comes_true(is_so)


async def letters_of(queue: nilometer.Queue[Any], count: int) -> list[Any]:
    """Wait for dead letters: a broker writes them after it has answered."""
    found: list[Any] = []

    async def are_there() -> bool:
        found[:] = [one async for one in queue.dead()]
        return len(found) >= count

    await comes_true(are_there)
    return found


async def comes_true(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(WAIT_S * 20):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not come true")


# --- putting and doing


async def test_jobs_that_were_put_before_the_first_worker_came_are_done(servers: str, name: str):
    async with queue_of(servers, name) as (_, queue):
        await queue.put({"invoice": 0}, key="anna", headers={"a": "b"})
        await queue.put_many([{"invoice": number} for number in range(1, 100)])
        done: list[int] = []

        async def handle(job: nilometer.Job[Any]) -> None:
            done.append(job.value["invoice"])
            if job.value["invoice"] == 0:
                assert (job.key, job.headers) == (b"anna", (("a", b"b"),))
            if len(done) == 100:
                queue.stop()

        await queue.run(handle, concurrency=10)
        assert sorted(done) == list(range(100))
        assert (await queue.stats()).waiting == 0


async def test_a_put_within_a_transaction_is_done_if_it_commits(servers: str, name: str):
    async with queue_of(servers, name, partitions=1) as (kafka, queue):
        with pytest.raises(ZeroDivisionError):
            async with kafka.transaction("putting") as transaction:
                await (await queue.put_within(transaction, "aborted"))  # it is in the log
                raise ZeroDivisionError
        async with kafka.transaction("putting", value=nilometer.JSON) as transaction:
            await queue.put_within(transaction, "committed", key="k")
        await queue.put("last")
        seen: list[tuple[object, bytes | None]] = []
        async with queue.jobs() as jobs:
            for _ in range(2):
                async with await anext(jobs) as job:
                    seen.append((job.value, job.key))
        assert seen == [("committed", b"k"), ("last", None)]


async def test_no_more_jobs_are_acquired_than_there_are_places(servers: str, name: str):
    async with queue_of(servers, name, partitions=1) as (kafka, queue):
        await queue.put_many(list(range(10)))
        ending, begun = asyncio.Event(), 0

        async def handle(_job: nilometer.Job[Any]) -> None:
            nonlocal begun
            begun += 1
            await ending.wait()

        first = asyncio.create_task(queue.run(handle, concurrency=2))
        await becomes(lambda: begun == 2, "the first worker has its places taken")
        others: list[int] = []
        async with kafka.queue(name).jobs() as jobs:
            while len(others) < 8:
                batch = await jobs.next_batch(8 - len(others))
                for job in batch:
                    others.append(job.value)
                    await job.accept()
        assert begun == 2
        queue.stop()
        ending.set()
        await first
        assert len(set(others)) == 8
        assert (await queue.stats()).waiting == 0


async def test_each_end_of_a_job_is_written(servers: str, name: str):
    async with queue_of(servers, name, partitions=1) as (_, queue):
        await queue.put_many(["accept", "release", "reject", "renew", "nothing"])
        again: list[tuple[str, int]] = []
        async with queue.jobs() as jobs:
            batch: list[nilometer.Job[Any]] = []
            while len(batch) < 5:
                batch += await jobs.next_batch(5 - len(batch))
            accepted, released, rejected, renewed, _ = batch
            await accepted.accept()
            with pytest.raises(nilometer.KafkaError, match="was ended already"):
                await accepted.release()
            await released.release()
            await rejected.reject("it is no good")
            await asyncio.gather(renewed.renew(), renewed.renew())
            await renewed.accept()
        async with queue.jobs() as jobs:  # the last one was given back as its worker left
            for _ in range(2):
                async with await anext(jobs) as job:
                    again.append((job.value, job.deliveries))
        assert sorted(again) == [("nothing", 2), ("release", 2)]
        [letter] = await letters_of(queue, 1)
        assert (letter.record.value, letter.deliveries) == (b'"reject"', 1)
        await none_is_left(queue)


async def test_a_body_that_raises_releases_its_job_and_the_error_comes_out(servers: str, name: str):
    async with queue_of(servers, name, partitions=1) as (_, queue):
        await queue.put("once more")
        with pytest.raises(ZeroDivisionError):
            async with queue.jobs(pauses=NO_PAUSES) as jobs, await anext(jobs):
                raise ZeroDivisionError
        async with queue.jobs() as jobs, await anext(jobs) as job:
            assert job.deliveries == 2


async def test_plain_functions_run_in_threads_whose_locks_are_renewed_meanwhile(servers: str, name: str):
    async with queue_of(servers, name, partitions=1, lock="6s") as (_, queue):
        await queue.put_many(["a", "b"])
        began_with: dict[str, int] = {}
        deliveries: list[int] = []

        def handle(job: nilometer.Job[Any]) -> None:
            assert threading.current_thread() is not threading.main_thread()
            deliveries.append(job.deliveries)
            began_with[job.value] = job.lock_ends_ms
            while job.lock_ends_ms < began_with[job.value] + 6_000:  # so it outlives its first lock
                threading.Event().wait(0.05)
            if len(deliveries) == 2:
                queue.stop()

        await queue.run(handle, concurrency=2)
        assert deliveries == [1, 1]
        assert (await queue.stats()).waiting == 0


def test_the_queue_without_asyncio(servers: str, name: str):
    with nilometer.connect(servers) as kafka:
        kafka.admin.create_queue(name, partitions=1, replication_factor=1, max_deliveries=2)
        queue = kafka.queue(name)
        queue.put_many([1, 2, 3])
        with queue.jobs() as jobs:
            with next(jobs) as job:
                assert (job.value, job.deliveries, job.is_last_delivery) == (1, 1, False)
            with pytest.raises(ZeroDivisionError), next(jobs) as job:
                raise ZeroDivisionError
        done: list[int] = []

        def handle(job: Any) -> None:
            done.append(job.value)
            if len(done) == 2:
                queue.stop()

        queue.run(handle)
        assert sorted(done) == [2, 3]
        with kafka.transaction("plain") as transaction:
            queue.put_within(transaction, 4)
        with queue.jobs() as jobs, next(jobs) as job:
            assert job.value == 4
        assert queue.dead() == []
        assert queue.stats().dead == 0


# --- what fails


async def test_a_job_that_always_fails_is_buried_and_can_be_put_again(servers: str, name: str):
    async with queue_of(servers, name, max_deliveries=3) as (_, queue):
        await queue.put({"price": -1}, key="k", headers={"h": "1"})
        await queue.put_many([{"price": 1}, {"price": 2}])
        tries: list[int] = []

        async def handle(job: nilometer.Job[Any]) -> None:
            if job.value["price"] < 0:
                tries.append(job.deliveries)
                if len(tries) == 3:
                    queue.stop()
                raise ValueError("a negative price")

        await queue.run(handle, pauses=nilometer.Backoff(0.01))
        assert tries == [1, 2, 3]
        [letter] = await letters_of(queue, 1)
        record = letter.record
        assert (record.topic, record.key, record.value) == (f"dlq.{name}", b"k", b'{"price":-1}')
        headers = dict(record.headers)
        assert headers["__dlq.errors.topic"] == name.encode()
        assert headers["__dlq.errors.group"] == name.encode()
        assert headers["__dlq.errors.delivery.count"] == b"3"
        assert letter.reason and letter.deliveries == 3
        await none_is_left(queue)

        assert await queue.redrive() == 1
        assert [one async for one in queue.dead()] == []
        async with queue.jobs() as jobs, await anext(jobs) as job:
            assert (job.value, job.key) == ({"price": -1}, b"k")
            assert not any(header.startswith("__dlq") for header, _ in job.headers)
        assert await queue.redrive() == 0


async def test_a_job_waits_in_each_retry_topic_before_it_is_buried(servers: str, name: str):
    async with queue_of(servers, name, max_deliveries=2, retry_after=["1s", "2s"]) as (kafka, queue):
        await queue.put("mends itself", key="k", headers={"h": "1"})
        await queue.put("never")
        tries: list[tuple[str, int, int]] = []
        times: dict[int, int] = {}

        async def handle(job: nilometer.Job[Any]) -> None:
            tries.append((job.value, job.rounds, job.deliveries))
            if job.value == "mends itself" and job.rounds == 1:
                assert (job.key, dict(job.headers)["h"]) == (b"k", b"1")
                return
            times[job.rounds] = job.record.timestamp
            if (job.value, job.rounds, job.deliveries) == ("never", 2, 2):
                queue.stop()
            raise ValueError("not yet")

        ended = await queue.run(handle, pauses=NO_PAUSES)
        rounds = [(number, delivery) for number in range(3) for delivery in (1, 2)]
        assert [one[1:] for one in tries if one[0] == "never"] == rounds
        assert [one[1:] for one in tries if one[0] == "mends itself"] == rounds[:3]
        assert (ended.accepted, ended.postponed, ended.buried) == (1, 3, 1)
        assert times[1] - times[0] >= 1000 and times[2] - times[1] >= 2000
        [letter] = await letters_of(queue, 1)
        assert letter.record.value == b'"never"'
        await none_is_left(queue)
        assert (await queue.stats()).postponed == 0
        assert await queue.redrive() == 1
        async with queue.jobs() as jobs, await anext(jobs) as job:
            assert (job.value, job.rounds, job.headers) == ("never", 0, ())
        with pytest.raises(nilometer.InvalidSetting, match="retry_after is 1 s, 2 s, not none"):
            await kafka.admin.create_queue(name, max_deliveries=2, lock="60s")


async def test_a_job_waits_in_a_retry_topic_while_its_workers_are_down(servers: str, name: str):
    async with queue_of(servers, name, max_deliveries=2, retry_after=["1s"]) as (_, queue):
        await queue.put("once more")

        async def fail(job: nilometer.Job[Any]) -> None:
            if job.is_last_delivery:
                queue.stop()
            raise ValueError("not yet")

        await queue.run(fail, pauses=NO_PAUSES)
        stats = await queue.stats()
        assert (stats.waiting, stats.postponed, stats.dead) == (0, 1, 0)
        async with queue.jobs() as jobs, await anext(jobs) as job:
            assert (job.value, job.rounds, job.deliveries) == ("once more", 1, 1)


async def test_a_job_of_another_format_is_buried_at_once(servers: str, name: str):
    async with queue_of(servers, name, partitions=1) as (kafka, queue):
        await kafka.send(name, b"no json")
        await queue.put("good")
        done: list[object] = []

        async def handle(job: nilometer.Job[Any]) -> None:
            done.append(job.value)
            queue.stop()

        await queue.run(handle)
        [letter] = await letters_of(queue, 1)
        assert (letter.record.value, done) == (b"no json", ["good"])


async def test_a_job_beyond_its_time_limit_is_cancelled_and_delivered_again(servers: str, name: str):
    async with queue_of(servers, name) as (_, queue):
        await queue.put("slow")
        ends: list[str] = []

        async def handle(job: nilometer.Job[Any]) -> None:
            if job.deliveries == 1:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    ends.append("cancelled")
                    raise
            ends.append("done")
            queue.stop()

        await queue.run(handle, time_limit="200ms", pauses=NO_PAUSES)
        assert ends == ["cancelled", "done"]
        assert (await queue.stats()).waiting == 0


async def test_a_stop_finishes_what_is_in_hand(servers: str, name: str):
    async with queue_of(servers, name, partitions=1) as (_, queue):
        await queue.put_many([1, 2])
        begun, ending = 0, asyncio.Event()

        async def handle(_job: nilometer.Job[Any]) -> None:
            nonlocal begun
            begun += 1
            await ending.wait()

        running = asyncio.create_task(queue.run(handle, concurrency=1))
        await becomes(lambda: begun == 1, "a job has begun")
        queue.stop()
        ending.set()
        await running
        assert begun == 1
        async with queue.jobs() as jobs, await anext(jobs) as job:
            assert (job.value, job.deliveries) == (2, 1)


async def test_a_stop_while_the_worker_joins_is_not_lost(servers: str, name: str):
    async with queue_of(servers, name, partitions=1) as (_, queue):
        await queue.put("left")
        running = asyncio.create_task(queue.run(print))
        await asyncio.sleep(0)  # it has begun, and its worker has not joined
        queue.stop()
        assert not any(await running)
        assert (await queue.stats()).waiting == 1


async def test_a_stop_gives_back_what_is_not_done_in_time_and_buries_what_would_not_come_again(
    servers: str, name: str
):
    async with queue_of(servers, name, partitions=1, max_deliveries=2) as (_, queue):
        await queue.put("long")
        for delivery in (1, 2):
            begun: list[int] = []

            async def handle(job: nilometer.Job[Any], begun: list[int] = begun) -> None:
                begun.append(job.deliveries)
                await asyncio.Event().wait()

            running = asyncio.create_task(queue.run(handle, drain="100ms"))
            await becomes(lambda begun=begun: bool(begun), "the job has begun")
            queue.stop()
            await running
            assert begun == [delivery]
        [letter] = await letters_of(queue, 1)
        assert (letter.record.value, letter.deliveries) == (b'"long"', 2)
        await none_is_left(queue)


# --- workers that die


async def test_the_job_of_a_killed_worker_is_delivered_to_another(servers: str, name: str):
    # With two partitions, the one of the job might be the dead worker's until its session ends.
    async with queue_of(servers, name, partitions=1) as (_, queue):
        await queue.put("inherited")
        with worker(servers, name, "hold") as process:
            assert await asyncio.to_thread(next_line, process) == "took inherited"
            process.kill()
            async with queue.jobs() as jobs, await anext(jobs) as job:
                assert (job.value, job.deliveries) == ("inherited", 2)
        assert (await queue.stats()).waiting == 0


async def test_a_worker_that_was_stopped_for_longer_than_its_lock_learns_that_it_is_lost(
    servers: str, name: str
):
    async with queue_of(servers, name, partitions=1, lock="2s") as (_, queue):
        await queue.put("taken over")
        with worker(servers, name, "hold") as process:
            assert await asyncio.to_thread(next_line, process) == "took taken over"
            process.send_signal(signal.SIGSTOP)
            async with queue.jobs() as jobs, await anext(jobs) as job:
                assert job.deliveries == 2
            process.send_signal(signal.SIGCONT)
            say(process)
            assert await asyncio.to_thread(next_line, process) == "LockLost INVALID_RECORD_STATE"


async def test_a_handler_that_ends_its_process_ends_in_the_dead_letters(servers: str, name: str):
    async with queue_of(servers, name, partitions=1, max_deliveries=2) as (_, queue):
        await queue.put("deadly")
        ends: list[int] = []
        while not [one async for one in queue.dead()]:
            with worker(servers, name, "exit") as process:
                ends.append(await asyncio.to_thread(process.wait, WAIT_S))
        assert ends.count(EXIT_CODE) == 2
        [letter] = await letters_of(queue, 1)
        assert letter.record.value == b'"deadly"'
        await none_is_left(queue)


# --- settings


async def test_other_settings_are_refused_with_both_values(servers: str, name: str):
    async with queue_of(servers, name, max_deliveries=3, lock="20s") as (kafka, queue):
        await kafka.admin.create_queue(name, max_deliveries=3, lock=20, partitions=2)
        for others, said in (
            ({"max_deliveries": 4, "lock": "20s"}, "is 3, not 4|is 5, not 6"),
            ({"max_deliveries": 3, "lock": "21s"}, "is 20000, not 21000"),
            ({"max_deliveries": 3, "lock": "20s", "partitions": 3}, "partitions is 2, not 3"),
        ):
            with pytest.raises(nilometer.InvalidSetting, match=said):
                await kafka.admin.create_queue(name, **others)  # type: ignore[arg-type]
        with pytest.raises(nilometer.InvalidSetting, match="max_deliveries is 3, not 5"):
            await queue.run(print, max_deliveries=5)
        with pytest.raises(nilometer.InvalidSetting, match="lock is 20000 ms, not 5000 ms"):
            await anext(queue.jobs(lock="5s"))
        await queue.put("one")
        async with queue.jobs(max_deliveries=3, lock=20) as jobs, await anext(jobs) as job:
            assert job.value == "one"


async def test_a_topic_that_is_no_queue_is_refused_and_becomes_one(servers: str, name: str):
    async with asyncio.timeout(WAIT_S), nilometer.connect(servers) as kafka:
        queue = kafka.queue(name)
        with pytest.raises(nilometer.KafkaError, match="does not exist"):
            await queue.run(print)
        await kafka.admin.create_topic(name, 1, 1)
        await queue.put("early")
        with pytest.raises(nilometer.InvalidSetting, match="is no queue yet"):
            await queue.run(print)
        await kafka.admin.create_queue(name, replication_factor=1, retry_after=["1h"])
        async with queue.jobs() as jobs, await anext(jobs) as job:
            assert job.value == "early"
        with pytest.raises(nilometer.InvalidSetting, match="retry_after is 3600 s, not none"):
            await kafka.admin.create_queue(name, replication_factor=1)


# --- brokers that die


@pytest.mark.quick
async def test_a_job_whose_broker_has_died_is_lost_although_the_session_goes_on(name: str):
    with Cluster(settings=SETTINGS) as cluster:
        async with queue_of(cluster.bootstrap_servers, name, partitions=1) as (kafka, queue):
            await queue.put("in hand")
            async with queue.jobs() as jobs:
                held = await anext(jobs)
                await asyncio.to_thread(cluster.kill, 1)
                await asyncio.to_thread(cluster.restart, 1)
                async with kafka.queue(name).jobs() as others, await anext(others) as job:
                    assert job.value == "in hand"
                await queue.put("next")
                async with await anext(jobs) as job:  # so there is a session again
                    assert job.value == "next"
                with pytest.raises(nilometer.LockLost):
                    await held.accept()


@pytest.mark.parametrize(
    "kind",
    [
        NILOMETER,
        # Three Java virtual machines that are killed and started: too much beside other tests.
        pytest.param(KAFKA, marks=[pytest.mark.java, pytest.mark.soak]),
    ],
)
async def test_jobs_outlive_the_brokers_under_their_workers(kind: str, tmp_path: Path):
    settings = {
        **SETTINGS,
        "share.coordinator.state.topic.num.partitions": "3",
        "offsets.topic.num.partitions": "3",
    }
    if kind == NILOMETER:
        with Cluster(brokers=3, settings=settings) as cluster:
            await survive(cluster.bootstrap_servers, cluster.kill, cluster.restart)
        return
    # After so long Kafka goes on with a group whose beginning was lost with a coordinator; by default, 30 s.
    again = {"group.share.initialize.retry.interval.ms": "5000"}
    apache = ApacheKafka(tmp_path, nodes=3, overrides={**settings, **again})
    try:
        apache.start()

        def restart(broker: int) -> None:
            apache.nodes[broker].start()
            apache.wait_ready()

        await survive(apache.bootstrap, lambda broker: apache.nodes[broker].kill(), restart)
    finally:
        apache.kill()


async def survive(servers: str, kill: Any, restart: Any) -> None:
    """Each job that was put is done, or dead; a job may be done again only if a broker was killed."""
    async with asyncio.timeout(600), nilometer.connect(servers) as kafka:
        await kafka.admin.create_queue("survivors", partitions=6, replication_factor=3, max_deliveries=5)
        queue = kafka.queue("survivors")
        done: set[int] = set()
        put = 0

        async def put_some() -> None:
            nonlocal put
            await queue.put_many(list(range(put, put + 100)))
            put += 100

        async def handle(job: nilometer.Job[Any]) -> None:
            done.add(job.value)

        running = asyncio.create_task(queue.run(handle, concurrency=20))

        def are_done() -> bool:
            if running.done():
                running.result()  # raises what has ended it
            return len(done) == put

        for broker in (1, 2, 3):
            await put_some()
            await asyncio.to_thread(kill, broker)
            await put_some()
            await asyncio.to_thread(restart, broker)
            await becomes(are_done, f"all jobs are done after broker {broker}", WAIT_S)
        queue.stop()
        await running
        assert done == set(range(put))
        await none_is_left(queue)
