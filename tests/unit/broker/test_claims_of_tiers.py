"""Two clusters with one id, of which one was restored from a backup: only one writes to the tier."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec import structs

from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.tiering.remote_partition import FOLLOWER_LOOK_ROUNDS, MetadataBehind
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.steps import next_iteration
from nilometer.storage.errors import OffsetOutOfRange
from nilometer.storage.topic_config import LogConfig
from nilometer.tier.chain import Chain, Contested, Deposed, ManifestsGone
from nilometer.tier.format import HEAD, RemoteSegment, manifest_name, partition_folder
from nilometer.tier.lineage import BEHIND_MS_MAX
from nilometer.tier.plan import first_manifest
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, decode_records
from support.tier.former_partition import batch, former
from support.tier.led_log import NOW_MS, LedLog, Store
from support.tier.remote_segments import TOPIC, segment

T = TypeVar("T")
CONFIG = LogConfig(retention_ms=-1, local_retention_ms=0, remote_storage_enable=True)


def other(led: LedLog, *, claim: int = 0) -> LedLog:
    """The leader of the same partition in another cluster, with a log of its own."""
    found = LedLog(CONFIG, store=led.store, claim=claim)
    found.leader_epoch = 3
    found.log.epochs.begin(3, 0)
    found.append(batch(0, 4))
    found.log.roll_now(1)
    found.append(batch(4, 4))
    return found


def test_a_cluster_with_a_higher_claim_takes_the_tier_and_the_former_one_says_so() -> None:
    led = former()

    async def main() -> None:
        present = other(led, claim=1)
        present.leader_epoch = 1  # below that of the former leader
        await present.tier()
        assert present.remote.manifest is not None
        assert [one.base_offset for one in present.remote.manifest.segments] == [0]
        led.append(batch(20, 1))
        led.log.roll_now(1)
        with pytest.raises(Contested, match="this one copies and removes nothing there"):
            await led.remote.run_round()
        with pytest.raises(Contested):
            await led.remote.delete()
        assert led.log.size, "what was not copied stays"

    asyncio.run(main())


@pytest.mark.parametrize("claim", [0, 1])
@pytest.mark.parametrize("given_up", [15, 20, None], ids=["some", "all", "retention"])
def test_what_the_other_cluster_has_given_up_stays_on_the_own_disk(claim: int, given_up: int | None) -> None:
    """Both had the same records before 10, and records of their own since."""
    there = of_both("theirs")

    async def main() -> None:
        await there.tier()
        if given_up is None:
            there.log.configure(replace(CONFIG, retention_ms=1))
            there.now_ms += 1_000_000_000
        else:
            there.log.advance_log_start_offset(given_up, 20)
        await there.tier()
        assert there.log.log_start_offset == (given_up or 20)
        here = of_both("ours", there.store, claim=claim)
        here.leader_epoch = 2
        here.log.epochs.begin(2, 20)
        with contextlib.suppress(Contested):
            await here.remote.run_round()
        assert here.log.log_start_offset == 0

    asyncio.run(main())


def of_both(text: str, store: Store | None = None, *, claim: int = 0) -> LedLog:
    """Return a leader that has all on its disk: ten segments of both clusters, and ten with ``text``."""
    led = LedLog(replace(CONFIG, local_retention_ms=-1) if store else CONFIG, store=store, claim=claim)
    for offset in range(20):
        if offset in (0, 10):
            led.leader_epoch = offset // 10
            led.log.epochs.begin(led.leader_epoch, offset)
        led.append(written(text if offset >= 10 else "of both", offset))
        led.log.roll_now(1)
    return led


def written(text: str, *offsets: int, timestamp: int = 1) -> bytes:
    builder = BatchBuilder()
    for offset in offsets:
        builder.append(timestamp, None, f"{text} {offset}".encode())
    return bytes(builder.build(0))


def values(data: bytes) -> list[str]:
    return [
        (record.value or b"").decode()
        for at, header in batches(data)
        for record in decode_records(data, at, header)
    ]


async def let_run(task: asyncio.Task[T]) -> None:
    """Let ``task`` get as far as it can without what is waited for meanwhile."""
    for _ in range(100):
        await next_iteration()


def test_a_segment_is_not_read_while_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    here = LedLog()
    there = LedLog(store=here.store, seed=2)
    for led in (here, there):
        led.log.epochs.begin(0, 0)
        for start in (0, 5):
            led.append(written("of both", *range(start, start + 5)))
            led.log.roll_now(1)
        led.append(written("of both", *range(10, 15)))
    there.append(written("theirs", *range(15, 20)))
    there.log.roll_now(1)
    here.log.roll_now(1)

    async def main() -> None:
        await here.tier()
        here.append(written("ours", *range(15, 25)))
        assert here.log.local_start_offset == 15
        there.leader_epoch = 2
        there.log.epochs.begin(2, 20)
        await there.remote.run_round()
        while await there.remote.run_round():
            pass
        readers, crc_in_log = list[asyncio.Task[tuple[bytes, Any]]](), here.remote._crc_in_log

        async def slow(segment: RemoteSegment) -> int | None:
            if not readers:
                readers.append(asyncio.create_task(here.reads.read(12, 1 << 20, read_committed=False)))
                await let_run(readers[0])
            return await crc_in_log(segment)

        monkeypatch.setattr(here.remote, "_crc_in_log", slow)
        await here.remote.readable(is_again=True)
        (found,) = await asyncio.gather(*readers, return_exceptions=True)
        assert isinstance(found, OffsetOutOfRange), values(found[0])  # type: ignore[index]

    asyncio.run(main())


def test_no_replica_begins_behind_a_segment_of_another_cluster() -> None:
    """It covers records that the leader has on its own disk: the replica would never have them."""
    here = LedLog()
    there = LedLog(store=here.store, seed=2)

    async def main() -> None:
        for led in (here, there):
            led.log.epochs.begin(0, 0)
            led.append(written("of both", 0))
            led.log.roll_now(1)
            led.append(written("of both", 1))
        here.log.roll_now(1)
        await here.tier()
        await here.remote.check_own()
        here.append(written("ours", 2))
        there.append(written("theirs", 2))
        there.log.roll_now(1)
        for led in (here, there):
            led.leader_epoch = 1
            led.log.epochs.begin(1, 3)
            led.remote.on_role_changed()
        while await there.remote.run_round():
            pass
        assert here.log.local_start_offset == 2
        with pytest.raises(Contested):
            await here.remote.check_own()

    asyncio.run(main())


def test_retention_does_not_go_by_what_another_cluster_writes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, old, new = replace(CONFIG, local_retention_ms=-1, retention_ms=3_600_000), NOW_MS - 10**7, NOW_MS
    here = LedLog(config)
    there = LedLog(replace(config, retention_ms=-1), store=here.store, seed=2)
    for led in (here, there):
        led.log.epochs.begin(0, 0)
        for offset in range(3):
            led.append(written("of both", offset, timestamp=old))
            led.log.roll_now(1)

    async def main() -> None:
        await here.tier()
        for led, text, timestamp in ((here, "ours", new), (there, "theirs", old)):
            led.leader_epoch = 1
            led.log.epochs.begin(1, 3)
            for offset in range(3, 8):
                led.append(written(text, offset, timestamp=timestamp))
                if led is there:
                    led.log.roll_now(1)
        here.remote.on_role_changed()
        await here.tier()
        assert here.log.log_start_offset == 3
        there.leader_epoch = 2
        there.log.epochs.begin(2, 8)
        there.log.advance_log_start_offset(3, 8)
        due, readers = here.remote._due_removals, list[asyncio.Task[Any]]()

        async def meanwhile() -> tuple[str, ...]:
            if not readers:
                while await there.remote.run_round():
                    pass
                readers.append(asyncio.create_task(here.remote.readable(is_again=True)))
                await let_run(readers[0])
            return await due()

        monkeypatch.setattr(here.remote, "_due_removals", meanwhile)
        with pytest.raises(Deposed):
            await here.remote.run_round()
        await asyncio.gather(*readers)
        assert here.log.log_start_offset == 3

    asyncio.run(main())


def test_a_follower_deletes_nothing_because_of_another_clusters_manifest() -> None:
    led = former()

    async def main() -> None:
        follower = other(led)
        follower.leader_epoch = 2  # as the last manifest's
        present = other(led, claim=1)
        present.leader_epoch = 2
        await present.tier()
        follower.is_led_here = False
        await follower.remote.run_round()
        assert follower.log.tiered_offset == 0

    asyncio.run(main())


def test_metadata_that_were_restored_from_an_older_backup_stop_the_copying_until_a_claim() -> None:
    led = former()

    async def main() -> None:
        behind = other(led)
        behind.facts = structs.replace(TOPIC, metadata_entry=TOPIC.metadata_entry - 1)
        objects = dict(led.store.bucket.objects)
        assert not await behind.remote.run_round()  # for a moment it may be so
        behind.now_ms += BEHIND_MS_MAX
        with pytest.raises(MetadataBehind, match=r"set nilometer\.tier\.claim=1 on all"):
            await behind.remote.run_round()
        assert led.store.bucket.objects == objects
        claiming = other(led, claim=1)
        claiming.facts = behind.facts
        await claiming.remote.run_round()
        assert claiming.remote.manifest is not None and claiming.remote.manifest.rank == (1, 3)
        behind.facts = TOPIC

    asyncio.run(main())


def test_a_broker_that_catches_up_with_the_metadata_goes_on() -> None:
    led = former()

    async def main() -> None:
        behind = other(led)
        behind.facts = structs.replace(TOPIC, metadata_entry=TOPIC.metadata_entry - 1)
        assert not await behind.remote.run_round()
        behind.facts = TOPIC
        behind.now_ms += BEHIND_MS_MAX
        await behind.remote.run_round()
        assert behind.remote.manifest is not None and behind.remote.manifest.rank == (0, 3)

    asyncio.run(main())


def sweeping(led: LedLog, *, number: int, claim: int = 0) -> tuple[RemoteLogs, SimpleNamespace]:
    """Return what sweeps in a cluster that knows no topic, and its clock."""
    now = SimpleNamespace(ms=0)
    image = SimpleNamespace(
        live_brokers=lambda: [SimpleNamespace(id=1)], topic_by_id=lambda _: None, number=number
    )
    logs: Any = RemoteLogs.__new__(RemoteLogs)
    logs._metadata, logs._broker_id, logs._store = SimpleNamespace(image=image), 1, led.store
    logs._parts = SimpleNamespace(
        cluster_id=TOPIC.cluster_id, writer="sweeper", claim=claim, pause=next_iteration
    )
    logs._config = SimpleNamespace(unknown_topic_grace_ms=1_000)
    logs._runtime = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: now.ms))
    logs._unknown_since_ms, logs._unchanged_since, logs._swept_ms = {}, {}, -1
    return logs, now


@pytest.mark.parametrize(
    ("number", "claim", "is_removed"),
    [
        (TOPIC.metadata_entry, 0, True),
        (TOPIC.metadata_entry - 1, 0, False),  # the topic may be created only later
        (TOPIC.metadata_entry, 1, False),  # of the former cluster, whose metadata are lost
    ],
)
def test_a_topic_that_no_metadata_know_is_said_and_removed_much_later(
    number: int, claim: int, is_removed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    led = former()
    logs, now = sweeping(led, number=number, claim=claim)

    async def main() -> None:
        await logs.sweep()
        assert caplog.messages == [], "the leader may be removing it"
        now.ms = 600
        await logs.sweep()
        (said,) = caplog.messages
        assert "1 topics that this cluster does not know, cluster/topic-id/ for example" in said
        assert led.store.bucket.objects
        now.ms = 1_000
        await logs.sweep()
        assert bool(led.store.bucket.objects) != is_removed

    asyncio.run(main())


def test_a_topic_that_another_cluster_writes_to_is_not_swept(caplog: pytest.LogCaptureFixture) -> None:
    """It was created there, after a copy of the machines was started without a claim."""
    led = former()
    logs, now = sweeping(led, number=TOPIC.metadata_entry + 100)

    async def main() -> None:
        await logs.sweep()
        led.now_ms = NOW_MS + 900
        led.leader_epoch = 3
        led.log.epochs.begin(3, led.log.log_end_offset)
        await led.tier()
        before = dict(led.store.bucket.objects)
        now.ms = 1_500
        await logs.sweep()
        assert led.store.bucket.objects == before
        assert "was still written to 0 s ago, by another cluster" in caplog.messages[-1]
        now.ms = 2_500
        await logs.sweep()
        assert led.store.bucket.objects == {}

    asyncio.run(main())


def test_what_another_cluster_writes_while_a_sweep_looks_is_not_removed() -> None:
    led = former()
    logs, now = sweeping(led, number=TOPIC.metadata_entry)

    async def main() -> None:
        await logs.sweep()
        now.ms, create = 1_500, led.store.create
        led.leader_epoch = 3
        led.log.epochs.begin(3, led.log.log_end_offset)

        async def create_later(name: str, data: bytes) -> bool:
            led.store.create = create
            await led.tier()
            return await create(name, data)

        led.store.create = create_later
        await logs.sweep()
        last = await Chain(led.store, led.remote.folder, "").read()
        assert last is not None
        assert (last.leader_epoch, last.is_deleted) == (3, False)

    asyncio.run(main())


@pytest.mark.parametrize("ahead_ms", [-1_000_000, 0, 1_000_000])
def test_what_another_cluster_writes_is_not_removed_because_of_its_clock(ahead_ms: int) -> None:
    led = former()
    led.now_ms += ahead_ms
    logs, now = sweeping(led, number=TOPIC.metadata_entry)

    async def main() -> None:
        led.leader_epoch = 3
        led.log.epochs.begin(3, led.log.log_end_offset)
        for now.ms in range(0, 3_000, 500):
            led.append(batch(led.log.log_end_offset, 1))
            led.log.roll_now(1)
            await led.tier()
            await logs.sweep()
        assert led.remote.manifest == await Chain(led.store, led.remote.folder, "").read()

    asyncio.run(main())


def test_what_is_being_restored_is_not_swept() -> None:
    """Its manifests come last."""
    led = former()
    logs, now = sweeping(led, number=TOPIC.metadata_entry)
    objects = led.store.bucket.objects
    back = {name: objects.pop(name) for name in list(objects) if not name.endswith(HEAD)}

    async def main() -> None:
        for now.ms, name in zip(range(0, 400 * len(back), 400), sorted(back), strict=True):
            objects[name] = back[name]
            await logs.sweep()
        assert set(back) <= set(objects)

    asyncio.run(main())


@pytest.mark.parametrize("their_epoch", [2, 1], ids=["later-epoch", "same-epoch"])
def test_a_topic_that_is_deleted_here_keeps_the_tier_of_the_other_cluster(their_epoch: int) -> None:
    """A copy of the machines was started without a claim, and tidies up. No segment tells them apart: what
    both have is the same."""

    async def main() -> None:
        another = clone("of both ")
        another.leader_epoch = their_epoch
        if their_epoch > 1:
            another.log.epochs.begin(their_epoch, 20)
        here = clone("of both ", another.store)
        here.remote.on_role_changed()
        await here.remote.run_round()
        here.is_led_here = False
        chain = Chain(another.store, another.remote.folder, another.remote._parts.writer)
        last = await chain.read()
        assert last is not None
        assert await chain.append_at_rest(1, last) if their_epoch == 1 else await chain.append(2, last)
        before = dict(another.store.bucket.objects)
        if their_epoch > 1:
            with pytest.raises(Contested, match="the last leader that is known here had 1"):
                await here.remote.delete()
        else:
            await here.remote.delete()
        assert another.store.bucket.objects == before

    asyncio.run(main())


@pytest.mark.parametrize("has_log", [True, False])
def test_a_topic_is_not_deleted_before_its_tier_is_compared_with_the_log(has_log: bool) -> None:
    """A leader of the copy is elected, and no round has looked yet."""

    async def main() -> None:
        living = of_both("theirs")
        await living.tier()
        before = dict(living.store.bucket.objects)
        here = of_both("ours", living.store)
        here.leader_epoch = 2
        here.log.epochs.begin(2, 20)
        here.remote.on_role_changed()
        here.is_led_here = False
        if has_log:
            with pytest.raises(Contested, match="has other records than this broker"):
                await here.remote.delete()
            assert living.store.bucket.objects == before
        else:
            for path in [one for one in here.disk.list_directory("/events-0") if one.endswith(".log")]:
                here.disk.remove(f"/events-0/{path}")
            await here.remote.delete()
            assert living.store.bucket.objects == {}, "nothing tells them apart"

    asyncio.run(main())


def test_a_higher_claim_copies_again_what_another_cluster_has_begun_to_remove() -> None:
    async def main() -> None:
        another = clone("of both ")
        await another.remote.run_round()
        another.remote.on_role_changed()
        another.store.remove = fail  # it is ended meanwhile
        with pytest.raises(ObjectStoreError):
            await another.remote.delete()
        del another.store.remove
        here = of_both("of both", another.store, claim=1)
        here.leader_epoch = 2
        here.log.epochs.begin(2, 20)
        while await here.remote.run_round():
            pass
        last = here.remote.manifest
        assert last is not None
        assert (last.is_deleted, last.segments[0].base_offset, last.end_offset) == (False, 0, 20)

    async def fail(name: str) -> None:
        raise ObjectStoreError("no answer")

    asyncio.run(main())


def test_a_leader_that_never_learns_of_its_successor_says_so() -> None:
    """The other cluster has begun a later epoch, with records that are here, too, and fewer metadata."""

    async def main() -> None:
        led = clone("of both ")
        await led.tier()
        another = clone("of both ", led.store)
        another.leader_epoch = 2
        another.log.epochs.begin(2, 20)
        await another.tier()
        numbered(led, "ours ", 1)
        for _ in range(2):
            with pytest.raises(Deposed) as said:
                await led.remote.run_round()
            assert said.type is Deposed, "its metadata may come later"
        led.now_ms += BEHIND_MS_MAX
        with pytest.raises(Contested, match=r"leads: a second cluster .* nilometer\.tier\.claim=1 on all"):
            await led.remote.run_round()
        led.leader_epoch = 3
        led.log.epochs.begin(3, 21)
        await led.remote.run_round()

    asyncio.run(main())


def test_what_is_kept_of_a_lower_claim_is_compared_before_the_log_deletes_what_it_has() -> None:
    """A segment is needed for its first record, and the others are those of another cluster."""

    async def main() -> None:
        led = LedLog(CONFIG)
        numbered(led, "of both ", 10)
        await led.tier()
        assert led.log.local_start_offset == 10
        chain = Chain(led.store, led.remote.folder, "another")
        last = await chain.read()
        assert last is not None
        other = structs.replace(
            last.segments[9], last_offset=12, epochs=((0, 9), (1, 10)), attempt="theirs", last_crc=1
        )
        for name in other.object_names:
            await led.store.put(led.remote.folder + name, b"?")
        assert await chain.append(1, structs.replace(last, segments=(*last.segments[:9], other)))
        present = LedLog(CONFIG, log=led.log, store=led.store, claim=1)
        present.log.note_tiered(0)
        present.leader_epoch = 1
        present.log.epochs.begin(1, 10)
        numbered(present, "ours ", 10)
        with pytest.raises(Contested, match="has other records than this broker"):
            await present.remote.run_round()
        assert present.log.tiered_offset == 0

    asyncio.run(main())


async def archive(led: LedLog, topic_id: str = TOPIC.topic_id, *segments: RemoteSegment) -> None:
    """Let an archive have records of the partition, in the place of the tiers: it begins at offset 3."""
    facts = structs.replace(TOPIC, topic_id=topic_id, partition_count=0, settings={}, metadata_entry=0)
    folder = partition_folder(facts.cluster_id, topic_id, facts.partition)
    archived = structs.replace(first_manifest(facts, 3), segments=segments, is_archive=True)
    assert await Chain(led.store, folder, "archiver").append_at_rest(-1, archived)


def test_an_archive_in_the_place_of_tiers_stays_and_the_sweep_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led = former()
    logs, now = sweeping(led, number=TOPIC.metadata_entry)

    async def main() -> None:
        await archive(led, "before-topic-id")
        archived = {name for name in led.store.bucket.objects if "before-topic-id" in name}
        await logs.sweep()
        now.ms = 1_000
        await logs.sweep()
        assert set(led.store.bucket.objects) == archived, "the tier of the other topic is removed"
        assert "is in an archive: brokers copy and remove nothing there" in caplog.messages[-1]

    asyncio.run(main())


def test_a_leader_takes_nothing_from_an_archive_in_the_place_of_its_tier() -> None:
    """Neither where the log begins nor records: those that were deleted stay in an archive."""

    async def main() -> None:
        led = LedLog(CONFIG)
        numbered(led, "", 4)
        led.leader_epoch = 1
        led.log.epochs.begin(1, 4)
        await archive(led, TOPIC.topic_id, segment(3, 3))
        with pytest.raises(Contested, match="is in an archive"):
            await led.remote.run_round()
        assert led.log.log_start_offset == 0
        for offset in (0, 3):
            with pytest.raises(ObjectStoreError, match="is in an archive"):
                await led.reads.read(offset, 1 << 20, read_committed=False)

    asyncio.run(main())


def test_a_damaged_tier_of_a_deleted_topic_stays_and_the_sweep_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led = former()
    logs, now = sweeping(led, number=TOPIC.metadata_entry)
    folder = partition_folder(TOPIC.cluster_id, "before-topic-id", 0)

    async def main() -> None:
        damaged = {folder + HEAD: b"0", folder + manifest_name(0): b"damaged"}
        for name, data in damaged.items():
            await led.store.put(name, data)
        await logs.sweep()
        now.ms = 1_000
        await logs.sweep()
        assert set(led.store.bucket.objects) == set(damaged)
        assert "is not as it was written" in caplog.messages[-1]

    asyncio.run(main())


def numbered(led: LedLog, text: str, count: int) -> None:
    """Append segments of one record."""
    for _ in range(count):
        append_next(led, text)
        led.log.roll_now(1)


def append_next(led: LedLog, text: str) -> None:
    builder = BatchBuilder()
    builder.append(1, None, b"%s%d" % (text.encode(), led.log.log_end_offset))
    led.append(bytes(builder.build(0)))


def clone(text: str, store: Store | None = None, *, claim: int = 0) -> LedLog:
    """A cluster of which there are two: the first ten records are those of both, then come its own, in an
    epoch that the other one has, too."""
    led = LedLog(CONFIG, store=store, claim=claim)
    numbered(led, "of both ", 10)
    led.leader_epoch = 1
    led.log.epochs.begin(1, 10)
    numbered(led, text, 10)
    return led


async def texts(led: LedLog) -> list[str]:
    found = list[str]()
    offset, end = led.log.log_start_offset, led.log.log_end_offset
    while offset < end:
        if offset < led.log.local_start_offset:
            data, _ = await led.reads.read(offset, 1 << 20, read_committed=False)
        else:
            local = led.log.read(offset, 1 << 20, end)
            assert local is not None
            data = bytes(local.records)
        for at, header in batches(data):
            for record in decode_records(data, at, header):
                found += [(record.value or b"").decode()] if record.offset >= offset else []
            offset = header.next_offset
    return found


def test_a_cluster_that_takes_the_store_keeps_its_own_records() -> None:
    """The other one, which has ended, had written records of its own under the same epochs."""

    async def main() -> None:
        ended = clone("theirs ")
        await ended.tier()
        present = clone("ours ", ended.store, claim=1)
        present.leader_epoch = 2
        present.log.epochs.begin(2, 20)
        before = await texts(present)
        await present.tier()
        assert present.log.local_start_offset == 20, "all of it is in the tier only"
        assert await texts(present) == before

    asyncio.run(main())


def test_what_the_tier_has_beyond_the_end_of_the_log_is_not_said_to_be_copied_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The disks were restored from a backup."""

    async def main() -> None:
        led = clone("of both ")
        await led.tier()
        here = LedLog(CONFIG, store=led.store, claim=1)
        numbered(here, "of both ", 5)
        await here.remote.run_round()
        (said,) = caplog.messages
        assert "from offset 0 to 19 that a cluster with a lower claim has copied" in said
        assert "this log's, which ends before offset 5, take their place, and they are removed" in said

    asyncio.run(main())


def test_a_cluster_whose_store_was_taken_over_shows_no_records_of_the_other_one() -> None:
    """It has none of its own any more on its disks that could tell them apart."""

    async def main() -> None:
        ended = clone("theirs ")
        await ended.tier()
        before = await texts(ended)
        present = clone("ours ", ended.store, claim=1)
        present.leader_epoch = 2
        present.log.epochs.begin(2, 20)
        await present.tier()
        assert await texts(ended) == before, "what it knows is in the store for the grace period"
        with pytest.raises(Contested):
            await ended.remote.run_round()
        for offset in (0, 10):
            with pytest.raises(ObjectStoreError, match=r"claim is 1, .* may not be of this one's log"):
                await ended.reads.read(offset, 1 << 20, read_committed=False)

    asyncio.run(main())


def test_without_a_claim_a_later_leader_keeps_its_own_records() -> None:
    """The other cluster had a leader of the same epochs, and has written other records."""

    async def main() -> None:
        another = clone("theirs ")
        await another.tier()
        objects = dict(another.store.bucket.objects)
        present = clone("ours ", another.store)
        present.leader_epoch = 2
        present.log.epochs.begin(2, 20)
        before = await texts(present)
        for _ in range(2):
            with pytest.raises(Contested, match=r"goes on with nilometer\.tier\.claim=1"):
                await present.tier()
        while present.log.delete_old_segments(20, NOW_MS):
            pass
        assert await texts(present) == before
        assert another.store.bucket.objects == objects
        with pytest.raises(Contested):
            await present.remote.delete()
        claiming = clone("ours ", another.store, claim=1)
        claiming.leader_epoch = 2
        claiming.log.epochs.begin(2, 20)
        await claiming.tier()
        assert await texts(claiming) == before

    asyncio.run(main())


def test_without_a_claim_a_later_leader_does_not_begin_where_the_others_do() -> None:
    async def main() -> None:
        another = clone("theirs ")
        await another.tier()
        another.log.advance_log_start_offset(15, 20)
        await another.tier()
        chain = Chain(another.store, another.remote.folder, "theirs")
        last = await chain.read()
        assert last is not None
        assert await chain.append_at_rest(1, structs.replace(last, log_start_offset=15))
        present = clone("ours ", another.store)
        present.leader_epoch = 2
        present.log.epochs.begin(2, 20)
        with pytest.raises(Contested):
            await present.remote.run_round()
        assert present.log.log_start_offset == 0

    asyncio.run(main())


def test_a_follower_deletes_only_what_the_other_cluster_has_not_replaced() -> None:
    """The manifest has the epoch of the follower's own leader."""

    async def main() -> None:
        another = clone("theirs ")
        await another.tier()
        follower = clone("ours ", another.store)
        follower.is_led_here = False
        with pytest.raises(Contested):
            await follower.remote.run_round()
        assert follower.log.tiered_offset == 10

    asyncio.run(main())


@pytest.mark.parametrize("claim", [0, 1])
def test_what_another_cluster_drops_from_the_tier_is_deleted_here_no_more(claim: int) -> None:
    """All of it is still on the disks of the leader and its follower."""

    async def main() -> None:
        here = of_both("ours", Store())
        await here.tier()
        follower = of_both("ours", here.store)
        follower.is_led_here = False
        await follower.remote.run_round()
        assert here.log.tiered_offset == follower.log.tiered_offset == 20
        there = LedLog(replace(CONFIG, local_retention_ms=-1), store=here.store, claim=claim, seed=2)
        there.log.epochs.begin(0, 0)
        for offset in range(10):
            there.append(written("of both", offset))
            there.log.roll_now(1)
        there.leader_epoch = 2
        there.log.epochs.begin(2, 10)
        await there.tier()
        with pytest.raises(Deposed):
            await here.remote.run_round()
        for _ in range(FOLLOWER_LOOK_ROUNDS - 1):
            await follower.remote.run_round()
        assert (here.log.tiered_offset, follower.log.tiered_offset) == (0, 20), "it does not look each time"
        await follower.remote.run_round()
        assert follower.log.tiered_offset == 0

    asyncio.run(main())


@pytest.mark.parametrize("is_led_here", [True, False])
def test_what_the_store_has_lost_is_deleted_here_no_more(is_led_here: bool) -> None:
    async def main() -> None:
        leader = of_both("ours", Store())
        await leader.tier()
        replica = leader
        if not is_led_here:
            replica = of_both("ours", leader.store)
            replica.is_led_here = False
            await replica.remote.run_round()
        assert replica.log.tiered_offset == 20
        leader.store.bucket.objects.clear()
        for _ in range(FOLLOWER_LOOK_ROUNDS):
            with contextlib.suppress(ManifestsGone):
                await replica.remote.run_round()
        assert replica.log.tiered_offset == 0

    asyncio.run(main())


def test_a_follower_deletes_nothing_that_a_reader_finds_meanwhile() -> None:
    """The chain goes on while the follower looks for what it may delete, and a client reads beyond it."""

    async def main() -> None:
        another = clone("theirs ")
        for _ in range(10):
            await another.remote.run_round()
        follower = clone("ours ", another.store)
        follower.is_led_here = False
        find, readers = follower.remote._find_bound, list[asyncio.Task[Any]]()

        async def find_later() -> int:
            await another.tier()
            readers.append(asyncio.create_task(follower.reads.read(15, 100, read_committed=False)))
            for _ in range(100):
                await next_iteration()
            return await find()

        follower.remote._find_bound = find_later  # type: ignore[method-assign]
        await follower.remote.run_round()
        assert follower.log.tiered_offset == 10
        await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(main())


def test_a_follower_deletes_nothing_that_is_appended_while_it_compares() -> None:
    async def main() -> None:
        another = clone("theirs ")
        await another.tier()
        follower = LedLog(CONFIG, store=another.store)
        numbered(follower, "of both ", 10)
        follower.is_led_here, follower.leader_epoch = False, 1
        find = follower.remote._find_bound

        async def find_later() -> int:
            follower.log.epochs.begin(1, 10)
            numbered(follower, "ours ", 10)
            return await find()

        follower.remote._find_bound = find_later  # type: ignore[method-assign]
        await follower.remote.run_round()
        assert follower.log.tiered_offset == 10

    asyncio.run(main())


def test_a_round_ends_while_a_log_with_less_than_the_tier_is_appended_to() -> None:
    """At each pause: what the tier has of the log is another part of it each time."""

    async def main() -> None:
        led = LedLog(CONFIG)
        for _ in range(10):
            for _ in range(9):
                append_next(led, "record ")
            numbered(led, "record ", 1)
        await led.tier()

        async def pause() -> None:
            if follower.log.log_end_offset < 100:
                append_next(follower, "record ")
            await next_iteration()

        follower = LedLog(CONFIG, store=led.store, pause=pause)
        for _ in range(10):
            append_next(follower, "record ")
        follower.log.roll_now(1)
        follower.is_led_here = False
        await follower.remote.run_round()
        assert follower.log.log_end_offset < 90
        assert follower.log.tiered_offset >= 10

    asyncio.run(main())


async def test_a_segment_of_both_clusters_is_said_to_need_the_deletion_of_its_first_records() -> None:
    """No claim helps: what comes before the local start is kept, and the segment has what follows, too."""
    led = LedLog(CONFIG)
    numbered(led, "of both ", 10)
    await led.tier()
    chain = Chain(led.store, led.remote.folder, "another")
    last = await chain.read()
    assert last is not None and led.log.local_start_offset == 10
    theirs = structs.replace(
        last.segments[9], last_offset=12, epochs=((0, 9), (1, 10)), attempt="theirs", last_crc=1
    )
    assert await chain.append(1, structs.replace(last, segments=(*last.segments[:9], theirs)))
    led.log.epochs.begin(1, 10)
    led.leader_epoch = 1
    numbered(led, "ours ", 10)

    async def present(claim: int) -> LedLog:
        found = LedLog(CONFIG, log=led.log, store=led.store, claim=claim)
        found.leader_epoch = 1
        await found.remote.run_round()
        return found

    with pytest.raises(Contested, match=r"tier\.claim=2, once the records below 10 are deleted\."):
        await present(1)
    led.log.advance_log_start_offset(10, led.log.log_end_offset)
    found = await present(2)
    assert found.remote.manifest is not None and found.remote.manifest.claim == 2


def test_what_another_cluster_writes_while_a_leader_begins_is_compared() -> None:
    async def main() -> None:
        another = clone("theirs ")
        for _ in range(10):
            await another.remote.run_round()
        present = clone("ours ", another.store)
        present.leader_epoch = 2
        present.log.epochs.begin(2, 20)
        create = present.store.create

        async def create_later(name: str, data: bytes) -> bool:
            present.store.create = create
            for _ in range(5):
                await another.remote.run_round()
            return await create(name, data)

        present.store.create = create_later
        with pytest.raises(Contested):
            await present.remote.run_round()
        assert present.log.tiered_offset == 0

    asyncio.run(main())


@pytest.mark.parametrize("their_epoch", [3, 2], ids=["same-epoch", "earlier-epoch"])
def test_what_a_reader_finds_of_another_cluster_while_a_leader_begins_is_compared(their_epoch: int) -> None:
    """The reader waits for the chain while the round compares, and reads it on before the round writes."""

    def cluster(text: str, store: Store | None = None) -> LedLog:
        led = LedLog(replace(CONFIG, local_retention_ms=-1), store=store)
        led.leader_epoch = their_epoch
        led.log.epochs.begin(their_epoch, 0)
        numbered(led, text, 3)
        return led

    async def main() -> None:
        present = cluster("ours ")
        another = cluster("theirs ", present.store)
        if their_epoch < 3:
            present.log.epochs.begin(3, 3)
        present.leader_epoch = 3
        remote, compare, readers = present.remote, present.remote._compare, list[asyncio.Future[Any]]()

        async def overtaken(until: int | None = None) -> None:
            if until is None and not readers:
                readers.append(asyncio.ensure_future(remote.readable(is_again=True)))
                await asyncio.sleep(0)
                while await another.remote.run_round():
                    pass
            await compare(until)

        remote._compare = overtaken
        with pytest.raises(Contested):
            await remote.run_round()
        await asyncio.gather(*readers)
        assert remote.manifest is not None and remote.manifest.rank == (0, their_epoch)
        assert remote.manifest.writer == another.remote._parts.writer
        present.log.configure(CONFIG)
        assert present.log.tiered_offset == 0
        assert present.log.delete_old_segments(3, NOW_MS) == []
        assert await texts(present) == ["ours 0", "ours 1", "ours 2"]

    asyncio.run(main())


def test_what_another_cluster_copies_under_the_same_epoch_is_no_orphan() -> None:
    async def main() -> None:
        present = LedLog(CONFIG)
        present.append(batch(0, 1))  # not sealed, so nothing is copied
        another = LedLog(CONFIG, store=present.store)
        numbered(another, "theirs ", 3)
        await present.remote.run_round()
        present.now_ms += 10
        names, upload = present.store.names, f"{another.remote.folder}{3:020d}-theirs.log"

        async def listed(prefix: str) -> list[str]:
            present.store.names = names
            await another.remote.run_round()
            await another.store.put(upload, b"")  # no manifest names it yet
            return await names(prefix)

        present.store.names = listed
        await present.remote.run_round()
        assert upload in present.store.bucket.objects

    asyncio.run(main())


def test_a_batch_that_is_damaged_here_does_not_stop_the_tier() -> None:
    async def main() -> None:
        former = clone("ours ")
        await former.tier()
        present = clone("ours ", former.store)
        present.leader_epoch = 2
        present.log.epochs.begin(2, 20)
        damaged = next(iter(present.log.segments))
        present.disk.flip_bit(damaged.log_path, damaged.size - 2)
        await present.remote.run_round()
        assert present.log.tiered_offset == 20

    asyncio.run(main())


@pytest.mark.parametrize("end", [5, 7, 8])
def test_a_follower_that_is_truncated_while_it_compares_goes_on(end: int) -> None:
    """Offset 7 is looked at then."""

    async def main() -> None:
        another = clone("ours ")
        await another.tier()
        follower = clone("ours ", another.store)
        follower.is_led_here = False
        offload, calls = follower.disk.offload, itertools.count()

        async def truncated(work: Callable[[], T]) -> T:
            if next(calls) == 7:
                follower.log.truncate_to(end, wall_ms=NOW_MS)
            return await offload(work)

        follower.disk.offload = truncated
        await follower.remote.run_round()
        assert (follower.log.log_end_offset, follower.log.tiered_offset) == (end, end)

    asyncio.run(main())


def test_a_leader_goes_on_from_manifests_without_crcs() -> None:
    async def main() -> None:
        former = clone("ours ")
        await former.tier()
        last = former.remote.manifest
        assert last is not None
        without = tuple(structs.replace(one, last_crc=None) for one in last.segments)
        chain = Chain(former.store, former.remote.folder, "former")
        await chain.read()
        assert await chain.append_at_rest(1, structs.replace(last, segments=without))
        present = clone("ours ", former.store)
        present.leader_epoch = 2
        present.log.epochs.begin(2, 20)
        await present.tier()
        assert present.log.local_start_offset == 20

    asyncio.run(main())


@pytest.mark.parametrize(("claim", "epoch"), [(1, 1), (0, 3), (0, 1)], ids=["claim", "epoch", "same-rank"])
def test_a_leader_that_may_not_write_does_not_begin_where_others_say(claim: int, epoch: int) -> None:
    async def main() -> None:
        led = clone("ours ")
        await led.tier()
        another = LedLog(CONFIG, store=led.store, claim=claim)
        numbered(another, "theirs ", 20)
        another.leader_epoch = epoch
        another.log.epochs.begin(epoch, 20)
        last = led.remote.manifest
        assert last is not None
        theirs = structs.replace(last, log_start_offset=15)
        chain = Chain(led.store, led.remote.folder, "theirs", claim)
        await chain.read()
        assert (
            await chain.append_at_rest(epoch, theirs)
            if (claim, epoch) == (0, 1)
            else await chain.append(epoch, theirs)
        )
        before = led.log.log_start_offset
        with pytest.raises(Deposed):
            await led.remote.run_round()
        assert led.log.log_start_offset == before == 0

    asyncio.run(main())


def test_metadata_that_have_grown_to_the_same_length_are_not_those_that_were_lost() -> None:
    led = former()

    async def main() -> None:
        behind = other(led)
        behind.facts = structs.replace(TOPIC, metadata_entry=TOPIC.metadata_entry - 1)
        await behind.remote.run_round()
        behind.now_ms += BEHIND_MS_MAX
        for entry in (TOPIC.metadata_entry - 1, TOPIC.metadata_entry + 1):
            behind.facts = structs.replace(TOPIC, metadata_entry=entry)
            with pytest.raises(MetadataBehind):
                await behind.remote.run_round()
        assert behind.log.log_start_offset == 0

    asyncio.run(main())
