"""A partition that is led here, with a real log, and its tier in a virtual store without faults."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from nilometer.broker.tiering.partition_reads import PartitionReads
from nilometer.broker.tiering.parts import RemoteParts
from nilometer.broker.tiering.remote_partition import RemotePartition, RemoteTraffic
from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.object_store import Bucket, VirtualObjectStore
from nilometer.steps import Pause, next_iteration
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.tier.format import TopicFacts
from nilometer.tier.reader import RemoteCache
from support.logs.memory_disk import MemoryDisk
from support.tier.remote_segments import TOPIC

T = TypeVar("T")
CONFIG = LogConfig(retention_ms=-1, local_retention_ms=0, remote_storage_enable=True)
NOW_MS = 10_000_000


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
        self.bucket = Bucket()
        super().__init__(self.bucket, random.Random(1))
        self.on_get: Callable[[], Awaitable[None]] | None = None

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        on_get, self.on_get = self.on_get, None
        if on_get is not None:
            await on_get()
        return await super().get(name, start, length)


class LedLog:
    topic, is_led_here, leader_epoch = "events", True, 0
    high_watermark: int | None = None
    """None: the end of the log."""
    now_ms = NOW_MS
    grace_ms = 1
    tiered_since = -1
    """The metadata entry with which the topic was last tiered."""

    def __init__(
        self,
        config: LogConfig = CONFIG,
        *,
        log: Log | None = None,
        store: Store | None = None,
        facts: TopicFacts = TOPIC,
        claim: int = 0,
        pause: Pause = next_iteration,
        seed: int = 1,
    ) -> None:
        """``log``: of another folder, for a leader that goes on with it in the same store. ``seed``: of the
        ids in the store, which two that copy have in common else."""
        self.disk: Any = OffloadingDisk() if log is None else log.files.disk
        self.store = store or Store()
        self.facts = facts
        self.key = SimpleNamespace(topic_id=facts.topic_id, partition=facts.partition)
        options = OpenOptions(clean=True, wall_ms=1)
        name = TopicPartition("events", 0)
        self.log = log or Log.open(SegmentFiles.on(self.disk), "/events-0", name, config, options)
        clock = SimpleNamespace(wall_ms=lambda: self.now_ms, monotonic_ms=lambda: self.now_ms)
        runtime: Any = SimpleNamespace(
            clock=clock, disk=self.disk, entropy=SeededEntropy(random.Random(seed))
        )

        async def at_once(_count: int) -> None:
            return None

        parts = RemoteParts(
            runtime=runtime, store=self.store, cache=RemoteCache(self.store, self.disk, 1 << 20),
            cluster_id=facts.cluster_id, grace_ms=self.grace_ms, writer=str(id(self)), claim=claim,
            before_copy=at_once, pause=pause, metadata_entry=lambda: self.facts.metadata_entry,
            tiered_since=lambda _: self.tiered_since,
        )  # fmt: skip
        partition: Any = self
        self.remote = RemotePartition(partition, parts, lambda _: self.facts, RemoteTraffic())
        self.reads = PartitionReads(self.remote, parts.cache)

    def append(self, records: bytes) -> None:
        self.log.append_as_leader(
            records, leader_epoch=self.leader_epoch, wall_ms=1, origin=AppendOrigin.COORDINATOR
        )

    @property
    def replica(self) -> Any:
        high_watermark = self.log.log_end_offset if self.high_watermark is None else self.high_watermark
        return SimpleNamespace(high_watermark=high_watermark)

    @property
    def has_leader_role(self) -> bool:
        return self.is_led_here

    def notify_log_start(self) -> None: ...

    async def tier(self) -> None:
        """Copy what is sealed, and delete it here."""
        while await self.remote.run_round():
            pass
        while self.log.delete_old_segments(self.log.log_end_offset, NOW_MS):
            pass
