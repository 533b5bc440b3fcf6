"""Restoring an archive into the empty replicas of stopped brokers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nilometer.pipeline.archive import restore as restoring
from nilometer.pipeline.archive.replica_folders import EmptyReplica, ReplicaFolders
from nilometer.pipeline.archive.restore import Restored
from nilometer.pipeline.archive.stored import open_stored
from nilometer.pipeline.errors import PipelineError, SourceError
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.names import TopicPartition
from nilometer.storage.segments.segment import LogSegment
from nilometer.tier.chain import Chain
from nilometer.tier.format import IndexSections, encode_index, encode_manifest, manifest_name
from nilometer.wire.record_batch import batches
from support.logs.folder_logs import FolderLog
from support.logs.stopped_brokers import BROKER_EPOCH, EVENTS, WALL_MS, broker_folder, opened
from support.pipeline.archives import (
    append,
    archive_topic,
    archive_topics,
    events_log,
    numbered,
    rows_of,
    set_topic_id,
    stored_in,
)
from support.tier.remote_segments import FOLDER, manifest, segment


def restore(source: str, topics: Sequence[str], places: Sequence[str], **given: Any) -> list[Restored]:
    return asyncio.run(restoring.restore(open_stored(source), topics, places, **given))


COMMITTED = {"isolation.level": "read_committed"}


def log_range(directory: Path, part: TopicPartition = EVENTS) -> tuple[int, int, int]:
    """Where the log starts and ends, and its high watermark, as the next start of the broker has them."""
    manager = opened(directory)
    log = manager.logs[part]
    found = log.log_start_offset, log.log_end_offset, manager.initial_high_watermark(part)
    assert manager.previous_broker_epoch == BROKER_EPOCH, "it was closed in order"
    assert not manager.damages
    assert not log.producers.producers, "the new cluster gives their ids to others"
    manager.close({}, broker_epoch=BROKER_EPOCH, wall_ms=WALL_MS)
    return found


def rows(place: Path, **given) -> list[dict]:
    return rows_of(columns=("key", "value", "offset", "timestamp"), path=place, **given)


@pytest.fixture
def archived(tmp_path):
    log = events_log(tmp_path / "logs")
    archive_topic(log.log_dir, tmp_path / "archive")
    return log


def test_records_have_their_offsets_again_in_every_replica(archived, tmp_path):
    first, second = (broker_folder(tmp_path / name) for name in ("one", "two"))
    (result,) = restore(str(tmp_path / "archive"), ["events"], [str(first), str(second)])
    assert (result.replicas, result.start, result.end, result.records) == (2, 0, 300, 300)
    assert (result.aborted_records, result.unfinished_records, result.stored.gaps) == (0, 0, [])
    expected = [row for row in rows(archived.log_dir) if row["offset"] < 300]
    for place in (first, second):
        assert rows(place) == expected
        assert log_range(place) == (0, 300, 300)
        data = (place / "events-0" / f"{0:020d}.log").read_bytes()
        assert {header.partition_leader_epoch for _, header in batches(data)} == {0}
        assert rows(place) == expected, "also after another start"


def test_a_log_that_starts_within_a_batch(tmp_path):
    log = events_log(tmp_path / "logs")
    log.checkpoint(400, log_start=134)
    archive_topic(log.log_dir, tmp_path / "archive")
    target = broker_folder(tmp_path / "target")
    (result,) = restore(str(tmp_path / "archive"), ["events"], [str(target)])
    assert (result.start, result.end, result.records) == (134, 300, 166)
    assert log_range(target) == (134, 300, 300)
    assert [row["offset"] for row in rows(target)] == list(range(134, 300))


@pytest.mark.parametrize("seed", range(12))
def test_what_a_reader_of_committed_records_sees_is_restored(seed, tmp_path):
    """Random batches, with and without producers and transactions, of which some abort and some never end."""
    chance = random.Random(seed)
    log = FolderLog(tmp_path / "logs", "events")
    running: dict[int, int] = {}
    for _ in range(chance.randint(20, 60)):
        if log.next_offset and chance.random() < 0.1:
            log.roll()
        if running and chance.random() < 0.35:
            producer = chance.choice(sorted(running))
            first, commits = running.pop(producer), chance.random() < 0.5
            marker = log.end_transaction(producer, commit=commits)
            if not commits:
                log.index_aborted(producer, first, marker, min([*running.values(), marker + 1]))
            continue
        records = numbered(log.next_offset, chance.randint(1, 7))
        producer = chance.choice([-1, 1, 2, 3])
        if producer > 0:
            running.setdefault(producer, log.next_offset)
            log.append(records, producer_id=producer, transactional=True)
        else:
            log.append(records)
    log.roll()
    append(log, 1)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    result = archive_topic(log.log_dir, tmp_path / "archive")
    target = broker_folder(tmp_path / "target")
    (restored,) = restore(str(tmp_path / "archive"), ["events"], [str(target)])
    stable_end = min(running.values(), default=result.end)
    expected = [row for row in rows(log.log_dir, **COMMITTED) if row["offset"] < stable_end]
    assert rows(target) == rows(target, **COMMITTED) == expected
    assert restored.records == len(expected)
    everything = [row for row in rows(log.log_dir) if row["offset"] < result.end]
    assert restored.records is not None
    assert restored.records + restored.aborted_records + restored.unfinished_records == len(everything)
    assert log_range(target) == (0, stable_end, stable_end)
    again = archive_topic(target, tmp_path / "again")
    assert again.problem is None, "a restored log has no gap, so it can be archived"


def lose_segment(place: Path, base_offset: int) -> None:
    """As if the run had come too late for a segment."""
    (one,) = stored_in(place)
    assert one.manifest is not None
    lost = [segment for segment in one.manifest.segments if segment.base_offset == base_offset]
    manifest = one.manifest.without(lost, 0)
    (place / one.folder / manifest_name(manifest.number)).write_bytes(encode_manifest(manifest))


def test_offsets_that_the_archive_lacks_are_refused_or_stay_empty(tmp_path):
    log = events_log(tmp_path / "logs")
    archive_topic(log.log_dir, tmp_path / "archive")
    lose_segment(tmp_path / "archive", 100)
    target = broker_folder(tmp_path / "target")
    with pytest.raises(SourceError, match="lacks the offsets 100 to 199"):
        restore(str(tmp_path / "archive"), ["events"], [str(target)])
    (result,) = restore(str(tmp_path / "archive"), ["events"], [str(target)], allows_missing=True)
    assert (result.records, result.stored.gaps) == (200, [(100, 200)])
    assert [row["offset"] for row in rows(target)] == [*range(100), *range(200, 300)]
    assert log_range(target) == (0, 300, 300)


def test_a_transaction_whose_end_is_missing_is_left_out_up_to_the_gap(tmp_path):
    """Its producer may have begun another one behind the gap, which ends in another way."""
    log = FolderLog(tmp_path / "logs", "events")
    for producer in (1, 2):
        log.append(numbered(log.next_offset, 10), producer_id=producer, transactional=True)
    log.append(numbered(20, 10))
    log.roll()
    for producer in (1, 2):
        log.end_transaction(producer, commit=False)
    log.roll()
    log.append(numbered(32, 5), producer_id=1, transactional=True)
    log.append(numbered(37, 5))
    log.end_transaction(1, commit=True)
    log.roll()
    append(log, 1)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    archive_topic(log.log_dir, tmp_path / "archive")
    lose_segment(tmp_path / "archive", 30)
    target = broker_folder(tmp_path / "target")
    (result,) = restore(str(tmp_path / "archive"), ["events"], [str(target)], allows_missing=True)
    assert (result.records, result.aborted_records, result.unfinished_records) == (20, 0, 20)
    assert [row["offset"] for row in rows(target)] == [*range(20, 30), *range(32, 42)]
    assert log_range(target) == (0, 43, 43)


def test_what_compaction_has_removed_cuts_no_transaction(tmp_path):
    """The topic was compacted before it was tiered."""
    log = FolderLog(tmp_path / "logs", "events")
    log.append(numbered(0, 5), producer_id=7, transactional=True)
    log.next_offset = 10
    log.append(numbered(10, 5), producer_id=7, transactional=True)
    log.end_transaction(7, commit=True)
    data, index = log.path(".log", 0).read_bytes(), encode_index(IndexSections(b"", b"", b"", b""))
    stored = segment(0, 15, log_bytes=len(data), index_bytes=len(index))
    store = open_stored(str(tmp_path / "store"), creates=True)

    async def write() -> None:
        assert await Chain(store, FOLDER, "leader").append(0, manifest(stored))
        await store.put(FOLDER + stored.log_name, data)
        await store.put(FOLDER + stored.index_name, index)

    asyncio.run(write())
    target = broker_folder(tmp_path / "target")
    (result,) = restore(str(tmp_path / "store"), ["events"], [str(target)])
    assert (result.records, result.unfinished_records) == (10, 0)
    assert [row["offset"] for row in rows(target)] == [*range(5), *range(10, 15)]
    assert log_range(target) == (0, 16, 16)


def test_a_partition_that_the_archive_lacks_is_named(tmp_path):
    log = FolderLog(tmp_path / "logs", "events", 1)
    append(log, 25)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    archive_topic(log.log_dir, tmp_path / "archive")
    target = broker_folder(tmp_path / "target", EVENTS, TopicPartition("events", 1))
    with pytest.raises(SourceError, match="nothing of 1 of the 2 partitions of events, events-0 for example"):
        restore(str(tmp_path / "archive"), ["events"], [str(target)])
    (result,) = restore(str(tmp_path / "archive"), ["events"], [str(target)], allows_missing=True)
    assert (result.part, result.records) == (TopicPartition("events", 1), 200)
    assert log_range(target) == (0, 0, 0)


def test_each_of_several_machines_restores_its_partitions(tmp_path):
    parts = [TopicPartition("events", number) for number in (0, 1)]
    for part in parts:
        log = FolderLog(tmp_path / "logs", "events", part.partition)
        append(log, 25)
        log.checkpoint()
        set_topic_id(log.folder, "a")
    source = str(tmp_path / "archive")
    archive_topics([tmp_path / "logs"], ["events"], source)
    machines = [broker_folder(tmp_path / str(part), part) for part in parts]
    with pytest.raises(SourceError, match=r"(?s)events-1 here. .*--only-here"):
        restore(source, ["events"], [str(machines[0])])
    assert log_range(machines[0]) == (0, 0, 0)
    for part, place in zip(parts, machines, strict=True):
        (result,) = restore(source, ["events"], [str(place)], only_here=True)
        assert (result.part, result.replicas) == (part, 1)
        assert log_range(place, part) == (0, 200, 200)
    other = broker_folder(tmp_path / "other", TopicPartition("others", 0))
    with pytest.raises(SourceError, match="no broker has a replica of events-0 here"):
        restore(source, ["events"], [str(other)], only_here=True)


def test_another_topic_gets_the_records_and_one_of_several_is_chosen(archived, tmp_path):
    set_topic_id(archived.folder, "b")
    archive_topic(archived.log_dir, tmp_path / "archive")
    old = TopicPartition("old", 0)
    target = broker_folder(tmp_path / "target", old)
    source, places = str(tmp_path / "archive"), [str(target)]
    with pytest.raises(SourceError, match=r"--topic-id unknown/a{21}A, unknown/b{21}A"):
        restore(source, ["events"], places, name="old")
    with pytest.raises(SourceError, match="no topic events with the id x, but"):
        restore(source, ["events"], places, name="old", topic_id="x")
    (result,) = restore(source, ["events"], places, name="old", topic_id="b" * 21 + "A")
    assert (result.part, result.stored.topic_id) == (old, "b" * 21 + "A")
    assert log_range(target, old) == (0, 300, 300)


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_what_is_refused_changes_nothing(archived, tmp_path):
    source = str(tmp_path / "archive")
    target = broker_folder(tmp_path / "target")
    before = files_of(target)

    def refusal(*topics: str, place: Path = target, name: str | None = None) -> str:
        with pytest.raises(SourceError) as refused:
            restore(source, topics or ["events"], [str(place)], name=name)
        return str(refused.value)

    assert "no records of topic nosuch" in refusal("nosuch")
    assert "belongs to the cluster that wrote it" in refusal("__consumer_offsets")
    assert files_of(target) == before
    running = opened(target)
    assert "runs, or it did not stop in order" in refusal()
    running.close({}, broker_epoch=BROKER_EPOCH, wall_ms=WALL_MS)
    assert files_of(target) == before
    other = broker_folder(tmp_path / "other", TopicPartition("others", 0))
    assert "no broker has a replica of events-0 here" in refusal(place=other)
    groups = broker_folder(tmp_path / "groups", TopicPartition("__consumer_offsets", 0))
    assert "belongs to the cluster" in refusal(place=groups, name="__consumer_offsets")
    assert "no broker has a replica of -0 here" in refusal(name=""), "as a script may, without the name"
    restore(source, ["events"], [str(target)])
    filled = files_of(target)
    assert "is not empty: its next offset is 300" in refusal()
    assert files_of(target) == filled


def test_damage_is_found_before_anything_is_written(archived, tmp_path):
    target = broker_folder(tmp_path / "target")
    log = max((tmp_path / "archive").rglob("*.log"))
    data = bytearray(log.read_bytes())
    cases = {
        "computed CRC": bytes([*data[:-3], data[-3] ^ 1, *data[-2:]]),
        "ends at byte": bytes(data[:-5]),
        "offset 210 where 211 is the least": bytes([*data[:7], data[7] ^ 1, *data[8:]]),
        "not what its manifest says": bytes([*data[:15], data[15] ^ 1, *data[16:]]),  # the leader epoch
    }
    for says, damaged in cases.items():
        log.write_bytes(damaged)
        with pytest.raises(SourceError, match=says):
            restore(str(tmp_path / "archive"), ["events"], [str(target)])
        assert log_range(target) == (0, 0, 0)
    log.unlink()
    with pytest.raises(SourceError, match="there is no object"):
        restore(str(tmp_path / "archive"), ["events"], [str(target)])
    log.mkdir()
    with pytest.raises(PipelineError, match=f"^{log}: Is a directory"):
        restore(str(tmp_path / "archive"), ["events"], [str(target)])


def test_a_run_that_fails_leaves_all_partitions_empty(tmp_path, monkeypatch):
    """A disk is full in the middle of a write, so that its log accepts no other, or the user gives up."""
    log = events_log(tmp_path / "logs")
    log.checkpoint(400, log_start=134)
    archive_topic(log.log_dir, tmp_path / "archive")
    other = TopicPartition("others", 0)
    one, two = (broker_folder(tmp_path / name, EVENTS, other) for name in ("one", "two"))
    monkeypatch.setattr(restoring, "CHUNK_BYTES", 600)
    appended = LogSegment.append

    for error in (KeyboardInterrupt(), OSError(28, "No space left on device")):
        left = [5]

        def fails(segment, *given, error=error, left=left):
            left[0] -= 1
            size = appended(segment, *given)
            if not left[0]:
                raise error
            return size

        monkeypatch.setattr(LogSegment, "append", fails)
        is_full = isinstance(error, OSError)
        with pytest.raises(SourceError if is_full else KeyboardInterrupt) as failed:
            restore(str(tmp_path / "archive"), ["events"], [str(one), str(two)])
        assert not is_full or str(failed.value).startswith(f"{one}/events-0 could not be written")
        assert log_range(one) == log_range(two) == (0, 0, 0)
        assert log_range(one, other) == (0, 0, 0)
    monkeypatch.setattr(LogSegment, "append", appended)
    restore(str(tmp_path / "archive"), ["events"], [str(one), str(two)])
    assert log_range(one) == log_range(two) == (134, 300, 300)


def test_a_full_disk_is_emptied_before_the_others(archived, tmp_path, monkeypatch):
    """The first replica is written, then the disk is full: nothing can be written before the second one's
    log has been removed."""
    one, two = (broker_folder(tmp_path / name) for name in ("one", "two"))
    monkeypatch.setattr(restoring, "CHUNK_BYTES", 600)
    log_of_two = two / "events-0" / f"{0:020d}.log"
    appended, replaced = LogSegment.append, SystemDisk.replace_file
    begun = []

    def is_full():
        return log_of_two.exists() and log_of_two.stat().st_size > 1_000

    def append(segment, *given):
        if is_full() and segment.log_path == str(log_of_two):
            raise OSError(28, "No space left on device")
        return appended(segment, *given)

    def replace_file(disk, path, content, **given):
        if is_full():
            begun.append(path)
            raise OSError(28, "No space left on device", path)
        replaced(disk, path, content, **given)

    monkeypatch.setattr(LogSegment, "append", append)
    monkeypatch.setattr(SystemDisk, "replace_file", replace_file)
    with pytest.raises(SourceError, match=r"two/events-0 could not be written"):
        restore(str(tmp_path / "archive"), ["events"], [str(one), str(two)])
    assert not begun
    assert log_range(one) == log_range(two) == (0, 0, 0)


def test_a_replica_that_cannot_be_emptied_is_named_and_the_others_are_emptied(
    archived, tmp_path, monkeypatch
):
    one, two = (broker_folder(tmp_path / name) for name in ("one", "two"))
    emptied = EmptyReplica.empty

    def empty(replica):
        if replica.folder.startswith(str(one)):
            raise OSError(5, "Input/output error")
        emptied(replica)

    def interrupted(replica):
        raise KeyboardInterrupt

    monkeypatch.setattr(EmptyReplica, "empty", empty)
    monkeypatch.setattr(EmptyReplica, "flush", interrupted)
    with pytest.raises(SourceError, match=r"could not be removed from .*/one/events-0: delete the topic"):
        restore(str(tmp_path / "archive"), ["events"], [str(one), str(two)])
    assert log_range(two) == (0, 0, 0)
    assert log_range(one)[1] == 300


def test_checkpoints_that_cannot_be_written_undo_what_was_restored(archived, tmp_path, monkeypatch):
    target = broker_folder(tmp_path / "target")

    def fails(folders):
        monkeypatch.undo()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ReplicaFolders, "finish", fails)
    with pytest.raises(SourceError, match="No space left on device"):
        restore(str(tmp_path / "archive"), ["events"], [str(target)])
    assert log_range(target) == (0, 0, 0)


def test_a_second_interrupt_does_not_end_the_undoing(archived, tmp_path, monkeypatch):
    target = broker_folder(tmp_path / "target")
    appended, emptied = EmptyReplica.append, EmptyReplica.empty

    def interrupted(replica, records):
        appended(replica, records)
        raise KeyboardInterrupt

    def empty(replica):
        os.kill(os.getpid(), signal.SIGINT)
        emptied(replica)

    monkeypatch.setattr(EmptyReplica, "append", interrupted)
    monkeypatch.setattr(EmptyReplica, "empty", empty)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        restore(str(tmp_path / "archive"), ["events"], [str(target)])
    assert log_range(target) == (0, 0, 0)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_log_that_cannot_be_made_durable_is_emptied(archived, tmp_path, monkeypatch):
    target = broker_folder(tmp_path / "target")
    completed = LogSegment.complete_indexes

    def fails(segment):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogSegment, "complete_indexes", fails)
    with pytest.raises(SourceError, match=r"could not be written: .*No space left"):
        restore(str(tmp_path / "archive"), ["events"], [str(target)])
    monkeypatch.setattr(LogSegment, "complete_indexes", completed)
    assert log_range(target) == (0, 0, 0)


def test_more_offsets_are_missing_than_a_segment_has(tmp_path):
    far = 5_000_000_000
    for start in (0, far):
        log = FolderLog(tmp_path / f"logs-{start}", "events", start=start)
        append(log, 11)
        log.checkpoint()
        set_topic_id(log.folder, "a")
        archive_topic(log.log_dir, tmp_path / "archive")
    target = broker_folder(tmp_path / "target")
    (result,) = restore(str(tmp_path / "archive"), ["events"], [str(target)], allows_missing=True)
    assert (result.records, result.stored.gaps) == (200, [(100, far)])
    assert [row["offset"] for row in rows(target)] == [*range(100), *range(far, far + 100)]
    assert log_range(target) == (0, far + 100, far + 100)


def test_a_folder_that_is_named_twice_is_one(archived, tmp_path):
    target = broker_folder(tmp_path / "target")
    (tmp_path / "link").symlink_to(target)
    places = [str(target), str(tmp_path / "link"), str(tmp_path / "." / "target")]
    (result,) = restore(str(tmp_path / "archive"), ["events"], places)
    assert result.replicas == 1
    assert log_range(target) == (0, 300, 300)


def test_empty_batches_have_at_most_so_many_offsets(monkeypatch):
    monkeypatch.setattr(restoring, "_EMPTY_MAX", 10)
    data = b"".join(batch for _, batch in restoring._empty_batches(3, 28))
    assert [(h.base_offset, h.last_offset, h.records_count) for _, h in batches(data)] == [
        (3, 12, 0),
        (13, 22, 0),
        (23, 27, 0),
    ]
