"""Compaction part by part: plan, groups, batches, what ends a round, checkpoint, readers."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Callable

import pytest
from log_model import build_batch, read_from

from nilometer.runtime.disk import File
from nilometer.runtime.runtime import SeededEntropy
from nilometer.steps import at_once
from nilometer.storage import checkpoints, names
from nilometer.storage.cleaning.cleaning_plan import CleanableView, group_segments, plan_cleaning
from nilometer.storage.cleaning.cleaning_round import RoundOvertaken
from nilometer.storage.cleaning.offset_map import SLOT_BYTES
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.log import Log
from nilometer.storage.log_reader import LogFolderReader
from nilometer.storage.names import TopicPartition
from nilometer.wire.compression import Codec
from nilometer.wire.errors import KafkaError
from nilometer.wire.records import ControlType
from support.logs.compaction_scenario import CONFIG, RETENTION_MS, CompactionScenario, read_all
from support.logs.log_cleaner import clean_log, make_durable
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)


# ── what may be cleaned, and when that is worth it ──────────────────────────────────────────────────


def scenario_of(segments: int, per_segment: int = 1) -> CompactionScenario:
    scenario = CompactionScenario()
    for number in range(segments):
        for _ in range(per_segment):
            scenario.append([(b"a", b"%d" % number)])
        scenario.roll()
        scenario.now_ms += 100
    make_durable(scenario.log)
    return scenario


def view_of(log: Log, bound: int | None = None) -> CleanableView:
    end = log.log_end_offset
    return CleanableView.of(
        log, last_stable_offset=end if bound is None else bound, durable_recovery_point=end
    )


def test_the_dirty_ratio_decides_and_max_compaction_lag_overrules_it() -> None:
    scenario = scenario_of(4)
    log = scenario.log
    log.cleaned_offset = 3
    plan = plan_cleaning(view_of(log), scenario.now_ms)
    assert plan is not None
    assert (plan.first_dirty_offset, plan.end_offset) == (3, 4)
    assert plan.dirty_ratio == pytest.approx(0.25, abs=0.05)
    for ratio, lag_ms, expected in (
        (0.5, 1 << 62, False),
        (0.2, 1 << 62, True),
        (0.5, 50, True),
        (0.5, 500, False),
    ):
        config = dataclasses.replace(CONFIG, min_cleanable_dirty_ratio=ratio, max_compaction_lag_ms=lag_ms)
        log.configure(config)
        plan = plan_cleaning(view_of(log), scenario.now_ms)
        assert plan is not None
        assert plan.is_worth_it(config) == expected


def test_min_compaction_lag_keeps_the_first_young_segment_and_all_behind_it() -> None:
    scenario = scenario_of(4)
    scenario.log.configure(dataclasses.replace(CONFIG, min_compaction_lag_ms=250))
    plan = plan_cleaning(view_of(scenario.log), scenario.now_ms)
    assert plan is not None
    assert plan.end_offset == 2


def test_a_bound_inside_a_segment_ends_the_plan_before_it() -> None:
    scenario = scenario_of(3, per_segment=2)
    for bound, expected in ((6, 6), (5, 4), (4, 4), (3, 2)):
        plan = plan_cleaning(view_of(scenario.log, bound), scenario.now_ms)
        assert plan is not None
        assert plan.end_offset == expected
        assert plan.segments[-1].base_offset == expected - 2
    assert plan_cleaning(view_of(scenario.log, 1), scenario.now_ms) is None
    assert not view_of(scenario.log, 1).is_promising


def test_a_group_keeps_to_the_size_of_a_segment_and_to_the_reach_of_an_index() -> None:
    scenario = scenario_of(6)
    segments = tuple(scenario.log.segments)[:-1]
    size = segments[0].size
    assert [len(group) for group in group_segments(segments, 6, size * 3)] == [3, 3]
    assert [len(group) for group in group_segments(segments, 6, 1)] == [1] * 6
    far = (1 << 31) + segments[0].base_offset
    assert [len(group) for group in group_segments(segments, far, size * 10)] == [6]
    assert [len(group) for group in group_segments(segments, far + 1, size * 10)] == [5, 1]


# ── what becomes of a batch ─────────────────────────────────────────────────────────────────────────


def test_a_thinned_batch_keeps_offsets_producer_codec_and_headers() -> None:
    scenario = CompactionScenario()
    scenario.append([(b"a", b"1"), (b"b", b"2"), (b"c", None)], producer=7, codec=Codec.ZSTD)
    scenario.append([(b"a", b"3")])
    scenario.roll()
    [(before, _), _] = read_all(scenario.log)
    scenario.clean()
    [(header, records), _] = read_all(scenario.log)
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 2, 2)
    same = ("producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch", "codec")
    assert [getattr(header, name) for name in same] == [getattr(before, name) for name in same]
    assert header.has_delete_horizon
    assert header.base_timestamp == scenario.now_ms + RETENTION_MS
    assert records == [scenario.records[1], scenario.records[2]]
    assert header.max_timestamp == records[-1].timestamp


def test_the_first_round_sets_the_delete_horizon_and_later_ones_leave_it() -> None:
    scenario = CompactionScenario()
    scenario.append([(b"a", None)])
    scenario.roll()
    scenario.clean()
    first = read_all(scenario.log)[0][0].base_timestamp
    for waited in (1, RETENTION_MS - 2):
        scenario.now_ms += waited
        scenario.append([(b"b", b"1")])
        scenario.roll()
        scenario.clean()
        assert read_all(scenario.log)[0][0].base_timestamp == first
    scenario.now_ms += 1
    scenario.append([(b"b", b"1")])
    scenario.roll()
    scenario.clean()
    assert b"a" not in {record.key for _, records in read_all(scenario.log) for record in records}


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_round_that_did_not_read_a_whole_batch_sets_no_delete_horizon(is_one_batch: bool) -> None:
    """Until a later round has read it, the older value stays: who reads that value must see the tombstone."""
    scenario = CompactionScenario()
    pairs = [(b"a", b"1"), (b"b", b"2"), (b"b", None)]
    for batch in [pairs] if is_one_batch else [[pair] for pair in pairs]:
        scenario.append(batch)
    scenario.roll()
    scenario.clean(2 * SLOT_BYTES)
    assert scenario.log.cleaned_offset == 1, "only the first key fits into the offset map"
    found = read_all(scenario.log)
    assert [record for _, records in found for record in records] == list(scenario.records.values())
    assert not any(header.has_delete_horizon for header, _ in found)

    scenario.now_ms += RETENTION_MS
    scenario.clean()
    header, records = read_all(scenario.log)[-1]
    assert records[-1] == scenario.records[2]
    assert header.has_delete_horizon
    assert header.base_timestamp == scenario.now_ms + RETENTION_MS
    scenario.check()


def test_a_tombstone_behind_a_full_map_gets_no_delete_horizon_from_one_before_it() -> None:
    """One batch has one horizon for both, and the value that the second one deletes is still there."""
    scenario = CompactionScenario()
    scenario.append([(b"b", b"1")])
    scenario.append([(b"a", None), (b"c", b"1"), (b"b", None)])
    scenario.roll()
    scenario.clean(3 * SLOT_BYTES)
    assert scenario.log.cleaned_offset == 2, "two keys fit into the offset map"
    found = read_all(scenario.log)
    assert [len(records) for _, records in found] == [1, 3]
    assert not any(header.has_delete_horizon for header, _ in found)


def test_the_last_batch_of_the_cleaned_part_stays_without_records() -> None:
    scenario = CompactionScenario()
    scenario.append([(b"a", b"1")])
    without_key = build_batch((b"from before the topic was compacted",), base_offset=1, epoch=0, key=None)
    scenario.log.append_as_follower(without_key, wall_ms=scenario.now_ms)
    scenario.roll()
    scenario.clean()
    headers = [header for header, _ in read_all(scenario.log)]
    assert [(each.base_offset, each.records_count) for each in headers] == [(0, 1), (1, 0)]


def test_the_search_for_the_newest_record_passes_over_a_batch_without_records() -> None:
    scenario = CompactionScenario()
    scenario.append([(b"a", b"1")], producer=7)
    scenario.now_ms -= 500
    last = scenario.append([(b"a", b"2")])
    scenario.roll()
    scenario.clean()
    assert [header.records_count for header, _ in read_all(scenario.log)] == [0, 1]
    found = at_once(scenario.log.offset_of_max_timestamp())
    assert found is not None
    assert (found.offset, found.timestamp) == (last, scenario.now_ms)


def test_an_index_entry_stays_as_long_as_a_batch_of_its_transaction_does() -> None:
    scenario = CompactionScenario()
    scenario.append([(b"a", b"1")], producer=11, in_transaction=True)
    scenario.end_transaction(11, ControlType.ABORT)
    scenario.append([(b"b", b"1")])
    scenario.roll()
    for expected in (1, 1, 1):  # the batch is the last one of its producer
        scenario.clean()
        assert len(scenario.log.aborted_transactions(0, 3)) == expected
        scenario.append([(b"b", b"1")])
        scenario.roll()
    scenario.append([(b"c", b"1")], producer=11, in_transaction=True)
    scenario.end_transaction(11, ControlType.COMMIT)
    scenario.roll()
    scenario.clean()  # the batch goes; it was met
    assert len(scenario.log.aborted_transactions(0, 3)) == 1
    scenario.append([(b"b", b"1")])
    scenario.roll()
    scenario.clean()
    assert scenario.log.aborted_transactions(0, 3) == []
    scenario.check()


# ── what ends a round ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["truncation", "records deleted", "policy", "retention", "deletion"])
def test_a_round_is_given_up_when_the_log_changes_under_it(what: str) -> None:
    scenario = scenario_of(4)
    log = scenario.log

    def change() -> None:
        if what == "truncation":
            log.truncate_to(3, wall_ms=1)
        elif what == "records deleted":
            log.advance_log_start_offset(1, 4)
        elif what == "policy":
            log.configure(dataclasses.replace(CONFIG, is_compacted=False))
        elif what == "retention":
            log.move_log_start(1)
            log.delete_old_segments(4, 1)
        else:
            log.fence(OSError("the partition was deleted"))

    with pytest.raises(RoundOvertaken):
        clean_log(log, wall_ms=scenario.now_ms, meanwhile=change)
    assert log.cleaned_offset == 0
    assert not [
        name for name in scenario.disk.list_directory(log.folder) if name.endswith(names.CLEANED_SUFFIX)
    ]
    if what == "deletion":
        return
    scenario.reopen()
    kept = [record.value for _, records in read_all(log) for record in records]
    assert kept == {"truncation": [b"0", b"1", b"2"], "retention": [b"1", b"2", b"3"]}.get(
        what, [b"1", b"2", b"3"] if what == "records deleted" else [b"0", b"1", b"2", b"3"]
    )


# ── the checkpoint ──────────────────────────────────────────────────────────────────────────────────


class Directory:
    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.open()

    def open(self) -> None:
        self.disk.crash_process()
        options = ManagerOptions(
            node_id=1,
            directories=["/data"],
            entropy=SeededEntropy(random.Random(1)),
            config_for=lambda _: CONFIG,
        )
        self.manager = LogManager.open(self.disk, options, wall_ms=1)

    def checkpoint(self) -> None:
        for plan in self.manager.plan_checkpoints({KEY: 0}):
            assert plan.run()
            self.manager.note_checkpoint(plan)

    @property
    def lines(self) -> dict[TopicPartition, int]:
        return checkpoints.read_offsets(self.disk, f"/data/{names.CLEANER_OFFSET_CHECKPOINT}")

    def filled_log(self) -> Log:
        log = self.manager.create(KEY, CONFIG, wall_ms=1, topic_id=uuid.UUID(int=1))
        for number in range(20):
            log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=0, wall_ms=1)
        make_durable(log)
        return log


def test_the_cleaned_offset_is_checkpointed_cut_and_dropped_with_its_log() -> None:
    directory = Directory()
    log = directory.filled_log()
    directory.checkpoint()
    assert not directory.disk.exists(f"/data/{names.CLEANER_OFFSET_CHECKPOINT}"), "without lines, no file"
    assert clean_log(log, wall_ms=10) is not None
    cleaned = log.cleaned_offset
    assert cleaned > 10
    directory.checkpoint()
    assert directory.lines == {KEY: cleaned}
    directory.open()
    log = directory.manager.logs[KEY]
    assert log.cleaned_offset == cleaned
    assert log.may_have_gaps

    directory.manager.truncate_to(log, 3, wall_ms=1)
    assert log.cleaned_offset <= 3
    assert log.awaits_checkpoint, "or new records would count as cleaned after a crash"
    with pytest.raises(KafkaError, match="checkpoint"):
        log.append_as_leader(build_batch((b"x",)), leader_epoch=0, wall_ms=1)
    directory.checkpoint()
    assert directory.lines == ({KEY: log.cleaned_offset} if log.cleaned_offset else {})

    directory.manager.delete(KEY)
    directory.checkpoint()
    assert directory.lines == {}


def test_a_cleaned_offset_that_is_out_of_range_is_reset() -> None:
    directory = Directory()
    directory.filled_log()
    directory.checkpoint()
    for line in (21, 1 << 40):
        path = f"/data/{names.CLEANER_OFFSET_CHECKPOINT}"
        checkpoints.write_offsets(directory.disk, path, {KEY: line})
        directory.open()
        assert directory.manager.logs[KEY].cleaned_offset == 0


def test_only_what_every_restart_takes_as_checked_may_be_cleaned() -> None:
    """The line on disk counts, not what is durable by now."""
    directory = Directory()
    log = directory.filled_log()
    assert directory.manager.durable_recovery_point(KEY) == 0 < log.recovery_point
    plans = directory.manager.plan_checkpoints({KEY: 0})
    for plan in plans:
        plan.run()
    assert directory.manager.durable_recovery_point(KEY) == 0, "written, but not known to be"
    for plan in plans:
        directory.manager.note_checkpoint(plan)
    assert directory.manager.durable_recovery_point(KEY) == log.recovery_point


def test_the_epoch_chain_outlives_a_recovery_of_what_was_cleaned() -> None:
    """The first batch of an epoch may be gone; where it began is not forgotten."""
    directory = Directory()
    log = directory.manager.create(KEY, CONFIG, wall_ms=1, topic_id=uuid.UUID(int=1))
    for epoch in range(4):
        for number in range(5):
            log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=epoch, wall_ms=1)
    log.roll(1)
    log.append_as_leader(build_batch((b"last",)), leader_epoch=4, wall_ms=1)
    make_durable(log)
    directory.checkpoint()
    chain = log.epochs.entries
    assert clean_log(log, wall_ms=10) is not None
    directory.checkpoint()
    for name in directory.disk.list_directory(log.folder):
        if name.endswith(names.INDEX_SUFFIX):
            directory.disk.remove(f"{log.folder}/{name}")
    checkpoints.write_offsets(directory.disk, f"/data/{names.RECOVERY_POINT_CHECKPOINT}", {KEY: 0})
    directory.open()
    assert directory.manager.logs[KEY].epochs.entries == chain


# ── readers beside it ───────────────────────────────────────────────────────────────────────────────


class BusyDisk(MemoryDisk):
    """Cleans a log once, between a reader's look at the segments and its opening of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.log: Log | None = None
        self.suffix = ".log"

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        if path.endswith(self.suffix) and not writable:
            self.meanwhile()
        return super().open(path, create=create, writable=writable, private=private)

    def read_file(self, path: str) -> bytes:
        if path.endswith(self.suffix):
            self.meanwhile()
        return super().read_file(path)

    def meanwhile(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            assert clean_log(log, wall_ms=2_000_000) is not None


def read_at(log: Log, offset: int) -> object:
    part = log.read(offset, 10_000, 30)
    assert part is not None
    return bytes(part.records), part.next_offset


def by_time(log: Log, offset: int) -> object:
    return at_once(log.offset_for_timestamp(1_000_000 + offset))


def newest(log: Log, _offset: int) -> object:
    return at_once(log.offset_of_max_timestamp())


@pytest.mark.parametrize(
    ("read", "suffix"),
    [
        (read_at, ".log"),
        (read_at, ".index"),
        *((read, suffix) for read in (by_time, newest) for suffix in (".log", ".index", ".timeindex")),
    ],
)
def test_a_reader_under_which_segments_are_replaced_reads_as_one_that_comes_later(
    read: Callable[[Log, int], object], suffix: str
) -> None:
    swaps = 0
    for offset in range(0, 30, 3):
        disk = BusyDisk()
        disk.suffix = suffix
        scenario = CompactionScenario(disk=disk)
        for number in range(30):
            scenario.now_ms = 1_000_000 + (number if number != 8 else 100)
            scenario.append([(b"%d" % (number % 7), b"%d" % number * 10)])
        make_durable(scenario.log)
        scenario.now_ms = 1_000_000
        disk.log = scenario.log
        found = read(scenario.log, offset)
        if disk.log is not None:
            continue  # it needed no such file
        swaps += 1
        assert found == read(scenario.log, offset)
        scenario.check_after_crash()
    assert swaps, "the reader was disturbed"


def test_a_reader_of_the_folder_finds_what_was_merged_into_the_segment_behind_it() -> None:
    scenario = scenario_of(4)
    for number in range(4):
        scenario.append([(b"k%d" % number, b"x")])
        scenario.roll()
    make_durable(scenario.log)
    reader = LogFolderReader(scenario.disk, scenario.log.folder).batches(verify=True)
    found = [next(reader).header.base_offset]
    assert clean_log(scenario.log, wall_ms=scenario.now_ms) is not None
    found += [batch.header.base_offset for batch in reader]
    assert found == [0, 3, 4, 5, 6, 7]
    assert [offset for offset, _ in read_from(scenario.log, 0, 8)] == [3, 4, 5, 6, 7]
