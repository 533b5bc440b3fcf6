"""A broker on a machine of the simulation, recorded under clients: the same recording for a seed each time.

Marks say what was promised: ``topic`` (name) after a creation was acknowledged, ``gone`` (name) after a
deletion was, ``sent`` (topic, value) and ``acknowledged`` (topic, value, offset) around a record, ``offset``
and ``committed`` (group, offset) around a commit of offsets, ``ending`` and ``ended`` (number, 1 for a
commit) around the end of a transaction; ``creating`` and ``deleting`` (name) precede what has no outcome yet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from nilometer.broker.broker import Broker, StartFailed
from nilometer.broker.control import metadata_log
from nilometer.broker.settings.config import BrokerConfig
from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.group.group_exchange import GroupMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.cluster.states import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from nilometer.runtime import Runtime
from nilometer.simulation.disk import FileNode, FolderNode
from nilometer.simulation.loop import Pace
from nilometer.simulation.run import LogCapture
from nilometer.simulation.world import Process, World
from nilometer.wire.errors import KafkaError
from support.crash_images.images import content_of, mounted
from support.crash_images.recording import Mark, Recording, RecordingDisk

MACHINE = "machine"
ROOT = "/data"
"""The recorded folder."""
KEY_FILE = "/key"
DIRECTORIES = (f"{ROOT}/new/1", f"{ROOT}/new/2")
"""The log directories in it, in a folder that does not exist either."""
FLUSHED, LAZY, COMPACTED, REBORN, PAIRS = "flushed", "lazy", "compacted", "reborn", "pairs"
_SMALL = {"segment.ms": "300", "internal.segment.bytes": "1500"}
TOPICS = {
    FLUSHED: _SMALL,
    LAZY: {"flush.messages": "1000000", **_SMALL},
    COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", **_SMALL},
    REBORN: _SMALL,
    PAIRS: _SMALL,
}
"""By their names, their settings; those of PAIRS are transactional records, in two partitions."""
GROUP, IN_TRANSACTIONS, MEMBERS = "g", "in transactions", "members"
"""The group of plain commits, that of transactions, and one with members."""
SOURCE = TopicPartition(FLUSHED, 0)
WRITER = "writer"
"""The transactional id."""
SERVERS = {"bootstrap.servers": f"{MACHINE}:9092"}
BOOT_S = 600.0
"""A machine that was without power starts so much later."""
ENTRIES_BETWEEN_SNAPSHOTS = 8


class Store(enum.Enum):
    LOCAL = "local"
    QUORUM = "quorum"


def settings_for(store: Store) -> dict[str, str]:
    quorum = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": f"1@{MACHINE}:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{MACHINE}:9092,CONTROLLER://{MACHINE}:9093",
        "metadata.log.max.record.bytes.between.snapshots": "2000",
        "nilometer.quorum.secret.file": KEY_FILE,
    }
    return {
        "listeners": f"PLAINTEXT://{MACHINE}:9092",
        "log.dirs": ",".join(DIRECTORIES),
        "node.id": "1",
        "log.flush.interval.messages": "1",
        "log.cleaner.backoff.ms": "100",
        "replica.high.watermark.checkpoint.interval.ms": "200",
        "log.flush.offset.checkpoint.interval.ms": "200",
        "log.segment.delete.delay.ms": "300",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        **(quorum if store is Store.QUORUM else {}),
    }


@contextmanager
def frequent_snapshots() -> Iterator[None]:
    """Have brokers write a snapshot of the coordination store after a few entries."""
    with patch.object(metadata_log, "ENTRIES_BETWEEN_SNAPSHOTS", ENTRIES_BETWEEN_SNAPSHOTS):
        yield


class Machine:
    """One broker of a world, on a machine whose disk has ``image`` at ROOT, or nothing."""

    def __init__(self, world: World, settings: Mapping[str, str], image: FolderNode | None = None) -> None:
        self.world = world
        self.host = world.host(MACHINE)
        self.clients = world.host("clients")
        self.recording: Recording | None = None
        self._settings = settings
        self._disk: RecordingDisk | None = None
        self._process: Process | None = None
        self._stop = asyncio.Event()
        self._serves = asyncio.Event()
        disk = self.host.disk
        if image is None:
            disk.root.entries["data"] = FolderNode()
        else:
            disk.root = mounted(image, ROOT)
            disk.boots = 2
            self.host.clock.skew_ms = int(BOOT_S * 1000)
        key = disk.root.entries[KEY_FILE.strip("/")] = FileNode(b"the key of the only node of its quorum")
        key.private = True

    def record(self) -> None:
        """Record what the broker's processes do from now on; an fsync takes some time."""
        self.host.disk.pace = Pace(sync_ms=(0.1, 20.0))
        self.recording = Recording(ROOT, [])

    def mark(self, kind: str, *values: str | int) -> None:
        if self.recording is not None:
            self.recording.operations.append(Mark(kind, values))

    async def start(self) -> None:
        """Start the broker, and wait until it serves. Raises what ended it."""
        self._stop, self._serves = asyncio.Event(), asyncio.Event()
        process = self._process = self.host.start("broker-1", self._main)
        serves = asyncio.ensure_future(self._serves.wait())
        await asyncio.wait((serves, process.exited), return_when=asyncio.FIRST_COMPLETED)
        serves.cancel()
        if process.exited.done():
            raise process.exited.result() or AssertionError("the broker has stopped")

    async def stop(self) -> BaseException | None:
        """Stop the broker in order; return what ended it instead."""
        process = self._process
        assert process is not None, "it was started"
        self.world.loop.in_process(0.0, process, self._stop.set)
        return await process.exited

    async def kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.crash()
        await self._process.exited

    async def run_client(self, main: Callable[[Runtime], Awaitable[None]]) -> BaseException | None:
        async def run(runtime: Runtime) -> None:
            await main(runtime)

        return await self.clients.start("client", run).exited

    async def _main(self, runtime: Runtime) -> None:
        if self.recording is not None:
            disk = RecordingDisk(
                Path(ROOT),
                inner=runtime.disk,
                identity=lambda path: id(self.host.disk.file(path)),
                before=self._disk,
            )
            self._disk, self.recording = disk, disk.recording
            runtime = dataclasses.replace(runtime, disk=disk)
        broker = Broker(BrokerConfig(self._settings), runtime)
        try:
            await broker.start()
            self._serves.set()
            await broker.wait_stopped(self._stop)
        finally:
            await broker.stop()
        if broker.failure:
            raise StartFailed(broker.failure)


class Load:
    """Clients that use everything in turn, by chance."""

    def __init__(self, machine: Machine, chance: random.Random) -> None:
        self._machine = machine
        self._mark = machine.mark
        self._chance = chance
        self._sent = 0
        self._committed = 0
        self._transactions = 0

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            error = await self._machine.run_client(self._round)
            if error is not None:
                raise error
            match self._chance.randrange(6):
                case 0:
                    error = await self._machine.stop()
                    if error is not None:
                        raise error
                    await self._machine.start()
                case 1:
                    await self._machine.kill()
                    await self._machine.start()
                case _:
                    await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    async def create_topics(self, runtime: Runtime) -> None:
        async with Admin(runtime, SERVERS) as admin:
            for name in TOPICS:
                await self._create(admin, name)

    async def _create(self, admin: Admin, name: str) -> None:
        self._mark("creating", name)
        await admin.create_topic(NewTopic(name, 2 if name == PAIRS else 1, 1, TOPICS[name]))
        self._mark("topic", name)

    async def _round(self, runtime: Runtime) -> None:
        async with (
            Admin(runtime, SERVERS) as admin,
            Producer(runtime, SERVERS | {"enable.idempotence": True, "linger.ms": 0}) as producer,
            Consumer(runtime, SERVERS | {"group.id": GROUP, "enable.auto.commit": False}) as consumer,
            TransactionalProducer(runtime, SERVERS | {"transactional.id": WRITER}) as transactional,
        ):
            for _ in range(self._chance.randint(2, 6)):
                match self._chance.randrange(11):
                    case 0 | 1 | 2 | 3:
                        await self._send(producer, self._chance.choice((FLUSHED, LAZY, COMPACTED, REBORN)))
                    case 4 | 5:
                        self._committed += 1
                        self._mark("offset", GROUP, self._committed)
                        await consumer.commit({SOURCE: self._committed})
                        self._mark("committed", GROUP, self._committed)
                    case 6 | 7:
                        await self._transact(transactional)
                    case 8:
                        topic = self._chance.choice((LAZY, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC))
                        size = ConfigChange("internal.segment.bytes", str(self._chance.randint(1_000, 9_000)))
                        with suppress(KafkaError):  # an internal topic does not exist yet
                            await admin.incremental_alter_configs(ResourceType.TOPIC, topic, [size])
                    case 9:
                        await self._rebalance(runtime)
                    case _:
                        moved = TopicPartition(self._chance.choice((FLUSHED, PAIRS)), 0)
                        path = self._chance.choice(DIRECTORIES)
                        await admin.alter_replica_log_dirs(1, {moved: path})
        if self._chance.random() < 0.3:
            async with Admin(runtime, SERVERS) as admin:
                await self._recreate(admin)

    async def _send(self, producer: Producer, topic: str) -> None:
        self._sent += 1
        key = str(self._chance.randrange(3))
        value = f"{topic}:{key}:{self._sent}:".ljust(self._chance.randint(20, 400), "x")
        self._mark("sent", topic, value)
        found = await producer.send_and_wait(topic, value.encode(), key=key.encode())
        self._mark("acknowledged", topic, value, found.offset)

    async def _transact(self, producer: TransactionalProducer) -> None:
        number = self._transactions
        self._transactions += 1
        commits = self._chance.random() < 0.7
        await producer.begin()
        for partition in (0, 1):
            value = f"{number}:{partition}".encode()
            await producer.send(PAIRS, value, partition=partition)
        await producer.send_offsets({SOURCE: number + 1}, GroupMetadata(IN_TRANSACTIONS))
        await producer.flush()
        self._mark("ending", number, int(commits))
        await (producer.commit() if commits else producer.abort())
        self._mark("ended", number, int(commits))

    async def _rebalance(self, runtime: Runtime) -> None:
        settings = {"group.id": MEMBERS, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        async with Consumer(runtime, SERVERS | settings) as member:
            await member.subscribe([FLUSHED])
            await member.poll(timeout_ms=1_000)

    async def _recreate(self, admin: Admin) -> None:
        self._mark("deleting", REBORN)
        outcome = (await admin.delete_topics([REBORN]))[REBORN]
        if isinstance(outcome, KafkaError):
            raise outcome
        self._mark("gone", REBORN)
        await self._create(admin, REBORN)


def record_machine(seed: int, store: Store, rounds: int) -> tuple[Recording, dict[str, bytes | None]]:
    """Return the recording of a broker that began with an empty folder, and what the folder has then."""
    world = World(seed)

    async def main(world: World) -> tuple[Recording, dict[str, bytes | None]]:
        machine = Machine(world, settings_for(store))
        machine.record()
        await machine.start()
        load = Load(machine, random.Random(seed))
        error = await machine.run_client(load.create_topics)
        if error is not None:
            raise error
        machine.mark("begun")
        await load.run(rounds)
        error = await machine.stop()
        if error is not None:
            raise error
        assert machine.recording is not None, "it was recorded"
        return machine.recording, dict(content_of(machine.host.disk.folder(ROOT)))

    with frequent_snapshots(), LogCapture(world) as log:
        recorded = world.run(main)
    assert world.failures == log.unexpected == [], (world.failures, log.unexpected)
    return recorded
