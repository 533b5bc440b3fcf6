"""An entry that asks for many logs: they are there before it is folded, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas.file_work import CheckpointWriter, LogDisposal
from nilometer.broker.replicas.hosted_logs import LOGS_AT_ONCE, HostedLogs, required_logs_by, required_logs_on
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.brokers import BrokerRegistration, decide_broker_up
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.controller.topics import NewTopic, TopicDefaults, decide_create_topics
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.entries import Controllership, Entry, encode_entry, entries_of
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Endpoint
from nilometer.coordination.store import CoordinationStore
from nilometer.coordination.store import Entry as StoredEntry
from nilometer.identifiers import NO_BROKER_EPOCH, BrokerId, ControllerEpoch, EntryNumber, Incarnation
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy, SystemClock
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, NoLogDirectory
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import TOPIC_CONFIG, LogConfig
from nilometer.wire.errors import KafkaError
from nilometer.wire.records import BatchBuilder
from support.logs.memory_disk import MemoryDisk

T = TypeVar("T")
PARTITIONS = 100
ME = BrokerId(1)


class SteppedDisk(MemoryDisk):
    """Work that is offloaded begins some turns of the loop later, and counts who is at it."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0
        self.most_under_way = 0

    async def offload(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.ensure_future(self._run(work)))

    async def _run(self, work: Callable[[], T]) -> T:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            return work()
        finally:
            self.under_way -= 1


class ReadyStore:
    """A store in which everything has been written already."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    async def read(self, from_number: int, limit: int) -> list[StoredEntry]:
        found = self._entries[from_number : from_number + limit]
        return [
            StoredEntry(number, encode_entry(entry)) for number, entry in enumerate(found, start=from_number)
        ]


def one_big_topic(configs: dict[str, str] | None = None) -> list[Entry]:
    """A broker becomes controller, broker 1 registers, and gets a topic of many partitions."""
    chance = SeededEntropy(random.Random(1))
    image = ClusterImage()
    entries: list[Entry] = []

    def append(*more: Entry) -> None:
        for entry in more:
            image.apply_entry(EntryNumber(len(entries)), entry)
            entries.append(entry)

    append(controllership_entry(image, ME, Incarnation("1"), chance))
    registration = BrokerRegistration(
        broker_id=ME,
        incarnation=Incarnation("1"),
        endpoints=(Endpoint("PLAINTEXT", "127.0.0.1", 9092),),
        cluster_id=None,
        rack=None,
        log_dirs=("dir-1",),
        previous_broker_epoch=NO_BROKER_EPOCH,
        features=SUPPORTED_FEATURES,
    )
    append(*entries_of(decide_broker_up(image, registration).units, image.controllership))
    topic = NewTopic(
        name="t", num_partitions=PARTITIONS, replication_factor=1, configs=configs or {"flush.messages": "1"}
    )
    created = decide_create_topics(
        image, [topic], config_definition=TOPIC_CONFIG, chance=chance, defaults=TopicDefaults()
    )
    assert all(one.outcome.ok for one in created.reply)
    append(*entries_of(created.units, image.controllership))
    return entries


class OneBroker:
    """As much of a broker as hosts logs."""

    def __init__(self, disk: SteppedDisk, entries: list[Entry], default: LogConfig | None = None) -> None:
        self.disk = disk
        entropy = SeededEntropy(random.Random(2))
        options = ManagerOptions(
            node_id=1, directories=["/data"], entropy=entropy, config_for=lambda _: default or LogConfig()
        )
        disk.crash_process()
        self.manager = LogManager.open(disk, options, wall_ms=1)
        runtime = Runtime(SystemClock(), disk, cast(Any, None), entropy)
        tasks = Tasks()
        fail = self.manager.fail_directory
        self.checkpoints = checkpoints = CheckpointWriter(runtime, self.manager, tasks, dict, fail)
        disposal = LogDisposal(runtime, self.manager, tasks, checkpoints, lambda path, error: None)
        self.hosted = HostedLogs(
            BrokerConfig({"node.id": "1"}), runtime, self.manager, disposal, lambda name: False
        )
        self.metadata = MetadataLog(cast(CoordinationStore, ReadyStore(entries)))
        self.metadata.prepare(self._before_entry, self._before_reload)
        self.metadata.subscribe(self._on_delta, lambda _image: None)
        self.heard: list[int] = []
        self.created_late: list[TopicPartition] = []

    async def _before_entry(self, entry: Entry, image: ClusterImage) -> None:
        await self.hosted.create_ahead(image, required_logs_by(entry, image, ME))

    async def _before_reload(self, image: ClusterImage) -> None:
        await self.hosted.create_ahead(image, required_logs_on(image, ME))

    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        self.heard.append(delta.number)
        for wanted in required_logs_on(image, ME):
            if wanted.name not in self.manager.logs:
                self.created_late.append(wanted.name)
            self.hosted.open(image, wanted)


def _play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


def test_others_are_served_while_many_logs_are_created() -> None:
    async def scenario() -> None:
        broker = OneBroker(SteppedDisk(), one_big_topic())
        catching_up = asyncio.create_task(broker.metadata.catch_up())
        seen = [0]
        while not catching_up.done():
            seen.append(len(broker.manager.logs))
            if seen[-1] < PARTITIONS:
                assert broker.metadata.image.topic("t") is None, "a topic is not known before its logs are"
            await asyncio.sleep(0)
        await catching_up
        steps = [after - before for before, after in zip(seen, [*seen[1:], PARTITIONS], strict=True)]
        assert max(steps) <= LOGS_AT_ONCE
        assert broker.heard == [0, 1, 2]
        assert not broker.created_late and not broker.hosted.ahead
        assert len(broker.manager.logs) == PARTITIONS
        assert all(log.config.flush_messages == 1 for log in broker.manager.logs.values())

    _play(scenario)


@pytest.mark.parametrize("turns", [1, 2, 4, 7, 12, 20])
def test_the_next_request_after_a_cancelled_one_finds_everything_in_order(turns: int) -> None:
    """However far it had come: no entry is folded twice, or passed over, or acted on by halves."""

    async def scenario() -> None:
        broker = OneBroker(SteppedDisk(), one_big_topic())
        request = asyncio.create_task(broker.metadata.catch_up())
        for _ in range(turns):
            await asyncio.sleep(0)
        request.cancel()
        others = [asyncio.create_task(broker.metadata.catch_up()) for _ in range(2)]
        assert isinstance((await asyncio.gather(request, return_exceptions=True))[0], asyncio.CancelledError)
        assert broker.metadata.image.topic("t") is None
        await asyncio.gather(*others)
        assert broker.heard == [0, 1, 2]
        assert not broker.created_late
        assert len(broker.manager.logs) == PARTITIONS
        assert broker.disk.most_under_way == 1, "no two make folders at once"

    _play(scenario)


@pytest.mark.parametrize("what_dies", ["process", "machine"])
@pytest.mark.parametrize("operations", [1, 6, 40, 163])
def test_a_crash_in_between_leaves_nothing_that_the_next_start_would_mistake(
    what_dies: str, operations: int
) -> None:
    """Some folders are made, one partly, and no broker knows the topic yet."""

    async def scenario() -> None:
        entries = one_big_topic()
        disk = SteppedDisk()
        first = OneBroker(disk, entries)
        disk.fail_from(operations)
        with pytest.raises((OSError, NoLogDirectory)):
            await first.metadata.catch_up()
        disk.work_again()
        if what_dies == "machine":
            disk.crash_machine(seed=operations)
        second = OneBroker(disk, entries)
        assert all(log.log_end_offset == 0 for log in second.manager.logs.values())
        await second.metadata.catch_up()
        topic = second.metadata.image.topic("t")
        assert topic is not None
        assert len(second.manager.logs) == PARTITIONS
        assert {log.topic_id for log in second.manager.logs.values()} == {topic.uuid}

    _play(scenario)


def _append(log: Log, value: bytes) -> None:
    builder = BatchBuilder()
    builder.append(1, None, value)
    log.append_as_leader(builder.build(), leader_epoch=0, wall_ms=1)


@pytest.mark.parametrize("seed", range(10))
def test_a_log_created_ahead_keeps_its_topic_id_over_a_power_failure(seed: int) -> None:
    """Its records may have reached the disk: without the id they would be taken for a later topic's."""

    async def scenario() -> None:
        entries = one_big_topic()
        disk = SteppedDisk()
        broker = OneBroker(disk, entries)
        await broker.metadata.catch_up()
        topic = broker.metadata.image.topic("t")
        disk.crash_machine(seed=seed)
        after = OneBroker(disk, entries)
        assert topic is not None
        assert {log.topic_id for log in after.manager.logs.values()} == {topic.uuid}

    _play(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_log_that_was_not_created_ahead_takes_no_record_before_its_topic_id_is_durable(seed: int) -> None:
    async def scenario() -> None:
        entries = one_big_topic()
        image = ClusterImage()
        for number, entry in enumerate(entries):
            image.apply_entry(EntryNumber(number), entry)
        wanted = next(iter(required_logs_on(image, ME)))
        disk = SteppedDisk()
        broker = OneBroker(disk, [])
        log = broker.hosted.open(image, wanted)
        with pytest.raises(KafkaError, match="its checkpoint is being written"):
            _append(log, b"early")
        await broker.checkpoints.write_all()
        _append(log, b"kept")
        disk.crash_machine(seed=seed)
        again = OneBroker(disk, []).manager.get(wanted.name)
        assert again is None or again.topic_id == wanted.topic_id

    _play(scenario)


def test_the_log_of_an_earlier_topic_is_kept_under_another_name() -> None:
    async def scenario() -> None:
        entries = one_big_topic()
        disk = SteppedDisk()
        first = OneBroker(disk, [])
        name = TopicPartition("t", 0)
        _append(first.manager.create(name, LogConfig(), topic_id=UUID(int=1), wall_ms=1), b"old")
        broker = OneBroker(disk, entries)
        await broker.metadata.catch_up()
        assert not broker.created_late
        assert broker.manager.logs[name].log_end_offset == 0
        (stray,) = [each for each in disk.list_directory("/data") if each.endswith("-stray")]
        assert b"old" in disk.read_file(f"/data/{stray}/00000000000000000000.log")

    _play(scenario)


def test_the_first_flush_of_a_log_created_ahead_makes_its_folder_durable() -> None:
    async def scenario() -> None:
        entries = one_big_topic()
        disk = SteppedDisk()
        broker = OneBroker(disk, entries)
        await broker.metadata.catch_up()
        log = broker.manager.logs[TopicPartition("t", 7)]
        log.epochs.begin(0, 0)
        batch = BatchBuilder()
        batch.append(1, None, b"kept", ())
        log.append_as_leader(batch.build(), leader_epoch=0, wall_ms=1)
        plan = log.flush_plan()
        plan.run()
        log.mark_flushed(plan, wall_ms=1)
        for seed in range(10):
            disk.crash_machine(seed=seed)
        after = OneBroker(disk, entries)
        assert after.manager.logs[TopicPartition("t", 7)].log_end_offset == 1
        assert after.manager.logs[TopicPartition("t", 7)].epochs.entries == ((0, 0),)

    _play(scenario)


def test_nothing_is_created_for_an_entry_of_a_deposed_controller() -> None:
    async def scenario() -> None:
        *before, last = one_big_topic()
        other = Controllership(BrokerId(9), Incarnation("gone"), ControllerEpoch(7))
        (deposed,) = entries_of([last.records], other)
        broker = OneBroker(SteppedDisk(), [*before, deposed])
        await broker.metadata.catch_up()
        assert broker.heard == [0, 1, 2]
        assert not broker.manager.logs and not broker.disk.list_directory("/data")[2:]

    _play(scenario)


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("is_marked", [False, True])
def test_the_marker_of_the_log_decides_what_a_gap_between_segments_is(policy: str, is_marked: bool) -> None:
    """After an unclean stop. No policy does: it may have changed while the broker was down."""
    disk = SteppedDisk()
    name = TopicPartition("t", 0)
    image = ClusterImage()
    for number, entry in enumerate(entries := one_big_topic({"cleanup.policy": policy})):
        image.apply_entry(EntryNumber(number), entry)
    wanted = next(one for one in required_logs_on(image, ME) if one.name == name)
    small = LogConfig(segment_bytes=200)
    first = OneBroker(disk, [])
    log = first.manager.create(name, small, topic_id=wanted.topic_id, wall_ms=1)
    for number in range(9):
        builder = BatchBuilder()
        builder.append(1, b"k", b"%d" % number * 20)
        log.append_as_leader(builder.build(), leader_epoch=0, wall_ms=1)
    _, second, third, *_ = log.segments
    disk.open(second.log_path).truncate(0)
    if is_marked:
        log.allow_gaps()

    again = OneBroker(disk, entries, default=LogConfig(is_compacted=policy == "delete"))
    assert again.manager.has_gaps != is_marked

    async def scenario() -> Log:
        return again.hosted.open(image, wanted)

    found = asyncio.run(scenario())
    assert not again.manager.has_gaps
    assert found.may_have_gaps == (is_marked or policy == "compact")
    if is_marked:
        assert found.log_end_offset == 9
        part = found.read(second.base_offset, 1, 9)
        assert part is not None
        assert part.next_offset == third.base_offset + 1
        assert found.damages == ()
    else:
        assert found.log_end_offset == second.base_offset
        assert len(found.damages) == 1
