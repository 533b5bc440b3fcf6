"""What a deleted partition held is freed at once: not only by a collection of the oldest garbage, which comes
after millions of objects."""

from __future__ import annotations

import asyncio
import gc

from nilometer.broker.broker import Broker
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.settings.config import BrokerConfig
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.world import World

PARTITIONS = 3


class Scenario:
    def __init__(self) -> None:
        self.serves = asyncio.Event()
        self.found: list[int] = []

    async def play(self, world: World) -> None:
        machine = world.host("m")
        machine.start("broker", self._serve)
        await self.serves.wait()
        error = await machine.start("client", self._client).exited
        if error is not None:
            raise error

    async def _serve(self, runtime: Runtime) -> None:
        runtime.disk.make_directories("/data")
        settings = {"listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": "/data", "node.id": "1"}
        await Broker(BrokerConfig(settings), runtime).start()
        self.serves.set()
        await asyncio.Event().wait()

    async def _client(self, runtime: Runtime) -> None:
        where = {"bootstrap.servers": "127.0.0.1:9092"}
        async with Admin(runtime, where) as admin:
            await admin.create_topic(NewTopic("t", PARTITIONS, 1, {"file.delete.delay.ms": "1000"}))
            async with Producer(runtime, where) as producer:
                for number in range(20):
                    await (await producer.send("t", b"%d" % number))
            gc.collect()
            gc.disable()
            self.found.append(in_memory("t"))
            await admin.delete_topics(["t"])
            await asyncio.sleep(90)
            self.found.append(in_memory("t"))


def in_memory(topic: str) -> int:
    """Return how many objects there are for partitions of the topic."""
    return sum(type(each) is Partition and each.topic == topic for each in gc.get_objects())


def test_a_deleted_partition_leaves_no_cycle_of_references() -> None:
    scenario = Scenario()
    try:
        World(1).run(scenario.play, limit_s=600)
        assert scenario.found == [PARTITIONS, 0]
    finally:
        gc.enable()
