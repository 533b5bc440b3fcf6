"""The client on a virtual event loop, network and disk: nothing of it reaches past the runtime, and one seed
plays the same scenario under every hash seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from nilometer.broker.broker import Broker
from nilometer.broker.settings.config import BrokerConfig
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import RecordMetadata
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Process, World

IDS = (1, 2, 3)
RECORDS = 200
BOOTSTRAP = ",".join(f"127.0.0.1:{9090 + broker_id}" for broker_id in IDS)


class Scenario:
    """Three brokers; a producer writes while the leader of what it writes to is killed; a consumer reads."""

    def __init__(self) -> None:
        self.serving: dict[int, None] = {}
        self.all_serve = asyncio.Event()
        self.brokers: dict[int, Process] = {}
        self.acknowledged: list[RecordMetadata] = []
        self.read: list[bytes | None] = []

    async def play(self, world: World) -> None:
        machine = world.host("m")
        await machine.start("folders", self._make_folders).exited
        for broker_id in IDS:
            self._start_broker(machine, broker_id)
        await self.all_serve.wait()
        error = await machine.start("client", self._client).exited
        if error is not None:
            raise error

    def _start_broker(self, machine: Host, broker_id: int) -> None:
        async def main(runtime: Runtime) -> None:
            settings = {
                "listeners": f"PLAINTEXT://127.0.0.1:{9090 + broker_id}",
                "log.dirs": f"/data/{broker_id}",
                "node.id": str(broker_id),
                "nilometer.coordination": "local:/data/coordination",
            }
            await Broker(BrokerConfig(settings), runtime).start()
            self.serving[broker_id] = None
            if len(self.serving) == len(IDS):
                self.all_serve.set()
            await asyncio.Event().wait()

        self.brokers[broker_id] = machine.start(f"broker-{broker_id}", main)

    async def _make_folders(self, runtime: Runtime) -> None:
        for broker_id in IDS:
            runtime.disk.make_directories(f"/data/{broker_id}")

    async def _client(self, runtime: Runtime) -> None:
        where = {"bootstrap.servers": BOOTSTRAP}
        async with Admin(runtime, where) as admin:
            await admin.create_topic(NewTopic("t", 1, 3, {"min.insync.replicas": "2"}))
        async with Producer(runtime, {**where, "batch.size": 200}) as producer:
            deliveries = []
            for number in range(RECORDS):
                deliveries.append(await producer.send("t", b"%d" % number))
                if number == RECORDS // 2:
                    leader = producer.client.metadata.leader(TopicPartition("t", 0))
                    assert leader is not None
                    self.brokers[leader.node_id].crash()
            self.acknowledged = [await delivery for delivery in deliveries]
        async with Consumer(runtime, {**where, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while len(self.read) < RECORDS:
                self.read += [record.value for record in await consumer.poll(timeout_ms=60_000)]


def play(seed: int) -> tuple[World, Scenario]:
    world, scenario = World(seed), Scenario()
    world.run(scenario.play, limit_s=600)
    return world, scenario


def test_nothing_is_lost_repeated_or_reordered_when_the_leader_dies() -> None:
    world, scenario = play(3)
    assert scenario.read == [b"%d" % number for number in range(RECORDS)]
    assert [place.offset for place in scenario.acknowledged if place.offset >= 0] == sorted(
        place.offset for place in scenario.acknowledged if place.offset >= 0
    )
    assert world.failures == []


def test_one_seed_is_one_run_under_every_hash_seed() -> None:
    program = "from test_simulated_client import play; world, _ = play(5); print(world.trace.digest)"
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert digests[0] == digests[1] != ""
