"""Archives of format 1, which an earlier version has written: read, listed, restored, and copied."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c

from nilometer.pipeline.archive import restore, tier_restore
from nilometer.pipeline.archive.stored import open_stored
from nilometer.pipeline.errors import SourceError
from nilometer.storage.names import TopicPartition
from nilometer.tier.catalogue import find_partitions
from nilometer.tier.earlier_archives import read_earlier
from support.logs.folder_logs import FolderLog
from support.logs.stopped_brokers import EVENTS, broker_folder
from support.pipeline.archives import (
    DIVISIONS,
    append,
    archive_topic,
    archive_topics,
    delete_segments,
    numbered,
    offsets_of,
    problem_of,
    problems_in,
    rows_of,
    set_topic_id,
    stored_in,
)

COMMITTED = {"isolation.level": "read_committed"}
FIXTURE = Path(__file__).with_name("archive_of_format_1")
"""Two segments, [0, 30) and [30, 60): a transaction is aborted at 50, and another one is open from 51 on."""
TOPIC_ID = "a" * 21 + "A"
FOLDER = f"events/{TOPIC_ID}/0"


@pytest.fixture
def earlier(tmp_path):
    return Path(shutil.copytree(FIXTURE, tmp_path / "earlier"))


@pytest.fixture
def log(tmp_path):
    """The log that was archived, which has gone on."""
    log = FolderLog(tmp_path / "logs", "events")
    append(log, 3)
    log.roll()
    first = log.append(numbered(30, 10), epoch=1, producer_id=7, transactional=True)
    log.append(numbered(40, 10), epoch=1)
    marker = log.end_transaction(7, commit=False, epoch=1)
    log.index_aborted(7, first, marker, marker + 1)
    log.append(numbered(51, 9), epoch=1, producer_id=8, transactional=True)
    log.roll()
    log.append(numbered(60, 10), epoch=1)
    log.end_transaction(8, commit=True, epoch=1)
    log.roll()
    log.append(numbered(71, 4), epoch=1)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    return log


def test_it_is_read_alone_and_with_the_log(earlier, log):
    assert problems_in(earlier) == []
    (found,) = stored_in(earlier)
    assert (found.topic, found.folder, found.is_archive) == ("events", f"{FOLDER}/", True)
    assert [(one.base_offset, one.end_offset, one.records) for one in found.manifest.segments] == [
        (0, 30, 30),
        (30, 60, 30),
    ]
    for given in DIVISIONS:
        assert offsets_of(archive=earlier, **given) == [*range(50), *range(51, 60)]
        assert offsets_of(archive=earlier, **COMMITTED, **given) == [*range(30), *range(40, 50)]
        for level in ({}, COMMITTED):
            both = rows_of(archive=earlier, path=log.log_dir, **level, **given)
            assert both == rows_of(path=log.log_dir, **level)
    assert offsets_of(archive=earlier, subscribe="events", startingTimestamp=1_055) == list(range(55, 60))


def test_several_manifests_count_together(earlier, log):
    other = earlier.with_name("other")
    shutil.copytree(earlier, other)
    (manifest,) = other.rglob("manifest-*")
    shutil.copy(manifest, manifest.with_name("manifest-0000000009-00000001.json"))
    assert stored_in(other)[0].manifest.number == 9
    assert offsets_of(archive=other) == offsets_of(archive=earlier)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], "manifest"),
        (lambda text: text.replace(b'"end_offset":30', b'"end_offset":20'), "its CRC differs"),
        (
            lambda text: text.replace(b'"version":1', b'"version":7'),
            "not the manifest of an archive of format 1",
        ),
        (lambda text: b"{}", "not the manifest of an archive of format 1"),
    ],
)
def test_a_manifest_that_is_not_as_it_was_written_is_refused(earlier, change, says):
    (manifest,) = earlier.rglob("manifest-*")
    manifest.write_bytes(change(manifest.read_bytes()))
    (found,) = stored_in(earlier)
    assert found.manifest is None and says in found.problem
    with pytest.raises(SourceError, match=says):
        offsets_of(archive=earlier)


def add_partition_1(earlier: Path) -> Path:
    """Let the archive have a second partition, as the first one; return its manifest."""
    folder = earlier / "events" / TOPIC_ID / "1"
    shutil.copytree(earlier / FOLDER, folder)
    (manifest,) = folder.glob("manifest-*")
    body = json.loads(manifest.read_bytes())["archive"] | {"partition": 1}
    crc = crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    whole = {"format": "nilometer-archive", "version": 1, "archive": body, "crc32c": f"{crc:08x}"}
    manifest.write_text(json.dumps(whole))
    return manifest


def test_a_topic_is_not_restored_without_a_partition_that_cannot_be_read(earlier, tmp_path):
    manifest = add_partition_1(earlier)
    assert [one.problem for one in stored_in(earlier)] == ["", ""]
    manifest.write_bytes(manifest.read_bytes()[:100])
    place = broker_folder(tmp_path / "broker", EVENTS, TopicPartition("events", 1))
    with pytest.raises(SourceError, match=rf"events/{TOPIC_ID}/1/ cannot be read"):
        asyncio.run(restore.restore(open_stored(str(earlier)), ["events"], [str(place)]))


def test_a_damaged_manifest_of_another_topic_is_left_out(earlier):
    manifest = add_partition_1(earlier)
    manifest.write_bytes(manifest.read_bytes()[:100])
    assert asyncio.run(find_partitions(open_stored(str(earlier)), ["clicks"])) == []


def test_formats_1_and_2_of_one_topic_are_told_apart(earlier, log):
    place = earlier.with_name("of-format-2")
    archive_topic(log.log_dir, place)
    (other,) = stored_in(place)
    shutil.copytree(place / other.top, earlier / other.top)
    store = open_stored(str(earlier))

    def chosen(topic_id: str | None) -> list[str]:
        found = restore.chosen_topics(store, ["events"], None, topic_id, allows_missing=True)
        return [one.folder for one in asyncio.run(found)["events"]]

    for unclear in (None, TOPIC_ID):
        with pytest.raises(SourceError, match=f"choose --topic-id events/{TOPIC_ID}, {other.top}/{TOPIC_ID}"):
            chosen(unclear)
    assert chosen(f"events/{TOPIC_ID}") == [f"{FOLDER}/"]
    assert chosen(f"{other.top}/{TOPIC_ID}") == [other.folder]


def test_a_manifest_of_another_partition_is_refused(earlier):
    shutil.copytree(earlier / FOLDER, earlier / "events" / TOPIC_ID / "1")
    with pytest.raises(SourceError, match=r"is of events-0"):
        offsets_of(archive=earlier)


def test_every_damage_is_found(earlier):
    for path in earlier.rglob("0*-*"):
        data = path.read_bytes()
        path.write_bytes(bytes([*data[:-1], data[-1] ^ 1]))
        assert len(problems_in(earlier)) == 1, path
        path.unlink()
        assert problems_in(earlier) == [f"{path.relative_to(earlier)} is missing"]
        path.write_bytes(data)
    assert problems_in(earlier) == []


def test_a_topic_comes_back_on_disks_and_in_remote_storage(earlier, tmp_path):
    disks, tiered = broker_folder(tmp_path / "disks"), broker_folder(tmp_path / "tiered")
    store = open_stored(str(earlier))
    (on_disks,) = asyncio.run(restore.restore(store, ["events"], [str(disks)]))
    assert (on_disks.end, on_disks.records, on_disks.aborted_records) == (51, 40, 10)
    assert offsets_of(path=disks) == [*range(30), *range(40, 50)]
    target = open_stored(str(tmp_path / "tier"), creates=True)
    (in_store,) = asyncio.run(tier_restore.restore(store, target, ["events"], [str(tiered)]))
    assert (in_store.start, in_store.end, in_store.aborted) == (0, 61, 1)
    (stored,) = stored_in(tmp_path / "tier")
    assert not stored.is_archive
    assert offsets_of(tier=tmp_path / "tier", **COMMITTED) == [*range(30), *range(40, 50)]


def test_an_archive_that_does_not_tell_open_transactions_comes_back_on_disks_only(log, tmp_path):
    archive_topic(log.log_dir, tmp_path / "archive")
    store, place = open_stored(str(tmp_path / "archive")), broker_folder(tmp_path / "one")
    target = open_stored(str(tmp_path / "tier"), creates=True)
    with pytest.raises(SourceError, match="does not tell which transactions are open: restore it to disks"):
        asyncio.run(tier_restore.restore(store, target, ["events"], [str(place)]))
    assert stored_in(tmp_path / "tier")[0].segments == ()
    (result,) = asyncio.run(restore.restore(store, ["events"], [str(place)]))
    assert (result.end, result.records) == (71, 59)


def test_nothing_is_written_to_it(earlier, log):
    """Nor partitions that it does not have: the topic would be in two formats, and whole in neither. Other
    topics are archived."""
    added = FolderLog(log.log_dir, "events", 1)
    append(added, 16)
    added.checkpoint()
    set_topic_id(added.folder, "a")
    other = FolderLog(log.log_dir, "clicks")
    append(other, 16)
    other.checkpoint()
    set_topic_id(other.folder, "b")
    clicks, *events = archive_topics([log.log_dir], ["events", "clicks"], earlier)
    assert (clicks.part.topic, clicks.end, clicks.problem) == ("clicks", 100, None)
    assert [one.part.partition for one in events] == [0, 1]
    for one in events:
        assert "topic events in format 1, which is only read: archive into another place" in str(one.problem)
    assert sorted((earlier / "events").rglob("*")) == sorted(
        earlier / path.relative_to(FIXTURE) for path in (FIXTURE / "events").rglob("*")
    )
    assert {one.topic for one in stored_in(earlier) if not one.problem} == {"events", "clicks"}


def test_its_records_are_copied_to_an_archive_of_the_present_format(earlier, log, tmp_path):
    delete_segments(log, 0, 30)
    target = tmp_path / "archive"
    result = archive_topic(log.log_dir, target, former=str(earlier))
    assert (result.start, result.end, result.segments_copied, result.problem) == (0, 71, 3, None)
    assert (result.gaps, result.lost) == ([], [])
    assert problems_in(target) == []
    found = asyncio.run(read_earlier(open_stored(str(target)), "events", TOPIC_ID, 0))
    assert found is None
    for level in ({}, COMMITTED):
        assert rows_of(archive=target, path=log.log_dir, **level) == rows_of(
            archive=earlier, path=log.log_dir, **level
        )
    assert archive_topic(log.log_dir, target, former=str(earlier)).segments_copied == 0


def test_a_segment_that_lacks_a_file_is_not_copied(earlier, log, tmp_path):
    """Without its index of transactions, records of aborted ones would become committed ones."""
    delete_segments(log, 0, 30)
    for number, path in enumerate(sorted(earlier.rglob("0*-*"))):
        kept = path.rename(tmp_path / "kept")
        problem = problem_of(log.log_dir, tmp_path / f"archive-{number}", former=str(earlier))
        assert f"{path} is missing, although the manifest of the former archive names it" in problem
        assert problems_in(tmp_path / f"archive-{number}") == []
        kept.rename(path)


def test_one_that_diverges_from_the_log_is_not_copied(earlier, tmp_path):
    log = FolderLog(tmp_path / "elected", EVENTS.topic)
    append(log, 4)
    log.roll()
    append(log, 3, epoch=2)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    diverges = "the former archive and the log of events-0 diverge at offset 30"
    assert diverges in problem_of(log.log_dir, tmp_path / "archive", former=str(earlier))
    log = FolderLog(tmp_path / "behind", EVENTS.topic)
    append(log, 4)
    log.roll()
    append(log, 3)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    assert diverges in problem_of(log.log_dir, tmp_path / "archive", former=str(earlier))
    assert stored_in(tmp_path / "archive") == []
    assert archive_topic(log.log_dir, tmp_path / "archive").end == 40


def test_what_has_no_folder_here_is_noted(earlier, log, tmp_path):
    other = FolderLog(tmp_path / "others", EVENTS.topic, 1)
    append(other, 13)
    other.checkpoint()
    set_topic_id(other.folder, "b")
    for places in ([other.log_dir], [other.log_dir, log.log_dir]):
        results = archive_topics(places, [EVENTS.topic], tmp_path / "archive", former=str(earlier))
        assert [one.problem for one in results] == [None] * len(places)
        notes = [note for one in results for note in one.notes]
        assert notes == [
            f"The former archive has events-0 with the topic id {TOPIC_ID}, of which no folder is here: "
            "it is not copied."
        ] * (2 - len(places))
