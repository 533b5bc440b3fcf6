"""Consume, transform, produce in transactions on a virtual event loop, network and disk: each record is
transformed once, whichever broker or client is killed meanwhile (SPEC P-5)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from nilometer.broker.broker import Broker
from nilometer.broker.settings.config import BrokerConfig
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.transaction_manager import AbortableTransactionError
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Main, Process, World
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

IDS = (1, 2, 3)
RECORDS = 60
PARTITIONS = 2
KILLS = 5
UPGRADE, SAFE_DOWNGRADE = 1, 2
NEWEST = 2
WHERE = {
    "bootstrap.servers": ",".join(f"127.0.0.1:{9090 + broker_id}" for broker_id in IDS),
    "request.timeout.ms": 5_000,
}
READER = {
    **WHERE,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
}


class Scenario:
    def __init__(self, seed: int, version: int) -> None:
        self.version = version
        self.rng = random.Random(seed)
        self.brokers: dict[int, Process] = {}
        self.serving: dict[int, None] = {}
        self.served = asyncio.Event()
        self.read: list[int] = []
        self.committed = self.aborted = self.given_up = self.kills = 0
        """Transactions, clients that were closed after a fatal error, and processes killed at work."""

    async def play(self, world: World) -> None:
        machine = world.host("m")
        await machine.start("folders", self._make_folders).exited
        for broker_id in IDS:
            self._start_broker(machine, broker_id)
        await self._until_all_serve()
        await self._run(machine, "setup", self._fill)
        transformer = machine.start("transformer", self._transform)
        for number in range(KILLS):
            await asyncio.sleep(self.rng.uniform(0.5, 4))
            if transformer.exited.done():
                break
            self.kills += 1
            victim = self.rng.choice(IDS)
            self.brokers[victim].crash()
            kills_client = self.rng.random() < 0.5
            if kills_client:
                transformer.crash()
            await asyncio.sleep(self.rng.uniform(0.1, 3))
            self.serving.pop(victim, None)
            self._start_broker(machine, victim)
            await self._until_all_serve()
            if kills_client:
                transformer = machine.start(f"transformer-{number}", self._transform)
        error = await transformer.exited
        if error is not None:
            raise error
        await self._run(machine, "reader", self._read_output)

    async def _run(self, machine: Host, name: str, main: Main) -> None:
        error = await machine.start(name, main).exited
        if error is not None:
            raise error

    def _start_broker(self, machine: Host, broker_id: int) -> None:
        async def main(runtime: Runtime) -> None:
            settings = {
                "listeners": f"PLAINTEXT://127.0.0.1:{9090 + broker_id}",
                "log.dirs": f"/data/{broker_id}",
                "node.id": str(broker_id),
                "nilometer.coordination": "local:/data/coordination",
                "transaction.state.log.num.partitions": "2",
                "offsets.topic.num.partitions": "2",
            }
            await Broker(BrokerConfig(settings), runtime).start()
            self.serving[broker_id] = None
            self.served.set()
            await asyncio.Event().wait()

        self.brokers[broker_id] = machine.start(f"broker-{broker_id}", main)

    async def _until_all_serve(self) -> None:
        while len(self.serving) < len(IDS):
            self.served.clear()
            await self.served.wait()

    async def _make_folders(self, runtime: Runtime) -> None:
        for broker_id in IDS:
            runtime.disk.make_directories(f"/data/{broker_id}")

    async def _fill(self, runtime: Runtime) -> None:
        async with Admin(runtime, WHERE) as admin:
            await self._finalize(admin.client)
            for topic in ("in", "out"):
                await admin.create_topic(NewTopic(topic, PARTITIONS, 3, {"min.insync.replicas": "2"}))
        async with Producer(runtime, WHERE) as producer:
            for number in range(RECORDS):
                await producer.send("in", b"%d" % number, partition=number % PARTITIONS)

    async def _finalize(self, client: Client) -> None:
        def make(api: Api) -> Message:
            update = api.make_request(
                "FeatureUpdateKey",
                feature="transaction.version",
                max_version_level=self.version,
                upgrade_type=SAFE_DOWNGRADE if self.version < NEWEST else UPGRADE,
            )
            return api.request(timeout_ms=60_000, validate_only=False, feature_updates=(update,))

        async def ask() -> None:
            response = await client.send_to_controller(ApiKey.UPDATE_FEATURES, make)
            if response.error_code != ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message or "")

        await client.retry(ask, 60_000)

    # --- the application

    async def _transform(self, runtime: Runtime) -> None:
        while True:
            try:
                if await self._transform_until_lost(runtime):
                    return
            except KafkaError:
                self.given_up += 1  # both clients are closed: begin again with new ones

    async def _transform_until_lost(self, runtime: Runtime) -> bool:
        group = {"group.id": "g", "session.timeout.ms": 6_000}
        config = {**WHERE, "transactional.id": "x", "delivery.timeout.ms": 8_000, "linger.ms": 1}
        async with (
            Consumer(runtime, {**READER, **group, "max.poll.records": 4}) as consumer,
            TransactionalProducer(runtime, config) as producer,
        ):
            await consumer.subscribe(["in"])
            while not await self._all_is_committed(consumer):
                try:
                    await self._transform_some(consumer, producer)
                except AbortableTransactionError:
                    self.aborted += 1
                    await producer.abort()
                    await self._go_back(consumer)
            return True

    async def _transform_some(self, consumer: Consumer, producer: TransactionalProducer) -> None:
        records = await consumer.poll(timeout_ms=500)
        if not records:
            return
        group = consumer.group_metadata()
        await producer.begin()
        await asyncio.sleep(self.rng.uniform(0, 0.8))
        for record in records:
            await producer.send("out", record.value, partition=self.rng.randrange(PARTITIONS))
        await producer.send_offsets(
            {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}, group
        )
        if self.rng.random() < 0.2:
            self.aborted += 1
            await producer.abort()
            await self._go_back(consumer)
            return
        await producer.commit()
        self.committed += 1

    async def _go_back(self, consumer: Consumer) -> None:
        for partition, found in (await consumer.committed(consumer.assignment())).items():
            consumer.seek(partition, found.offset if found is not None else 0)

    async def _all_is_committed(self, consumer: Consumer) -> bool:
        found = await consumer.committed([TopicPartition("in", number) for number in range(PARTITIONS)])
        return sum(one.offset for one in found.values() if one is not None) >= RECORDS

    async def _read_output(self, runtime: Runtime) -> None:
        async with Consumer(runtime, READER) as consumer:
            partitions = [TopicPartition("out", number) for number in range(PARTITIONS)]
            ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            while any([await consumer.position(one) < end for one, end in ends.items()]):
                self.read += [int(record.value or b"") for record in await consumer.poll(timeout_ms=500)]


def play(seed: int, version: int) -> Scenario:
    world, scenario = World(seed), Scenario(seed, version)
    world.run(scenario.play, limit_s=1_800)
    return scenario


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", [1, 2])
def test_p_5_each_record_is_transformed_once_whatever_is_killed(seed: int, version: int) -> None:
    scenario = play(seed, version)
    counts = f"{scenario.committed} committed, {scenario.aborted} aborted, {scenario.kills} kills"
    replay = f"pytest tests/simulation/{Path(__file__).name} -k 'is_killed and {version}-{seed}'"
    assert sorted(scenario.read) == list(range(RECORDS)), f"{counts}; replay: {replay}"
    assert scenario.committed > 0
    assert scenario.kills > 0, "all was done before anything was killed"
