"""Archives of folders that were written by hand: what is copied, what is refused, what is read of both."""

from __future__ import annotations

import errno
import itertools
import random
import re
import shutil
from pathlib import Path

import pytest

from nilometer.pipeline.archive import partition_archiver
from nilometer.pipeline.archive.archive_target import LocalTarget, TargetError, explanation, open_target
from nilometer.pipeline.archive.archiver import archive
from nilometer.pipeline.archive.partition_archiver import PartitionArchiver
from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.log_folders import stored_files
from nilometer.pipeline.source.log_folders.archived_partition import find_archived
from nilometer.pipeline.source.log_folders.replica_folders import find_replicas
from nilometer.pipeline.source.pushed_filters import Bounds
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.producers.producer_snapshot import SnapshotEntry, encode
from nilometer.wire.compression import Codec
from support.logs.folder_logs import FolderLog
from support.pipeline.archives import (
    archive_topic,
    offsets_of,
    problem_of,
    problems_in,
    rows_of,
    set_topic_id,
)

DIVISIONS = ({}, {"bytesPerPartition": 1}, {"bytesPerPartition": 700}, {"minPartitions": 7})
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def numbered(start, count):
    return [(1_000 + n, b"k%d" % n, b"v%d" % n) for n in range(start, start + count)]


def append(log, batches, *, roll_every=10, epoch=0):
    """Append batches of ten records, and begin a segment before every so many of them."""
    for _ in range(batches):
        if log.next_offset and log.next_offset % (10 * roll_every) == 0:
            log.roll()
        number = log.next_offset // 10
        log.append(numbered(log.next_offset, 10), epoch=epoch, codec=Codec(number % 5))


def delete_segments(log, *bases):
    """As retention does it."""
    for base in bases:
        for suffix in SUFFIXES:
            log.path(suffix, base).unlink(missing_ok=True)


@pytest.fixture
def log(tmp_path):
    """400 records in 40 batches, 4 segments and 2 leader epochs."""
    log = FolderLog(tmp_path / "logs", "events")
    append(log, 16)
    append(log, 24, epoch=1)
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
    (archived,) = find_archived(str(target))
    assert any(
        archived.chain[n].end_offset > archived.chain[n + 1].base_offset
        for n in range(len(archived.chain) - 1)
    )
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


def test_a_segment_that_was_read_before_it_was_deleted_is_archived(log, target, monkeypatch):
    """The open file keeps its bytes. Its indexes were read before."""
    write = LocalTarget.write

    def delete_and_write(self, path, pieces):
        if "/00000000000000000000-" in path:
            delete_segments(log, 0)
        return write(self, path, pieces)

    monkeypatch.setattr(LocalTarget, "write", delete_and_write)
    assert archive_topic(log.log_dir, target).end == 300
    (archived,) = find_archived(str(target))
    assert set(archived.chain[0].files) == {".log", ".index", ".timeindex"}
    assert problems_in(target) == []


def test_a_log_that_changes_all_the_time_is_an_error_and_nothing_wrong_is_archived(log, target, monkeypatch):
    write = LocalTarget.write

    def change_and_write(self, path, pieces):
        if path.endswith(".log"):
            data = log.path(".log", 0).read_bytes()
            log.path(".log", 0).write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        return write(self, path, pieces)

    monkeypatch.setattr(partition_archiver, "ROUNDS", 1)
    monkeypatch.setattr(LocalTarget, "write", change_and_write)
    assert "was changed while it was copied" in problem_of(log.log_dir, target)
    assert find_archived(str(target)) == []
    assert not [path for path in target.rglob("*") if path.is_file()]


def test_a_topic_that_is_created_again_meanwhile_is_not_archived_as_the_former_one(log, target):
    def say(what):
        if what.endswith("offset 100"):
            set_topic_id(log.folder, "b")

    result = archive_topic(log.log_dir, target, say=say)
    assert result.end == 100, "what was copied before is kept"
    assert [one.topic_id[0] for one in find_archived(str(target))] == ["a"]
    archive_topic(log.log_dir, target)
    assert [(one.topic_id[0], one.end) for one in find_archived(str(target))] == [("a", 100), ("b", 300)]


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
    assert find_archived(str(target))[0].end == 300
    with pytest.raises(SourceError, match="diverge at offset 250"):
        offsets_of(path=other.log_dir, archive=target)
    both = archive([str(log.log_dir), str(other.log_dir)], ["events"], open_target(str(tmp_path / "new")))
    assert both[0].end == 500, "the replica with the newest epoch is archived"
    assert any("is not used: its log differs from offset 250 on" in note for note in both[0].notes)


def test_a_compacted_log_is_refused(log, target):
    (log.folder / "gaps-are-lawful").touch()
    assert "was compacted" in problem_of(log.log_dir, target)
    (log.folder / "gaps-are-lawful").unlink()
    (log.log_dir / "cleaner-offset-checkpoint").write_text("0\n1\nevents 0 100\n")
    assert "was compacted" in problem_of(log.log_dir, target)
    assert find_archived(str(target.parent)) == []


def test_a_log_whose_compaction_begins_meanwhile_is_not_archived(log, target):
    problem = problem_of(log.log_dir, target, say=lambda _: (log.folder / "gaps-are-lawful").touch())
    assert "was compacted" in problem
    assert find_archived(str(target)) == []


def test_two_archivers_at_once_harm_nothing(log, target):
    """Both read the same manifest and copy other segments; the second commit does not undo the first."""
    log.checkpoint(high_watermark=150)
    archive_topic(log.log_dir, target)
    archivers = []
    for high_watermark in (250, 400):
        log.checkpoint(high_watermark)
        one = PartitionArchiver(open_target(str(target)), find_replicas([str(log.log_dir)]), lambda _: None)
        one._read_manifest()
        archivers.append(one)
    for one in archivers:
        one._copy_all()
    for one in archivers:
        one._commit()
    assert len(list(target.rglob("manifest-*"))) == 2
    assert problems_in(target) == []
    for given in DIVISIONS:
        assert offsets_of(path=log.log_dir, archive=target, **given) == list(range(400))
    append(log, 10, epoch=1)
    log.checkpoint()
    assert archive_topic(log.log_dir, target).end == 400
    assert len(list(target.rglob("manifest-*"))) == 1
    assert offsets_of(archive=target) == list(range(400))


class Killed(BaseException):
    """The process ends, as by SIGKILL."""


class EndingTarget:
    """Does so many writes and removals, and ends in the middle of the next one; then it does nothing more."""

    def __init__(self, place, changes):
        self._target = open_target(str(place))
        self.place, self.changes = str(place), changes

    def require(self):
        self._target.require()

    def sizes(self, folder):
        return self._target.sizes(folder)

    def write(self, path, pieces):
        self._count(path)
        return self._target.write(path, pieces)

    def remove(self, path):
        self._count(path)
        self._target.remove(path)

    def _count(self, path):
        self.changes -= 1
        if self.changes == 0:
            half = Path(self.place, path).with_name(".half.tmp")
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(b"half")
        if self.changes <= 0:
            raise Killed


def test_a_run_that_is_killed_at_any_write_is_continued(log, tmp_path):
    expected = rows_of(path=log.log_dir)
    copied = []
    for changes in itertools.count(1):
        target = tmp_path / f"archive-{changes}"
        try:
            archive([str(log.log_dir)], ["events"], EndingTarget(target, changes))
        except Killed:
            pass
        else:
            break
        before = find_archived(str(target))
        assert problems_in(target) == []
        if before:
            assert rows_of(archive=target) == expected[: before[0].end]
        result = archive_topic(log.log_dir, target)
        copied.append(result.segments_copied)
        assert result.segments_copied == 3 - (before[0].end // 100 if before else 0)
        assert rows_of(archive=target, path=log.log_dir) == expected
    assert set(copied) == {0, 2, 3}, "before the first manifest, after it, after the last one"


# --- damage


def test_a_damaged_segment_is_not_archived_and_the_others_are(log, target):
    path = log.path(".log", 100)
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    problem = problem_of(log.log_dir, target)
    assert "00000000000000000100.log is damaged: batch at offset 190" in problem
    assert offsets_of(archive=target) == list(range(100))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-10], "is damaged at byte [0-9]+: its last batch is not complete"),
        (lambda data: b"\0" * 70 + data, "is damaged at byte 0"),
        (lambda data: data[: data.index(b"k155") - 80] + data[data.index(b"k155") :], "damaged"),
        (lambda data: data + data, "the base offset 100, but the one before it ends at 200"),
    ],
)
def test_a_segment_with_wrong_batches_is_refused(log, target, damage, says):
    log.path(".log", 100).write_bytes(damage(log.path(".log", 100).read_bytes()))
    assert re.search(says, problem_of(log.log_dir, target))


def test_a_log_whose_epochs_are_not_those_of_its_checkpoint_is_refused(log, target):
    (log.folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 130\n")
    assert "the leader epoch at offset 130 is not that" in problem_of(log.log_dir, target)
    assert find_archived(str(target))[0].end == 100


def test_a_check_finds_every_damage_and_a_rerun_mends_it_from_the_log(log, target):
    archive_topic(log.log_dir, target)
    files = {path.name[:20] + path.suffix: path for path in target.rglob("0*")}
    files["00000000000000000000.log"].unlink()
    with files["00000000000000000100.index"].open("ab") as file:
        file.write(b"\0" * 8)
    data = files["00000000000000000200.log"].read_bytes()
    files["00000000000000000200.log"].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    problems = sorted(problem.partition("/0/")[2] for problem in problems_in(target))
    assert [one.partition(" ")[2].split(":")[0] for one in problems] == [
        "is missing",
        f"has {len(log.path('.index', 100).read_bytes()) + 8} bytes, not "
        f"{len(log.path('.index', 100).read_bytes())}",
        "is damaged",
    ]
    with pytest.raises(SourceError, match="damaged"):
        offsets_of(archive=target, startingOffsets='{"events": {"0": 210}}')
    files["00000000000000000200.log"].unlink()
    assert archive_topic(log.log_dir, target).segments_copied == 3
    assert offsets_of(archive=target) == list(range(300))
    assert problems_in(target) == []


def test_a_transaction_index_that_does_not_match_the_log_is_refused(log, target):
    log.path(".txnindex", 100).write_bytes(
        b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (7, 110, 120, 121))
    )
    assert "the transaction index of" in problem_of(log.log_dir, target)


# --- transactions


@pytest.mark.parametrize("with_snapshots", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_read_committed_is_the_same_with_and_without_an_archive(tmp_path, target, seed, with_snapshots):
    """Transactions begin in the archive and end in the log; some are open."""
    chance = random.Random(seed)
    log = FolderLog(tmp_path / "logs", "events")
    pending = {}
    for number in range(160):
        if number and number % 20 == 0:
            log.roll()
            if with_snapshots:
                open_now = [SnapshotEntry(one, 0, 0, 0, 0, 0, 0, first) for one, first in pending.items()]
                log.path(".snapshot").write_bytes(encode(open_now))
        producer = chance.choice([7, 8, 9])
        if producer in pending and chance.random() < 0.2:
            commit = chance.random() < 0.5
            first = pending.pop(producer)
            marker = log.end_transaction(producer, commit=commit)
            if not commit:
                log.index_aborted(producer, first, marker, min([marker + 1, *pending.values()]))
        else:
            base = log.append(numbered(number, 3), producer_id=producer, transactional=True)
            pending.setdefault(producer, base)
    set_topic_id(log.folder, "a")
    level = {"isolation.level": "read_committed"}
    bases = sorted(int(path.stem) for path in log.folder.glob("*.log"))
    for high_watermark in (bases[5] + 11, log.next_offset):
        log.checkpoint(high_watermark)
        expected = offsets_of(path=log.log_dir, **level)
        assert archive_topic(log.log_dir, target).end == max(one for one in bases if one <= high_watermark)
        for given in DIVISIONS:
            assert offsets_of(path=log.log_dir, archive=target, **level, **given) == expected
    assert 0 < len(expected) < len(offsets_of(path=log.log_dir))
    delete_segments(log, *bases[:-2])
    for path in log.folder.glob("*.snapshot"):
        path.unlink()
    assert len(list(target.rglob("*.snapshot"))) == (len(bases) - 1 if with_snapshots else 0)
    for given in DIVISIONS:
        assert offsets_of(path=log.log_dir, archive=target, **level, **given) == expected
    alone = offsets_of(archive=target, **level)
    assert alone == expected[: len(alone)]
    index = next(target.rglob("*.txnindex"))
    kept = index.rename(tmp_path / "kept")
    with pytest.raises(SourceError, match="is missing in the archive"):
        offsets_of(archive=target, **level)
    kept.rename(index)
    for path in log.folder.glob("*.index"):
        path.unlink()
    assert offsets_of(path=log.log_dir, archive=target, **level) == expected, "by the markers alone"


def test_a_transaction_that_a_gap_cuts_is_left_out_before_it(tmp_path, target):
    log = FolderLog(tmp_path / "logs", "events")
    for number in range(40):
        if number and number % 10 == 0:
            log.roll()
        if number in (8, 18):
            log.append(numbered(0, 2), producer_id=7, transactional=True)
        elif number == 25:
            log.end_transaction(7, commit=True)
        else:
            log.append(numbered(0, 1))
    log.checkpoint(high_watermark=15)
    set_topic_id(log.folder, "a")
    assert archive_topic(log.log_dir, target).end == 11
    log.checkpoint()
    delete_segments(log, 0, 11)
    given = {"isolation.level": "read_committed", "failOnDataLoss": "false"}
    found = offsets_of(path=log.log_dir, archive=target, **given)
    assert found == [*range(8), 10, *(n for n in range(22, log.next_offset) if n != 27)]


# --- storage


def test_a_path_and_a_file_uri_are_the_same_archive(log, target):
    assert archive_topic(log.log_dir, target.as_uri()).end == 300
    assert archive_topic(log.log_dir, target).segments_copied == 0
    assert offsets_of(archive=target.as_uri(), path=log.log_dir.as_uri()) == list(range(400))


def test_a_full_disk_is_said_and_leaves_nothing_behind(log, target, monkeypatch):
    class FullDisk(SystemDisk):
        def sync_directory(self, path):
            if "/0" in path:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            super().sync_directory(path)

    opened = open_target(str(target))
    monkeypatch.setattr(opened, "_disk", FullDisk())
    with pytest.raises(TargetError, match="no space is left on its device"):
        archive([str(log.log_dir)], ["events"], opened)
    assert not list(target.rglob("*.tmp"))
    assert archive_topic(log.log_dir, target).end == 300


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("/nowhere/at/all", "the folder /nowhere/at does not exist"),
        ("nosuch://place/archive", "nosuch"),
        ("/dev/null/archive", "does not exist"),
    ],
)
def test_a_target_that_cannot_be_is_said(log, where, says):
    with pytest.raises(TargetError, match=says):
        archive([str(log.log_dir)], ["events"], open_target(where))


def test_a_topic_that_is_not_there_is_said(log, target):
    with pytest.raises(SourceError, match="topic nosuch has no replica in"):
        archive([str(log.log_dir)], ["events", "nosuch"], open_target(str(target)))
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("AWS Error ACCESS_DENIED during PutObject operation", "access was denied"),
        ("AWS Error UNKNOWN (HTTP status 403) during ListObjectsV2: code 403", "access was denied"),
        ("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload", "bucket does not exist"),
        ("AWS Error NETWORK_CONNECTION: curlCode: 7", "cannot be reached"),
        ("something else", "something else"),
    ],
)
def test_the_errors_of_storages_are_explained(text, says):
    assert says in explanation(OSError(text))


def test_places_with_options_lead_to_places_below_and_are_shown_without_secrets():
    place = "s3://key:secret@bucket/logs/?endpoint_override=127.0.0.1:9000&scheme=http"
    below = "s3://key:secret@bucket/logs/a/b?endpoint_override=127.0.0.1:9000&scheme=http"
    assert stored_files.join(stored_files.trimmed(place), "a", "b") == below
    assert stored_files.parent(below) == below.replace("/a/b?", "/a?")
    assert stored_files.shown(below) == "s3://bucket/logs/a/b"
    assert stored_files.join("/what?", "a") == "/what?/a"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"archive": " "}, "the folder or URI of an archive"),
        ({"path": "/x", "archiveTopicId": "a"}, "has no effect without archive"),
        ({"archive": "/nowhere"}, "/nowhere is not a folder: nothing was archived there"),
    ],
)
def test_what_is_wrong_with_the_options_is_said(given, says):
    with pytest.raises((OptionError, SourceError), match=says):
        offsets_of(**given)


def test_a_topic_that_is_not_archived_is_said(log, target):
    archive_topic(log.log_dir, target)
    with pytest.raises(SourceError, match=f"topic others has no replica in {target}"):
        offsets_of(archive=target, subscribe="others")
    with pytest.raises(SourceError, match="partition events-3 has no replica in"):
        offsets_of(archive=target, assign='{"events": [0, 3]}')
