"""What a program can do with the records that it reads: batches, commits, positions, patterns, rebalances."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence

import pytest

import nilometer
from nilometer.kafka import Kafka, KafkaError, RebalanceListener, Records, TopicPartition
from nilometer.testing import Cluster
from support.eventually import becomes


class Failed(Exception):
    """What the body of a loop raises."""


async def fill(kafka: Kafka, topic: str, count: int, partition: int = 0) -> None:
    for delivery in [await kafka.enqueue(topic, f"{n:03}", partition=partition) for n in range(count)]:
        await delivery


async def test_batches(kafka: Kafka, topic: str):
    async with kafka:
        await fill(kafka, topic, 25)
        sizes: list[int] = []
        offsets: list[int] = []
        async for batch in kafka.consume(topic, until_end=True).batches(max_records=10):
            sizes.append(len(batch))
            offsets += [record.offset for record in batch]
        assert offsets == list(range(25))
        assert max(sizes) == 10


async def test_a_batch_that_fails_is_not_committed(kafka: Kafka, topic: str):
    async with kafka:
        await fill(kafka, topic, 10)
        with pytest.raises(Failed):
            async with kafka.consume(topic, group=f"g-{topic}") as records:
                done = 0
                async for batch in records.batches(max_records=2):
                    done += len(batch)
                    if done == 4:
                        raise Failed
        assert (await kafka.admin.group_offsets(f"g-{topic}"))[TopicPartition(topic, 0)] == 2


async def test_one_record_is_committed(kafka: Kafka, topic: str):
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with kafka:
        await fill(kafka, topic, 3, partition=0)
        await fill(kafka, topic, 3, partition=1)
        async with kafka.consume(topic, group=f"g-{topic}", auto_commit=False, until_end=True) as records:
            read = {(record.partition, record.offset): record async for record in anything(records, 6)}
            await records.commit(read[0, 1])
            assert await records.committed([zero, one]) == {zero: 2, one: None}
            await records.commit()
            assert await records.committed([zero, one]) == {zero: 3, one: 3}


async def anything(records: Records, count: int):
    for _ in range(count):
        yield await anext(records)


async def test_seek_and_position(kafka: Kafka, topic: str):
    partition = TopicPartition(topic, 0)
    async with kafka:
        await fill(kafka, topic, 10)
        async with kafka.consume(topic, partitions=[0]) as records:
            assert (await anext(records)).offset == 0
            assert await records.position(partition) == 1
            records.seek(partition, 7)
            assert await records.position(partition) == 7
            assert [(await anext(records)).offset for _ in range(2)] == [7, 8]
            records.seek_to_beginning()
            assert (await anext(records)).offset == 0
            records.seek_to_end(partition)
            assert await records.position(partition) == 10
            with pytest.raises(KafkaError, match="is not assigned"):
                records.seek(TopicPartition(topic, 1), 0)


async def test_what_was_read_to_its_end_is_read_again_after_a_seek(kafka: Kafka, topic: str):
    async with kafka:
        await fill(kafka, topic, 3)
        async with kafka.consume(topic, until_end=True) as records:
            assert [record.offset async for record in records] == [0, 1, 2]
            records.seek(TopicPartition(topic, 0), 1)
            assert [record.offset async for record in records] == [1, 2]
            assert not records.closed
        assert records.closed


async def test_a_seek_takes_back_what_was_to_be_committed(kafka: Kafka, topic: str):
    partition = TopicPartition(topic, 0)
    async with kafka:
        await fill(kafka, topic, 6)
        async with kafka.consume(topic, group=f"g-{topic}", auto_commit=False) as records:
            assert [(await anext(records)).offset for _ in range(4)] == [0, 1, 2, 3]
            records.seek(partition, 1)
            assert (await anext(records)).offset == 1
            await records.commit()
            assert await records.committed([partition]) == {partition: 2}


async def test_a_paused_partition_returns_nothing_until_it_is_resumed(kafka: Kafka, topic: str):
    zero = TopicPartition(topic, 0)
    async with kafka:
        await fill(kafka, topic, 5, partition=0)
        async with kafka.consume(topic) as records:
            assert [(await anext(records)).offset for _ in range(2)] == [0, 1]
            records.pause(zero)
            assert records.paused == [zero]
            assert await records.position(zero) == 2
            await fill(kafka, topic, 5, partition=1)
            assert [(await anext(records)).partition for _ in range(5)] == [1] * 5
            records.resume(zero)
            rest = [await anext(records) for _ in range(3)]
            assert [(record.partition, record.offset) for record in rest] == [(0, 2), (0, 3), (0, 4)]


async def test_offsets_of_partitions(kafka: Kafka, topic: str):
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with kafka:
        for n in range(4):
            await kafka.send(topic, "x", partition=0, timestamp=1_000 * (n + 1))
        records = kafka.consume(topic)
        assert await records.beginning_offsets([zero, one]) == {zero: 0, one: 0}
        assert await records.end_offsets([zero, one]) == {zero: 4, one: 0}
        assert await records.offsets_for_times({zero: 2_500, one: 0}) == {zero: 2, one: None}
        assert await records.offsets_for_times({zero: 9_000}) == {zero: None}


async def test_a_pattern_of_topics(kafka: Kafka, cluster: Cluster, topic: str):
    async with kafka:
        for name in (f"{topic}-1", f"{topic}-2", f"other-{topic}"):
            cluster.create_topic(name)
            await kafka.send(name, name)
        pattern = re.compile(f"{topic}-[0-9]")
        read = [one.value async for one in kafka.consume(pattern, group=f"g-{topic}", until_end=True)]
        assert sorted(read) == [f"{topic}-1".encode(), f"{topic}-2".encode()]
        with pytest.raises(KafkaError, match="a pattern of topics needs group="):
            kafka.consume(pattern)


class Noting(RebalanceListener):
    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.revoked: list[TopicPartition] = []
        self.records: Records | None = None

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned |= set(partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.records is not None
        await self.records.commit()
        self.revoked += partitions


async def test_a_listener_commits_before_partitions_are_revoked(kafka: Kafka, topic: str):
    group, listener = f"g-{topic}", Noting()
    async with kafka:
        await fill(kafka, topic, 3, partition=0)
        await fill(kafka, topic, 3, partition=1)
        async with kafka.consume(topic, group=group, auto_commit=False, listener=listener) as first:
            listener.records = first
            async for _ in anything(first, 6):
                pass
            assert {partition.partition for partition in listener.assigned} == {0, 1}
            async with kafka.consume(topic, group=group, auto_commit=False) as second:
                reading = asyncio.gather(anext(first), anext(second))
                await becomes(lambda: bool(listener.revoked), "partitions are revoked")
                given_up = list(listener.revoked)
                # All was read, and committed as it was revoked: only what is sent now is read by both.
                await becomes(lambda: bool(first.assignment and second.assignment), "both have one")
                for partition in (0, 1):
                    await kafka.send(topic, "new", partition=partition)
                assert [record.value for record in await reading] == [b"new", b"new"]
            assert {partition.topic for partition in given_up} == {topic}
            offsets, _ = first.processed()
            assert set(offsets) <= set(first.assignment)


async def test_what_a_rebalance_took_away_is_not_committed(kafka: Kafka, topic: str):
    group = f"g-{topic}"
    async with kafka:
        await fill(kafka, topic, 3, partition=0)
        await fill(kafka, topic, 3, partition=1)
        async with kafka.consume(topic, group=group, auto_commit=False) as first:
            async for _ in anything(first, 6):
                pass
            async with kafka.consume(topic, group=group, auto_commit=False) as second:
                mine, other = await asyncio.gather(anext(first), anext(second))
                assert (mine.offset, other.offset) == (0, 0)  # nothing is committed, so both begin again
                await first.commit()
                own, theirs = (TopicPartition(topic, one.partition) for one in (mine, other))
                assert await first.committed([own, theirs]) == {own: 1, theirs: None}


async def test_a_wait_that_is_cancelled_loses_no_record(cluster: Cluster, topic: str):
    """Each poll returns one record, the last of a fetch: so it lets the next fetch be sent, and is cancelled
    there."""
    one_by_one = {"max.poll.records": 1, "max.partition.fetch.bytes": 1}
    async with nilometer.connect(cluster.bootstrap_servers, settings=one_by_one) as kafka:
        for n in range(60):
            await kafka.send(topic, str(n), partition=0)
        async with kafka.consume(topic, until_end=True) as records:
            offsets: list[int] = []
            for turns in itertools.cycle(range(12)):
                task = asyncio.ensure_future(anext(records, None))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    record = await task
                except asyncio.CancelledError:
                    continue
                if record is None:
                    break
                offsets.append(record.offset)
        assert offsets == list(range(60))
