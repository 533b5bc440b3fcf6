"""Archives of folders that were written by hand: what is copied, what is refused, what is read of both."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import time

import pytest

from nilometer.pipeline.archive.archiver import (
    PartitionArchiver,
    PartitionResult,
    SourceLog,
    archive,
    why_none,
)
from nilometer.pipeline.archive.stored import find_left, open_stored
from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.log_folders.places import find_replicas
from nilometer.pipeline.source.positions import Bounds
from nilometer.runtime.object_store import FileObjectStore
from nilometer.runtime.system_disk import SystemDisk
from support.logs.folder_logs import FolderLog
from support.pipeline.archives import (
    DIVISIONS,
    SUFFIXES,
    append,
    archive_topic,
    archive_topics,
    delete_segments,
    events_log,
    offsets_of,
    problem_of,
    problems_in,
    rows_of,
    set_topic_id,
    stored_in,
)


@pytest.fixture
def log(tmp_path):
    return events_log(tmp_path / "logs")


def whole_log(folder):
    """The records of ``log`` and some more, in segments that are twice as large."""
    log = FolderLog(folder, "events")
    append(log, 16, roll_every=20)
    append(log, 26, epoch=1, roll_every=20)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    return log


@pytest.fixture
def target(tmp_path):
    return tmp_path / "archive"


# --- archive and log as one range


def test_archive_and_log_are_one_range_whatever_retention_has_deleted(log, target):
    expected = rows_of(path=log.log_dir)
    result = archive_topic(log.log_dir, target)
    assert (result.start, result.end, result.segments_copied, result.problem) == (0, 300, 3, None)
    assert problems_in(target) == []
    for deleted in ((), (0,), (100, 200)):
        delete_segments(log, *deleted)
        for given in DIVISIONS:
            assert rows_of(path=log.log_dir, archive=target, **given) == expected, (deleted, given)
            assert rows_of(archive=target, **given) == expected[:300]
        chance = random.Random(5)
        for _ in range(20):
            start, end = sorted(chance.sample(range(401), 2))
            found = offsets_of(Bounds(first=start, last=end - 1), path=log.log_dir, archive=target)
            assert found == list(range(start, end))


def test_records_that_are_deleted_from_the_topic_stay_in_the_archive(log, target):
    archive_topic(log.log_dir, target)
    log.checkpoint(log_start=250)
    assert offsets_of(path=log.log_dir, archive=target) == list(range(400))


def test_offsets_and_times_are_searched_in_both(log, target):
    archive_topic(log.log_dir, target)
    delete_segments(log, 0, 100, 200)
    both = {"path": log.log_dir, "archive": target}
    for start, end in ((3, 290), (120, 333), (301, 310)):
        by_offset = {
            "startingOffsets": f'{{"events": {{"0": {start}}}}}',
            "endingOffsets": f'{{"events": {{"0": {end}}}}}',
        }
        by_time = {"startingTimestamp": 1_000 + start, "endingTimestamp": 1_000 + end}
        assert offsets_of(**both, **by_offset) == offsets_of(**both, **by_time) == list(range(start, end))
    since = offsets_of(Bounds(since_ms=1_255), **both, bytesPerPartition=1)
    assert set(range(255, 400)) <= set(since) and min(since) > 200, "older segments are left out"
    with pytest.raises(OptionError, match="beyond its end offset, 400"):
        offsets_of(**both, startingOffsets='{"events": {"0": 401}}')


def test_nothing_above_the_high_watermark_is_archived_and_never_the_active_segment(log, target):
    for high_watermark, end in ((99, 0), (100, 100), (137, 100), (299, 200), (400, 300)):
        log.checkpoint(high_watermark)
        result = archive_topic(log.log_dir, target)
        assert (result.end, result.high_watermark) == (end, high_watermark)
    (log.log_dir / "replication-offset-checkpoint").unlink()
    assert "no high watermark is checkpointed" in problem_of(log.log_dir, target)


def test_it_says_why_nothing_is_copied(log, target):
    log.checkpoint(0)
    (note,) = archive_topic(log.log_dir, target).notes
    assert "its sealed segments are not known to be committed" in note
    assert "has a high watermark of 0, which its broker writes down when it stops" in note
    log.checkpoint(100)
    assert archive_topic(log.log_dir, target).notes == []
    log.checkpoint(0)  # what is archived stays archived
    assert archive_topic(log.log_dir, target).notes == []


def test_it_says_that_the_active_segment_is_not_copied():
    only = SourceLog("t-0 in d", (0,), 0, 40, ())
    assert "its only segment is the active one" in (why_none([only]) or "")
    assert why_none([SourceLog("t-0 in d", (0, 20), 0, 40, ())]) is None
    assert why_none([]) == "no replica of it is there"


def test_a_rerun_copies_only_what_is_missing(log, target):
    assert archive_topic(log.log_dir, target).segments_copied == 3
    listing = sorted(path for path in target.rglob("*") if path.is_file())
    assert archive_topic(log.log_dir, target).segments_copied == 0
    assert sorted(path for path in target.rglob("*") if path.is_file()) == listing
    append(log, 20, epoch=1)
    log.checkpoint()
    result = archive_topic(log.log_dir, target)
    assert (result.segments_copied, result.start, result.end) == (2, 0, 500)
    assert offsets_of(archive=target) == list(range(500))


def test_records_below_the_log_start_are_not_read_from_the_archive(log, target):
    log.checkpoint(log_start=123)
    result = archive_topic(log.log_dir, target)
    assert (result.start, result.end, result.segments_copied) == (123, 300, 2)
    assert offsets_of(archive=target) == list(range(123, 300))


def test_segments_of_replicas_that_roll_elsewhere_overlap_and_nothing_is_read_twice(tmp_path, target):
    places = []
    for number, roll_every in enumerate((10, 7, 4)):
        log = FolderLog(tmp_path / f"logs{number}", "events")
        append(log, 40, roll_every=roll_every)
        log.checkpoint(high_watermark=(160, 290, 400)[number])
        set_topic_id(log.folder, "a")
        places.append(log.log_dir)
        archive_topic(log.log_dir, target)
    (archived,) = stored_in(target)
    segments = archived.manifest.segments
    assert any(one.end_offset > after.base_offset for one, after in itertools.pairwise(segments))
    for given in DIVISIONS:
        assert offsets_of(archive=target, **given) == list(range(360))
        assert offsets_of(archive=target, path=places[2], **given) == list(range(400))


# --- a folder that changes


def test_segments_that_are_deleted_while_others_are_copied_are_reported(log, target):
    def say(what):
        if what.endswith("offset 0"):
            delete_segments(log, 0, 100)

    result = archive_topic(log.log_dir, target, say=say)
    assert (result.start, result.end, result.segments_copied, result.problem) == (200, 300, 1, None)
    assert offsets_of(path=log.log_dir, archive=target) == list(range(200, 400))


def test_a_segment_that_is_deleted_while_it_is_copied_is_archived(log, target, monkeypatch):
    """The open file keeps its bytes. Its indexes were read before."""
    upload = FileObjectStore.upload

    async def delete_and_upload(store, name, parts):
        if "/00000000000000000000-" in name:
            delete_segments(log, 0)
        await upload(store, name, parts)

    monkeypatch.setattr(FileObjectStore, "upload", delete_and_upload)
    assert archive_topic(log.log_dir, target).end == 300
    (archived,) = stored_in(target)
    first = archived.manifest.segments[0]
    assert first.index_bytes == archived.manifest.segments[1].index_bytes > 100
    assert problems_in(target) == []


def test_a_topic_that_is_created_again_meanwhile_is_not_archived_as_the_former_one(log, target):
    def say(what):
        if what.endswith("offset 100"):
            set_topic_id(log.folder, "b")

    result = archive_topic(log.log_dir, target, say=say)
    assert result.end == 100, "what was copied before is kept"
    assert [one.topic_id[0] for one in stored_in(target)] == ["a"]
    archive_topic(log.log_dir, target)
    assert [(one.topic_id[0], one.manifest.end_offset) for one in stored_in(target)] == [
        ("a", 100),
        ("b", 300),
    ]


# --- gaps


def test_records_that_were_deleted_before_they_were_archived_are_a_loss(log, target):
    log.checkpoint(high_watermark=150)
    archive_topic(log.log_dir, target)
    log.checkpoint()
    delete_segments(log, 0, 100, 200)
    result = archive_topic(log.log_dir, target)
    assert (result.end, result.lost, result.gaps) == (100, [(100, 300)], [])
    both = {"path": log.log_dir, "archive": target}
    with pytest.raises(DataLoss, match="offsets 100 to 299 of events-0 are neither in the archive nor in"):
        offsets_of(**both)
    assert offsets_of(**both, failOnDataLoss="false") == [*range(100), *range(300, 400)]
    append(log, 10, epoch=1)
    log.checkpoint()
    result = archive_topic(log.log_dir, target)
    assert (result.end, result.lost, result.gaps) == (400, [(100, 300)], [(100, 300)])
    again = archive_topic(log.log_dir, target)
    assert (again.lost, again.gaps) == ([], [(100, 300)]), "a loss is reported once, and shown always"
    with pytest.raises(DataLoss, match="offsets 100 to 299"):
        offsets_of(archive=target)
    for given in DIVISIONS:
        found = offsets_of(**both, failOnDataLoss="false", **given)
        assert found == [*range(100), *range(300, 500)]
    assert offsets_of(**both, startingOffsets='{"events": {"0": 300}}') == list(range(300, 500))


def test_a_log_that_retention_has_emptied_shows_what_is_missing(log, target):
    log.checkpoint(high_watermark=150)
    archive_topic(log.log_dir, target)
    delete_segments(log, 0, 100, 200, 300)
    emptied = FolderLog(log.log_dir / "other", "events", start=400)
    for suffix in SUFFIXES[:3]:
        shutil.move(emptied.path(suffix), log.folder)
    log.checkpoint()
    for level in ("read_uncommitted", "read_committed"):
        with pytest.raises(DataLoss, match="offsets 100 to 399"):
            offsets_of(path=log.log_dir, archive=target, **{"isolation.level": level})


# --- what must not be mixed


def test_topics_of_one_name_are_kept_apart(log, target, tmp_path):
    archive_topic(log.log_dir, target)
    again = FolderLog(tmp_path / "again", "events")
    append(again, 15)
    again.checkpoint()
    other_id = set_topic_id(again.folder, "b")
    assert offsets_of(path=again.log_dir, archive=target) == list(range(150))
    archive_topic(again.log_dir, target)
    assert offsets_of(path=again.log_dir, archive=target) == list(range(150))
    assert offsets_of(path=log.log_dir, archive=target) == list(range(400))
    with pytest.raises(SourceError, match="2 topics named events: choose one with archiveTopicId"):
        offsets_of(archive=target)
    assert offsets_of(archive=target, archiveTopicId=other_id) == list(range(100))
    with pytest.raises(SourceError, match="the folders have the topic events with the id a"):
        offsets_of(path=log.log_dir, archive=target, archiveTopicId=other_id)


def test_a_folder_without_a_topic_id_is_refused(log, target):
    archive_topic(log.log_dir, target)
    (log.folder / "partition.metadata").unlink()
    assert "has no topic id" in problem_of(log.log_dir, target)
    with pytest.raises(SourceError, match="has no topic id"):
        offsets_of(path=log.log_dir, archive=target)


def test_a_log_that_diverges_is_neither_archived_nor_read_with_the_archive(log, target, tmp_path):
    """An unclean election: the new leader has other records from offset 250 on."""
    archive_topic(log.log_dir, target)
    other = FolderLog(tmp_path / "elected", "events")
    append(other, 16)
    append(other, 9, epoch=1)
    append(other, 30, epoch=2)
    other.checkpoint()
    set_topic_id(other.folder, "a")
    assert "diverge at offset 250" in problem_of(other.log_dir, target)
    assert stored_in(target)[0].manifest.end_offset == 300
    with pytest.raises(SourceError, match="diverge at offset 250"):
        offsets_of(path=other.log_dir, archive=target)
    both = archive_topics([log.log_dir, other.log_dir], ["events"], tmp_path / "new")
    assert both[0].end == 500, "the replica with the newest epoch is archived"
    assert any("is not used: its log differs from offset 250 on" in note for note in both[0].notes)


def test_a_compacted_log_is_refused(log, target):
    (log.folder / "gaps-are-lawful").touch()
    assert "was compacted" in problem_of(log.log_dir, target)
    (log.folder / "gaps-are-lawful").unlink()
    (log.log_dir / "cleaner-offset-checkpoint").write_text("0\n1\nevents 0 100\n")
    assert "was compacted" in problem_of(log.log_dir, target)
    assert stored_in(target.parent) == []


def test_a_log_whose_compaction_begins_meanwhile_is_not_archived(log, target):
    problem = problem_of(log.log_dir, target, say=lambda _: (log.folder / "gaps-are-lawful").touch())
    assert "was compacted" in problem
    assert [one.manifest for one in stored_in(target)] == [None]


def test_two_archivers_at_once_harm_nothing(log, target):
    """Both read the same manifest and copy segments; the second one decides again what its manifest says."""
    log.checkpoint(high_watermark=150)
    archive_topic(log.log_dir, target)
    archivers = []

    async def both():
        for high_watermark in (250, 400):
            log.checkpoint(high_watermark)
            replicas = find_replicas([str(log.log_dir)])
            one = PartitionArchiver(open_stored(str(target)), replicas, [], lambda _: None)
            await one.read()
            archivers.append(one)
        for one in archivers:
            await one.copy_all()
        for one in archivers:
            await one.commit()

    asyncio.run(both())
    assert [one.result.segments_copied for one in archivers] == [1, 2]
    assert [(one.base_offset, one.end_offset) for one in stored_in(target)[0].manifest.segments] == [
        (0, 100),
        (100, 200),
        (200, 300),
    ]
    assert problems_in(target) == []
    assert len(list(target.rglob("*.log"))) == 3, "what both have copied is there once"
    for given in DIVISIONS:
        assert offsets_of(path=log.log_dir, archive=target, **given) == list(range(400))
    append(log, 10, epoch=1)
    log.checkpoint()
    assert archive_topic(log.log_dir, target).end == 400
    assert offsets_of(archive=target) == list(range(400))


@pytest.mark.parametrize("rolls_elsewhere", [False, True])
def test_two_archivers_of_an_empty_archive_harm_nothing(log, target, tmp_path, rolls_elsewhere):
    """One is stopped after it has created the first manifest, until the other one has written the second."""
    others_log = whole_log(tmp_path / "whole") if rolls_elsewhere else log
    others = list[PartitionResult]()

    class StoppedStore(FileObjectStore):
        async def create(self, name, data):
            is_created = await super().create(name, data)
            if not others:
                others.extend(await archive([str(others_log.log_dir)], ["events"], open_stored(str(target))))
            return is_created

    target.mkdir()
    stopped = StoppedStore(SystemDisk(), str(target), "stopped")
    (result,) = archive_topics([log.log_dir], ["events"], stopped)
    (other,) = others
    end = 400 if rolls_elsewhere else 300
    assert (result.problem, result.end, other.problem, other.end) == (None, end, None, end)
    assert result.segments_copied == 3 and other.segments_copied == 2
    assert problems_in(target) == []
    assert len(list(target.rglob("*.log"))) == 3
    dropped = [one.name for one in stored_in(target)[0].manifest.dropped]
    assert len(dropped) == (2 if rolls_elsewhere else 0)
    assert all(any(target.rglob(name)) for name in dropped), "the first manifest has named them"
    assert offsets_of(archive=target) == list(range(end))


def test_a_run_that_finds_another_history_in_the_manifest_of_another_run_adds_nothing(log, target, tmp_path):
    other = FolderLog(tmp_path / "elected", "events")
    append(other, 5)
    append(other, 35, epoch=2)
    other.checkpoint()
    set_topic_id(other.folder, "a")

    async def both():
        archivers = [
            PartitionArchiver(
                open_stored(str(target), creates=True), find_replicas([place]), [], lambda _: None
            )
            for place in (str(log.log_dir), str(other.log_dir))
        ]
        for one in archivers:
            await one.read()
        await archivers[0].copy_all()
        await archivers[0].commit()
        with pytest.raises(SourceError, match="diverge at offset 50"):
            await archivers[1].copy_all()
        with pytest.raises(SourceError, match="diverge at offset 50"):
            await archivers[1].commit()

    asyncio.run(both())
    assert rows_of(archive=target) == rows_of(path=log.log_dir)[:300]


class Killed(BaseException):
    """The process ends, as by SIGKILL."""


class EndingStore(FileObjectStore):
    """Does so many writes and removals, and ends in the middle of the next one; then it does nothing more."""

    def __init__(self, place, changes):
        place.mkdir()
        super().__init__(SystemDisk(), str(place), "ending")
        self.place, self.changes = place, changes

    async def create(self, name, data):
        self._count(name)
        return await super().create(name, data)

    async def put(self, name, data):
        self._count(name)
        await super().put(name, data)

    async def upload(self, name, parts):
        self._count(name)
        await super().upload(name, parts)

    async def remove(self, name):
        self._count(name)
        await super().remove(name)

    def _count(self, name):
        self.changes -= 1
        if self.changes == 0:
            half = (self.place / name).with_name("half.ending-1.unfinished")
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(b"half")
        if self.changes <= 0:
            raise Killed


def killed_runs(log, tmp_path):
    """Yield the archive of each run that is killed, one change later than the one before."""
    for changes in itertools.count(1):
        place = tmp_path / f"archive-{changes}"
        try:
            archive_topics([log.log_dir], ["events"], EndingStore(place, changes))
        except Killed:
            yield place
        else:
            return


def test_a_run_that_is_killed_at_any_write_is_continued(log, tmp_path):
    expected = rows_of(path=log.log_dir)
    copied = []
    for target in killed_runs(log, tmp_path):
        before = [one for one in stored_in(target) if one.manifest is not None]
        assert problems_in(target) == []
        if before:
            assert rows_of(archive=target) == expected[: before[0].manifest.end_offset]
        result = archive_topic(log.log_dir, target)
        copied.append(result.segments_copied)
        assert result.segments_copied == 3 - (before[0].manifest.end_offset // 100 if before else 0)
        assert rows_of(archive=target, path=log.log_dir) == expected
    assert set(copied) == {0, 2, 3}, "before the first manifest, after it, after the last one"


def orphans_in(place, *topics, hours):
    before_ms = int((time.time() - hours * 3600) * 1000)
    return asyncio.run(find_left(open_stored(str(place)), topics, before_ms))


def files_in(place):
    return {path for path in place.rglob("*") if path.is_file()}


def test_what_a_killed_run_leaves_is_found_and_removed_and_nothing_else(log, tmp_path):
    expected = rows_of(path=log.log_dir)
    left = set()
    for place in killed_runs(log, tmp_path):
        folder = place / "unknown" / ("a" * 21 + "A") / "0"
        others = folder / "notes.txt"
        others.write_text("of another program")
        for continued in (False, True):
            if continued:
                archive_topic(log.log_dir, place)
            (archived,) = stored_in(place)
            named = {folder / name for name in archived.manifest.objects} if archived.manifest else set()
            kept = named | {others} | set(folder.glob("manifest-" + "[0-9]" * 20)) | set(folder.glob("head"))
            orphans = orphans_in(place, hours=-1)
            assert {place / one.name for one in orphans} == files_in(place) - kept
            assert sum(one.listed.bytes for one in orphans) == sum(
                path.stat().st_size for path in files_in(place) - kept
            )
            assert orphans_in(place, "another", hours=-1) == []
            assert orphans_in(place, hours=1) == [], "a run may still name them"
            left.add(len(orphans))
        for path in files_in(place) - kept:
            os.utime(path, (0, 0))
        assert archive_topic(log.log_dir, place).segments_copied == 0, "it removes what is a day old"
        assert files_in(place) == kept
        assert rows_of(archive=place, path=log.log_dir) == expected
    assert max(left) > 1


def test_what_was_replaced_in_the_manifest_stays_for_a_day(log, target, tmp_path):
    """A job that was planned with the former manifest still reads it."""
    archive_topic(log.log_dir, target)
    whole = whole_log(tmp_path / "whole")
    assert archive_topic(whole.log_dir, target).end == 400
    (archived,) = stored_in(target)
    assert [(one.base_offset, one.end_offset) for one in archived.manifest.segments] == [
        (0, 100), (100, 200), (200, 400),
    ]  # fmt: skip
    assert {one.name[:20] for one in archived.manifest.dropped} == {f"{200:020d}"}
    for path in files_in(target):
        os.utime(path, (0, 0))
    before = files_in(target)
    archive_topic(whole.log_dir, target)
    assert files_in(target) == before
    assert len(orphans_in(target, hours=-1)) == 2


def large_log(folder, *, roll_every):
    """400 records of a kilobyte: each segment is much larger than a manifest."""
    log = FolderLog(folder, "events")
    for first in range(0, 400, 10):
        if first and first % (10 * roll_every) == 0:
            log.roll()
        log.append([(1_000 + n, b"k%d" % n, b"%d" % n * 350) for n in range(first, first + 10)])
    log.checkpoint()
    set_topic_id(log.folder, "a")
    return log


@pytest.mark.parametrize("roll_every", [5, 4])
@pytest.mark.parametrize("suffix", ["log", "index"])
def test_a_replica_that_rolls_elsewhere_replaces_what_is_missing(tmp_path, target, roll_every, suffix):
    archive_topic(large_log(tmp_path / "one", roll_every=10).log_dir, target)
    next(target.rglob(f"{100:020d}-*.{suffix}")).unlink()
    other = large_log(tmp_path / "other", roll_every=roll_every)
    result = archive_topic(other.log_dir, target)
    assert (result.problem, result.gaps, result.lost, result.notes) == (None, [], [], [])
    assert problems_in(target) == []
    assert offsets_of(archive=target) == list(range(result.end))
    assert archive_topic(other.log_dir, target).segments_copied == 0


def test_a_part_of_a_segment_without_a_log_is_archived(tmp_path, target):
    archive_topic(large_log(tmp_path / "one", roll_every=10).log_dir, target)
    next(target.rglob(f"{100:020d}-*.log")).unlink()
    other = large_log(tmp_path / "other", roll_every=5)
    delete_segments(other, 0, 50, 100)
    result = archive_topic(other.log_dir, target)
    assert (result.end, result.gaps, result.problem) == (350, [(100, 150)], None)
    assert offsets_of(archive=target, failOnDataLoss="false") == [*range(100), *range(150, 350)]
    assert problems_in(target) == []


def test_a_log_object_without_indexes_stays_while_others_have_a_part_of_it_only(tmp_path, target):
    archive_topic(large_log(tmp_path / "one", roll_every=10).log_dir, target)
    next(target.rglob(f"{100:020d}-*.index")).unlink()
    (kept,) = target.rglob(f"{100:020d}-*.log")
    other = large_log(tmp_path / "other", roll_every=5)
    delete_segments(other, 0, 50, 100)
    result = archive_topic(other.log_dir, target)
    assert (result.end, result.gaps) == (350, [])
    (note,) = result.notes
    assert f"{kept.name} or its index is missing in the archive" in note
    assert [one.log_name for one in stored_in(target)[0].manifest.segments].count(kept.name) == 1
    assert kept.exists()
    assert not list(target.rglob(f"{150:020d}-*")), "no manifest could name it beside the other one"
