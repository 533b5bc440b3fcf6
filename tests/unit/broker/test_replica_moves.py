"""A replica moves between log directories of a simulated broker, and something else happens meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nilometer.broker import replica_moves
from nilometer.broker.replica_moves import ReplicaMoves
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import DiskUser, FolderNode
from nilometer.simulation.world import World
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder

TOPIC = "t"
KEY = TopicPartition(TOPIC, 0)
RECORDS = 40
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "SLICE_BYTES", 3_000)
    monkeypatch.setattr(replica_moves, "LAST_BYTES_MAX", 2_000)


class Scenario:
    """One broker with three log directories, one partition, and a client."""

    def __init__(self, world: World, brokers: int = 1) -> None:
        self.cluster = Cluster(world, brokers=brokers, folders=(3,))
        self.host = world.host("clients")
        self.written = 0

    @property
    def node(self) -> BrokerNode:
        return self.cluster.nodes[1]

    @property
    def moves(self) -> ReplicaMoves:
        assert self.node.broker is not None
        return self.node.broker.parts.replication.moves

    @property
    def partition(self) -> Partition:
        assert self.node.broker is not None
        return self.node.broker.parts.replication.replicas.partition(TOPIC, 0)

    @property
    def folder(self) -> str:
        """The log directory that the replica uses."""
        return self.partition.log.folder.rpartition("/")[0]

    @property
    def others(self) -> list[str]:
        return [one for one in self.node.folders if one != self.folder]

    def found(self) -> list[str]:
        """All folders of the topic on the disk, without unique names."""
        return sorted(
            f"{folder}/{name.split('.')[0]}{'-future' if name.endswith('future') else ''}"
            for folder in self.node.folders
            for name in self.names(folder)
            if name.startswith(f"{TOPIC}-0") and not name.endswith("-delete")
        )

    def names(self, folder: str) -> list[str]:
        found = self.node.host.disk.find(folder)
        return sorted(found.entries) if isinstance(found, FolderNode) else []

    async def on(self, main: Callable[[Runtime], Awaitable[None]]) -> None:
        assert await self.host.start("client", main).exited is None

    async def admin(self, work: Callable[[Admin], Awaitable[Any]]) -> Any:
        found: list[Any] = []

        async def main(runtime: Runtime) -> None:
            async with Admin(runtime, {"bootstrap.servers": self.cluster.bootstrap_servers}) as admin:
                found.append(await work(admin))

        await self.on(main)
        return found[0]

    async def set_up(self, **configs: str) -> None:
        await self.cluster.set_up()
        topic = NewTopic(TOPIC, 1, 1, {key.replace("_", "."): value for key, value in configs.items()})
        await self.admin(lambda admin: admin.create_topic(topic))
        await self.produce(RECORDS)

    async def produce(self, count: int = 1) -> None:
        async def main(runtime: Runtime) -> None:
            async with Producer(runtime, {"bootstrap.servers": self.cluster.bootstrap_servers}) as producer:
                for _ in range(count):
                    value = b"%d" % self.written + bytes(1000)
                    await producer.send_and_wait(TOPIC, value, key=b"%d" % self.written, partition=0)
                    self.written += 1

        await self.on(main)

    async def check_records(self) -> None:
        """All that was acknowledged is read, once and in order."""
        values: list[bytes] = []

        async def main(runtime: Runtime) -> None:
            config = {"bootstrap.servers": self.cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
            async with Consumer(runtime, config) as consumer:
                consumer.assign([KEY])
                while len(values) < self.written:
                    values.extend(record.value or b"" for record in await consumer.poll(timeout_ms=1_000))

        await self.on(main)
        assert [value.rstrip(b"\0") for value in values] == [b"%d" % number for number in range(self.written)]

    async def alter(self, path: str) -> KafkaError | None:
        return (await self.admin(lambda admin: admin.alter_replica_log_dirs(1, {KEY: path})))[KEY]

    async def limit(self, rate: int) -> None:
        change = ConfigChange(RATE, str(rate))
        await self.admin(lambda admin: admin.incremental_alter_configs(ResourceType.BROKER, "1", [change]))

    async def begin_slowly(self, path: str) -> None:
        """Begin a move that does not end before its rate is raised."""
        await self.limit(100)
        assert await self.alter(path) is None
        await self.until(lambda: len(self.found()) == 2)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):  # of virtual time
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def until_moved(self, path: str) -> None:
        await self.until(lambda: self.found() == [f"{path}/t-0"])
        assert self.folder == path
        assert not list(self.moves)


def play(scenario: Callable[[Scenario], Awaitable[None]], brokers: int = 1) -> None:
    async def main(world: World) -> None:
        await scenario(Scenario(world, brokers))

    world = World(1)
    world.run(main, limit_s=3_000)
    assert world.failures == []


@pytest.mark.parametrize("flushes", ["1", "1000"], ids=["flushed", "not-flushed"])
def test_a_replica_moves_and_keeps_its_log_and_role(flushes: str) -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up(flush_messages=flushes)
        log, role, [target, _] = one.partition.log, one.partition.replica.role, one.others
        assert await one.alter(target) is None
        await one.produce(5)
        await one.until_moved(target)
        assert one.partition.log is log and one.partition.replica.role is role
        assert one.partition.replica.high_watermark == one.written
        assert "moved-between-folders" not in one.names(f"{target}/t-0")
        await one.produce()
        await one.check_records()

    play(scenario)


def test_a_replica_moves_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a piece of the work has ended, there are new records."""
    offload = ReplicaMoves._offload  # pyright: ignore[reportPrivateUsage]

    async def scenario(one: Scenario) -> None:
        async def with_more(moves: ReplicaMoves, work: Callable[[], Any]) -> Any:
            found = await offload(moves, work)
            if one.partition.leader.log_end_offset < 1_000:
                builder = BatchBuilder()
                builder.append(1_000, b"k", b"%d" % one.written)
                one.partition.append(builder.build(0), all_replicas=False)
                one.written += 1
            return found

        await one.set_up()
        [target, _] = one.others
        monkeypatch.setattr(ReplicaMoves, "_offload", with_more)
        assert await one.alter(target) is None
        await one.until_moved(target)
        assert one.written < 100
        await one.check_records()

    play(scenario)


def test_a_replica_moves_again_while_the_former_folder_is_still_there() -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up()
        first, second = one.others
        assert await one.alter(first) is None
        await one.until(lambda: one.folder == first)
        assert await one.alter(second) is None
        await one.until_moved(second)
        await one.check_records()

    play(scenario)


def test_another_directory_while_a_replica_moves() -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up()
        before, [first, second] = one.folder, one.others
        await one.begin_slowly(first)
        assert one.found() == sorted([f"{before}/t-0", f"{first}/t-0-future"])
        [future] = [
            each
            for folder in await one.admin(lambda admin: admin.describe_log_dirs())
            for each in folder.replicas
            if each.partition == KEY and each.is_future
        ]
        assert future.offset_lag > 0
        assert await one.alter(second) is None
        await one.until(lambda: one.found() == sorted([f"{before}/t-0", f"{second}/t-0-future"]))
        assert await one.alter(before) is None
        await one.until(lambda: one.found() == [f"{before}/t-0"])
        assert not list(one.moves)
        await one.check_records()

    play(scenario)


def test_the_topic_is_deleted_while_its_replica_moves() -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up()
        await one.begin_slowly(one.others[0])
        await one.admin(lambda admin: admin.delete_topics([TOPIC]))
        await one.until(lambda: not one.found())
        await one.admin(lambda admin: admin.create_topic(NewTopic(TOPIC, 1, 1)))
        one.written = 0
        await one.produce(3)
        await one.check_records()
        await one.until(lambda: not list(one.moves))

    play(scenario)


@pytest.mark.parametrize("end", ["crash", "stop"])
def test_the_broker_ends_while_a_replica_moves_and_continues_later(end: str) -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up()
        before, target = one.folder, one.others[0]
        await one.begin_slowly(target)
        if end == "crash":
            one.node.crash()
        else:
            one.node.stop()
            await one.until(lambda: not one.node.is_running)
        one.node.start()
        await one.until(lambda: one.node.is_serving)
        assert one.found() == sorted([f"{before}/t-0", f"{target}/t-0-future"])
        await one.produce()
        await one.limit(1_000_000)
        await one.until_moved(target)
        await one.check_records()

    play(scenario)


def calm(process: DiskUser, verb: str, at: str) -> None:
    """No disk fails."""


def strike(path: str, code: int) -> Callable[[DiskUser, str, str], None]:
    def on_operation(process: DiskUser, verb: str, at: str) -> None:
        if at.startswith(path):
            raise OSError(code, "planted", at)

    return on_operation


def test_the_target_directory_fails() -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up()
        before, [target, third] = one.folder, one.others
        await one.begin_slowly(target)
        one.node.host.disk.strike = strike(f"{target}/", errno.EIO)
        await one.limit(1_000_000)
        await one.until(lambda: one.node.failed_folders == [target])
        await one.until(lambda: not list(one.moves))
        assert one.folder == before
        await one.produce()
        await one.check_records()
        for path in (target, third):  # an older copy may be in the one that failed
            refused = await one.alter(path)
            assert refused is not None and refused.code is ErrorCode.kafka_storage_error

    play(scenario)


def test_the_source_directory_fails_and_comes_back() -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up()
        before, target = one.folder, one.others[0]
        await one.begin_slowly(target)
        one.node.host.disk.strike = strike(f"{before}/t-0/", errno.EIO)
        await one.limit(1_000_000)
        await one.until(lambda: one.node.failed_folders == [before])
        refused = await one.alter(target)
        assert refused is not None and refused.code is ErrorCode.kafka_storage_error
        one.node.host.disk.strike = calm
        one.node.stop()
        await one.until(lambda: not one.node.is_running)
        one.node.start()
        await one.until(lambda: one.node.is_serving)
        await one.until_moved(target)
        await one.check_records()

    play(scenario)


def test_a_copy_that_fills_its_disk_is_given_up() -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up()
        before, target = one.folder, one.others[0]
        one.node.host.disk.strike = strike(f"{target}/t-0.", errno.ENOSPC)
        assert await one.alter(target) is None
        await one.until(lambda: not list(one.moves))
        one.node.host.disk.strike = calm
        assert one.node.failed_folders == []
        assert one.folder == before
        await one.check_records()

    play(scenario)


def test_the_log_is_not_compacted_while_it_moves() -> None:
    async def scenario(one: Scenario) -> None:
        await one.set_up(cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_ms="1000")
        await one.begin_slowly(one.others[0])
        assert one.node.broker is not None
        cleaner = one.node.broker.parts.cleaner
        assert not cleaner._may_clean(one.partition)  # pyright: ignore[reportPrivateUsage]
        await one.alter(one.folder)
        await one.until(lambda: not list(one.moves))
        assert cleaner._may_clean(one.partition)  # pyright: ignore[reportPrivateUsage]

    play(scenario)
