"""The program that reuses a topic name: what it takes for lost, and what it does not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from typing import Any, Self
from uuid import UUID

import pytest

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicMetadata, TopicPartition
from nilometer.client.producer.batch import RecordMetadata
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import FileNode
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.faults import wait_until
from nilometer.simulation.plan import draw
from nilometer.simulation.run import run
from nilometer.simulation.workload import admin_programs
from nilometer.simulation.workload.admin_programs import Incarnation, NameReuser
from nilometer.simulation.world import World
from nilometer.wire.errors import KafkaError

TOPIC, EARLIER = UUID(int=7), UUID(int=6)


def _judged(*seen: dict[tuple[int, int], str]) -> list[str]:
    """What is said of topic 3, to which two records were acknowledged, one of which may be deleted, when it
    is read again and again: the last of ``seen`` from then on."""
    readings = list(seen)

    class Reuser(NameReuser):
        async def _read(self, runtime: Runtime, topic: Incarnation) -> Mapping[tuple[int, int], str]:
            return readings.pop(0) if len(readings) > 1 else readings[0]

    async def main(world: World) -> None:
        topic = Incarnation(3, TOPIC, {(0, 4): "3-1", (0, 5): "3-2"}, {0: 5})
        await reuser._compare(runtime_of_no_process, topic)

    world = World(1)
    reuser = Reuser(world.host("clients"), "nowhere:1", flush_each=False, configs={})
    runtime_of_no_process: Any = None
    world.run(main)
    return reuser.violations


def test_records_that_are_there_or_may_be_gone_are_all_right() -> None:
    assert _judged({(0, 4): "3-1", (0, 5): "3-2", (1, 0): "3-9"}) == []
    assert _judged({(0, 5): "3-2"}) == []


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ({}, "has no record at 0/5: 3-2 was acknowledged"),
        ({(0, 4): "3-9", (0, 5): "3-2"}, "has 3-9 at 0/4: 3-1 was acknowledged"),
        ({(0, 5): "3-2", (1, 0): "2-8"}, "has 2-8 of an earlier one at 1/0"),
    ],
)
def test_what_is_lost_or_left_over_is_found(seen: dict[tuple[int, int], str], found: str) -> None:
    assert [found in violation for violation in _judged(seen)] == [True]


def test_a_leader_that_still_means_an_earlier_topic_is_asked_again() -> None:
    assert _judged({}, {}, {(0, 5): "3-2"}) == []
    assert len(_judged({}, {(0, 5): "3-9"})) == 1


class _Metadata:
    """A client's, as far as the program looks at it."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()
        self.on_metadata: list[Callable[[ClusterMetadata], None]] = []

    def learn(self, *topic_ids: UUID) -> None:
        """What brokers say of the name, one after the other."""
        for topic_id in topic_ids:
            self.metadata = ClusterMetadata(topics={"reused": TopicMetadata("reused", topic_id, ())})
            for listener in self.on_metadata:
                listener(self.metadata)


def _play(main: Callable[[NameReuser, Runtime], Coroutine[Any, Any, None]]) -> None:
    world = World(1)
    host = world.host("clients")
    reuser = NameReuser(host, "nowhere:1", flush_each=False, configs={})

    async def scenario(_: World) -> None:
        assert await host.start("reuser", lambda runtime: main(reuser, runtime)).exited is None

    world.run(scenario, limit_s=60)


@pytest.mark.parametrize(
    ("before", "meanwhile", "counted"),
    [
        ([TOPIC], [TOPIC], True),
        ([EARLIER], [], False),
        ([TOPIC], [EARLIER], False),
        ([TOPIC], [EARLIER, TOPIC], False),
    ],
)
def test_what_a_producer_wrote_by_the_id_of_an_earlier_topic_does_not_count(
    before: list[UUID], meanwhile: list[UUID], counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its metadata said before and during the delivery of one record. Brokers that hear of a deletion
    late lead and follow the deleted topic for a while yet, and acknowledge what is written to it."""

    class Metadata(_Metadata):
        async def topic(self, name: str, timeout_ms: int) -> None:
            self.learn(*before)

    class OneRecord:
        def __init__(self, *_: object) -> None:
            self.client = Metadata()

        async def __aenter__(self) -> OneRecord:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def send(self, *_: object, partition: int) -> asyncio.Future[RecordMetadata]:
            self.client.learn(*meanwhile)
            told: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
            told.set_result(RecordMetadata("reused", partition, 5, 0))
            return told

    async def main(reuser: NameReuser, runtime: Runtime) -> None:
        with nullcontext() if counted else pytest.raises(KafkaError, match="another topic"):
            await reuser._write(runtime, topic)

    monkeypatch.setattr(admin_programs, "Producer", OneRecord)
    monkeypatch.setattr(admin_programs, "RECORDS_MAX", 1)
    topic = Incarnation(3, TOPIC)
    _play(main)
    assert list(topic.acknowledged.values()) == (["3-1"] if counted else [])


class _Reading:
    """A consumer of which a test says what brokers tell it."""

    def __init__(self, *_: object) -> None:
        self.client = _Metadata()
        self.positions = {TopicPartition("reused", index): 0 for index in range(2)}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...
    def assign(self, partitions: object) -> None:
        self.client.learn(TOPIC)

    def seek_to_beginning(self, *_: object) -> None: ...
    async def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]


def test_what_a_consumer_fetched_by_the_id_of_an_earlier_topic_is_not_taken_for_the_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was fetched while the metadata named the earlier topic, and is handed out when it no longer does."""

    class FetchedBefore(_Reading):
        async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            self.client.learn(EARLIER, TOPIC)
            return {partitions[0]: 1, partitions[1]: 0}

        async def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
            self.positions[TopicPartition("reused", 0)] = 1
            return [ConsumerRecord("reused", 0, 0, 0, 0, None, b"2-8", (), 0)]

    async def main(reuser: NameReuser, runtime: Runtime) -> None:
        with pytest.raises(KafkaError, match="another topic"):
            await reuser._read(runtime, Incarnation(3, TOPIC))

    monkeypatch.setattr(admin_programs, "Consumer", FetchedBefore)
    _play(main)


def test_a_reading_ends_where_the_topic_does_though_a_leader_told_the_end_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class EndOfAnEarlierTopic(_Reading):
        ends = iter([7, 0])

        async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            return {partitions[0]: 0, partitions[1]: next(self.ends)}

        async def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
            await asyncio.sleep(timeout_ms / 1000)
            return []

    async def main(reuser: NameReuser, runtime: Runtime) -> None:
        assert await reuser._read(runtime, Incarnation(3, TOPIC)) == {}

    monkeypatch.setattr(admin_programs, "Consumer", EndOfAnEarlierTopic)
    _play(main)


def test_records_of_a_deleted_topic_whose_topic_id_is_damaged_do_not_come_back() -> None:
    """The broker was down while the topic was deleted and created again."""

    async def scenario(world: World) -> None:
        cluster, clients = Cluster(world), world.host("clients")
        await cluster.set_up()
        settings = {"bootstrap.servers": cluster.bootstrap_servers}

        async def make_and_write(prefix: str) -> None:
            async def main(runtime: Runtime) -> None:
                async with Admin(runtime, settings) as admin:
                    if prefix == "new":
                        await admin.delete_topics(["t"])
                    await admin.create_topic(NewTopic("t", assignments={0: (1, 2, 3)}))
                async with Producer(runtime, {**settings, "acks": "all"}) as producer:
                    for number in range(3):
                        await producer.send_and_wait("t", f"{prefix}-{number}".encode(), partition=0)

            assert await clients.start(f"write-{prefix}", main).exited is None

        def values(node: BrokerNode) -> list[bytes]:
            file = node.host.disk.find(f"{node.folders[0]}/t-0/{0:020d}.log")
            return re.findall(rb"(?:old|new)-\d", bytes(file.data)) if isinstance(file, FileNode) else []

        await make_and_write("old")
        node = cluster.nodes[3]
        assert await wait_until(lambda: len(values(node)) == 3, 60)
        node.crash()
        metadata = node.host.disk.find(f"{node.folders[0]}/t-0/partition.metadata")
        assert isinstance(metadata, FileNode)
        metadata.truncate(0)
        metadata.sync()
        await make_and_write("new")
        node.start()
        await cluster.until_serving([3])
        assert await wait_until(lambda: all(each.is_in_sync() for each in cluster.nodes.values()), 60)
        assert values(node) == [b"new-0", b"new-1", b"new-2"]

    world = World(7)
    world.run(scenario)
    assert world.failures == []


@pytest.mark.thorough
def test_a_drawn_seed_reuses_a_name_and_kills_all_brokers() -> None:
    plan = next(plan for seed in range(100) if (plan := draw(seed, 0.5, [Kind.CRASH_ALL])).reuses_names)
    verdict = run(plan)
    assert verdict.findings == [], f"nilometer simulate --seed {plan.seed} --minutes 0.5 --faults crash-all"
    assert verdict.workloads["topics of a reused name"] > 0
    assert verdict.faults[Kind.CRASH_ALL] > 0
