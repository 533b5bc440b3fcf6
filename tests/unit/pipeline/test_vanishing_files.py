"""Folders whose files go while they are read: at any moment rows, or an error that says what is gone."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from nilometer.pipeline.audit.audit import CommittedOffset, check_committed, check_listed
from nilometer.pipeline.audit.segment_check import Kind
from nilometer.pipeline.errors import DataLoss, SourceError
from nilometer.pipeline.source.log_folders import storages
from nilometer.pipeline.source.log_folders.log_plan import parse_log_options, plan
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.log_folders.places import find_replicas
from nilometer.pipeline.source.positions import Bounds
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.names import TopicPartition
from support.logs.folder_logs import FolderLog
from support.pipeline import audit_checks
from support.pipeline.audit_checks import findings_in


class VanishingDisk(SystemDisk):
    """The system's disk, on which files get another name just before the n-th question."""

    def __init__(self, number, renamed):
        super().__init__()
        self.left = number
        self._renamed = renamed

    def _count(self):
        self.left -= 1
        if self.left == 0:
            for name, renamed_to in self._renamed:
                name.rename(renamed_to)

    def open(self, path, **how):
        self._count()
        return super().open(path, **how)

    def exists(self, path):
        self._count()
        return super().exists(path)

    def is_directory(self, path):
        self._count()
        return super().is_directory(path)

    def file_size(self, path):
        self._count()
        return super().file_size(path)

    def list_directory(self, path):
        self._count()
        return super().list_directory(path)

    def read_file(self, path):
        self._count()
        return super().read_file(path)


@pytest.fixture(scope="module")
def log_directory(tmp_path_factory):
    """Two partitions in three segments each, with a transaction in each segment."""
    place = tmp_path_factory.mktemp("whole") / "logs"
    for partition in range(2):
        log = FolderLog(place, "events", partition)
        for number in range(3):
            if number:
                log.roll()
            for base in range(0, 18, 6):
                rows = [(1_000 + log.next_offset + n, b"k", b"v%d" % n) for n in range(6)]
                log.append(rows, producer_id=7, transactional=base == 12)
            marker = log.end_transaction(7, commit=bool(number % 2))
            if not number % 2:
                log.index_aborted(7, marker - 6, marker, marker + 1)
        log.append([(2_000, b"k", b"last")] * 3)
        log.checkpoint()
    return place


def partition(place):
    """As a broker does it: the folder gets another name first."""
    return [(place / "events-0", place / "events-0.0123456789abcdef0123456789abcdef-delete")]


def first_segment(place):
    files = sorted((place / "events-0").glob("0" * 20 + ".*"))
    return [(path, path.with_name(path.name + ".deleted")) for path in files]


def index(place):
    path = place / "events-0" / ("0" * 20 + ".index")
    return [(path, path.with_suffix(".gone"))]


DELETED = (partition, first_segment, index)
READINGS = (
    {},
    {"failOnDataLoss": "false", "bytesPerPartition": "400", "isolation.level": "read_committed"},
    {"startingTimestamp": "1010", "minPartitions": "4"},
    {"highWatermark": "logEnd"},
)


def rows_of(place, given):
    options = parse_log_options({"path": str(place), **given})
    return [
        (row["partition"], row["offset"])
        for one in plan(options, Bounds(since_ms=1))
        for batch in read_slice(options, ("partition", "offset"), one)
        for row in batch.to_pylist()
    ]


def at_each_moment(place, monkeypatch, deleted, read):
    """The outcome of ``read`` for each question of a disk just before which something is ``deleted``."""
    renamed = deleted(place)
    for number in itertools.count(1):
        disk = VanishingDisk(number, renamed)
        runtime = SimpleNamespace(system=lambda disk=disk: SimpleNamespace(disk=disk))
        monkeypatch.setattr(storages, "Runtime", runtime)
        yield read(place)
        if disk.left > 0:
            return
        for name, renamed_to in renamed:
            renamed_to.rename(name)


@pytest.mark.parametrize("deleted", DELETED)
@pytest.mark.parametrize("given", READINGS)
def test_a_reader_says_what_is_gone_or_goes_on_without_it(log_directory, monkeypatch, deleted, given):
    def read(place):
        try:
            return rows_of(place, given)
        except (DataLoss, SourceError) as error:
            return error

    losses = 0
    outcomes = list(at_each_moment(log_directory, monkeypatch, deleted, read))
    whole = outcomes[-1]
    assert isinstance(whole, list)
    for found in outcomes:
        if isinstance(found, list):
            # No record twice, none that was not there, and the other partition is whole.
            assert len(found) == len(set(found))
            assert [one for one in found if one[0] == 1] == [one for one in whole if one[0] == 1]
            assert set(found) <= set(whole)
        else:
            losses += 1
            assert given.get("failOnDataLoss") != "false" or isinstance(found, SourceError), found
    if deleted is index:
        assert outcomes == [whole] * len(outcomes)
    elif given.get("failOnDataLoss") != "false":
        assert losses


@pytest.mark.parametrize("deleted", DELETED)
def test_an_audit_goes_on(log_directory, monkeypatch, deleted):
    outcomes = list(at_each_moment(log_directory, monkeypatch, deleted, findings_in))
    assert outcomes[-1] == []


@pytest.fixture
def gone_after_listing(log_directory, monkeypatch):
    """Remove the logs of partition 0 after they were listed; ``then`` is called with their folder."""
    folder, planned, after = log_directory / "events-0", audit_checks.plan_segments, []

    def plan_then_delete(replicas):
        works = planned(replicas)
        if works[0].partition == 0:
            for work in works:
                path = folder / f"{work.base_offset:020}.log"
                path.rename(path.with_suffix(".log.deleted"))
            for then in after:
                then(folder)
        return works

    monkeypatch.setattr(audit_checks, "plan_segments", plan_then_delete)
    yield after
    for path in folder.glob("*.log"):
        path.unlink()
    for path in folder.glob("*.log.deleted"):
        path.rename(path.with_suffix(""))


def test_an_audit_knows_nothing_of_a_log_whose_segments_were_all_replaced(log_directory, gone_after_listing):
    """Retention removes what was listed while the audit waits for Spark."""
    gone_after_listing.append(lambda folder: (folder / f"{999:020}.log").touch())
    assert findings_in(log_directory) == []


def test_an_audit_misses_the_records_of_a_log_whose_segments_are_gone(log_directory, gone_after_listing):
    [found] = findings_in(log_directory)
    assert (found.kind, found.partition) == (Kind.MISSING_RECORDS, 0)


def test_an_audit_misses_the_records_of_files_that_are_listed_but_cannot_be_found(
    log_directory, gone_after_listing
):
    def dangle(folder):
        for path in folder.glob("*.log.deleted"):
            path.with_suffix("").symlink_to(folder / "nowhere")

    gone_after_listing.append(dangle)
    [found] = findings_in(log_directory)
    assert (found.kind, found.partition) == (Kind.MISSING_RECORDS, 0)


def test_a_committed_offset_beyond_a_log_without_segments_is_found(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    log.append([(5, b"k", b"v")] * 3)
    log.checkpoint()
    for path in (tmp_path / "logs" / "events-0").glob("*.log"):
        path.unlink()
    [replica] = find_replicas([str(tmp_path / "logs")])
    committed = CommittedOffset("g", TopicPartition("events", 0), 12, "place", 7)
    [found] = check_committed([committed], [check_listed(replica, [])])
    assert found.kind is Kind.COMMITTED_OFFSET
