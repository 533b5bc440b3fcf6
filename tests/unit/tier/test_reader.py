"""Records, offsets by time and the state of a log are read from the tier as they were in the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from nilometer.runtime.object_store import ObjectNotFound
from nilometer.simulation.object_store import Bucket, StoreFaults, VirtualObjectStore
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.time_search import TimestampOffset
from nilometer.tier import reader as tier_reader
from nilometer.tier.format import DamagedObject, Manifest, decode_index, encode_index
from nilometer.tier.reader import RemoteCache, RemoteReader
from nilometer.wire.record_batch import batches
from nilometer.wire.record_heads import RecordHeads
from nilometer.wire.records import decode_records
from support.logs.folder_logs import FolderLog
from support.logs.memory_disk import MemoryDisk
from support.tier.led_log import OffloadingDisk
from support.tier.remote_segments import FOLDER, copy_folder, manifest


class CountingStore(VirtualObjectStore):
    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket, random.Random(1))
        self.gets: list[str] = []
        self.awaited: tuple[int, asyncio.Event] = (-1, asyncio.Event())

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.gets.append(name.rpartition(".")[2])
        if len(self.gets) == self.awaited[0]:
            self.awaited[1].set()
        return await super().get(name, start, length)


class Tier:
    """Segments at 0, 10, 20 and 30, to 40: batches of two records whose timestamps are their offsets."""

    def __init__(self, folder: Path, value: bytes = b"v") -> None:
        log = FolderLog(folder, "events")
        for offset in range(0, 40, 2):
            if offset in (10, 20, 30):
                log.roll()
            log.append([(at, b"%d" % at, value) for at in (offset, offset + 1)], epoch=offset // 15)
        log.roll()
        self.bucket = Bucket()
        self.epochs = ((0, 0), (1, 16), (2, 30))
        self.manifest: Manifest = copy_folder(
            self.bucket, log.folder, (0, 10, 20, 30), 40, epochs=self.epochs, producers=b"p"
        )
        self.store = CountingStore(self.bucket)
        self.cache = RemoteCache(self.store, MemoryDisk(), 1 << 20)
        self.reader = RemoteReader(self.cache, FOLDER, self.manifest)


def offsets(records: bytes) -> list[int]:
    found = list(batches(records))
    assert sum(header.size for _, header in found) == len(records)
    return [record.offset for at, header in found for record in decode_records(records, at, header)]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


async def test_every_offset_is_read_with_the_batch_that_contains_it(tier: Tier) -> None:
    for offset in range(40):
        found = await tier.reader.read(offset, 1 << 20)
        first, end = offset - offset % 2, offset - offset % 10 + 10
        assert offsets(found.records) == list(range(first, end))
        assert found.next_offset == end


async def test_a_read_returns_what_fits_and_at_least_one_batch(tier: Tier) -> None:
    size = len((await tier.reader.read(18, 1)).records)
    assert offsets((await tier.reader.read(10, 1)).records) == [10, 11]
    assert offsets((await tier.reader.read(10, 2 * size - 1)).records) == [10, 11]
    assert offsets((await tier.reader.read(10, 2 * size)).records) == [10, 11, 12, 13]


async def test_batches_larger_than_a_chunk_are_read_whole(tmp_path: Path) -> None:
    tier = Tier(tmp_path, value=bytes(1_500_000))
    for offset in (0, 3, 28):
        found = await tier.reader.read(offset, 100)
        assert offsets(found.records) == [offset - offset % 2, offset - offset % 2 + 1]


async def test_overlapping_segments_are_read_as_one_log(tier: Tier) -> None:
    segments = tier.manifest.segments
    shifted = (segments[0], *segments[2:])
    reader = RemoteReader(tier.cache, FOLDER, manifest(*shifted))
    assert (await reader.read(9, 1 << 20)).next_offset == 10
    with pytest.raises(OffsetOutOfRange):
        await reader.read(10, 1 << 20)
    assert (await reader.read(20, 1 << 20)).next_offset == 30


@pytest.mark.parametrize("offset", [-1, 40, 99])
async def test_an_offset_that_the_tier_does_not_have_is_out_of_range(tier: Tier, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange):
        await tier.reader.read(offset, 1 << 20)


async def test_the_first_record_from_a_timestamp_on(tier: Tier) -> None:
    for timestamp in range(-1, 40):
        found = await tier.reader.offset_for_timestamp(timestamp, 0)
        assert found is not None and (found.offset, found.timestamp) == (max(timestamp, 0),) * 2
        assert found.leader_epoch == found.offset // 2 * 2 // 15
    assert await tier.reader.offset_for_timestamp(40, 0) is None
    found = await tier.reader.offset_for_timestamp(3, 17)
    assert found is not None and found.offset == 17


async def test_the_state_of_a_log_that_begins_later(tier: Tier) -> None:
    for offset, end, count in ((1, 10, 1), (10, 10, 1), (11, 20, 2), (20, 20, 2), (40, 40, 3)):
        state = await tier.reader.state_at(offset)
        assert (state.start_offset, state.producers) == (end, b"%d" % end)
        assert state.epochs == tier.epochs[:count]


async def test_requests_are_shared_and_what_was_read_is_kept(tier: Tier) -> None:
    await asyncio.gather(*(tier.reader.read(0, 1 << 20) for _ in range(10)))
    assert sorted(tier.store.gets) == ["index", "log"]
    await tier.reader.read(5, 1 << 20)
    assert len(tier.store.gets) == 2


async def test_a_reader_that_leaves_takes_nothing_from_the_others(tier: Tier) -> None:
    tier.bucket.faults = StoreFaults(latency_ms=20)
    leaving = asyncio.create_task(tier.reader.read(0, 1 << 20))
    staying = asyncio.create_task(tier.reader.read(0, 1 << 20))
    await asyncio.sleep(0)
    leaving.cancel()
    assert offsets((await staying).records) == list(range(10))
    assert sorted(tier.store.gets) == ["index", "log"]


async def test_following_chunks_are_requested_before_they_are_needed(tmp_path: Path) -> None:
    tier = Tier(tmp_path, value=bytes(1_500_000))  # two chunks of a batch, and a bit
    tier.store.awaited = (1 + 2 + tier_reader.READ_AHEAD_CHUNKS, asyncio.Event())
    await tier.reader.read(0, 100)
    await tier.store.awaited[1].wait()
    await tier.cache.close()


async def test_the_cache_holds_no_more_than_its_bound(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tier_reader, "CHUNKS_CACHED_BYTES", 5 << 20)
    tier = Tier(tmp_path, value=bytes(1_500_000))
    for offset in range(0, 40, 2):
        assert offsets((await tier.reader.read(offset, 100)).records) == [offset, offset + 1]
        assert tier.cache.chunks.bytes <= 5 << 20


async def test_aborted_transactions_are_those_that_overlap(tmp_path: Path) -> None:
    log = FolderLog(tmp_path, "events")
    log.append([(1, b"", b"")] * 5, producer_id=7, transactional=True)
    log.roll()
    log.append([(1, b"", b"")] * 5, producer_id=8, transactional=True)
    log.end_transaction(7, commit=False)
    log.index_aborted(7, 0, 10, 5)
    log.roll()
    bucket = Bucket()
    held = copy_folder(bucket, log.folder, (0, 5), 11)
    reader = RemoteReader(RemoteCache(CountingStore(bucket), MemoryDisk(), 1 << 20), FOLDER, held)
    assert await reader.aborted(0, 5, b"") == ([AbortedTxn(7, 0, 10, 5)], None)
    assert await reader.aborted(5, 11, b"") == ([AbortedTxn(7, 0, 10, 5)], 11)


async def test_of_thousands_of_aborted_transactions_only_those_of_the_records_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fetch within the time in which a hundred thousand were open would find and tell all of them."""
    log = FolderLog(tmp_path, "events")
    for producer in range(5):
        log.append([(1, b"", b"")], producer_id=producer, transactional=True)
    for producer in range(5):
        log.end_transaction(producer, commit=False)
        log.index_aborted(producer, producer, 5 + producer, 0)
    log.roll()
    bucket = Bucket()
    held = copy_folder(bucket, log.folder, (0,), 10)
    reader = RemoteReader(RemoteCache(CountingStore(bucket), MemoryDisk(), 1 << 20), FOLDER, held)
    records = (await reader.read(3, 1)).records
    assert offsets(records) == [3]
    open_then = [AbortedTxn(producer, producer, 5 + producer, 0) for producer in range(4)]
    assert (await reader.aborted(3, 4, records))[0] == open_then
    monkeypatch.setattr(tier_reader, "ABORTED_MAX", 3)
    assert (await reader.aborted(3, 4, records))[0] == open_then[3:]


async def test_indexes_and_batches_are_checked_beside_the_event_loop(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes of a full segment have half a million entries, a response thousands of batches."""
    disk, beside = OffloadingDisk(), list[bool]()
    for name in ("decode_index", "parse_indexes", "skip_good_batches"):
        parse = getattr(tier_reader, name)

        def noted(*arguments: Any, parse: Any = parse) -> Any:
            beside.append(disk.is_beside)
            return parse(*arguments)

        monkeypatch.setattr(tier_reader, name, noted)
    reader = RemoteReader(RemoteCache(tier.store, disk, 1 << 20), FOLDER, tier.manifest)
    await reader.read(0, 1)
    assert beside == [True, True, True]


async def test_a_search_by_time_waits_for_its_turn_before_each_step(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header may promise a time that none of its millions of records has; ten searches go on at once."""
    steps = turns = 0

    def without_it(*_arguments: object) -> Iterator[RecordHeads]:
        nonlocal steps
        for _ in range(5):
            steps += 1
            yield RecordHeads([0], [0], [], 0)

    async def next_turn() -> None:
        nonlocal turns
        turns += 1
        await asyncio.sleep(0)

    monkeypatch.setattr(tier_reader, "record_heads", without_it)
    cache = RemoteCache(tier.store, MemoryDisk(), 1 << 20, next_turn=next_turn)
    assert await RemoteReader(cache, FOLDER, tier.manifest).offset_for_timestamp(39, 0) is None
    assert 5 == steps <= turns


async def test_segments_without_aborted_transactions_are_not_read_to_know_of_none(tier: Tier) -> None:
    assert await tier.reader.aborted(0, 10, b"") == ([], 40)
    assert tier.store.gets == []


async def test_an_index_that_points_too_far_is_not_trusted(tier: Tier) -> None:
    name = FOLDER + tier.manifest.segments[0].index_name
    sections = decode_index(tier.bucket.objects[name], name)
    first, second, third = (sections.offsets[at : at + 8] for at in (0, 8, 16))
    shifted = first[:4] + second[4:] + second[:4] + third[4:]
    wrong = encode_index(sections._replace(offsets=shifted + sections.offsets[16 + 8 :]))
    tier.bucket.write(name, wrong)
    segment = structs.replace(tier.manifest.segments[0], index_bytes=len(wrong))
    reader = RemoteReader(tier.cache, FOLDER, manifest(segment))
    for offset in range(10):
        assert offsets((await reader.read(offset, 1)).records)[0] == offset - offset % 2


async def test_the_search_for_aborted_transactions_goes_on_locally(tier: Tier) -> None:
    assert await tier.reader.aborted(35, 45, b"") == ([], 40)
    assert await tier.reader.aborted(41, 45, b"") == ([], 40)


def damage(tier: Tier, suffix: str, wrong: Sequence[tuple[int, int]]) -> None:
    for name, data in list(tier.bucket.objects.items()):
        if name.endswith(suffix):
            changed = bytearray(data)
            for at, bit in wrong:
                changed[at] ^= bit
            tier.bucket.write(name, bytes(changed))


@pytest.mark.parametrize(
    ("suffix", "at"), [("log", 70), ("log", 16), ("log", 3), ("index", 20), ("index", 0)]
)
async def test_damaged_objects_are_noticed(tier: Tier, suffix: str, at: int) -> None:
    damage(tier, suffix, [(at, 1)])
    with pytest.raises(DamagedObject, match=suffix):
        await tier.reader.read(0, 1 << 20)


@pytest.mark.parametrize("at", [70, 16])
async def test_what_was_damaged_on_its_way_is_read_again(tier: Tier, at: int) -> None:
    """Once the store, or the network, is well: the damaged bytes are not kept."""
    whole = dict(tier.bucket.objects)
    damage(tier, "log", [(at, 1)])
    for wrong in (tier.reader.read(0, 1 << 20), tier.reader.offset_for_timestamp(1, 0)):
        with pytest.raises(DamagedObject):
            await wrong
    tier.bucket.objects.update(whole)
    assert offsets((await tier.reader.read(0, 1 << 20)).records)[0] == 0
    assert tier.cache.chunks.bytes == sum(map(len, tier.cache.chunks._values.values()))


async def test_an_object_that_ends_early_is_noticed(tier: Tier) -> None:
    for name, data in list(tier.bucket.objects.items()):
        if name.endswith("log"):
            tier.bucket.write(name, data[:-1])
    with pytest.raises(DamagedObject, match="instead of"):
        await tier.reader.read(0, 1 << 20)


async def test_an_object_that_is_gone_is_not_found(tier: Tier) -> None:
    tier.bucket.objects.clear()
    with pytest.raises(ObjectNotFound):
        await tier.reader.read(0, 1 << 20)


class Compacted:
    """Batches of one record, some large, at 0, 1, 2 and 20 of a segment that ends at 100, and at 130 of one
    that ends at 150."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = FolderLog(folder, "events")
        for skipped in (0, 0, 0, 17):
            log.append([(1, None, bytes(20_000))], skip=skipped)
        log.next_offset = 100
        log.roll()
        log.append([(1, None, b"")], skip=30)
        self.bucket = Bucket()
        self.manifest = copy_folder(self.bucket, log.folder, (0, 100), 150)
        cache = RemoteCache(CountingStore(self.bucket), MemoryDisk(), 1 << 20)
        self.reader = RemoteReader(cache, FOLDER, self.manifest)
        left = iter(range(100))
        bytes_of = RemoteCache.bytes_of

        async def counted(*given: Any) -> bytes:
            assert next(left, None) is not None, "reads do not end"
            return await bytes_of(*given)

        monkeypatch.setattr(RemoteCache, "bytes_of", counted)

    def change(self, place: int, position: int, data: bytes) -> None:
        name = FOLDER + self.manifest.segments[place].log_name
        held = self.bucket.objects[name]
        self.bucket.write(name, held[:position] + data + held[position + len(data) :])


@pytest.mark.parametrize(
    ("offset", "found"),
    [(2, 2), (3, 20), (19, 20), (20, 20), (21, 130), (99, 130), (100, 130), (130, 130)],
)
async def test_a_read_goes_on_after_a_gap_that_compaction_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, found: int
) -> None:
    read = await Compacted(tmp_path, monkeypatch).reader.read(offset, 1)
    assert (offsets(read.records), read.next_offset) == ([found], found + 1)


async def test_a_read_goes_on_after_a_segment_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Compacted(tmp_path, monkeypatch)
    first, second = log.manifest.segments
    empty = structs.replace(first, log_bytes=0, max_timestamp=-1)
    log.bucket.write(FOLDER + empty.log_name, b"")
    cache = RemoteCache(CountingStore(log.bucket), MemoryDisk(), 1 << 20)
    reader = RemoteReader(cache, FOLDER, structs.replace(log.manifest, segments=(empty, second)))
    assert offsets((await reader.read(0, 1)).records) == [130]
    assert await reader.offset_for_timestamp(1, 0) == TimestampOffset(1, 130, 0)


async def test_a_gap_at_the_end_of_the_tier_has_no_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await Compacted(tmp_path, monkeypatch).reader.read(131, 1) == (b"", 150)


@pytest.mark.parametrize(
    ("base_offset", "place"), [(1, 3), (99, 2), (0, 2)], ids=["of-the-last", "above-the-next", "below"]
)
async def test_a_damaged_base_offset_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base_offset: int, place: int
) -> None:
    log = Compacted(tmp_path, monkeypatch)
    held = log.bucket.objects[FOLDER + log.manifest.segments[0].log_name]
    at = [position for position, _ in batches(held)][place]
    log.change(0, at, base_offset.to_bytes(8, "big"))
    with pytest.raises(DamagedObject):
        await log.reader.read(2 if place == 2 else 20, 1)


async def test_the_batch_before_a_gap_must_be_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Compacted(tmp_path, monkeypatch)
    held = log.bucket.objects[FOLDER + log.manifest.segments[0].log_name]
    at = [position for position, _ in batches(held)][2]
    log.change(0, at + 100, b"?")
    with pytest.raises(DamagedObject, match="CRC"):
        await log.reader.read(3, 1)


@pytest.mark.parametrize("asked", ["aborted", "time", "state"])
async def test_others_have_their_turn_while_many_segments_are_walked_over(
    asked: str, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0

    async def next_turn() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(tier_reader, "SEGMENTS_OF_A_LINE", 1)
    reader = RemoteReader(
        RemoteCache(tier.store, MemoryDisk(), 1 << 20, next_turn=next_turn), FOLDER, tier.manifest
    )
    match asked:
        case "aborted":
            assert await reader.aborted(0, 2, b"") == ([], 40)
        case "time":
            assert await reader.offset_for_timestamp(1_000, 0) is None
        case _:
            assert (await reader.state_at(40)).epochs == tier.epochs
    assert turns == 3
