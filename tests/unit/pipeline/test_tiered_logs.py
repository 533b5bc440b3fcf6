"""Folders and remote storage of tiered topics, read without Spark and without brokers: files made by hand."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
import struct
from types import SimpleNamespace

import pytest
from msgspec import structs

from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.log_folders import log_slices, storages
from nilometer.pipeline.source.log_folders.log_plan import parse_log_options, plan
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.log_folders.tiers import TieredFolder
from nilometer.pipeline.source.positions import Bounds
from nilometer.runtime.system_disk import SystemDisk
from nilometer.wire.record_batch import batches
from support.logs.folder_logs import FolderLog
from support.pipeline.archives import (
    DIVISIONS,
    append,
    delete_segments,
    events_log,
    numbered,
    offsets_of,
    rows_of,
    set_topic_id,
)
from support.pipeline.tiered_folders import FolderTier
from support.s3_server import BUCKET, s3_server

COMMITTED = {"isolation.level": "read_committed"}


@pytest.fixture
def log(tmp_path):
    """400 records in four segments, of which the last one is active."""
    return events_log(tmp_path / "logs")


@pytest.fixture
def tier(tmp_path, log):
    tier = FolderTier(tmp_path / "tier")
    tier.copy(log, 0, 100, 200)
    return tier


@pytest.fixture
def both(log, tier):
    return {"path": log.log_dir, "tier": tier.root}


def leave_to_tier(log, *bases):
    """As local retention does it."""
    delete_segments(log, *bases)
    (log.folder / "begins-in-remote-storage").touch()


def identify(log, cluster_id="cluster"):
    (log.log_dir / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={cluster_id}\n")


def read(slices, options):
    return [
        row["offset"]
        for one in slices
        for batch in read_slice(options, ("offset",), one)
        for row in batch.to_pylist()
    ]


def planned(bounds=None, **given):
    """Return what a driver plans, as an executor gets it, and the options."""
    options = parse_log_options({key: str(value) for key, value in given.items()})
    return pickle.loads(pickle.dumps(plan(options, bounds or Bounds()))), options


# --- one range


def test_remote_storage_and_log_are_one_range_whatever_local_retention_has_deleted(log, tier, both):
    expected = rows_of(path=log.log_dir)
    for deleted in ((), (0,), (100, 200)):
        leave_to_tier(log, *deleted)
        for given in DIVISIONS:
            assert rows_of(**both, **given) == expected, (deleted, given)
            assert rows_of(tier=tier.root, **given) == rows_of(archive=tier.root, **given) == expected[:300]
        chance = random.Random(5)
        for _ in range(20):
            start, end = sorted(chance.sample(range(401), 2))
            assert offsets_of(Bounds(first=start, last=end - 1), **both) == list(range(start, end))


def test_offsets_and_times_are_searched_in_both(log, both):
    leave_to_tier(log, 0, 100, 200)
    for start, end in ((3, 290), (120, 333), (300, 310), (301, 310)):
        by_offset = {
            "startingOffsets": f'{{"events": {{"0": {start}}}}}',
            "endingOffsets": f'{{"events": {{"0": {end}}}}}',
        }
        by_time = {"startingTimestamp": 1_000 + start, "endingTimestamp": 1_000 + end}
        assert offsets_of(**both, **by_offset) == offsets_of(**both, **by_time) == list(range(start, end))
    since = offsets_of(Bounds(since_ms=1_155), **both, bytesPerPartition=1)
    assert set(range(155, 400)) <= set(since) and min(since) > 130, "older records are left out"


def test_a_plan_needs_manifests_only(log, tier, both):
    leave_to_tier(log, 0, 100, 200)
    for given in ({"bytesPerPartition": 700}, {"maxRecordsPerPartition": 7}, {}):
        wanted, _ = planned(**both, **given)
        assert wanted[-1].end == 400
    for path in tier.folder.glob("*-a.*"):
        path.unlink()
    for bounds in (Bounds(), Bounds(first=120, last=380)):
        wanted, _ = planned(bounds, **both, bytesPerPartition=700)
        assert [one.end for one in wanted[:-1]] == [one.start for one in wanted[1:]]
        assert len(wanted) >= 9


def test_the_log_start_is_where_the_manifest_or_the_checkpoint_says(log, tier, both):
    leave_to_tier(log, 0, 100, 200)
    tier.write(tier.manifest, log_start_offset=123)
    assert offsets_of(**both) == list(range(123, 400))
    assert offsets_of(tier=tier.root) == list(range(123, 300))
    log.checkpoint(log_start=177)
    assert offsets_of(**both) == list(range(177, 400))
    log.checkpoint(log_start=300)
    assert offsets_of(**both) == list(range(300, 400))
    with pytest.raises(DataLoss, match="its log starts at 300"):
        offsets_of(**both, startingOffsets='{"events": {"0": 5}}')
    log.checkpoint(log_start=350)
    assert offsets_of(**both) == offsets_of(**both, **COMMITTED) == list(range(350, 400))


def test_segments_of_other_leaders_overlap_and_nothing_is_read_twice(log, tier, tmp_path):
    other = FolderLog(tmp_path / "others" / "logs", "events")
    append(other, 16, roll_every=15)
    append(other, 24, roll_every=15, epoch=1)
    tier.write(tier.manifest, segments=tier.manifest.segments[:2])
    tier.copy(other, 150)
    assert [one.base_offset for one in tier.manifest.segments] == [0, 100, 150]
    for given in DIVISIONS:
        assert offsets_of(tier=tier.root, **given) == list(range(300))
        assert offsets_of(tier=tier.root, path=log.log_dir, **given) == list(range(400))


def test_offsets_that_compaction_left_out_are_not_missing(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    append(log, 5)
    log.next_offset = 100
    log.roll()
    log.append(numbered(100, 10), skip=20)
    log.next_offset = 200
    log.roll()
    log.checkpoint()
    tier = FolderTier(tmp_path / "tier")
    tier.copy(log, 0, 100)
    for given in DIVISIONS:
        assert offsets_of(tier=tier.root, **given) == [*range(50), *range(120, 130)]


def test_a_segment_that_compaction_has_emptied_is_passed_over(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    for end in (50, 100, 150):
        if end != 100:
            append(log, 5)
        log.next_offset = end
        log.roll()
    log.checkpoint()
    tier = FolderTier(tmp_path / "tier")
    tier.copy(log, 0, 50, 100)
    assert [one.log_bytes > 0 for one in tier.manifest.segments] == [True, False, True]
    for given in (*DIVISIONS, COMMITTED):
        assert offsets_of(tier=tier.root, **given) == [*range(50), *range(100, 150)]


# --- which manifests count


def test_ids_and_names_may_have_any_character(log, tmp_path):
    tier = FolderTier(tmp_path / "tier", "50%/day@work", letter="@", cluster_id="prod@eu%2F")
    tier.copy(log, 0, 100)
    assert offsets_of(tier=tier.root) == list(range(200))
    for path in tier.objects(100):
        path.unlink()
    with pytest.raises(DataLoss, match=r"50%/day@work-0 in remote storage, .*tier/prod@eu%2F/@+A/0"):
        offsets_of(tier=tier.root)


def test_a_folder_counts_by_the_name_that_brokers_give_it(log, tier):
    for name in ("00", "+0", "\N{ARABIC-INDIC DIGIT ZERO}", "1_0", "-0"):
        shutil.copytree(tier.folder, tier.folder.with_name(name))
    assert offsets_of(tier=tier.root) == offsets_of(tier=tier.root, subscribe="events") == list(range(300))


def test_what_a_deposed_leader_wrote_and_deleted_topics_do_not_count(log, tier, both):
    leave_to_tier(log, 0, 100, 200)
    tier.write(tier.manifest, leader_epoch=5)
    tier.write(tier.manifest, leader_epoch=4, segments=tier.manifest.segments[:1])
    assert offsets_of(**both) == list(range(400))
    tier.write(tier.manifest, leader_epoch=6, segments=(), is_deleted=True)
    with pytest.raises(SourceError, match="topic events has no replica in"):
        offsets_of(tier=tier.root, subscribe="events")
    log.checkpoint(log_start=0)
    with pytest.raises(DataLoss, match="is not the remote storage of its cluster"):
        offsets_of(**both)


def test_topics_of_one_name_are_kept_apart(log, tier, tmp_path):
    former = FolderLog(tmp_path / "former" / "logs", "events")
    append(former, 11)
    FolderTier(tier.root, letter="b").copy(former, 0)
    FolderTier(tier.root, "others", letter="c").copy(former, 0)
    with pytest.raises(SourceError, match=r"2 topics named events: choose one with archiveTopicId"):
        offsets_of(tier=tier.root, subscribe="events")
    assert offsets_of(tier=tier.root, subscribe="events", archiveTopicId="b" * 21 + "A") == list(range(100))
    assert offsets_of(tier=tier.root, subscribe="others") == list(range(100))
    assert offsets_of(tier=tier.root, path=log.log_dir, subscribe="events") == list(range(400))
    several = rows_of(tier=tier.root, subscribe="events,others", path=log.log_dir, columns=("topic",))
    assert len(several) == 500


def test_topics_of_one_id_of_two_clusters_are_kept_apart(log, tier, tmp_path):
    """A cluster that was made with the metadata of another one has its topic ids."""
    later = FolderLog(tmp_path / "later" / "logs", "events")
    append(later, 11)
    set_topic_id(later.folder, "a")
    later.checkpoint()
    FolderTier(tier.root, cluster_id="later").copy(later, 0)
    topic_id = "a" * 21 + "A"
    choices = (
        rf"2 topics named events: choose one with archiveTopicId \(cluster/{topic_id}, later/{topic_id}\)"
    )
    for given in ({}, {"archiveTopicId": topic_id}, {"path": log.log_dir}):
        with pytest.raises(SourceError, match=choices):
            offsets_of(tier=tier.root, **given)
    for cluster, folder, count in (("cluster", log, 300), ("later", later, 100)):
        given = {"tier": tier.root, "archiveTopicId": f"{cluster}/{topic_id}"}
        assert offsets_of(**given) == list(range(count))
        whole = range(folder.next_offset)
        leave_to_tier(folder, 0)
        assert offsets_of(path=folder.log_dir, **given) == list(whole), "the option tells the cluster"
        identify(folder, cluster)
        assert offsets_of(path=folder.log_dir, tier=tier.root) == list(whole), "the folder tells it"
    with pytest.raises(SourceError, match=f"the folders have the topic events with the id later/{topic_id}"):
        offsets_of(path=later.log_dir, tier=tier.root, archiveTopicId=f"cluster/{topic_id}")
    with pytest.raises(SourceError, match=r"of several clusters \(cluster, later\): give those of one"):
        offsets_of(paths=f'["{log.log_dir}", "{later.log_dir}"]', tier=tier.root)
    shutil.rmtree(tier.root / "later")
    with pytest.raises(DataLoss, match="is not the remote storage of its cluster"):
        offsets_of(path=later.log_dir, tier=tier.root, startingOffsets='{"events": {"0": 0}}')


def test_a_log_that_diverges_is_not_read_with_its_tier(log, tier, both):
    other = log.folder / "leader-epoch-checkpoint"
    other.write_text("0\n2\n0 0\n3 120\n")
    with pytest.raises(SourceError, match="diverge at offset 120"):
        offsets_of(**both)


def test_a_log_with_other_records_is_not_read_with_the_tier_of_another_cluster(log, tier, both):
    """Both have the same leader epochs."""

    def note(crc):
        *rest, last = tier.manifest.segments
        named = structs.replace(last, last_crc=crc)
        for before, now in zip(last.object_names, named.object_names, strict=True):
            (tier.folder / before).rename(tier.folder / now)
        tier.write(structs.replace(tier.manifest, segments=(*rest, named)))

    data = log.path(".log", tier.manifest.segments[-1].base_offset).read_bytes()
    *_, (_, header) = batches(data)
    note(header.crc)
    assert offsets_of(**both) == list(range(log.next_offset))
    note(header.crc ^ 1)
    with pytest.raises(SourceError, match=r"other records at offset .* a second cluster with this id"):
        offsets_of(**both)


@pytest.mark.parametrize("name", ["manifest-00000000000000000000", "head"])
def test_damage_is_said(tier, name):
    path = tier.folder / name
    path.write_bytes(b"7" if name == "head" else path.read_bytes().replace(b"events", b"evexts"))
    path.with_name("manifest-00000000000000000000").write_bytes(b"damaged\n")
    with pytest.raises(SourceError, match=r"tier/.*/0: .*manifest-0+ is not as it was written"):
        offsets_of(tier=tier.root)


def damage(tier):
    for path in tier.folder.glob("manifest-*"):
        path.write_bytes(b"damaged\n")


def remove_manifests(tier):
    """As the deletion of a topic does it before it removes the head."""
    for path in tier.folder.glob("manifest-*"):
        path.unlink()


@pytest.mark.parametrize("spoil", [damage, remove_manifests])
def test_a_topic_is_read_beside_one_that_cannot_be_read(log, tier, spoil):
    other = FolderTier(tier.root, "others", letter="c")
    other.copy(log, 0)
    spoil(other)
    for given in ({}, {"path": log.log_dir}, {"archiveTopicId": "a" * 21 + "A"}):
        expected = list(range(400 if "path" in given else 300))
        assert offsets_of(tier=tier.root, subscribe="events", **given) == expected
    reason = "has a head, but no manifest|is not as it was written"
    with pytest.raises(SourceError, match=f"no folder that can be read is of topic others; .*({reason})"):
        offsets_of(tier=tier.root, subscribe="others")
    with pytest.raises(SourceError, match=f"c+A/0.*({reason})"):
        offsets_of(tier=tier.root, subscribe="others", archiveTopicId="c" * 21 + "A")
    second = FolderTier(tier.root, "others", 1, letter="c")
    second.copy(log, 0)
    for given in ({"subscribe": "others"}, {"subscribe": "events,others"}, {}):
        with pytest.raises(SourceError, match=f"c+A/0.*({reason})"):
            offsets_of(tier=tier.root, **given)


def test_all_topics_are_read_without_one_that_is_being_deleted(log, tier):
    other = FolderTier(tier.root, "others", letter="c")
    other.copy(log, 0)
    remove_manifests(other)
    assert offsets_of(tier=tier.root) == list(range(300))
    damage(tier)
    with pytest.raises(SourceError, match=r"a+A/0"):
        offsets_of(tier=tier.root)


def test_folders_are_not_read_without_their_tier_that_cannot_be_read(log, tier, both):
    remove_manifests(tier)
    with pytest.raises(SourceError, match="has a head, but no manifest"):
        offsets_of(**both, subscribe="events")


# --- what is gone


def test_offsets_that_are_nowhere_are_named(log, tier, both):
    leave_to_tier(log, 0, 100, 200)
    first, _, last = tier.manifest.segments
    tier.write(tier.manifest, segments=(first, last))
    with pytest.raises(DataLoss, match="offsets 100 to 199 of events-0 are neither"):
        offsets_of(**both)
    expected = [*range(100), *range(200, 400)]
    assert offsets_of(**both, failOnDataLoss="false") == expected
    assert offsets_of(tier=tier.root, failOnDataLoss="false", **COMMITTED) == expected[:200]


def test_objects_that_have_left_the_manifest_are_read_by_those_who_planned_before(log, tier, both):
    leave_to_tier(log, 0, 100, 200)
    wanted, options = planned(**both, bytesPerPartition=700)
    tier.write(tier.manifest, segments=tier.manifest.segments[2:], log_start_offset=200)
    assert read(wanted, options) == list(range(400))


def test_an_object_that_another_one_replaces_is_read_in_its_place(log, tier):
    wanted, options = planned(tier=tier.root, bytesPerPartition=700)
    tier.write(tier.manifest, segments=tier.manifest.segments[:1])
    tier.copy(log, 100, 200, attempt="b")
    for path in tier.folder.glob("*-a.*"):
        if not path.name.startswith(f"{0:020d}"):
            path.unlink()
    assert read(wanted, options) == list(range(300))


@pytest.mark.parametrize("is_named", [True, False])
def test_a_lost_object_is_an_error_with_topic_partition_and_offsets(log, tier, is_named):
    wanted, options = planned(tier=tier.root)
    for path in tier.objects(100):
        path.unlink()
    if not is_named:
        first, _, last = tier.manifest.segments
        tier.write(tier.manifest, segments=(first, last))
    with pytest.raises(DataLoss, match=r"offsets 100 to 199 of events-0 in remote storage, .*cluster/a+A/0"):
        read(wanted, options)
    wanted, options = planned(tier=tier.root, failOnDataLoss="false")
    assert read(wanted, options) == [*range(100), *range(200, 300)]


def test_an_object_that_a_search_by_time_needs_is_not_passed_over(tier):
    for path in tier.objects(100):
        path.unlink()
    given = {"tier": tier.root, "startingTimestamp": 1_150}
    with pytest.raises(DataLoss, match="offsets 100 to 199 of events-0 in remote storage"):
        offsets_of(**given)
    assert offsets_of(**given, failOnDataLoss="false") == list(range(200, 300))


def test_a_gap_around_the_log_start_is_named(log, tier, both):
    leave_to_tier(log, 0, 100, 200)
    log.checkpoint(log_start=150)
    tier.write(tier.manifest, segments=(tier.manifest.segments[0], tier.manifest.segments[2]))
    with pytest.raises(DataLoss, match="offsets 150 to 199 of events-0 are neither"):
        offsets_of(**both)


def test_a_batch_that_claims_to_be_longer_than_its_object_is_damage(tier):
    path = tier.folder / tier.manifest.segments[1].log_name
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 8, len(data))
    path.write_bytes(data)
    with pytest.raises(SourceError, match="is damaged at byte 0: it ends in a batch"):
        offsets_of(tier=tier.root)


def test_an_object_that_is_shorter_than_its_manifest_says_is_damaged(tier):
    path = tier.folder / tier.manifest.segments[1].log_name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"has \d+ bytes, and its manifest says"):
        offsets_of(tier=tier.root)


@pytest.mark.parametrize("given", [{}, {"bytesPerPartition": 300}, COMMITTED])
def test_segments_that_leave_the_disk_after_the_plan_are_read_from_remote_storage(log, tmp_path, given):
    tier = FolderTier(tmp_path / "tier")
    tier.copy(log, 0)
    wanted, options = planned(path=log.log_dir, tier=tier.root, **given)
    tier.copy(log, 100, 200)
    leave_to_tier(log, 0, 100, 200)
    assert read(wanted, options) == list(range(400))


@pytest.mark.parametrize("given", [{}, {"bytesPerPartition": 300}, COMMITTED])
def test_the_first_segments_may_be_copied_after_the_plan(log, tmp_path, given):
    identify(log)
    tier = FolderTier(tmp_path / "tier")
    wanted, options = planned(path=log.log_dir, tier=tier.root, **given)
    tier.copy(log, 0, 100, 200)
    leave_to_tier(log, 0, 100, 200)
    assert read(wanted, options) == list(range(400))


@pytest.mark.parametrize("cluster_id", ["cluster", "prod@eu"])
def test_what_is_deleted_after_the_plan_and_in_no_tier_is_lost_in_its_folder(log, tmp_path, cluster_id):
    identify(log, cluster_id)
    (tmp_path / "tier").mkdir()
    wanted, options = planned(path=log.log_dir, tier=tmp_path / "tier")
    delete_segments(log, 0)
    with pytest.raises(DataLoss, match=r"offsets 0 to 99 of .*/events-0 .*: its log starts at 100"):
        read(wanted, options)
    leave_to_tier(log, 0)
    log.checkpoint(log_start=0)
    for by in ({}, {"startingTimestamp": 1_100}):
        with pytest.raises(DataLoss, match=r"offsets 0 to 99 .* is not the remote storage of its cluster"):
            offsets_of(path=log.log_dir, tier=tmp_path / "tier", **by)


class MovingDisk(SystemDisk):
    """The system's disk; just before the n-th question about a file, ``move`` is called."""

    def __init__(self, number, move):
        super().__init__()
        self.left = number
        self._move = move

    def __getattribute__(self, name):
        if name in ("open", "exists", "file_size", "list_directory", "read_file"):
            self.left -= 1
            if self.left == 0:
                self._move()
        return super().__getattribute__(name)


@pytest.mark.parametrize("are_first", [False, True])
def test_at_any_moment_segments_may_be_copied_and_leave_the_disk(tmp_path, monkeypatch, are_first):
    """A segment with an aborted transaction is copied and deleted while a read is planned and done."""
    for number in itertools.count(1):
        log, committed = transactional_log(tmp_path / str(number) / "logs")
        identify(log)
        tier = FolderTier(tmp_path / str(number) / "tier")
        moved = (0, 45) if are_first else (45,)
        if not are_first:
            tier.copy(log, 0)
            leave_to_tier(log, 0)

        def move(tier=tier, log=log, moved=moved):
            tier.copy(log, *moved)
            leave_to_tier(log, *moved)

        disk = MovingDisk(number, move)
        monkeypatch.setattr(
            storages, "Runtime", SimpleNamespace(system=lambda disk=disk: SimpleNamespace(disk=disk))
        )
        monkeypatch.setattr(storages, "REQUESTS_AT_ONCE", 1)
        found = offsets_of(path=log.log_dir, tier=tier.root, bytesPerPartition=400, **COMMITTED)
        assert found == committed, number
        if disk.left > 0:
            assert number > 20
            return
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.parametrize("bases", [(0,), (0, 100, 200), (0, 100, 200, 300)])
def test_a_plan_reads_no_objects_because_segments_leave_the_disk(log, tmp_path, monkeypatch, bases):
    """Segments that are in the tier leave the disk between the listing and the search for transactions."""
    append(log, 1, epoch=1)  # a segment at 400
    log.checkpoint()
    tier = FolderTier(tmp_path / "tier")
    tier.copy(log, 0, 100, 200)
    find_aborted, searches, opened = log_slices.find_aborted, [], []

    def leave_and_find(*given):
        searches.append(given)
        if bases[-1] == 300 and tier.manifest.segments[-1].base_offset == 200:
            tier.copy(log, 300)
        leave_to_tier(log, *bases)
        return find_aborted(*given)

    real_open = TieredFolder.open
    monkeypatch.setattr(log_slices, "find_aborted", leave_and_find)
    monkeypatch.setattr(
        TieredFolder, "open", lambda *given, **named: opened.append(given) or real_open(*given, **named)
    )
    wanted, options = planned(path=log.log_dir, tier=tier.root, **COMMITTED)
    assert opened == [] and len(searches) == (2 if 300 in bases else 1)
    assert read(wanted, options) == list(range(410))


# --- committed records


def transactional_log(folder):
    """Three segments, the first two with an aborted transaction each; return what is committed, too."""
    log, committed = FolderLog(folder, "events"), []
    set_topic_id(log.folder, "a")
    for number in range(3):
        if number:
            log.roll()
        for base in range(4):
            is_aborted = base == 2 and number < 2
            first = log.append(numbered(log.next_offset, 10), producer_id=7, transactional=True)
            marker = log.end_transaction(7, commit=not is_aborted)
            if is_aborted:
                log.index_aborted(7, first, marker, marker + 1)
            else:
                committed += range(first, first + 10)
        committed.append(log.append(numbered(log.next_offset, 1)))
    log.checkpoint()
    return log, committed


@pytest.fixture
def aborted(tmp_path):
    log, committed = transactional_log(tmp_path / "transactions")
    tier = FolderTier(tmp_path / "aborted")
    tier.copy(log, 0, 45)
    return log, tier, committed


def test_aborted_transactions_of_remote_storage_are_left_out(aborted):
    log, tier, committed = aborted
    leave_to_tier(log, 0, 45)
    for given in DIVISIONS:
        assert offsets_of(path=log.log_dir, tier=tier.root, **COMMITTED, **given) == committed
        in_tier = [offset for offset in committed if offset < 90]
        assert offsets_of(tier=tier.root, **COMMITTED, **given) == in_tier
    assert len(offsets_of(tier=tier.root)) == 82


def test_an_index_of_aborted_transactions_that_is_gone_is_said(aborted):
    _, tier, _ = aborted
    (tier.folder / tier.manifest.segments[0].index_name).unlink()
    with pytest.raises(SourceError, match=r"-a\.index was listed and then deleted"):
        offsets_of(tier=tier.root, **COMMITTED)


def test_a_transaction_that_goes_on_behind_the_tier_is_open_at_its_end(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    set_topic_id(log.folder, "a")
    log.append(numbered(0, 10))
    log.append(numbered(10, 10), producer_id=7, transactional=True)
    log.append(numbered(20, 10))
    log.roll()
    marker = log.end_transaction(7, commit=False)
    log.index_aborted(7, 10, marker, marker + 1)
    log.append(numbered(31, 9))
    log.checkpoint()
    tier = FolderTier(tmp_path / "tier")
    tier.copy(log, 0, p7=10)
    assert offsets_of(tier=tier.root, **COMMITTED) == list(range(10))
    leave_to_tier(log, 0)
    both = offsets_of(path=log.log_dir, tier=tier.root, **COMMITTED)
    assert both == [*range(10), *range(20, 30), *range(31, 40)]


# --- options and storages


def test_without_remote_storage_the_error_names_the_option(log):
    leave_to_tier(log, 0)
    log.checkpoint(log_start=0)
    with pytest.raises(DataLoss, match=r"offsets 0 to 99 of events-0 .* with the option tier"):
        offsets_of(path=log.log_dir)


def test_one_of_the_two_names_of_the_option_is_given(tier):
    with pytest.raises(OptionError, match="the same option as archive"):
        offsets_of(tier=tier.root, archive="/elsewhere")


def put(server, paths):
    for path in paths:
        name = path.relative_to(path.parents[3])
        server.client.put_object(Bucket=BUCKET, Key=f"tier/{name}", Body=path.read_bytes())


def take(server, paths):
    for path in paths:
        server.client.delete_object(Bucket=BUCKET, Key=f"tier/{path.relative_to(path.parents[3])}")


def test_remote_storage_in_a_bucket_is_read_as_that_in_a_folder(log, tier):
    with s3_server() as server:
        put(server, tier.folder.iterdir())
        uri = server.url("tier")
        expected = rows_of(tier=tier.root)
        assert rows_of(tier=uri, bytesPerPartition=700) == expected
        leave_to_tier(log, 0, 100, 200)
        assert offsets_of(tier=uri, path=log.log_dir, startingTimestamp=1_150) == list(range(150, 400))
        wanted, options = planned(tier=uri)
        take(server, tier.objects(100))
        with pytest.raises(DataLoss, match="offsets 100 to 199 of events-0 in remote storage") as error:
            read(wanted, options)
        assert "secret" not in str(error.value)


def test_an_object_that_is_removed_while_it_is_read_is_looked_up_again(log, tier, monkeypatch):
    """A folder keeps a file that is open, a bucket does not."""
    with s3_server() as server:
        put(server, tier.folder.iterdir())
        of_100 = tier.objects(100)
        plans = [planned(tier=server.url("tier"), failOnDataLoss=fails) for fails in ("true", "false")]
        real_open = storages.ArrowDisk.open

        def open_and_lose(disk, path, **given):
            file = real_open(disk, path, **given)
            if path.endswith(tier.manifest.segments[1].log_name):
                take(server, of_100)
            return file

        monkeypatch.setattr(storages.ArrowDisk, "open", open_and_lose)
        for wanted, options in plans:
            put(server, of_100)
            if options.common.fail_on_data_loss:
                with pytest.raises(DataLoss, match="offsets 100 to 199 of events-0 in remote storage"):
                    read(wanted, options)
            else:
                assert read(wanted, options) == [*range(100), *range(200, 300)]
        put(server, of_100)
        (wanted, options), _ = plans
        tier.write(tier.manifest, segments=tier.manifest.segments[:1])
        tier.copy(log, 100, 200, attempt="b")
        put(server, tier.folder.iterdir())
        assert read(wanted, options) == list(range(300))
