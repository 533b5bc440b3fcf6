"""The consumer against a cluster with faults: each record once, in order, from where the user said (C-1)."""

from __future__ import annotations

import asyncio
import inspect
import random
from typing import Any

import pytest

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder
from support.scripted.log_cluster import LogCluster
from support.scripted.scripted_broker import HANG_UP

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
QUICK = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 4,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 4,
    "auto.offset.reset": "earliest",
}


def consumer_of(cluster: LogCluster, **keys: Any) -> Consumer:
    system = Runtime.system()
    runtime = Runtime(system.clock, system.disk, system.network, SeededEntropy(random.Random(1)))
    given = {name.replace("_", "."): value for name, value in keys.items()}
    return Consumer(runtime, {"bootstrap.servers": cluster.addresses, **QUICK, **given})


def fill(cluster: LogCluster, partition: int, batches: list[list[bytes]], codec: Codec = Codec.NONE) -> None:
    """Append batches of records with these values; timestamps are 1000 + the offset."""
    log = cluster.logs["t", partition]
    for batch in batches:
        builder = BatchBuilder(codec)
        for index, value in enumerate(batch):
            builder.append(1000 + log.end + index, None, value, ())
        code, _ = log.append(builder.build())
        assert code == ErrorCode.none


def numbered(first: int, count: int, per_batch: int = 3) -> list[list[bytes]]:
    numbers = [b"%d" % number for number in range(first, first + count)]
    return [numbers[begin : begin + per_batch] for begin in range(0, count, per_batch)]


async def read(consumer: Consumer, count: int, **options: Any) -> list[ConsumerRecord]:
    """Exactly ``count`` records, or as many as come before a poll finds none."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        more = await consumer.poll(timeout_ms=5_000, **options)
        if not more:
            break
        records += more
    return records


def values(records: list[ConsumerRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


async def test_c1_all_records_in_order_from_the_start() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 20))
        consumer.assign([ZERO])
        records = await read(consumer, 20)
        assert values(records) == list(range(20))
        assert [record.offset for record in records] == list(range(20))
        assert records[7] == ConsumerRecord("t", 0, 7, 1007, 0, None, b"7", (), 0)
        assert await consumer.position(ZERO) == 20
        assert consumer.high_watermark(ZERO) == 20
        fill(cluster, 0, numbered(20, 5))
        assert values(await read(consumer, 5)) == list(range(20, 25))


async def test_c1_the_cursor_is_the_users() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 30))
        consumer.assign([ZERO])
        consumer.seek(ZERO, 10)
        assert values(await read(consumer, 5, max_records=5)) == [10, 11, 12, 13, 14]
        consumer.seek(ZERO, 4)  # into the middle of a batch, and back
        assert values(await consumer.poll(2, timeout_ms=5_000)) == [4, 5]
        assert await consumer.position(ZERO) == 6
        consumer.seek_to_end(ZERO)
        assert await consumer.position(ZERO) == 30
        consumer.seek_to_beginning()
        assert await consumer.position(ZERO) == 0
        assert values(await consumer.poll(1, timeout_ms=5_000)) == [0]
        with pytest.raises(KafkaError, match="t-1 is not assigned"):
            consumer.seek(ONE, 0)
        with pytest.raises(ValueError, match="negative"):
            consumer.seek(ZERO, -5)


async def test_async_iteration_keeps_the_position_exact() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 10))
        consumer.assign([ZERO])
        seen: list[int] = []
        async for record in consumer:
            seen.append(record.offset)
            assert await consumer.position(ZERO) == record.offset + 1
            if record.offset == 9:
                break
        assert seen == list(range(10))


async def test_offsets_by_time_and_ends() -> None:
    async with LogCluster(2, topics={"t": 2}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 10))
        cluster.logs["t", 0].log_start = 2
        assert await consumer.end_offsets([ZERO, ONE]) == {ZERO: 10, ONE: 0}
        assert await consumer.beginning_offsets([ZERO, ONE]) == {ZERO: 2, ONE: 0}
        found = await consumer.offsets_for_times({ZERO: 1006, ONE: 5})
        assert found[ONE] is None
        assert found[ZERO] is not None
        assert (found[ZERO].offset, found[ZERO].timestamp) == (6, 1006)


async def test_paused_partitions_give_nothing_and_lose_nothing() -> None:
    async with LogCluster(topics={"t": 2}) as cluster, consumer_of(cluster, max_poll_records=2) as consumer:
        fill(cluster, 0, numbered(0, 6))
        fill(cluster, 1, numbered(100, 6))
        consumer.assign([ZERO, ONE])
        await consumer.poll(timeout_ms=5_000)
        consumer.pause(ZERO)
        assert consumer.paused() == [ZERO]
        before = await consumer.position(ZERO)
        rest = 6 - await consumer.position(ONE)
        assert all(record.partition == 1 for record in await read(consumer, rest))
        assert await consumer.poll(timeout_ms=20) == []
        assert await consumer.position(ZERO) == before
        consumer.resume(ZERO)
        assert values(await read(consumer, 6 - before)) == list(range(before, 6))


async def test_partitions_that_stay_assigned_keep_their_position() -> None:
    async with LogCluster(topics={"t": 2}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 6))
        consumer.assign([ZERO])
        await consumer.poll(2, timeout_ms=5_000)
        consumer.assign([ONE, ZERO])
        assert await consumer.position(ZERO) == 2
        assert consumer.assignment() == [ONE, ZERO]
        consumer.assign([])
        assert await consumer.poll(timeout_ms=1) == []


async def test_reset_policy_when_there_is_no_position() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        fill(cluster, 0, numbered(0, 5))
        async with consumer_of(cluster, auto_offset_reset="latest") as consumer:
            consumer.assign([ZERO])
            assert await consumer.position(ZERO) == 5
        async with consumer_of(cluster, auto_offset_reset="none") as consumer:
            consumer.assign([ZERO])
            with pytest.raises(KafkaError, match=r"no position for t-0, and auto\.offset\.reset is none"):
                await consumer.poll()
            with pytest.raises(KafkaError, match="no position"):
                await consumer.position(ZERO)
            consumer.seek(ZERO, 3)
            assert values(await read(consumer, 2)) == [3, 4]


async def test_offset_that_is_not_in_the_log_any_more() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        fill(cluster, 0, numbered(0, 12))
        cluster.logs["t", 0].log_start = 6
        cluster.logs["t", 0].batches = cluster.logs["t", 0].batches[2:]
        async with consumer_of(cluster) as consumer:
            consumer.assign([ZERO])
            consumer.seek(ZERO, 1)
            assert values(await read(consumer, 6)) == list(range(6, 12))
        async with consumer_of(cluster, auto_offset_reset="none") as consumer:
            consumer.assign([ZERO])
            consumer.seek(ZERO, 1)
            with pytest.raises(KafkaError, match="offset 1 of t-0 is not in the log"):
                await read(consumer, 1)


async def test_damaged_batch_is_an_error_behind_the_good_ones() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 9))
        batches = cluster.logs["t", 0].batches
        batches[1] = batches[1][:-3] + b"\xff" + batches[1][-2:]
        consumer.assign([ZERO])
        assert values(await consumer.poll(timeout_ms=5_000)) == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(KafkaError, match=r"t-0 at offset 3"):
                await consumer.poll(timeout_ms=5_000)
        consumer.seek(ZERO, 6)
        assert values(await read(consumer, 3)) == [6, 7, 8]


async def test_position_survives_a_change_of_leader() -> None:
    async with LogCluster(2, topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 6))
        consumer.assign([ZERO])
        assert len(await read(consumer, 6)) == 6
        cluster.move_leader("t", 0, 2)
        fill(cluster, 0, numbered(6, 3))
        assert values(await read(consumer, 3)) == [6, 7, 8]
        assert cluster.brokers[1].count(ApiKey.OFFSET_FOR_LEADER_EPOCH) == 1


async def test_late_answer_of_the_old_leader_is_dropped() -> None:
    """Both leaders were asked for the same offset; what the slower one says is old, and not damage."""
    async with LogCluster(2, topics={"t": 1}) as cluster:
        old = cluster.brokers[0]
        fetch = old.handlers[ApiKey.FETCH]
        released, answered = asyncio.Event(), asyncio.Event()

        async def late(request: Any, codec: Any) -> Any:
            answer = fetch(request, codec)
            answer = await answer if inspect.isawaitable(answer) else answer
            await released.wait()
            answered.set()
            return answer

        fill(cluster, 0, numbered(0, 3))
        old.handlers[ApiKey.FETCH] = late
        async with consumer_of(cluster, metadata_max_age_ms=20) as consumer:
            consumer.assign([ZERO])
            assert await consumer.poll(timeout_ms=20) == []
            await old.wait_for(ApiKey.FETCH, 1)
            cluster.move_leader("t", 0, 2)
            assert values(await read(consumer, 3)) == [0, 1, 2]
            released.set()
            await answered.wait()
            assert await consumer.poll(timeout_ms=50) == []
            fill(cluster, 0, numbered(3, 3))
            assert values(await read(consumer, 3)) == [3, 4, 5]


async def test_log_that_was_cut_is_read_on_from_the_common_part() -> None:
    """E-11: records written in place of those that were cut are not skipped."""
    async with LogCluster(2, topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 9))
        consumer.assign([ZERO])
        assert len(await read(consumer, 9)) == 9
        cluster.logs["t", 0].truncate(6)
        cluster.move_leader("t", 0, 2)
        fill(cluster, 0, numbered(100, 12))
        assert values(await read(consumer, 12)) == list(range(100, 112))


async def test_log_that_was_cut_is_an_error_without_a_reset_policy() -> None:
    async with (
        LogCluster(2, topics={"t": 1}) as cluster,
        consumer_of(cluster, auto_offset_reset="none") as consumer,
    ):
        fill(cluster, 0, numbered(0, 9))
        consumer.assign([ZERO])
        consumer.seek(ZERO, 0)
        assert len(await read(consumer, 9)) == 9
        cluster.logs["t", 0].truncate(6)
        cluster.move_leader("t", 0, 2)
        with pytest.raises(KafkaError, match="was truncated from the log, which is unchanged up to 6"):
            await read(consumer, 1)


async def test_aborted_transactions_are_left_out_for_read_committed() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        log = cluster.logs["t", 0]

        def transactional(
            producer_id: int, sequence: int, value: bytes, *, marker: bytes | None = None
        ) -> None:
            builder = BatchBuilder()
            if marker is None:
                builder.append(0, None, value, ())
            else:
                builder.append(0, b"\x00\x00\x00" + marker, b"\x00\x00\x00\x00\x00\x00", ())
            control = marker is not None
            data = builder.build(
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=-1 if control else sequence,
                transactional=True,
                control=control,
            )
            log.producers.pop(producer_id, None)
            assert log.append(data)[0] == ErrorCode.none

        transactional(1, 0, b"0")
        transactional(2, 0, b"1")
        transactional(1, 1, b"2")
        transactional(1, 0, b"", marker=b"\x00")  # producer 1 aborts
        transactional(2, 0, b"", marker=b"\x01")  # producer 2 commits
        transactional(1, 2, b"5")
        transactional(1, 0, b"", marker=b"\x01")
        fill(cluster, 0, [[b"7"]])
        log.aborted = [(1, 0, 3)]
        async with consumer_of(cluster, isolation_level="read_committed") as consumer:
            consumer.assign([ZERO])
            assert values(await read(consumer, 3)) == [1, 5, 7]
            assert await consumer.position(ZERO) == 8
        async with consumer_of(cluster) as consumer:
            consumer.assign([ZERO])
            assert values(await read(consumer, 5)) == [0, 1, 2, 5, 7]


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_is_read(codec: Codec) -> None:
    async with LogCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 50, 25), codec)
        consumer.assign([ZERO])
        consumer.seek(ZERO, 20)
        assert values(await read(consumer, 30)) == list(range(20, 50))


@pytest.mark.parametrize("topic_ids", [True, False])
async def test_sessions_name_only_what_changed(topic_ids: bool) -> None:
    async with LogCluster(topics={"t": 3}, topic_ids=topic_ids) as cluster, consumer_of(cluster) as consumer:
        consumer.assign(await consumer.partitions_for("t"))
        fill(cluster, 1, numbered(0, 3))
        assert len(await read(consumer, 3)) == 3
        await cluster.brokers[0].wait_for(ApiKey.FETCH, 5)
        fetches = [request for key, request in cluster.brokers[0].requests if key == ApiKey.FETCH]
        assert fetches[0].session_epoch == 0
        assert sum(len(topic.partitions) for topic in fetches[0].topics) == 3
        assert fetches[-1].session_epoch > 1
        assert fetches[-1].topics == ()
        cluster.brokers[0].forget_sessions()  # as a broker does that was restarted
        fill(cluster, 2, numbered(3, 3))
        assert values(await read(consumer, 3)) == [3, 4, 5]


@pytest.mark.parametrize("seed", range(20))
async def test_every_record_once_and_in_order_under_faults(seed: int) -> None:
    """Replay one: pytest tests/unit/client/test_consumer.py -k "under_faults and SEED"."""
    chance = random.Random(seed)
    async with LogCluster(3, topics={"t": 3}) as cluster:

        def fault(key: int, number: int) -> Any:
            if key not in (ApiKey.FETCH, ApiKey.LIST_OFFSETS) or number > 200:
                return None
            if chance.random() < 0.1:
                cluster.move_leader("t", chance.randrange(3), chance.randint(1, 3))
            if key == ApiKey.LIST_OFFSETS:
                return chance.choice([None, ErrorCode.not_leader_or_follower])
            return chance.choice([None, None, None, HANG_UP, ErrorCode.fetch_session_id_not_found])

        cluster.fault = fault
        for partition in range(3):
            fill(cluster, partition, numbered(0, 200, chance.randint(1, 30)))
        limit = chance.choice([100, 1000, 1_000_000])
        async with consumer_of(cluster, max_partition_fetch_bytes=limit, max_poll_records=37) as consumer:
            consumer.assign([TopicPartition("t", partition) for partition in range(3)])
            got: list[list[int]] = [[], [], []]
            while sum(map(len, got)) < 600:
                records = await consumer.poll(timeout_ms=20_000)
                assert records, f"seed {seed}: nothing came"
                for record in records:
                    got[record.partition].append(int(record.value or b""))
                if chance.random() < 0.1:
                    moved = chance.randrange(3)
                    back = chance.randint(0, len(got[moved]))
                    consumer.seek(TopicPartition("t", moved), back)
                    del got[moved][back:]
                await asyncio.sleep(0)
        assert got == [list(range(200))] * 3, f"seed {seed}"


async def test_topic_without_permission_is_reported() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 0, numbered(0, 3))
        original = cluster.brokers[0]._read_one

        def refuse(codec: Any, topic: str, index: int, part: Any, left: int) -> Any:
            answer = original(codec, topic, index, part, left)
            code = ErrorCode.topic_authorization_failed
            return codec.make(
                "PartitionData", partition_index=answer.partition_index, error_code=code, records=b""
            )

        cluster.brokers[0]._read_one = refuse  # type: ignore[method-assign]
        consumer.assign([ZERO])
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: t-0"):
            await read(consumer, 1)


async def test_consumer_that_is_closed_says_so() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        consumer = consumer_of(cluster)
        with pytest.raises(KafkaError, match="not open"):
            await consumer.poll()
        await consumer.start()
        consumer.assign([ZERO])
        waiting = asyncio.create_task(consumer.poll(timeout_ms=60_000))
        await asyncio.sleep(0.01)
        await consumer.close()
        assert await waiting == []


async def test_what_a_group_keeps_cannot_be_asked_for_without_one() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([ZERO])
        for asked in (consumer.commit, lambda: consumer.committed([ZERO])):
            with pytest.raises(KafkaError, match=r"needs a group\.id"):
                await asked()
