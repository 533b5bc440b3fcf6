"""A tiered partition whose leaders change, stop, restart and lose elections, in a store that fails.

Three brokers with real logs on disks in memory run the rounds of the shipped code against one virtual store,
in virtual time. A record that is committed can be read at every moment, from the present leader's log or the
tier; at the end each one is read once, and the store has no object that no manifest names. :func:`play`
raises what is wrong.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from nilometer.broker.tiering.partition_reads import PartitionReads
from nilometer.broker.tiering.parts import RemoteParts
from nilometer.broker.tiering.remote_partition import RemotePartition, RemoteTraffic, TierLost
from nilometer.identifiers import LeaderEpoch
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.checkers.tier import MANIFESTS_MAX
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.object_store import Bucket, StoreFaults, VirtualObjectStore
from nilometer.steps import at_once, next_iteration
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.errors import UnexpectedAppendOffset
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.tier.chain import Chain, Deposed
from nilometer.tier.format import HEAD, Manifest, manifest_number
from nilometer.tier.plan import bounding, next_to_copy
from nilometer.tier.reader import RemoteCache
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, decode_records
from support.logs.memory_disk import MemoryDisk
from support.tier.remote_segments import TOPIC

KEY = TopicPartition("events", 0)
CONFIG = LogConfig(
    segment_bytes=300, index_interval_bytes=100, retention_ms=-1, local_retention_bytes=250,
    remote_storage_enable=True, file_delete_delay_ms=0,
)  # fmt: skip
WITH_RETENTION = replace(CONFIG, retention_bytes=4_000)
GRACE_MS = 5_000
FAULTS = StoreFaults(latency_ms=40, refused=0.08, unanswered=0.08, late_ms=300)


@dataclass
class Clock:
    loop: VirtualLoop

    def wall_ms(self) -> int:
        return 1_000_000 + int(self.loop.time() * 1000)

    monotonic_ms = wall_ms


class Broker:
    """One broker's replica of the partition, and its work on the tier."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.disk = MemoryDisk()
        self.believed_epoch = -1
        """The epoch that it believes to lead; -1: it follows."""
        self.task: asyncio.Task[None] | None = None
        self.high_watermark = 0
        self.is_in_sync = True
        self.values: list[tuple[int, bytes]] = []
        """By offset, the epoch and value of each record that its log has, here or in the tier."""
        self.open()

    def open(self) -> None:
        options = ManagerOptions(
            node_id=self.number, directories=("/data",), entropy=SeededEntropy(self.world.chance),
            config_for=lambda _: self.world.config,
        )  # fmt: skip
        self.manager = LogManager.open(self.disk, options, wall_ms=self.world.clock.wall_ms())
        self.log: Log = self.manager.get(KEY) or self.manager.create(
            KEY, self.world.config, wall_ms=self.world.clock.wall_ms(), topic_id=self.world.topic_uuid
        )
        self.remote = self.world.remote_of(self)

    @property
    def reads(self) -> PartitionReads:
        return PartitionReads(self.remote, self.remote._parts.cache)

    # what the shipped code asks of a partition

    topic, key = "events", SimpleNamespace(topic_id=TOPIC.topic_id, partition=0)

    def __str__(self) -> str:
        return "events-0"

    @property
    def replica(self) -> Any:
        return SimpleNamespace(high_watermark=self.high_watermark)

    @property
    def is_led_here(self) -> bool:
        return self.believed_epoch >= 0

    has_leader_role = is_led_here

    @property
    def leader_epoch(self) -> int:
        return self.believed_epoch if self.is_led_here else self.world.epoch

    def notify_log_start(self) -> None:
        pass

    # what happens to it

    def begin_round(self) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._round())

    async def _round(self) -> None:
        try:
            while await self.remote.run_round():
                pass
        except (Deposed, ObjectStoreError):
            return
        except TierLost:
            if self.number == self.world.leader and self.is_led_here:
                assert self.world.is_unclean, "only a leader that was elected uncleanly may have lost records"
                self.log.advance_log_start_offset(self.log.local_start_offset, self.high_watermark)

    async def restart(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
        for plan in self.manager.plan_checkpoints({}):
            plan.run()
        self.disk.crash_process()
        self.believed_epoch = -1
        self.open()


@dataclass
class World:
    loop: VirtualLoop
    seed: int
    is_unclean: bool
    chance: random.Random = field(init=False)
    bucket: Bucket = field(default_factory=Bucket)
    config: LogConfig = field(init=False)
    began_in_tier: int = 0
    epoch: int = -1
    leader: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.config = WITH_RETENTION if self.seed % 3 == 0 else CONFIG
        self.clock = Clock(self.loop)
        self.topic_uuid = SeededEntropy(self.chance).uuid()
        self.brokers = [Broker(self, number) for number in range(3)]
        self.elect(0)

    def remote_of(self, broker: Broker) -> RemotePartition:
        runtime: Any = SimpleNamespace(
            clock=self.clock, disk=broker.disk, entropy=SeededEntropy(random.Random(self.chance.random()))
        )
        store = VirtualObjectStore(self.bucket, random.Random(self.chance.random()))

        async def at_once(_count: int) -> None:
            return None

        parts = RemoteParts(
            runtime=runtime, store=store, cache=RemoteCache(store, runtime.disk, 1 << 20),
            cluster_id=TOPIC.cluster_id, grace_ms=GRACE_MS, before_copy=at_once, pause=next_iteration,
            writer=f"{broker.number}-{self.chance.random()}", metadata_entry=lambda: TOPIC.metadata_entry,
            tiered_since=lambda _: -1,
        )  # fmt: skip
        partition: Any = broker
        return RemotePartition(partition, parts, lambda _: TOPIC, RemoteTraffic())

    @property
    def led(self) -> Broker:
        return self.brokers[self.leader]

    def elect(self, number: int) -> None:
        """Make a broker the leader; the former one learns that later."""
        self.epoch, self.leader = self.epoch + 1, number
        led = self.led
        led.believed_epoch, led.is_in_sync = self.epoch, True
        led.log.epochs.begin(self.epoch, led.log.log_end_offset)
        for broker in self.brokers:
            if broker is led or broker.is_in_sync:
                broker.remote.on_role_changed()

    def produce(self, count: int) -> None:
        builder, values = BatchBuilder(), self.led.values
        for _ in range(count):
            values.append((self.epoch, b"%d-%d" % (self.epoch, len(values))))
            builder.append(self.clock.wall_ms(), None, values[-1][1])
        self.led.log.append_as_leader(builder.build(0), leader_epoch=self.epoch, wall_ms=self.clock.wall_ms())

    async def replicate(self) -> None:
        led = self.led
        for broker in self.brokers:
            if broker is not led and broker.is_in_sync:
                await self._catch_up(broker)
        led.high_watermark = led.log.log_end_offset

    async def _catch_up(self, broker: Broker) -> None:
        log, led, now = broker.log, self.led.log, self.clock.wall_ms()
        broker.believed_epoch = -1
        common = self._common_end(log)
        if common < log.log_end_offset:
            broker.manager.truncate_to(log, common, wall_ms=now)
            self._note_end(broker)
            self.write_checkpoints(broker)
        if log.log_end_offset > led.log_end_offset:
            self._begin_locally(broker)
        if log.log_end_offset < led.local_start_offset and not await self._begin_in_tier(broker):
            return
        while log.log_end_offset < led.log_end_offset:
            found = led.read(log.log_end_offset, 1 << 20, led.log_end_offset)
            assert found is not None and found.records
            try:
                log.append_as_follower(bytes(found.records), wall_ms=now)
            except UnexpectedAppendOffset:  # the logs differ within a batch
                self._begin_locally(broker)
        broker.high_watermark = led.log_end_offset
        if led.log_start_offset > log.log_start_offset:
            log.advance_log_start_offset(led.log_start_offset, broker.high_watermark)
        broker.values[:] = self.led.values

    def _common_end(self, log: Log) -> int:
        """Return where the log of a follower differs from the leader's, by their leader epochs."""
        end = log.log_end_offset
        for epoch, start in log.epochs.entries:
            own = log.end_offset_for_epoch(epoch)[1]
            found, theirs = self.led.log.end_offset_for_epoch(epoch)
            if found != epoch or theirs < own:
                return min(end, max(start, theirs) if found == epoch else start)
        return min(end, self.led.log.log_end_offset)

    async def _begin_in_tier(self, broker: Broker) -> bool:
        """Let a follower begin behind what is in the tier only; return whether that was possible."""
        led = self.led.log
        if led.log_start_offset >= led.local_start_offset:
            self._begin_locally(broker)
            return True
        try:
            state = await broker.reads.state_at(led.local_start_offset)
        except ObjectStoreError:
            broker.is_in_sync = False  # it tries again when it may follow
            self._note_end(broker)
            return False
        broker.manager.start_in_tier(
            broker.log,
            state.start_offset,
            log_start_offset=led.log_start_offset,
            epochs=[(LeaderEpoch(epoch), start) for epoch, start in state.epochs],
            producers=state.producers,
            wall_ms=self.clock.wall_ms(),
        )
        self.write_checkpoints(broker)
        self.began_in_tier += 1
        return True

    def _begin_locally(self, broker: Broker) -> None:
        start = self.led.log.local_start_offset
        broker.manager.truncate_fully_and_start_at(broker.log, start, wall_ms=self.clock.wall_ms())
        self.write_checkpoints(broker)
        self._note_end(broker)

    def _note_end(self, broker: Broker) -> None:
        end, values = broker.log.log_end_offset, broker.values
        values[:] = [*values[:end], *((-1, b"") for _ in range(end - len(values)))]

    def write_checkpoints(self, broker: Broker) -> None:
        for plan in broker.manager.plan_checkpoints({}):
            plan.run()
            broker.manager.note_checkpoint(plan)

    def clean(self, broker: Broker) -> None:
        now = self.clock.wall_ms()
        while paths := broker.log.delete_old_segments(broker.high_watermark, now):
            for path in paths:
                broker.disk.remove(path)

    # -- what must hold

    async def chain_end(self) -> Manifest | None:
        faults, self.bucket.faults = self.bucket.faults, StoreFaults()
        try:
            return await Chain(
                VirtualObjectStore(self.bucket, random.Random(1)), self.led.remote.folder, ""
            ).read()
        finally:
            self.bucket.faults = faults

    async def check(self) -> None:
        log = self.led.log
        assert log.log_end_offset == len(self.led.values)
        if log.local_start_offset <= log.log_start_offset:
            return
        last = await self.chain_end()
        if self.is_unclean and at_once(bounding(last, self.led.remote.view())) < log.local_start_offset:
            return
        assert last is not None, "what is not local is in the tier"
        offset = max(log.log_start_offset, last.log_start_offset)  # an earlier leader may have moved it
        while offset < log.local_start_offset:
            place = last.holding(offset)
            assert place is not None, f"offset {offset} is in the tier"
            entry = last.segments[place]
            for name in (entry.log_name, entry.index_name):
                assert self.led.remote.folder + name in self.bucket.objects
            offset = entry.end_offset

    async def read_all(self) -> list[tuple[int, int, bytes]]:
        """Read the whole log, as a consumer does: from the tier, and what is local from there."""
        log, found = self.led.log, list[tuple[int, int, bytes]]()
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            if offset < log.local_start_offset:
                records, _ = await self.led.reads.read(offset, 500, read_committed=True)
            else:
                part = log.read(offset, 500, log.log_end_offset)
                assert part is not None
                records = bytes(part.records)
            for at, header in batches(records):
                found += [
                    (one.offset, header.partition_leader_epoch, one.value or b"")
                    for one in decode_records(records, at, header)
                    if one.offset >= offset
                ]
            offset = found[-1][0] + 1
        return found

    async def settle(self) -> None:
        """Let the present leader do all that is due, in a store that works."""
        self.bucket.faults = StoreFaults()
        await asyncio.sleep(1)
        for broker in self.brokers:
            if broker.number != self.leader:
                broker.believed_epoch = -1
            if broker.task is not None:
                await broker.task
        for _ in range(3):
            while await self.led.remote.run_round():
                pass
            await asyncio.sleep(2 * GRACE_MS / 1000)

    def orphans(self, last: Manifest | None) -> list[str]:
        names = [name.removeprefix(self.led.remote.folder) for name in self.bucket.objects]
        if last is None:
            return names
        oldest = last.oldest
        return [
            name
            for name in names
            if name != HEAD
            and name not in last.objects
            and ((number := manifest_number(name)) is None or number < oldest)
        ]


async def act(world: World) -> None:
    chance = world.chance
    broker = chance.choice(world.brokers)
    match chance.randrange(20):
        case 0 | 1 | 2 | 3 | 4:
            for _ in range(chance.randrange(1, 8)):
                world.produce(chance.randrange(1, 4))
                await world.replicate()
        case 5 | 6 | 7:
            broker.begin_round()
        case 8 | 9:
            world.led.begin_round()
        case 10 | 11 | 12:
            for one in world.brokers:
                world.clean(one)
        case 13 | 14:
            candidates = [one for one in world.brokers if one.is_in_sync or world.is_unclean]
            world.elect(chance.choice(candidates).number)
            await world.replicate()
        case 15:
            if broker.number != world.leader:
                broker.believed_epoch = -1
        case 16:
            if broker.number != world.leader:
                await broker.restart()
        case 17 | 18:
            others = [one for one in world.brokers if one.number != world.leader]
            chance.choice(others).is_in_sync = chance.random() < 0.5
            await world.replicate()
        case 19 if world.seed % 4 == 1:
            log = world.led.log
            start = log.log_start_offset
            offset = chance.randrange(start, start + (log.log_end_offset - start) // 6 + 1)
            log.advance_log_start_offset(offset, world.led.high_watermark)
        case _:
            calm = chance.random() < 0.8
            world.bucket.faults = replace(FAULTS) if calm else replace(FAULTS, is_reachable=False)
    await asyncio.sleep(chance.choice((0, 0.02, 0.1, 0.4)))


async def run(world: World) -> None:
    world.bucket.faults = replace(FAULTS)
    for _ in range(150):
        await act(world)
        await world.check()
    await world.settle()
    await world.check()
    start = world.led.log.log_start_offset
    expected = [(offset, *world.led.values[offset]) for offset in range(start, len(world.led.values))]
    assert await world.read_all() == expected
    last = await world.chain_end()
    assert world.orphans(last) == []
    manifests = [name for name in world.bucket.objects if "/manifest-" in name]
    assert len(manifests) <= MANIFESTS_MAX, "old manifests are removed"
    view = world.led.remote.view()
    assert last is None or next_to_copy(last, view) is None, "all that is sealed is copied"


def play(seed: int, *, unclean: bool) -> None:
    """Play 150 steps that ``seed`` draws; ``unclean``: replicas that are not in sync may be elected, too."""
    loop = VirtualLoop()
    loop.run_until_complete(run(World(loop, seed, is_unclean=unclean)))
