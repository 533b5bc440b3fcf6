"""Damage, transactions and storages that fail: what an archive refuses, and what it says."""

from __future__ import annotations

import asyncio
import errno
import random
import re
import shutil

import pytest

from nilometer.cli.main import run
from nilometer.pipeline.archive import stored
from nilometer.pipeline.archive.stored import open_stored
from nilometer.pipeline.errors import OptionError, SourceError
from nilometer.pipeline.source.log_folders import storages
from nilometer.pipeline.source.log_folders.tiers import ReadableObjects
from nilometer.runtime.object_store import FileObjectStore, ObjectStoreError
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.producers import SnapshotEntry, encode_snapshot
from nilometer.tier.chain import Chain
from nilometer.tier.format import TopicFacts, partition_folder
from nilometer.tier.plan import first_manifest
from support.logs.folder_logs import FolderLog
from support.pipeline.archives import (
    DIVISIONS,
    append,
    archive_topic,
    archive_topics,
    delete_segments,
    events_log,
    numbered,
    offsets_of,
    problem_of,
    problems_in,
    set_topic_id,
    stored_in,
)
from support.pipeline.tiered_folders import FolderTier


@pytest.fixture
def log(tmp_path):
    return events_log(tmp_path / "logs")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "archive"


# --- damage


def test_a_damaged_segment_is_not_archived_and_the_others_are(log, target):
    path = log.path(".log", 100)
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    problem = problem_of(log.log_dir, target)
    assert "00000000000000000100.log is damaged at byte" in problem
    assert offsets_of(archive=target) == list(range(100))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-10], "is damaged: its last batch is not whole"),
        (lambda data: b"\0" * 70 + data, "is damaged at byte 0"),
        (lambda data: data[: data.index(b"k155") - 80] + data[data.index(b"k155") :], "damaged"),
        (lambda data: data + data, "offset 100 where 200 is the least"),
    ],
)
def test_a_segment_with_wrong_batches_is_refused(log, target, damage, says):
    log.path(".log", 100).write_bytes(damage(log.path(".log", 100).read_bytes()))
    assert re.search(says, problem_of(log.log_dir, target))


def test_a_log_whose_epochs_are_not_those_of_its_checkpoint_is_refused(log, target):
    (log.folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 130\n")
    assert "the leader epoch at offset 130 is not that" in problem_of(log.log_dir, target)
    assert stored_in(target)[0].manifest.end_offset == 100


def test_a_check_finds_every_damage_and_a_rerun_mends_it_from_the_log(log, target):
    archive_topic(log.log_dir, target)
    files = {path.name[:20] + path.suffix: path for path in target.rglob("0*-*")}
    files["00000000000000000000.log"].unlink()
    with files["00000000000000000100.index"].open("ab") as file:
        file.write(b"\0" * 8)
    data = files["00000000000000000200.log"].read_bytes()
    files["00000000000000000200.log"].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    problems = sorted(problem.partition("/0/")[2] for problem in problems_in(target))
    assert [one.partition(" ")[2].split(":")[0] for one in problems] == [
        "is missing",
        "has 8 bytes too many",
        "is damaged at byte 1761",
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
                log.path(".snapshot").write_bytes(encode_snapshot(open_now))
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
    for given in DIVISIONS:
        assert offsets_of(path=log.log_dir, archive=target, **level, **given) == expected
    alone = offsets_of(archive=target, **level)
    assert alone == expected[: len(alone)]
    (archived,) = stored_in(target)
    has_aborted = [one.index_name for one in archived.manifest.segments if one.has_aborted]
    index = next(target.rglob(has_aborted[-1]))
    kept = index.rename(tmp_path / "kept")
    with pytest.raises(SourceError, match=f"{index.name} was listed and then deleted"):
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
        def open(self, path, **given):
            if "/0" in path:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            return super().open(path, **given)

    opened = open_stored(str(target), creates=True)
    monkeypatch.setattr(opened, "_disk", FullDisk())
    with pytest.raises(SourceError, match=f"{target}/.*: No space left on device"):
        archive_topics([log.log_dir], ["events"], opened)
    assert not list(target.rglob("*.unfinished"))
    assert archive_topic(log.log_dir, target).end == 300


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("/nowhere/at/all", "the folder /nowhere/at does not exist"),
        ("nosuch://place/archive", "begins with file:/// or s3://"),
        ("gs://KEY:SECRET@bucket/archive", "^gs://bucket/archive: .* begins with file:/// or s3://"),
        ("/dev/null/archive", "does not exist"),
    ],
)
def test_a_target_that_cannot_be_is_said(log, where, says):
    with pytest.raises(SourceError, match=says):
        archive_topics([log.log_dir], ["events"], where)


def test_a_topic_that_is_not_there_is_said(log, target):
    with pytest.raises(SourceError, match="topic nosuch has no replica in"):
        archive_topics([log.log_dir], ["events", "nosuch"], target)
    assert not list(target.iterdir())


def test_places_with_options_lead_to_places_below_and_are_shown_without_secrets():
    place = "s3://key:secret@bucket/logs/?endpoint_override=127.0.0.1:9000&scheme=http"
    below = "s3://key:secret@bucket/logs/a/b?endpoint_override=127.0.0.1:9000&scheme=http"
    assert storages.join(storages.trimmed(place), "a", "b") == below
    assert storages.parent(below) == below.replace("/a/b?", "/a?")
    assert storages.shown_folder(below) == "s3://bucket/logs/a/b"
    assert storages.join("/what?", "a") == "/what?/a"


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


def test_nothing_is_archived_into_the_remote_storage_of_the_cluster(log, target):
    (log.log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=cluster\n")
    FolderTier(target).copy(log, 0, 100)
    before = sorted(target.rglob("*"))
    with pytest.raises(SourceError, match=r"is the remote storage of .* cluster cluster, which brokers"):
        archive_topic(log.log_dir, target)
    (log.log_dir / "meta.properties").unlink()
    shutil.move(target / "cluster", target / "unknown")
    assert "is in the remote storage of brokers" in problem_of(log.log_dir, target)
    shutil.move(target / "unknown", target / "cluster")
    assert sorted(target.rglob("*")) == before
    archive_topic(log.log_dir, target / "archives")
    assert (target / "archives" / "unknown").exists()


def test_a_leader_that_begins_a_chain_meanwhile_has_it_alone(log, target):
    folder = partition_folder("unknown", "a" * 21 + "A", 0)
    facts = TopicFacts("unknown", "a" * 21 + "A", "events", 0, 1, {}, 7)

    class StoreOfBrokers(FileObjectStore):
        async def upload(self, name, parts):
            leader = Chain(FileObjectStore(SystemDisk(), str(target), "leader"), folder, "leader")
            await leader.read()
            await leader.append(1, first_manifest(facts, 0))
            await super().upload(name, parts)

    target.mkdir()
    (result,) = archive_topics([log.log_dir], ["events"], StoreOfBrokers(SystemDisk(), str(target), "run"))
    assert "is in the remote storage of brokers" in (result.problem or "")
    (found,) = stored_in(target)
    assert (found.manifest.writer, found.manifest.number, found.is_archive) == ("leader", 0, False)


def test_a_topic_that_is_not_archived_is_said(log, target):
    archive_topic(log.log_dir, target)
    with pytest.raises(SourceError, match=f"topic others has no replica in {target}"):
        offsets_of(archive=target, subscribe="others")
    with pytest.raises(SourceError, match="partition events-3 has no replica in"):
        offsets_of(archive=target, assign='{"events": [0, 3]}')


@pytest.mark.parametrize(
    "given",
    ["foo://KEY:SECRET@b/x", "s3://KEY:SEC/RET@b/x?region=r", "s3://KEY:SECRET@b/x?nosuch=SECRET"],
)
def test_no_message_about_a_place_shows_its_secrets(given):
    with pytest.raises(ValueError, match=r"://b/x: ") as refused:
        storages.open_folder(given)
    assert not {"KEY", "SEC", "RET"} & set(re.findall(r"[A-Z]+", str(refused.value)))


@pytest.mark.parametrize("given", ["hdfs://name:8020/a@b", "s3://bucket/a:b@c", "/data/a:b@c"])
def test_a_path_may_have_the_sign_that_ends_secrets(given):
    assert storages.shown_folder(given) == given


def test_what_has_no_sealed_segment_is_checked_without_an_error(tmp_path, target, capsys):
    log = FolderLog(tmp_path / "logs", "events")
    log.append(numbered(0, 10))
    log.checkpoint()
    set_topic_id(log.folder, "a")
    given = ["archive", "--topic", "events", "--log-dirs", str(log.log_dir), "--to", str(target), "--verify"]
    assert run(given) == 0
    printed = capsys.readouterr()
    assert "Nothing of events-0 is copied" in printed.out and "Checked 0 segments" in printed.out
    assert printed.err == ""


def test_a_damaged_manifest_of_a_partition_of_another_machine_is_found(log, target, tmp_path, capsys):
    other = FolderLog(tmp_path / "other", "events", 1)
    append(other, 16)
    other.checkpoint()
    set_topic_id(other.folder, "a")
    archive_topic(other.log_dir, target)
    (manifest,) = target.rglob("1/manifest-*")
    manifest.write_bytes(b"x")
    for given in (["--log-dirs", str(log.log_dir), "--to", str(target)], ["list", "--from", str(target)]):
        assert run(["archive", *given, "--topic", "events", "--verify"]) == 1
        printed = capsys.readouterr()
        assert "1 problems." in printed.out
        assert printed.err.count(f"/1/: {manifest.name} is not as it was written: its CRC differs") == 1


def test_nothing_is_removed_where_archives_are_only_read(tmp_path):
    disk, folder = storages.open_folder((tmp_path / "old").as_uri())
    with pytest.raises(ObjectStoreError, match="is only read here"):
        asyncio.run(ReadableObjects(disk, folder).remove("events/id/0/left"))


def test_a_place_that_is_only_read_and_is_missing_is_no_empty_one(tmp_path, monkeypatch, capsys):
    def elsewhere(uri: str):
        return storages.open_folder((tmp_path / uri.removeprefix("gs://")).as_uri())

    monkeypatch.setattr(stored, "open_folder", elsewhere)
    (tmp_path / "bucket").mkdir()
    assert run(["archive", "list", "--from", "gs://bucket"]) == 0
    capsys.readouterr()
    assert run(["archive", "list", "--from", "gs://bucket/typo"]) == 1
    assert f"{tmp_path}/bucket/typo: no such folder" in capsys.readouterr().err


def test_what_a_place_that_is_only_read_refuses_is_explained(tmp_path, monkeypatch, capsys):
    class Refusing(storages.ArrowDisk):
        def list_directory(self, path: str) -> list[str]:
            raise OSError("google: no credentials")

    place = Refusing(storages.open_store(tmp_path.as_uri())[0]), "bucket/archive"
    monkeypatch.setattr(stored, "open_folder", lambda uri: place)
    assert run(["archive", "list", "--from", "gs://bucket/archive"]) == 1
    assert "bucket/archive: google: no credentials" in capsys.readouterr().err


def test_an_object_that_is_removed_while_it_is_listed_is_left_out(tmp_path):
    (tmp_path / "kept").write_bytes(b"abc")

    class Removing(storages.ArrowDisk):
        def list_directory(self, path: str) -> list[str]:
            return [*super().list_directory(path), "removed"]

    store, folder = storages.open_store(tmp_path.as_uri())
    assert [*asyncio.run(ReadableObjects(Removing(store), folder).listed(""))] == ["kept"]


# --- tiered topics


def test_a_log_that_begins_in_remote_storage_is_refused_unless_the_archive_has_the_rest(log, target):
    (log.folder / "begins-in-remote-storage").touch()
    delete_segments(log, 0)
    assert "offsets 0 to 99 are not in the folder" in problem_of(log.log_dir, target)
    assert stored_in(target) == []
    delete_segments(log, 100, 200)
    result = archive_topic(log.log_dir, target)
    assert "offsets 0 to 299 are not in the folder" in (result.problem or "")
    assert result.notes == [], "and not that its only segment is the active one"


def test_a_tiered_topic_is_archived_while_the_archive_has_what_is_missing_in_its_folder(log, target):
    archive_topic(log.log_dir, target)
    (log.folder / "begins-in-remote-storage").touch()
    delete_segments(log, 0, 100)
    assert archive_topic(log.log_dir, target).problem is None
    assert offsets_of(archive=target, path=log.log_dir) == list(range(400))
