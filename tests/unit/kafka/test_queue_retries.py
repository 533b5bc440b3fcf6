"""Retry topics of a queue: which there are, what is due, and what happens when a write or a commit fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.group_exchange import GroupMetadata, MemberIdentity
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.kafka import queue_settings
from nilometer.kafka.queue_settings import Returner, of_next_round, pauses_among, retry_topic, round_of
from nilometer.wire.errors import ErrorCode, KafkaError

SHORT, LONG = TopicPartition("retry.jobs.10", 0), TopicPartition("retry.jobs.60", 0)
START_MS = 1_000_000


class FakeClock:
    now_ms = START_MS

    def wall_ms(self) -> int:
        return self.now_ms

    monotonic_ms = monotonic_us = thread_cpu_us = wall_ms


class FakeConsumer:
    """A consumer of two partitions. Each poll is at the next of the times; then the task is cancelled."""

    def __init__(self, clock: FakeClock, logs: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        self._clock = clock
        self.logs = logs
        self.positions = dict.fromkeys(logs, 0)
        self.paused: set[TopicPartition] = set()
        self.committed: dict[TopicPartition, int] = {}
        self.failing_commit: KafkaError | None = None
        self.polls_at_ms: list[int] = []
        self.is_closed = False
        self.generation = 1

    async def start(self) -> None: ...

    async def subscribe(self, topics: tuple[str, ...]) -> None:
        assert set(topics) == {partition.topic for partition in self.logs}

    async def close(self) -> None:
        self.is_closed = True

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("jobs.retry", MemberIdentity("member", self.generation))

    def assignment(self) -> list[TopicPartition]:
        return list(self.positions)

    def pause(self, partition: TopicPartition) -> None:
        assert partition in self.positions
        self.paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        assert partition in self.positions
        self.paused.discard(partition)

    def seek(self, partition: TopicPartition, offset: int, _leader_epoch: int) -> None:
        assert partition in self.positions
        self.positions[partition] = offset

    async def poll(self, *, timeout_ms: int) -> list[ConsumerRecord]:
        del timeout_ms
        if not self.polls_at_ms:
            raise asyncio.CancelledError
        self._clock.now_ms = self.polls_at_ms.pop(0)
        found: list[ConsumerRecord] = []
        for partition in set(self.positions) - self.paused:
            found += self.logs[partition][self.positions[partition] :]
            self.positions[partition] = len(self.logs[partition])
        return found

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        if self.failing_commit is not None:
            failing, self.failing_commit = self.failing_commit, None
            raise failing
        self.committed |= offsets


class World:
    def __init__(self, **appended_ms: list[int]) -> None:
        """``short`` and ``long``: when each record was appended to the topic, after the start."""
        self.clock = FakeClock()
        logs = {
            partition: [
                ConsumerRecord(
                    partition.topic, 0, offset, START_MS + at_ms, 0, b"k", f"{name}-{offset}".encode(), (), 0
                )
                for offset, at_ms in enumerate(appended_ms.get(name, []))
            ]
            for name, partition in (("short", SHORT), ("long", LONG))
        }
        self.consumer = FakeConsumer(self.clock, logs)
        self.put: list[tuple[int, bytes | None]] = []
        """What was put again, and how long after the start."""
        self.failing: list[bytes] = []
        self.has_looked = False

    async def send(self, topic: str, value: bytes | None, *, key: bytes | None, headers: Any) -> object:
        assert (topic, key, headers) == ("jobs", b"k", ())
        if value in self.failing:
            self.failing.remove(value)
            raise KafkaError(ErrorCode.not_enough_replicas, "no")
        self.put.append((self.clock.now_ms - START_MS, value))
        return None

    async def poll_at(self, *after_ms: int) -> None:
        """Poll at these times after the start."""
        self.consumer.polls_at_ms = [START_MS + each for each in after_ms]
        consumer: Any = self.consumer
        returner = Returner(consumer, "jobs", (10, 60), self.clock, self.send)
        with suppress(asyncio.CancelledError):
            await returner.run()
        self.has_looked = returner.has_looked
        assert self.consumer.is_closed


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_settings, "FAILURE_PAUSE_S", 0.0)


def test_the_retry_topics_of_a_queue_are_those_with_its_name_and_a_number():
    topics = [
        "retry.a.60",
        "retry.a.7",
        "retry.a.b.9",
        "retry.a.9.5",
        "retry.ab.3",
        "retry.a.",
        "dlq.a",
        "a.4",
    ]
    assert pauses_among(topics, "a") == (7, 60)
    assert pauses_among(topics, "a.9") == (5,)
    assert pauses_among([retry_topic("a.*", 8)], "a.*") == (8,)


@pytest.mark.parametrize(("value", "count"), [(b"3", 3), (b"", 0), (None, 0), (b"-1", 0), (b"9" * 5000, 0)])
def test_a_round_is_what_the_last_header_says_in_digits(value: bytes | None, count: int):
    record = ConsumerRecord("jobs", 0, 0, 0, 0, None, None, (("h", b"1"), ("__retry.round", value)), 0)
    assert round_of(record) == count
    assert of_next_round(record) == [("h", b"1"), ("__retry.round", str(count + 1).encode())]


async def test_a_job_is_put_again_when_its_pause_is_over():
    world = World(short=[0, 4_000, 5_000], long=[0, 1_000])
    await world.poll_at(9_999, 10_000, 10_001, 13_000)
    assert world.put == [(10_001, b"short-0")]
    assert world.consumer.committed == {SHORT: 1}
    assert world.consumer.positions == {SHORT: 1, LONG: 0}


async def test_all_that_is_due_is_put_at_one_poll():
    world = World(short=[0, 4_000, 55_000], long=[0, 1_000])
    await world.poll_at(60_999, 61_000, 65_000, 65_001)
    assert sorted(world.put) == [
        *((60_999, b"long-0"), (60_999, b"short-0"), (60_999, b"short-1")),
        *((65_000, b"long-1"), (65_001, b"short-2")),
    ]
    assert world.consumer.committed == {SHORT: 3, LONG: 2}


async def test_what_was_not_written_is_read_again_and_not_committed():
    world = World(short=[0, 0, 0])
    world.failing = [b"short-1"]
    await world.poll_at(10_000)
    assert world.consumer.committed == {}
    await world.poll_at(10_001)
    assert [value for at_ms, value in world.put if at_ms == 10_001] == [b"short-0", b"short-1", b"short-2"]
    assert world.consumer.committed == {SHORT: 3}


async def test_what_was_written_is_not_put_once_more_because_its_commit_failed():
    world = World(short=[0, 5_000])
    world.consumer.failing_commit = KafkaError(ErrorCode.coordinator_not_available)
    await world.poll_at(10_000, 15_000, 15_001)
    assert world.put == [(10_000, b"short-0"), (15_001, b"short-1")]
    assert world.consumer.committed == {SHORT: 2}


async def test_a_partition_that_comes_back_is_read_from_where_it_is():
    world = World(short=[0, 5_000])
    consumer = world.consumer
    await world.poll_at(9_000)  # it is paused until 10,000
    del consumer.positions[SHORT]
    await world.poll_at(10_000, 10_001)
    assert world.put == []
    consumer.positions[SHORT] = 0
    consumer.paused.clear()
    await world.poll_at(10_002)
    assert world.put == [(10_002, b"short-0")]


async def test_it_has_looked_once_a_poll_as_a_member_has_ended_or_failed():
    world = World(short=[0])
    world.consumer.generation = -1
    await world.poll_at(10_000)
    assert not world.has_looked, "it had no partitions when it polled"
    world.consumer.generation = 1
    await world.poll_at(10_001)
    assert world.has_looked
    world = World(short=[0])
    world.consumer.generation = -1
    world.failing = [b"short-0"]
    await world.poll_at(10_000)
    assert world.has_looked, "a worker that ends when it is idle must not wait for good"
