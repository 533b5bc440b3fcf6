"""Consumers of ours and a group they are members of, in one world on a virtual clock.

Time costs nothing here: five minutes between polls are five minutes of the world's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.simulation.world import World
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.scripted.log_cluster import LogCluster
from support.scripted.scripted_consumer_group import ScriptedConsumerGroup
from support.scripted.scripted_groups import ScriptedGroup
from support.scripted.virtual_brokers import serve

PARTITIONS = 4
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]


class Diary(RebalanceListener):
    """What a member was told, in order, with what was assigned at that moment."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, list[int]]] = []
        self.then: Callable[[str, Sequence[TopicPartition]], Awaitable[None]] | None = None

    async def _note(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.entries.append((what, [one.partition for one in partitions]))
        if self.then is not None:
            await self.then(what, partitions)

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None]:
        return self._note("assigned", partitions)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None]:
        return self._note("revoked", partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None]:
        return self._note("lost", partitions)


class Stage:
    """Two brokers with a topic, a group on the first, and consumers, all in one simulated world."""

    def __init__(self, world: World, runtime: Runtime) -> None:
        self.world = world
        self.runtime = runtime
        self.cluster = LogCluster(2, topics={"t": PARTITIONS, "u": 2})
        self.group = ScriptedGroup(self.cluster)

    def next_generation(self) -> ScriptedConsumerGroup:
        """Have the group coordinated by the protocol of KIP-848 instead."""
        self.group = group = ScriptedConsumerGroup(self.cluster)
        return group

    def consumer(self, name: str = "c", **keys: Any) -> Consumer:
        given = {key.replace("_", "."): value for key, value in keys.items()}
        if "group.protocol" not in given:
            given.setdefault("partition.assignment.strategy", "cooperative-sticky")
        fixed = {"bootstrap.servers": "brokers:9092", "client.id": name, "group.id": "g"}
        return Consumer(self.runtime, {**fixed, "auto.offset.reset": "earliest", **given})

    def fill(self, topic: str, partition: int, count: int) -> None:
        log = self.cluster.logs[topic, partition]
        builder = BatchBuilder()
        for index in range(count):
            builder.append(1000 + log.end + index, None, b"%d" % (log.end + index), ())
        assert log.append(builder.build())[0] == ErrorCode.none

    def now_s(self) -> float:
        return self.world.loop.time()


def play(scenario: Callable[[Stage], Awaitable[None]], seed: int = 1) -> Stage:
    stages: list[Stage] = []

    async def direct(world: World) -> None:
        failed: list[BaseException] = []

        async def brokers(runtime: Runtime) -> None:
            stage = Stage(world, runtime)
            await serve(runtime, stage.cluster.brokers, "brokers")
            stage.cluster.publish()
            stages.append(stage)
            await asyncio.Event().wait()

        async def clients(runtime: Runtime) -> None:
            stages[0].runtime = runtime
            await scenario(stages[0])

        world.host("brokers").start("brokers", brokers)
        while not stages:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        error = await world.host("clients").start("clients", clients).exited
        failed += world.failures
        if error is not None:
            raise error
        assert failed == []

    World(seed).run(direct, limit_s=3_600)
    return stages[0]


async def poll_until(
    condition: Callable[[], bool], *consumers: Consumer, limit_s: float = 120.0
) -> list[ConsumerRecord]:
    """Have all of ``consumers`` poll side by side until ``condition`` holds."""
    records: list[ConsumerRecord] = []

    async def polls(consumer: Consumer) -> None:
        while not condition():
            records.extend(await consumer.poll(timeout_ms=100))

    async with asyncio.timeout(limit_s):
        await asyncio.gather(*(polls(consumer) for consumer in consumers))
    return records


def shares(*consumers: Consumer) -> list[int]:
    return [len(consumer.assignment()) for consumer in consumers]
