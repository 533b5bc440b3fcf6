"""The public client, `nilometer.connect`, on a cluster of one broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

import nilometer
import nilometer.kafka.errors
from nilometer.client.producer.batch import Delivery
from nilometer.kafka import Kafka, OffsetRange, Record, Records, TopicPartition
from nilometer.kafka.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidSetting,
    KafkaError,
    ProducerFenced,
    TransactionError,
)
from nilometer.testing import Cluster

TIMEOUT_S = 120


class Failed(Exception):
    """What the body of a loop raises."""


@pytest.fixture
def connected(cluster: Cluster) -> Callable[[Callable[[Kafka], Awaitable[None]]], None]:
    """A function that runs work with a connection."""

    def run(work: Callable[[Kafka], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(TIMEOUT_S), nilometer.connect(cluster.bootstrap_servers) as kafka:
                await work(kafka)

        asyncio.run(main())

    return run


Run = Callable[[Callable[[Kafka], Awaitable[None]]], None]


async def values(records: Records) -> list[bytes | None]:
    return sorted([record.value async for record in records], key=lambda value: value or b"")


async def fill(kafka: Kafka, topic: str, count: int, partition: int = 0) -> None:
    for delivery in [await kafka.enqueue(topic, f"{n:03}", partition=partition) for n in range(count)]:
        await delivery


# --- writing and reading


def test_what_is_sent_is_read(connected: Run, topic: str):
    async def work(kafka: Kafka) -> None:
        now = int(datetime.now(UTC).timestamp() * 1000)
        sent = await kafka.send(topic, "grün", key="k", headers={"a": "1", "b": None, "c": b"\xff"})
        same = await kafka.send(topic, None, key=b"k", timestamp=1_000)
        assert (sent.topic, same.partition, same.offset) == (topic, sent.partition, sent.offset + 1)
        one, two = [record async for record in kafka.consume(topic, until_end=True)]
        assert (one.key, one.value) == (b"k", "grün".encode())
        assert one.headers == (("a", b"1"), ("b", None), ("c", b"\xff"))
        assert abs(one.timestamp - now) < 600_000
        assert (two.key, two.value, two.timestamp) == (b"k", None, 1_000)

    connected(work)


def test_a_record_that_is_not_bytes_is_refused_by_name(connected: Run, topic: str):
    async def refuse(kafka: Kafka) -> None:
        for given, named in (
            ({"value": {"a": 1}}, f"the value of a record for {topic} is of type dict"),
            ({"key": 7}, f"the key of a record for {topic} is of type int"),
            ({"headers": {"size": 1.5}}, f"the header 'size' of a record for {topic} is of type float"),
        ):
            with pytest.raises(TypeError, match=named):
                await kafka.send(topic, **given)  # type: ignore[arg-type]
        await kafka.send(topic, bytearray(b"as bytes"), headers=[("n", "1"), ("m", None), ("n", "2")])  # type: ignore[arg-type]
        [record] = [record async for record in kafka.consume(topic, until_end=True)]
        assert (record.value, record.header("n"), record.header("m")) == (b"as bytes", b"2", None)
        assert record.header_values("n") == [b"1", b"2"]
        assert record.header_values("none") == []

    connected(refuse)


def test_all_errors_are_names_of_the_package():
    for name in nilometer.kafka.errors.__all__:
        assert getattr(nilometer, name) is getattr(nilometer.kafka.errors, name)
        assert name in nilometer.__all__


def test_what_is_enqueued_is_sent_when_the_connection_is_closed(connected: Run, topic: str):
    async def write(kafka: Kafka) -> None:
        for n in range(1000):
            await kafka.enqueue(topic, str(n))

    async def read(kafka: Kafka) -> None:
        assert len(await values(kafka.consume(topic, until_end=True))) == 1000

    connected(write)
    connected(read)


def test_where_reading_begins(connected: Run, topic: str):
    async def work(kafka: Kafka) -> None:
        await fill(kafka, topic, 4, partition=0)
        await fill(kafka, topic, 2, partition=1)
        assert len(await values(kafka.consume(topic, until_end=True))) == 6
        assert len(await values(kafka.consume(topic, partitions=[1], until_end=True))) == 2
        assert await values(kafka.consume(topic, offsets={0: 3}, until_end=True)) == [b"003"]
        assert await values(kafka.consume(topic, start="latest", until_end=True)) == []
        async with kafka.consume(topic, start="latest") as records:
            await kafka.send(topic, "new")
            assert (await anext(records)).value == b"new"

    connected(work)


def test_a_connection_keeps_no_records_that_were_closed(connected: Run, topic: str):
    async def work(kafka: Kafka) -> None:
        for _ in range(3):
            assert await values(kafka.consume(topic, until_end=True)) == []
        assert len(kafka._clients._records) == 1

    connected(work)


# --- groups


async def read_some(kafka: Kafka, topic: str, count: int, *, fail: bool = False) -> list[bytes | None]:
    """Read ``count`` records as the only member of group ``g``; the processing of the last one fails."""
    found: list[bytes | None] = []
    try:
        async with kafka.consume(topic, group=f"g-{topic}") as records:
            async for record in records:
                found.append(record.value)
                if len(found) == count:
                    if fail:
                        raise Failed
                    break
    except Failed:
        pass
    return found


def test_a_group_goes_on_after_the_records_that_were_processed(connected: Run, topic: str):
    async def work(kafka: Kafka) -> None:
        await fill(kafka, topic, 10)
        assert await read_some(kafka, topic, 3) == [b"000", b"001", b"002"]
        assert await read_some(kafka, topic, 2, fail=True) == [b"003", b"004"]
        assert await kafka.admin.group_offsets(f"g-{topic}") == {
            TopicPartition(topic, 0): 4,
            TopicPartition(topic, 1): 0,
        }
        assert await read_some(kafka, topic, 1, fail=True) == [b"004"]
        left = [record.value async for record in kafka.consume(topic, group=f"g-{topic}", until_end=True)]
        assert left == [f"{n:03}".encode() for n in range(4, 10)]
        offsets = await kafka.admin.group_offsets(f"g-{topic}")
        assert offsets[TopicPartition(topic, 0)] == 10

    connected(work)


def test_an_exception_without_async_with_leaves_the_record_uncommitted(connected: Run, topic: str):
    async def fails(kafka: Kafka) -> None:
        await fill(kafka, topic, 3)
        async for record in kafka.consume(topic, group=f"g-{topic}"):
            if record.offset == 1:
                raise Failed

    async def works(kafka: Kafka) -> None:
        assert await read_some(kafka, topic, 1) == [b"001"]

    with pytest.raises(Failed):
        connected(fails)
    connected(works)


def test_commits_by_hand(connected: Run, topic: str):
    async def work(kafka: Kafka) -> None:
        await fill(kafka, topic, 5)
        async with kafka.consume(topic, group=f"g-{topic}", auto_commit=False) as records:
            assert (await anext(records)).value == b"000"
            await records.commit()
            assert (await anext(records)).value == b"001"
        assert await read_some(kafka, topic, 1) == [b"001"]
        async with kafka.consume(topic) as records:
            with pytest.raises(KafkaError, match="only a group has committed offsets"):
                await records.commit()

    connected(work)


# --- transactions


def test_a_transaction_is_all_or_nothing(connected: Run, topic: str):
    group = f"g-{topic}"

    async def copy(kafka: Kafka, count: int, *, fail: bool) -> list[Record]:
        taken: list[Record] = []
        async with kafka.consume(topic, group=group, auto_commit=False) as records:
            async with kafka.transaction(f"t-{topic}") as transaction:
                sent: list[Delivery] = []
                for _ in range(count):
                    taken.append(await anext(records))
                    copied = b"copy of " + (taken[-1].value or b"")
                    sent.append(await transaction.send(topic, copied, partition=1))
                await transaction.commit_offsets(records)
                if fail:
                    await asyncio.gather(*sent)  # an abort drops what was not sent yet
                    raise Failed
            assert records.processed()[0] == {}
        return taken

    async def work(kafka: Kafka) -> None:
        await fill(kafka, topic, 4)
        with pytest.raises(Failed):
            await copy(kafka, 2, fail=True)
        assert await kafka.admin.group_offsets(group) == {}
        taken = await copy(kafka, 2, fail=False)
        assert [record.offset for record in taken] == [0, 1]
        assert await kafka.admin.group_offsets(group) == {TopicPartition(topic, 0): 2}
        seen = kafka.consume(topic, partitions=[1], until_end=True, read_committed=True)
        assert await values(seen) == [b"copy of 000", b"copy of 001"]
        everything = kafka.consume(topic, partitions=[1], until_end=True)
        assert len(await values(everything)) == 4

    connected(work)


def test_a_fenced_transaction_ends_and_the_next_one_may_begin(connected: Run, cluster: Cluster, topic: str):
    async def work(kafka: Kafka) -> None:
        async with nilometer.connect(cluster.bootstrap_servers) as other:
            with pytest.raises(ProducerFenced) as fenced:
                async with kafka.transaction("same") as transaction:
                    await transaction.send(topic, "from the first", partition=0)
                    async with other.transaction("same") as second:
                        await second.send(topic, "from the second", partition=0)
            assert isinstance(fenced.value, TransactionError)
            assert not fenced.value.retriable
        async with kafka.transaction("same") as transaction:
            await transaction.send(topic, "from the third", partition=0)
        seen: list[bytes | None] = []
        while len(seen) < 2:  # the marker may follow the answer to the commit
            seen = await values(kafka.consume(topic, until_end=True, read_committed=True))
        assert seen == [b"from the second", b"from the third"]

    connected(work)


# --- admin


def test_topics_and_configurations(connected: Run):
    async def work(kafka: Kafka) -> None:
        admin = kafka.admin
        await admin.create_topic("made", 2, 1, {"retention.ms": "60000"})
        assert len((await admin.topics())["made"].partitions) == 2
        assert (await admin.topic_configs("made"))["retention.ms"] == "60000"
        await admin.set_topic_configs("made", {"retention.ms": None, "max.message.bytes": "5000"})
        configs = await admin.topic_configs("made")
        assert (configs["retention.ms"], configs["max.message.bytes"]) == ("604800000", "5000")
        await admin.add_partitions("made", 3)
        assert len((await admin.topic("made")).partitions) == 3
        await kafka.send("made", "x", partition=2)
        assert await admin.offsets("made") == {
            0: OffsetRange(0, 0),
            1: OffsetRange(0, 0),
            2: OffsetRange(0, 1),
        }
        await admin.delete_topic("made")
        with pytest.raises(KafkaError) as missing:
            await admin.topic("made")
        assert missing.value.name == "UNKNOWN_TOPIC_OR_PARTITION"
        assert (await admin.broker_configs(1))["group.initial.rebalance.delay.ms"] == "0"
        await admin.set_broker_configs(1, {"log.retention.ms": "1000"})
        assert (await admin.broker_configs(1))["log.retention.ms"] == "1000"
        await admin.set_broker_configs(1, {"log.retention.ms": None})
        assert [broker.node_id for broker in (await admin.cluster()).brokers] == [1]

    connected(work)


def test_groups(connected: Run, topic: str):
    async def work(kafka: Kafka) -> None:
        admin, group, place = kafka.admin, f"g-{topic}", TopicPartition(topic, 0)
        await fill(kafka, topic, 3)
        await admin.set_group_offsets(group, {place: 2, TopicPartition(topic, 1): 0})
        async with kafka.consume(topic, group=group, auto_commit=False) as records:
            assert (await anext(records)).value == b"002"
            assert set(records.assignment) == {place, TopicPartition(topic, 1)}
            assert len((await admin.group(group)).members) == 1
        assert group in [one.group_id for one in await admin.groups()]
        await admin.delete_group_offsets(group, [place])
        assert await admin.group_offsets(group) == {TopicPartition(topic, 1): 0}
        await admin.delete_group(group)
        with pytest.raises(KafkaError) as missing:
            await admin.delete_group(group)
        assert missing.value.code == ErrorCode.group_id_not_found

    connected(work)


# --- errors


def test_every_error_has_kafkas_name(connected: Run, topic: str):
    async def work(kafka: Kafka) -> None:
        with pytest.raises(KafkaError) as twice:
            await kafka.admin.create_topic(topic)
        assert (twice.value.name, twice.value.retriable) == ("TOPIC_ALREADY_EXISTS", False)
        with pytest.raises(KafkaError) as large:
            await kafka.send(topic, b"x" * 2_000_000)
        assert large.value.name == "MESSAGE_TOO_LARGE"
        with pytest.raises(KafkaError, match="has no partition 7"):
            await values(kafka.consume(topic, partitions=[7]))
        with pytest.raises(KafkaError, match="open already"):
            await kafka.__aenter__()

    connected(work)


async def test_a_rejected_record_is_named(cluster: Cluster):
    cluster.create_topic("compacted", configs={"cleanup.policy": "compact"})
    async with nilometer.connect(cluster.bootstrap_servers, settings={"linger.ms": 10_000}) as kafka:
        good, bad, last = [await kafka.enqueue("compacted", "x", key=key) for key in ("a", None, "b")]
        await kafka.flush()
        with pytest.raises(KafkaError) as rejected:
            await bad
        assert str(rejected.value) == (
            "INVALID_RECORD: compacted-0 rejects this record: A record in a compacted topic needs a key."
        )
        for delivery in (good, last):
            with pytest.raises(KafkaError, match="not written, because other records of its batch"):
                await delivery
        with pytest.raises(KafkaError, match="record 0: A record in a compacted topic needs a key"):
            async with kafka.transaction("rejected") as transaction:
                await transaction.send("compacted", "x")


def test_a_cluster_that_is_not_there():
    async def work() -> None:
        async with nilometer.connect("127.0.0.1:1"):
            pass

    with pytest.raises(ConnectionLost) as lost:
        asyncio.run(work())
    assert (lost.value.name, lost.value.retriable) == ("NETWORK_EXCEPTION", True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"linger": 5}, "there is no setting linger of a producer, consumer or admin"),
        ({"linger.ms": "soon"}, "linger.ms"),
        ({"group.id": "g"}, r"group\.id is group of consume\(\)"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str | int], said: str):
    with pytest.raises(InvalidSetting, match=said):
        nilometer.connect("127.0.0.1:9092", settings=settings)
    with pytest.raises(InvalidSetting, match="host:port"):
        nilometer.connect("127.0.0.1")


def test_settings_reach_the_clients(cluster: Cluster, topic: str):
    async def work() -> None:
        settings = {"max.request.size": 100, "max.poll.records": 1}
        async with nilometer.connect([cluster.bootstrap_servers], settings=settings) as kafka:
            with pytest.raises(KafkaError, match=r"max\.request\.size is 100"):
                await kafka.send(topic, b"x" * 200)
            with pytest.raises(InvalidSetting, match="give topics"):
                kafka.consume(topic, group="g", partitions=[0])
            with pytest.raises(InvalidSetting, match="yesterday"):
                kafka.consume(topic, start="yesterday")
        with pytest.raises(KafkaError, match="not connected"):
            await kafka.send(topic, "x")

    asyncio.run(work())


def test_importing_the_package_imports_no_client():
    script = (
        "import sys, nilometer; "
        "print([n for n in sys.modules if n.startswith('nilometer.')], 'asyncio' in sys.modules); "
        "print(nilometer.connect.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['nilometer.compiled', 'nilometer.version'] False",
        "nilometer.kafka.blocking",
    ]
