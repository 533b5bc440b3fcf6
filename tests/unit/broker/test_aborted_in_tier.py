"""The aborted transactions of records in remote storage, while what ends them is copied and deleted here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from nilometer.broker.tiering.remote_partition import RemotePartition, RemoteParts, RemoteTraffic
from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.object_store import Bucket, VirtualObjectStore
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.topic_config import LogConfig
from nilometer.tier.reader import RemoteCache
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker
from support.logs.memory_disk import MemoryDisk
from support.tier.remote_segments import TOPIC

T = TypeVar("T")
PRODUCER = 9
CONFIG = LogConfig(retention_ms=-1, local_retention_ms=0, remote_storage_enable=True)
ABORTED = AbortedTxn(PRODUCER, 0, 1, 2)


class OffloadingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.is_beside = False
        """Whether work runs that has left the event loop."""

    async def offload(self, work: Callable[[], T]) -> T:
        self.is_beside = True
        try:
            return work()
        finally:
            self.is_beside = False


class Store(VirtualObjectStore):
    """Calls ``on_get`` before an object is read, once."""

    def __init__(self) -> None:
        super().__init__(Bucket(), random.Random(1))
        self.on_get: Callable[[], Awaitable[None]] | None = None

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        on_get, self.on_get = self.on_get, None
        if on_get is not None:
            await on_get()
        return await super().get(name, start, length)


class Led:
    """Leads a log; its first segment begins a transaction, whose abort is in the active one."""

    topic, key = "events", SimpleNamespace(topic_id=TOPIC.topic_id, partition=0)
    is_led_here, leader_epoch = True, 0

    def __init__(self) -> None:
        self.disk, self.store = OffloadingDisk(), Store()
        options = OpenOptions(clean=True, wall_ms=1)
        name = TopicPartition("events", 0)
        self.log = Log.open(SegmentFiles.on(self.disk), "/events-0", name, CONFIG, options)
        builder = BatchBuilder()
        builder.append(1, None, b"v")
        self.append(bytes(builder.build(0, PRODUCER, 0, 0, transactional=True)))
        self.log.roll_now(1)
        marker = EndTxnMarker(ControlType.ABORT, 0, 1)
        self.append(build_end_txn_marker(marker, producer_id=PRODUCER, producer_epoch=0))
        clock = SimpleNamespace(wall_ms=lambda: 10_000_000)
        runtime: Any = SimpleNamespace(clock=clock, disk=self.disk, entropy=SeededEntropy(random.Random(1)))

        async def at_once(_count: int) -> None:
            return None

        parts = RemoteParts(
            runtime=runtime, store=self.store, cache=RemoteCache(self.store, 1 << 20),
            cluster_id=TOPIC.cluster_id, grace_ms=1, before_copy=at_once,
        )  # fmt: skip
        partition: Any = self
        self.remote = RemotePartition(partition, parts, lambda _: TOPIC, RemoteTraffic())

    def append(self, records: bytes) -> None:
        self.log.append_as_leader(records, leader_epoch=0, wall_ms=1, origin=AppendOrigin.COORDINATOR)

    @property
    def replica(self) -> Any:
        return SimpleNamespace(high_watermark=self.log.log_end_offset)

    def notify_log_start(self) -> None: ...

    async def tier(self) -> None:
        """Copy what is sealed, and delete it here."""
        await self.remote.run_round()
        while self.log.delete_old_segments(self.log.log_end_offset, 10_000_000):
            pass

    async def aborted(self) -> list[AbortedTxn]:
        return (await self.remote.read(0, 10_000, read_committed=True))[1]


def test_an_abort_that_is_here_is_looked_up_by_the_owner_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the event loop it could fill the segment's list while the owner appends another abort to it."""
    led = Led()
    look_up = Log.aborted_transactions

    def by_the_owner(log: Log, *args: Any) -> list[AbortedTxn]:
        assert not led.disk.is_beside
        return look_up(log, *args)

    monkeypatch.setattr(Log, "aborted_transactions", by_the_owner)

    async def main() -> None:
        await led.tier()
        assert led.log.local_start_offset == 1
        assert await led.aborted() == [ABORTED]

    asyncio.run(main())


def test_an_abort_is_found_that_is_copied_and_deleted_here_meanwhile() -> None:
    led = Led()

    async def tier_the_rest() -> None:
        led.log.roll_now(1)
        await led.tier()
        assert led.log.local_start_offset == 2

    async def main() -> None:
        await led.tier()
        led.store.on_get = tier_the_rest
        assert await led.aborted() == [ABORTED]

    asyncio.run(main())
