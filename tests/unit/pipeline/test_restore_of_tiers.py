"""Restoring tiered topics from their store alone, into the empty replicas of stopped brokers."""

from __future__ import annotations

import asyncio
import errno
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from nilometer.cli import topics
from nilometer.pipeline.archive import tier_restore
from nilometer.pipeline.archive.replica_folders import EmptyReplica
from nilometer.pipeline.archive.restore import RECENT_MS, Restored, create_command
from nilometer.pipeline.archive.tier_restore import restore
from nilometer.pipeline.errors import SourceError
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.runtime.runtime import SystemClock
from nilometer.storage.names import TopicPartition
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.tier import transfer
from nilometer.tier.catalogue import StoredPartition, find_partitions
from nilometer.tier.chain import Chain
from nilometer.tier.format import (
    Manifest,
    RemoteSegment,
    TopicFacts,
    encode_manifest,
    manifest_name,
    partition_folder,
)
from nilometer.wire.record_batch import batches
from nilometer.wire.records import (
    decode_records,
)
from support.logs.stopped_brokers import BROKER_EPOCH, EVENTS, WALL_MS, broker_folder, opened
from support.tier.former_partition import CONFIG, batch, former
from support.tier.led_log import LedLog, Store
from support.tier.remote_segments import FOLDER, TOPIC, manifest, segment

NEW = structs.replace(TOPIC, cluster_id="c", topic_id="b" * 21 + "A", metadata_entry=0)
NEW_FOLDER = partition_folder(NEW.cluster_id, NEW.topic_id, 0)


def run(led: LedLog, *places: Path, **given: object) -> list[Restored]:
    return asyncio.run(restore(led.store, led.store, ["events"], [str(one) for one in places], **given))  # type: ignore[arg-type]


async def read(led: LedLog, start: int) -> tuple[list[tuple[Any, ...]], set[AbortedTxn], set[int]]:
    """Read the tier from ``start`` on: the records, the aborted transactions, and the leader epochs."""
    found: list[tuple[Any, ...]] = []
    aborted, epochs, offset = set[AbortedTxn](), set[int](), start
    while offset < led.log.local_start_offset:
        records, more = await led.reads.read(offset, 200, read_committed=True)
        aborted |= set(more)
        for at, header in batches(records):
            epochs.add(header.partition_leader_epoch)
            offset = header.next_offset
            found += [
                (one.offset, one.timestamp, one.key, one.value, one.headers)
                for one in decode_records(records, at, header)
            ]
    return [one for one in found if one[0] >= start], aborted, epochs


def leading(led: LedLog, place: Path, work: Callable[[LedLog], None], facts: TopicFacts = NEW) -> None:
    """Call ``work`` with the leader of the restored partition, as the next start of its broker has it."""
    manager = opened(place)
    log = manager.logs[EVENTS]
    log.configure(CONFIG)
    leader = LedLog(CONFIG, log=log, store=led.store, facts=facts)
    leader.leader_epoch = 1
    log.epochs.begin(1, log.log_end_offset)
    assert manager.previous_broker_epoch == BROKER_EPOCH, "it was closed in order"
    assert not manager.damages
    work(leader)
    manager.close({}, broker_epoch=BROKER_EPOCH, wall_ms=WALL_MS)


def ends_at(offset: int) -> Callable[[LedLog], None]:
    def check(leader: LedLog) -> None:
        assert leader.log.log_end_offset == offset

    return check


async def last_manifest(store: Store, folder: str = NEW_FOLDER) -> Manifest | None:
    return await Chain(store, folder, "").read()


def test_all_records_come_back_and_the_next_leader_goes_on_behind_them(tmp_path: Path) -> None:
    led = former()
    first, second = broker_folder(tmp_path / "one"), broker_folder(tmp_path / "two")
    (result,) = run(led, first, second)
    assert (result.start, result.end, result.records, result.replicas, result.aborted) == (0, 18, 18, 2, 0)
    expected, _, former_epochs = asyncio.run(read(led, 0))
    assert former_epochs == {0, 1, 2}
    assert [one[0] for one in expected] == list(range(18))

    def go_on(leader: LedLog) -> None:
        log = leader.log
        assert (log.log_start_offset, log.local_start_offset, log.log_end_offset, log.size) == (0, 18, 18, 0)
        assert log.epochs.entries[0] == (0, 0)

        async def main() -> None:
            assert await read(leader, 0) == (expected, set(), {0})
            leader.append(batch(18, 3))
            log.roll_now(1)
            await leader.tier()
            assert (log.local_start_offset, log.log_start_offset) == (21, 0)
            records, _, epochs = await read(leader, 0)
            assert ([one[0] for one in records], epochs) == (list(range(21)), {0, 1})
            manifest = leader.remote.manifest
            assert manifest is not None
            assert (manifest.leader_epoch, manifest.topic, manifest.dropped) == (1, NEW, ())

        asyncio.run(main())

    leading(led, first, go_on)
    manager = opened(second)
    assert manager.initial_high_watermark(EVENTS) == 18
    assert manager.logs[EVENTS].log_end_offset == 18
    manager.close({}, broker_epoch=BROKER_EPOCH, wall_ms=WALL_MS)


def test_transactions_without_an_end_in_the_store_are_aborted(tmp_path: Path) -> None:
    """The abort of 10 and the commit of 9 were in the active segment only."""
    led = former(transactions=True)
    place = broker_folder(tmp_path / "one")
    (result,) = run(led, place)
    assert (result.end, result.aborted) == (30, 2)

    def check(leader: LedLog) -> None:
        assert leader.log.log_end_offset == 30
        assert not leader.log.producers.producers, "the new cluster gives their ids to others"
        assert leader.log.last_stable_offset(30) == 30

        async def main() -> None:
            records, aborted, _ = await read(leader, 0)
            assert [one[0] for one in records] == list(range(30))
            assert aborted == {
                AbortedTxn(7, 18, 20, 21),
                AbortedTxn(9, 24, 28, 26),
                AbortedTxn(10, 26, 29, 30),
            }
            assert not await leader.remote.run_round()
            for offset, end in ((20, 28), (30, 30)):
                state = await leader.reads.state_at(offset)
                assert (state.start_offset, state.producers) == (end, transfer.NO_PRODUCERS)

        asyncio.run(main())

    leading(led, place, check)


def test_a_log_that_began_within_a_segment_begins_there_again(tmp_path: Path) -> None:
    led = former()
    led.log.advance_log_start_offset(8, led.log.log_end_offset)
    asyncio.run(led.tier())
    place = broker_folder(tmp_path / "one")
    (result,) = run(led, place)
    assert (result.start, result.end) == (8, 18)

    def check(leader: LedLog) -> None:
        assert (leader.log.log_start_offset, leader.log.local_start_offset) == (8, 18)
        records, _, _ = asyncio.run(read(leader, 8))
        assert [one[0] for one in records] == list(range(8, 18))

    leading(led, place, check)


@pytest.mark.parametrize("where", ["copies", "replicas"])
def test_a_run_that_is_killed_is_repeated(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed: nothing is undone."""
    led = former()
    first, second = broker_folder(tmp_path / "one"), broker_folder(tmp_path / "two")
    places = (first, second)

    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(tier_restore.ReplicaFolders, "_undo", lambda _self: [])
        if where == "copies":
            puts = 0
            put = led.store.put

            async def dying(name: str, data: bytes) -> None:
                nonlocal puts
                puts += 1
                if puts > 1:
                    raise ObjectStoreError("killed")
                await put(name, data)

            patch.setattr(led.store, "put", dying)
            with pytest.raises(SourceError, match="killed"):
                run(led, *places)
        else:
            begin, begun = EmptyReplica.begin_in_tier, list[str]()

            def dying_begin(self: EmptyReplica, *args: object) -> None:
                if begun:
                    raise Killed
                begun.append(self.folder)
                begin(self, *args)  # type: ignore[arg-type]

            patch.setattr(EmptyReplica, "begin_in_tier", dying_begin)
            with pytest.raises(Killed):
                run(led, *places)
    copied = set(led.store.bucket.objects)
    (result,) = run(led, *places)
    assert (result.start, result.end, result.replicas) == (0, 18, 2)
    if where == "replicas":
        assert result.records is None
        assert set(led.store.bucket.objects) == copied, "nothing is copied twice"
    for place in places:
        leading(
            led, place, lambda leader: None if leader.log.log_end_offset == 18 else pytest.fail("its end")
        )


def test_what_an_earlier_run_has_copied_from_another_store_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archives of one topic have the same ids, and manifests of the same numbers."""
    led = former()
    place = broker_folder(tmp_path / "one")
    last = asyncio.run(last_manifest(led.store, FOLDER))
    assert last is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def holds(count: int) -> None:
        held = structs.replace(last, segments=last.segments[:count])
        led.store.bucket.objects[FOLDER + manifest_name(last.number)] = encode_manifest(held)

    holds(2)
    with monkeypatch.context() as patch:
        patch.setattr(EmptyReplica, "begin_in_tier", full)
        with pytest.raises((OSError, SourceError), match="No space left"):
            run(led, place)
    holds(len(last.segments))
    (result,) = run(led, place)
    assert (result.start, result.end, result.records) == (0, 18, 18)


def test_a_leader_that_starts_after_a_run_was_killed_shows_nothing_and_removes_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = former()
    place = broker_folder(tmp_path / "one")

    class Killed(BaseException):
        pass

    def dying(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(EmptyReplica, "begin_in_tier", dying)
        patch.setattr(EmptyReplica, "empty", lambda _self: None)
        with pytest.raises(Killed):
            run(led, place)

    def lead(leader: LedLog) -> None:
        async def main() -> None:
            await leader.tier()
            assert (leader.log.log_end_offset, leader.remote.remote_bytes) == (0, 0)
            leader.now_ms += 5_000
            await leader.tier()

        asyncio.run(main())
        names = [name for name in led.store.bucket.objects if name.startswith(NEW_FOLDER)]
        assert not [name for name in names if name.endswith((".log", ".index"))]

    leading(led, place, lead)
    (result,) = run(led, place)
    assert (result.start, result.end, result.records) == (0, 18, 18)


def test_a_leader_goes_on_in_a_topic_of_which_a_part_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes that part, and copies its own records."""
    led = former()
    place = broker_folder(tmp_path / "one")
    copy = tier_restore.copy_partition

    async def dying(*given: Any, **more: Any) -> transfer.Copied:
        await copy(*given, **more)
        raise ObjectStoreError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(tier_restore, "copy_partition", dying)
        with pytest.raises(SourceError, match="killed"):
            run(led, place)

    def copies() -> list[str]:
        names = led.store.bucket.objects
        return [name for name in names if name.startswith(NEW_FOLDER) and name.endswith(".log")]

    former_copies = set(copies())
    assert former_copies

    def lead(leader: LedLog) -> None:
        leader.append(batch(0, 3))
        leader.log.roll_now(1)
        asyncio.run(leader.tier())
        leader.now_ms += 5_000
        asyncio.run(leader.tier())
        assert leader.log.local_start_offset == 3
        assert len(copies()) == 1 and former_copies.isdisjoint(copies())

    leading(led, place, lead)


def test_what_is_in_use_is_not_restored_into(tmp_path: Path) -> None:
    led = former()
    place = broker_folder(tmp_path / "one")
    run(led, place)
    leading(led, place, lambda leader: asyncio.run(leader.tier()))
    with pytest.raises(SourceError, match="create the topic again"):
        run(led, place)


def test_a_topic_whose_replicas_alone_are_empty_keeps_its_records_in_the_store(tmp_path: Path) -> None:
    led = former()

    async def write() -> None:
        chain = Chain(led.store, NEW_FOLDER, "its leader")
        await chain.read()
        assert await chain.append(4, structs.replace(manifest(segment(0, 9)), topic=NEW))

    asyncio.run(write())
    before = dict(led.store.bucket.objects)
    with pytest.raises(SourceError, match="has records, or a deleted topic, already"):
        run(led, broker_folder(tmp_path / "one"))
    assert led.store.bucket.objects == before


def test_a_damaged_object_is_named_and_no_segment_is_restored(tmp_path: Path) -> None:
    led = former()
    objects = led.store.bucket.objects
    (name,) = [one for one in objects if one.startswith(FOLDER + f"{6:020d}") and one.endswith(".log")]
    objects[name] = objects[name][:80] + b"#" + objects[name][81:]
    place = broker_folder(tmp_path / "one")
    with pytest.raises(SourceError, match=f"{name} is damaged at byte 0"):
        run(led, place)
    leading(led, place, ends_at(0))
    last = asyncio.run(last_manifest(led.store))
    assert last is not None and last.segments == ()


def test_what_the_store_lacks_is_named_first(tmp_path: Path) -> None:
    led = former()
    place = broker_folder(tmp_path / "one")
    with pytest.raises(SourceError, match="the store has no records of topic other"):
        asyncio.run(restore(led.store, led.store, ["other"], [str(place)]))
    with pytest.raises(SourceError, match="no topic events with the id x, but cluster/topic-id"):
        run(led, place, topic_id="x")
    with pytest.raises(SourceError, match="no broker has a replica of old-0 here") as refused:
        run(led, place, name="old")
    assert "nilometer topic create old --partitions 1 --config remote.storage.enable=true\n" in str(
        refused.value
    )

    async def lose_the_middle() -> None:
        chain = Chain(led.store, FOLDER, "x")
        last = await chain.read()
        assert last is not None
        count = structs.replace(last.topic, partition_count=2)
        gone = structs.replace(last.without([last.segments[1]], 0), topic=count)
        assert await chain.append_at_rest(0, gone)

    asyncio.run(lose_the_middle())
    with pytest.raises(SourceError, match="nothing of 1 of the 2 partitions of events, events-1 for example"):
        run(led, place)
    (result,) = run(led, place, allows_missing=True)
    assert (result.start, result.end, result.stored.gaps) == (12, 18, [(6, 12)])


def test_a_topic_restored_beside_its_first_one_must_be_chosen(tmp_path: Path) -> None:
    led = former()
    run(led, broker_folder(tmp_path / "one"))
    other = broker_folder(tmp_path / "two", TopicPartition("x", 0), EVENTS)
    with pytest.raises(SourceError, match=f"choose --topic-id c/{NEW.topic_id}, cluster/topic-id$"):
        run(led, other)
    (result,) = run(led, other, topic_id="topic-id")
    assert result.end == 18


def test_brokers_that_start_while_records_are_copied_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No directory is open meanwhile: what its broker has done since is looked at again."""
    led = former()
    place = broker_folder(tmp_path / "one")
    copy = tier_restore.copy_partition

    async def lead(*given: Any, **more: Any) -> transfer.Copied:
        found = await copy(*given, **more)
        chain = Chain(led.store, NEW_FOLDER, "its leader")
        await chain.read()
        assert await chain.append(4, structs.replace(manifest(), topic=NEW))
        return found

    async def append(*given: Any, **more: Any) -> transfer.Copied:
        await asyncio.to_thread(leading, led, place, lambda leader: leader.append(batch(0, 3)))
        return await copy(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(tier_restore, "copy_partition", append)
        with pytest.raises(SourceError, match="is not empty: its next offset is 3"):
            run(led, place)
    other = broker_folder(tmp_path / "two")
    led = former()
    with monkeypatch.context() as patch:
        patch.setattr(tier_restore, "copy_partition", lead)
        with pytest.raises(SourceError, match="was written to by others: stop the brokers of events-0"):
            run(led, other)
    leading(led, other, ends_at(0))


def test_a_run_on_another_machine_at_the_same_time_is_no_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = former()
    first, second = broker_folder(tmp_path / "one"), broker_folder(tmp_path / "two")
    copy = tier_restore.copy_partition

    async def other_first(*given: Any, **more: Any) -> transfer.Copied:
        with monkeypatch.context() as patch:
            patch.setattr(tier_restore, "copy_partition", copy)
            await restore(led.store, led.store, ["events"], [str(second)])
        return await copy(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(tier_restore, "copy_partition", other_first)
        run(led, first)
    for place in (first, second):
        leading(led, place, ends_at(18))


def in_another_cluster(led: LedLog, cluster: str, segments: int) -> None:
    """Copy the folder to another cluster's, whose last manifest names so many segments."""
    objects = led.store.bucket.objects
    folder = partition_folder(cluster, TOPIC.topic_id, 0)
    for name in [one for one in objects if one.startswith(FOLDER)]:
        objects[folder + name.removeprefix(FOLDER)] = objects[name]
    last = asyncio.run(last_manifest(led.store, FOLDER))
    assert last is not None
    facts = structs.replace(TOPIC, cluster_id=cluster)
    other = structs.replace(last, segments=last.segments[:segments], topic=facts)
    objects[folder + manifest_name(last.number)] = encode_manifest(other)


@pytest.mark.parametrize(("chosen", "end"), [("cluster/topic-id", 18), ("a-cluster/topic-id", 12)])
def test_one_topic_id_of_two_clusters_must_be_chosen(chosen: str, end: int, tmp_path: Path) -> None:
    led = former()
    in_another_cluster(led, "a-cluster", 2)
    place = broker_folder(tmp_path / "one")
    for given in (None, "topic-id"):
        with pytest.raises(SourceError, match="choose --topic-id a-cluster/topic-id, cluster/topic-id"):
            run(led, place, topic_id=given)
    for _ in range(2):
        (result,) = run(led, place, topic_id=chosen)
        assert (result.start, result.end, result.stored.cluster_id) == (0, end, chosen.partition("/")[0])
    leading(led, place, ends_at(end))


def test_a_topic_of_its_own_id_comes_back_from_the_folder_of_its_former_cluster(tmp_path: Path) -> None:
    """Its metadata were restored under a new cluster id."""
    led = former()
    objects = led.store.bucket.objects
    folder = partition_folder("former", NEW.topic_id, 0)
    for name in [one for one in objects if one.startswith(FOLDER)]:
        objects[folder + name.removeprefix(FOLDER)] = objects.pop(name)
    last = asyncio.run(last_manifest(led.store, folder))
    assert last is not None
    moved = structs.replace(last, topic=structs.replace(NEW, cluster_id="former"))
    objects[folder + manifest_name(last.number)] = encode_manifest(moved)
    place = broker_folder(tmp_path / "one")
    for _ in range(2):
        (result,) = run(led, place)
        assert (result.start, result.end) == (0, 18)


def written_ago(led: LedLog, ago_ms: int) -> None:
    """Let the last manifest of the former topic have been written so long ago."""
    last = asyncio.run(last_manifest(led.store, FOLDER))
    assert last is not None
    written_ms = SystemClock().wall_ms() - ago_ms
    held = structs.replace(last, written_ms=written_ms)
    led.store.bucket.objects[FOLDER + manifest_name(last.number)] = encode_manifest(held)


@pytest.mark.parametrize("ago_ms", [0, RECENT_MS - 60_000, -3_600_000])
def test_what_another_cluster_may_still_write_to_is_not_restored(ago_ms: int, tmp_path: Path) -> None:
    """A run on another machine would restore more. Its clock may be ahead."""
    led = former()
    written_ago(led, ago_ms)
    place = broker_folder(tmp_path / "one")
    before = set(led.store.bucket.objects)
    with pytest.raises(SourceError, match=rf"{FOLDER} was written to \d+ s ago: .* with --allow-recent$"):
        run(led, place)
    assert set(led.store.bucket.objects) == before
    (result,) = run(led, place, allows_recent=True)
    assert (result.start, result.end) == (0, 18)
    (again,) = run(led, place)
    assert again.records is None, "it is the same state of the store: nothing is to be refused"


def test_what_was_written_to_some_time_ago_is_restored(tmp_path: Path) -> None:
    led = former()
    written_ago(led, RECENT_MS)
    (result,) = run(led, broker_folder(tmp_path / "one"))
    assert (result.start, result.end) == (0, 18)


def test_a_topic_is_restored_beside_itself_in_its_own_cluster(tmp_path: Path) -> None:
    led = former()
    objects = led.store.bucket.objects
    for name in [one for one in objects if one.startswith(FOLDER)]:
        objects[NEW_FOLDER + name.removeprefix(FOLDER)] = objects.pop(name)
    last = asyncio.run(last_manifest(led.store))
    assert last is not None
    last = structs.replace(last, topic=NEW, written_ms=SystemClock().wall_ms())
    objects[NEW_FOLDER + manifest_name(last.number)] = encode_manifest(last)
    place = broker_folder(tmp_path / "one", EVENTS, TopicPartition("again", 0))
    for _ in range(2):
        (result,) = run(led, place, name="again")
        assert (result.start, result.end) == (0, 18)


def test_the_topic_itself_needs_no_restore(tmp_path: Path) -> None:
    led = former()
    place = broker_folder(tmp_path / "one")
    run(led, place)
    for name in [one for one in led.store.bucket.objects if one.startswith(FOLDER)]:
        del led.store.bucket.objects[name]
    with pytest.raises(SourceError, match="is of this very topic, which needs no restore"):
        run(led, place)


def test_folders_with_other_spellings_of_a_number_are_no_partitions(tmp_path: Path) -> None:
    led = former()
    objects = led.store.bucket.objects
    for name in [one for one in objects if one.startswith(FOLDER)]:
        for other in ("00", "9" * 200, "+0"):
            objects[name.replace("/0/", f"/{other}/")] = objects[name]
    place = broker_folder(tmp_path / "one")
    for _ in range(2):
        (result,) = run(led, place)
        assert result.end == 18


@pytest.mark.parametrize("name", ["old", "-x", "--json"])
def test_the_command_that_creates_the_topic_has_its_name(name: str) -> None:
    """Names that begin with a hyphen are lawful, and look like options."""
    (stored,) = asyncio.run(find_partitions(former().store))
    words = shlex.split(create_command([stored], name, is_tiered=True))
    assert words[:3] == ["nilometer", "topic", "create"]
    command = topics.create.make_context("create", words[3:])
    assert (command.params["names"], command.params["partitions"]) == ((name,), 1)


@pytest.mark.parametrize(
    ("is_archive", "is_tiered", "settings"),
    [
        (False, True, {"remote.storage.enable": "true", "segment.bytes": "1000000"}),
        (True, True, {"remote.storage.enable": "true", "retention.ms": "-1"}),
        (False, False, {"retention.ms": "-1"}),
        (True, False, {"retention.ms": "-1"}),
    ],
)
def test_the_topic_is_created_so_that_nothing_expires_which_was_restored(
    is_archive: bool, is_tiered: bool, settings: dict[str, str]
) -> None:
    """An archive tells no settings, and by default records of a week ago expire."""
    known = {} if is_archive else {"segment.bytes": "1000000"}
    held = structs.replace(
        manifest(segment(0, 9)), topic=structs.replace(TOPIC, settings=known), is_archive=is_archive
    )
    stored = StoredPartition(TOPIC.cluster_id, TOPIC.topic_id, 0, held)
    words = shlex.split(create_command([stored], "events", is_tiered=is_tiered))
    command = topics.create.make_context("create", words[3:])
    assert dict(one.split("=") for one in command.params["configs"]) == settings


async def give_up(led: LedLog, count: int, *, is_named: bool = False) -> None:
    """Expire so many of the first segments, and remove their objects, as after the grace period."""
    chain = Chain(led.store, FOLDER, "its leader")
    last = await chain.read()
    assert last is not None
    gone = last.segments[:count]
    if not is_named:
        following = structs.replace(last.without(gone, 0), log_start_offset=gone[-1].end_offset)
        assert await chain.append_at_rest(0, following)
    for one in gone:
        await led.store.remove(FOLDER + one.log_name)
        await led.store.remove(FOLDER + one.index_name)


def test_segments_that_expire_while_a_partition_is_checked_are_no_damage() -> None:
    led = former()

    async def main() -> None:
        (found,) = await find_partitions(led.store)
        await give_up(led, 2)
        assert await transfer.check_partition(led.store, found, lambda _: None) == []
        await give_up(led, 1, is_named=True)
        (name,) = [one.index_name for one in found.segments[2:]]
        said = await transfer.check_partition(led.store, found, lambda _: None)
        assert said == [f"{FOLDER}{name} is missing"]

    asyncio.run(main())


def test_segments_that_expire_while_they_are_copied_are_left_out(tmp_path: Path) -> None:
    led = former()
    place = broker_folder(tmp_path / "one")
    upload, uploads = led.store.upload, 0

    async def expiring(*given: Any) -> None:
        nonlocal uploads
        uploads += 1
        if uploads == 1:
            await give_up(led, 2)
        await upload(*given)

    led.store.upload = expiring  # type: ignore[method-assign]
    (result,) = run(led, place)
    assert (result.start, result.end, result.records) == (12, 18, 6)

    def check(leader: LedLog) -> None:
        assert (leader.log.log_start_offset, leader.log.log_end_offset) == (12, 18)
        records, _, _ = asyncio.run(read(leader, 12))
        assert [one[0] for one in records] == list(range(12, 18))

    leading(led, place, check)


def test_a_segment_that_is_lost_is_named(tmp_path: Path) -> None:
    led = former()
    asyncio.run(give_up(led, 1, is_named=True))
    with pytest.raises(SourceError, match=f"there is no object {FOLDER}"):
        run(led, broker_folder(tmp_path / "one"))


def test_a_partition_of_many_segments_has_few_copies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [segment(10 * number, 10 * number + 9) for number in range(300)]
    stored = StoredPartition(TOPIC.cluster_id, TOPIC.topic_id, 0, manifest(*segments))
    room, peak, copied = asyncio.Semaphore(4), 0, list[str]()

    async def copy(_source: Any, _folder: str, one: RemoteSegment, *_: Any) -> tuple[RemoteSegment, int]:
        nonlocal peak
        peak = max(peak, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        copied.append(one.attempt)
        if len(copied) == 100:
            raise ObjectStoreError("it is away")
        return one, 10

    async def no_markers(*_: Any) -> None: ...

    monkeypatch.setattr(transfer, "_copy", copy)
    monkeypatch.setattr(transfer, "_end_transactions", no_markers)

    async def main() -> None:
        given: Any = (None, stored, None, NEW_FOLDER)
        more: Any = {"new_name": lambda: "x", "room": room, "on_bytes": lambda _: None}
        with pytest.raises(ObjectStoreError, match="it is away"):
            await transfer.copy_partition(*given, **more)
        copied.extend(["the failed one"] * 100)
        found = await transfer.copy_partition(*given, **more)
        assert (found.segments, found.records) == (tuple(segments), 3_000)

    asyncio.run(main())
    assert peak <= 6
