"""A cluster is copied with its disks, and both go on with one store: the one with the higher claim loses
nothing, and the other one reads no wrong records."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random

import pytest

from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.object_store import Bucket, StoreFaults
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.tier.chain import Contested, Deposed
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, decode_records
from support.tier.led_log import CONFIG, NOW_MS, LedLog, Store

GRACE_MS = 5_000
STEPS = 110
ATTEMPTS_MAX = 50
SKEWS_MS = (0, 600_000, -600_000)
FAULTS = StoreFaults(latency_ms=60, refused=0.03, unanswered=0.03, late_ms=200)


class World:
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.bucket = Bucket(faults=FAULTS)
        self.numbers = itertools.count()


class Cluster(LedLog):
    """One of the two, of one broker, with all records that it has acknowledged."""

    grace_ms = GRACE_MS

    def __init__(self, world: World, log: Log | None, claim: int, skew_ms: int) -> None:
        store = Store()
        store.bucket = store._bucket = world.bucket
        self._world, self._skew_ms = world, skew_ms
        super().__init__(CONFIG, log=log, store=store, claim=claim, seed=next(world.numbers))
        self.records: dict[int, bytes] = {}
        self.deleted = 0
        """What is below was deleted by this cluster's own clients."""
        self.kept_from = 0
        """What is below may be only where the other cluster removes it, if that deletes records, too."""
        self.task: asyncio.Task[None] | None = None
        self.stopped_by: Exception | None = None
        """Why the last round did not end."""

    @property
    def now_ms(self) -> int:  # type: ignore[override]
        return NOW_MS + self._skew_ms + int(self._world.loop.time() * 1000)

    def elect(self) -> None:
        self.leader_epoch += 1
        self.log.epochs.begin(self.leader_epoch, self.log.log_end_offset)
        self.remote.on_role_changed()

    def successor(self, log: Log, claim: int, skew_ms: int) -> Cluster:
        """Return the cluster after it was started again with this log, which may be a copy."""
        found = Cluster(self._world, log, claim, skew_ms)
        found.leader_epoch, found.records = self.leader_epoch, dict(self.records)
        found.deleted, found.kept_from = log.log_start_offset, log.local_start_offset
        found.elect()
        return found

    def copied(self, claim: int, skew_ms: int) -> Cluster:
        """Return a second cluster, with a copy of the disk."""
        files, name = SegmentFiles.on(copy.deepcopy(self.disk)), TopicPartition("events", 0)
        log = Log.open(files, "/events-0", name, CONFIG, OpenOptions(clean=True, wall_ms=1))
        log.advance_log_start_offset(self.log.log_start_offset, log.log_end_offset)
        return self.successor(log, claim, skew_ms)

    def produce(self, count: int, *, rolls: bool) -> None:
        builder, start = BatchBuilder(), self.log.log_end_offset
        for offset in range(start, start + count):
            self.records[offset] = b"%d" % next(self._world.numbers)
            builder.append(1, None, self.records[offset])
        self.append(bytes(builder.build(0)))
        if rolls:
            self.log.roll_now(1)

    def begin_round(self) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self.round())

    async def round(self) -> None:
        self.stopped_by = None
        try:
            while await self.remote.run_round():
                pass
        except (Deposed, ObjectStoreError) as error:
            self.stopped_by = error

    async def take(self) -> None:
        """Write the first manifest under the claim, which ends the time of the other one."""
        for _ in range(ATTEMPTS_MAX):
            await self.round()
            if self.remote.manifest is not None and self.remote.manifest.claim == 1:
                return

    def clean(self) -> None:
        while paths := self.log.delete_old_segments(self.log.log_end_offset, self.now_ms):
            for path in paths:
                self.disk.remove(path)

    def delete_some(self, chance: random.Random) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.deleted = chance.randint(start, start + (end - start) // 6)
        self.log.advance_log_start_offset(self.deleted, end)

    async def read_all(self, *, loses_nothing: bool) -> None:
        """Read all records, which must be those that were written; only errors may take the place of some."""
        faults, self.store.bucket.faults = self.store.bucket.faults, StoreFaults()
        offset = self.log.log_start_offset
        assert not loses_nothing or offset <= max(self.deleted, self.kept_from)
        while offset < self.log.log_end_offset:
            try:
                offset = await self._read(offset)
            except (ObjectStoreError, OffsetOutOfRange):
                assert not loses_nothing or offset < self.kept_from
                offset = max(offset + 1, self.log.local_start_offset)
        self.store.bucket.faults = faults

    async def _read(self, offset: int) -> int:
        if offset < self.log.local_start_offset:
            data, _ = await self.reads.read(offset, 1 << 20, read_committed=False)
        else:
            local = self.log.read(offset, 1 << 20, self.log.log_end_offset)
            assert local is not None
            data = bytes(local.records)
        for at, header in batches(data):
            for record in decode_records(data, at, header):
                if record.offset >= offset:
                    assert (record.offset, record.value) == (offset, self.records[offset])
                    offset += 1
        return offset


async def play(loop: VirtualLoop, seed: int, *, copy_claims: bool) -> None:
    chance = random.Random(seed)
    original = Cluster(World(loop), None, 0, 0)
    original.log.epochs.begin(0, 0)
    clusters, copied_at, begins_after = [original], chance.randrange(5, 40), chance.randrange(40)
    copied: Cluster | None = None
    for step in range(STEPS):
        if step == copied_at:
            copied = original.copied(int(copy_claims), chance.choice(SKEWS_MS))
            original.elect()  # as it is when machines that are stopped are copied: both begin the same epoch
        if copied is not None and step == copied_at + begins_after:
            clusters.append(copied)
            if not copy_claims:
                if original.task is not None:
                    await original.task
                clusters[0] = original.successor(original.log, 1, 0)
                await clusters[0].take()
        one = chance.choice(clusters)
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                one.produce(chance.randrange(1, 6), rolls=chance.random() < 0.7)
            case 4 | 5 | 6 | 7:
                one.begin_round()
            case 8 | 9:
                one.clean()
            case 10:
                one.elect()
            case _:
                one.delete_some(chance)
        await asyncio.sleep(chance.choice((0, 0.02, 0.2, 1.0)))
        if chance.random() < 0.3:
            for each in clusters:
                holds = len(clusters) == 1 or each.remote._parts.claim == 1
                await each.read_all(loses_nothing=holds)
    for each in clusters:
        if each.task is not None:
            await each.task
    await settle(*sorted(clusters, key=lambda each: each.remote._parts.claim))


async def settle(former: Cluster, present: Cluster) -> None:
    present.store.bucket.faults = StoreFaults()
    await asyncio.sleep(1)
    for _ in range(3):
        await present.round()
        await former.round()
        await asyncio.sleep(2 * GRACE_MS / 1000)
    assert present.stopped_by is None
    assert isinstance(former.stopped_by, Contested)
    await present.read_all(loses_nothing=True)
    await former.read_all(loses_nothing=False)


@pytest.mark.parametrize("copy_claims", [True, False], ids=["copy", "original"])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(4, 40))]
)
def test_the_cluster_with_the_higher_claim_loses_nothing(seed: int, copy_claims: bool) -> None:
    loop = VirtualLoop()
    loop.run_until_complete(play(loop, seed, copy_claims=copy_claims))
