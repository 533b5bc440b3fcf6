"""The newest records of several partitions, found by reading them from their ends backwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

import pytest

from nilometer.client.consumer import tail
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.consumer.tail import Backwards, LogRange, Select, newest, read_backwards
from nilometer.client.network.cluster_metadata import TopicPartition

TOPIC = "t"


class MemoryConsumer:
    """Reads logs in memory, a few records at once; counts them."""

    def __init__(self, logs: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        self.logs = logs
        self.positions = dict.fromkeys(logs, 0)
        self.paused = set[TopicPartition]()
        self.read = 0

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused.difference_update(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = offset

    async def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]

    async def poll(self, timeout_ms: int, max_bytes: int) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        for one, records in self.logs.items():
            if one not in self.paused:
                part = [record for record in records if record.offset >= self.positions[one]][:7]
                self.positions[one] = part[-1].offset + 1 if part else len(records)
                found += part
        self.read += len(found)
        return found


def record(partition: int, offset: int, timestamp: int) -> ConsumerRecord:
    return ConsumerRecord(TOPIC, partition, offset, timestamp, 0, None, b"%d" % timestamp, (), 0)


def logs_of(chance: random.Random, partitions: int) -> dict[TopicPartition, list[ConsumerRecord]]:
    logs: dict[TopicPartition, list[ConsumerRecord]] = {
        TopicPartition(TOPIC, p): [] for p in range(partitions)
    }
    for timestamp in range(chance.randrange(400)):
        one = TopicPartition(TOPIC, chance.randrange(partitions))
        logs[one].append(record(one.partition, len(logs[one]), timestamp))
    return logs


def of_each(modulus: int) -> Select:
    async def select(records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        return [each for each in records if each.timestamp % modulus == 0]

    return select


async def pages(
    consumer: MemoryConsumer, count: int, modulus: int, rounds_max: int = 10**6
) -> list[list[ConsumerRecord]]:
    """All pages from the newest to the oldest."""
    logs = {one: LogRange(0, len(records), len(records)) for one, records in consumer.logs.items()}
    ends = {one: log.end for one, log in logs.items()}
    found: list[list[ConsumerRecord]] = []
    while any(ends.values()):
        page = Backwards([], 0, {}, is_done=True)
        reading = read_backwards(cast(Consumer, consumer), logs, ends, count, of_each(modulus))
        rounds = 0
        async for page in reading:  # noqa: B007  the last one is used
            rounds += 1
            if rounds == rounds_max:
                break
        await reading.aclose()
        assert page.is_done or rounds == rounds_max
        assert page.before != ends, "each page goes on"
        found.append(page.records)
        ends = page.before
    return found


@pytest.mark.parametrize("seed", range(30))
async def test_pages_of_a_search_have_all_that_it_selects_newest_first(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(tail, "FIRST_RANGE", chance.choice([1, 10, 100]))
    monkeypatch.setattr(tail, "ROUND_RECORDS_MAX", chance.choice([1, 20, 1000]))
    logs, modulus, count = (
        logs_of(chance, chance.randint(1, 5)),
        chance.choice([1, 3, 50]),
        chance.randint(1, 20),
    )
    found = await pages(MemoryConsumer(logs), count, modulus, chance.choice([1, 10**6]))
    seen = [record.timestamp for page in found for record in page]
    wanted = [record.timestamp for records in logs.values() for record in records]
    assert sorted(seen) == sorted(each for each in wanted if each % modulus == 0)
    assert all(
        page == newest({p: [r for r in page if r.partition == p.partition] for p in logs}, count)
        for page in found
    )


async def test_the_first_page_has_the_newest_and_reads_no_more_than_that_takes() -> None:
    chance = random.Random(1)
    logs: dict[TopicPartition, list[ConsumerRecord]] = {TopicPartition(TOPIC, p): [] for p in range(3)}
    for timestamp in range(30_000):
        one = TopicPartition(TOPIC, chance.randrange(3))
        logs[one].append(record(one.partition, len(logs[one]), timestamp))
    consumer = MemoryConsumer(logs)
    ranges = {one: LogRange(0, len(records), len(records)) for one, records in logs.items()}
    ends = {one: log.end for one, log in ranges.items()}
    found = Backwards([], 0, {}, is_done=False)
    async for found in read_backwards(cast(Consumer, consumer), ranges, ends, 5, of_each(100)):
        assert found.read <= consumer.read
    assert [each.timestamp for each in found.records] == [29_500, 29_600, 29_700, 29_800, 29_900]
    assert consumer.read < 3_000


async def test_the_event_loop_takes_another_turn_after_each_poll() -> None:
    """A poll that has records does not wait, and a long read would keep all other tasks from running."""
    logs = {TopicPartition(TOPIC, 0): [record(0, offset, offset) for offset in range(70)]}
    consumer = MemoryConsumer(logs)
    read_in_each_turn: list[int] = []

    async def watch() -> None:
        while True:
            read_in_each_turn.append(consumer.read)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    ranges = {one: LogRange(0, len(records), len(records)) for one, records in logs.items()}
    async for _ in read_backwards(cast(Consumer, consumer), ranges, dict.fromkeys(logs, 70), 70):
        pass
    watching.cancel()
    assert read_in_each_turn == list(range(7, 71, 7))
