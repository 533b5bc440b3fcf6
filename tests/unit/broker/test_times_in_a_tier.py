"""A search by time in a tier finds what another broker has copied since this one has looked there."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace

import pytest
from msgspec import structs

from nilometer.broker.tiering.remote_partition import LOOK_AGAIN_MS
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.storage.names import TIME_INDEX_SUFFIX
from nilometer.tier import plan
from nilometer.tier.chain import Chain
from nilometer.tier.format import Manifest
from nilometer.wire.records import BatchBuilder
from support.tier.led_log import CONFIG, LedLog


class Replicas:
    """The former leader's replica, and the present one's, which has looked at the tier while it was empty."""

    def __init__(self) -> None:
        self.former = LedLog(replace(CONFIG, segment_bytes=100))
        self.present = LedLog(log=self.former.log, store=self.former.store)
        for timestamp in range(1_000, 1_005):
            builder = BatchBuilder()
            builder.append(timestamp, None, b"v")
            self.former.append(bytes(builder.build(0, -1, -1, -1)))

    async def change_leaders(self) -> None:
        self.present.is_led_here = False
        await self.present.remote.run_round()
        await self.former.tier()
        assert self.former.log.local_start_offset == 4
        self.present.is_led_here = True

    async def first_since(self, timestamp: int) -> int | None:
        found = await self.present.reads.offset_for_timestamp(timestamp)
        return None if found is None else found.offset


def test_a_new_leader_finds_what_was_copied_since_it_has_looked() -> None:
    replicas = Replicas()

    async def main() -> None:
        await replicas.change_leaders()
        assert await replicas.first_since(1_002) == 2
        assert await replicas.first_since(1_004) is None

    asyncio.run(main())


def test_records_that_are_nowhere_are_not_passed_over() -> None:
    """A consumer would begin with the first record that is here, and never read those before it."""
    replicas = Replicas()

    async def main() -> None:
        await replicas.change_leaders()
        replicas.former.store.bucket.objects.clear()
        with pytest.raises(ObjectStoreError, match="lacks records"):
            await replicas.first_since(1_002)

    asyncio.run(main())


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[Chain]:
    """Return a list that gets each chain that is read from now on."""
    read, reads = Chain.read, list[Chain]()

    async def counted(self: Chain) -> Manifest | None:
        reads.append(self)
        return await read(self)

    monkeypatch.setattr(Chain, "read", counted)
    return reads


def test_for_records_that_are_nowhere_the_chain_is_read_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas = Replicas()

    async def main() -> None:
        await replicas.change_leaders()
        objects = replicas.former.store.bucket.objects
        kept = dict(objects)
        objects.clear()
        reads = counted_reads(monkeypatch)
        for count in (1, 1, 2):
            with pytest.raises(ObjectStoreError, match="lacks records"):
                await replicas.first_since(1_002)
            assert len(reads) == count
            replicas.present.now_ms += LOOK_AGAIN_MS - 1
        objects.update(kept)  # the next look of this broker finds them, be it for a search or not
        await replicas.present.remote._read_chain()
        assert await replicas.first_since(1_002) == 2
        assert len(reads) == 3

    asyncio.run(main())


def test_what_becomes_lacking_otherwise_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()

    async def main() -> None:
        await replicas.change_leaders()
        objects = replicas.former.store.bucket.objects
        kept = dict(objects)
        objects.clear()
        with pytest.raises(ObjectStoreError, match="lacks records"):
            await replicas.first_since(1_002)
        objects.update(kept)
        replicas.former.log.advance_log_start_offset(1, 5)
        assert await replicas.first_since(1_002) == 2

    asyncio.run(main())


def test_searches_that_wait_for_each_other_read_the_chain_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()

    async def main() -> None:
        await replicas.change_leaders()
        reads = counted_reads(monkeypatch)
        assert await asyncio.gather(*(replicas.first_since(1_002) for _ in range(5))) == [2] * 5
        assert len(reads) == 1

    asyncio.run(main())


def test_a_search_looks_through_all_segments_only_if_they_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 that holds the event loop for milliseconds."""
    replicas = Replicas()
    bounding, found = plan.bounding, list[int]()

    def noted(manifest: Manifest | None, log: plan.LogView) -> Generator[int, None, int]:
        found.append((yield from bounding(manifest, log)))
        return found[-1]

    async def main() -> None:
        await replicas.change_leaders()
        monkeypatch.setattr(plan, "bounding", noted)
        for _ in range(3):
            assert await replicas.first_since(1_002) == 2
        assert found == [4]
        replicas.former.log.advance_log_start_offset(3, 5)
        assert await replicas.first_since(1_002) == 3
        assert found == [4, 4]

    asyncio.run(main())


def test_a_search_says_that_another_cluster_has_taken_the_tier_over() -> None:
    """Though its manifest also lacks records that were deleted here."""
    replicas = Replicas()

    async def main() -> None:
        await replicas.change_leaders()
        chain = Chain(replicas.former.store, replicas.former.remote.folder, "another", 1)
        last = await chain.read()
        assert last is not None and await chain.append(0, structs.replace(last, segments=()))
        with pytest.raises(
            ObjectStoreError, match=r"taken over by a cluster whose nilometer\.tier\.claim is 1"
        ):
            await replicas.first_since(1_002)

    asyncio.run(main())


def test_a_copy_has_the_largest_timestamp_of_its_batches() -> None:
    """The files of a log do not tell it if the time index is outdated and timestamps decrease."""
    led = LedLog(replace(CONFIG, index_interval_bytes=10))
    for timestamp in (1_000, 1_001, 5_000, 900, 900, 900):
        builder = BatchBuilder()
        builder.append(timestamp, None, b"v")
        led.append(bytes(builder.build(0, -1, -1, -1)))
    led.log.roll_now(1)
    segment = led.log.segments.first
    led.disk.open(segment.path(TIME_INDEX_SUFFIX)).truncate(12)
    segment._max_timestamp = None  # as after a restart
    assert segment.max_timestamp == 1_001

    async def main() -> None:
        await led.tier()
        assert led.remote.manifest is not None
        assert [one.max_timestamp for one in led.remote.manifest.segments] == [5_000]

    asyncio.run(main())
