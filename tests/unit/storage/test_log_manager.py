"""Log directories: one that fails takes its own logs along and no others; names, checkpoints, sizes."""

from __future__ import annotations

import posixpath
import random
import uuid

import pytest
from log_model import build_batch, read_from
from msgspec.structs import replace

from nilometer.runtime import LockHeld
from nilometer.runtime.runtime import SeededEntropy
from nilometer.steps import at_once
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, NoLogDirectory
from nilometer.storage.errors import CorruptCheckpoint, LogFenced
from nilometer.storage.log_reader import LogFolderReader
from nilometer.storage.names import FolderKind, TopicPartition, delete_folder_name, parse_folder_name
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

FIRST, SECOND = TopicPartition("a", 0), TopicPartition("b", 0)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)


def options() -> ManagerOptions:
    return ManagerOptions(
        node_id=1,
        directories=["/one", "/two"],
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: CONFIG,
        open_files_max=3,
    )


def open_manager(disk: MemoryDisk) -> LogManager:
    disk.crash_process()
    return LogManager.open(disk, options(), wall_ms=1)


def append(manager: LogManager, key: TopicPartition, count: int) -> None:
    for number in range(count):
        manager.logs[key].append_as_leader(build_batch((b"%d" % number,)), leader_epoch=0, wall_ms=1)


def test_a_failed_directory_takes_its_own_logs_offline_and_no_others() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    for key in (FIRST, SECOND):
        manager.create(key, CONFIG, wall_ms=1)
    assert [manager.directory_of(key) for key in (FIRST, SECOND)] == ["/one", "/two"]
    lost = manager.logs[FIRST]
    disk.fails = lambda _, verb, path: OSError(5, "EIO") if path.startswith("/one/") else None
    with pytest.raises(LogFenced) as fenced:
        append(manager, FIRST, 1)
    assert manager.fail_directory("/one", fenced.value.reason) == [FIRST]
    assert manager.fail_directory("/one", fenced.value.reason) == []
    assert lost.failure is not None
    append(manager, SECOND, 3)
    descriptions = {each.path: each for each in at_once(manager.describe())}
    assert descriptions["/one"].failure is not None
    assert descriptions["/two"].sizes[SECOND] == manager.logs[SECOND].size > 0
    assert manager.create(TopicPartition("c", 0), CONFIG, wall_ms=1).folder == "/two/c-0"
    assert manager.close({}, broker_epoch=4, wall_ms=1) == []
    assert log_directory.read_broker_epoch(disk, "/two/.kafka_cleanshutdown") == 4
    assert not disk.exists("/one/.kafka_cleanshutdown")


def test_no_directory_left_is_said_so() -> None:
    disk = MemoryDisk()
    disk.fails = lambda _, verb, path: OSError(5, "EIO")
    with pytest.raises(NoLogDirectory, match="/two"):
        open_manager(disk)


def test_kafka_16452_a_checkpointed_high_watermark_is_clamped_to_the_log() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    manager.create(FIRST, CONFIG, wall_ms=1)
    append(manager, FIRST, 10)
    manager.logs[FIRST].advance_log_start_offset(6, 10)
    for plan in manager.plan_checkpoints({FIRST: 2}):
        plan.run()
    assert open_manager(disk).initial_high_watermark(FIRST) == 6
    checkpoints.write_offsets(disk, "/one/replication-offset-checkpoint", {FIRST: 99})
    manager = open_manager(disk)
    assert manager.initial_high_watermark(FIRST) == 10
    assert manager.logs[FIRST].log_start_offset == 6


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_folder_that_was_not_synced_when_the_process_ended_keeps_its_topic_id(is_clean: bool) -> None:
    """It was killed, or closed the directory while another thread made the folder."""
    topic_id, with_records = uuid.UUID(int=7), 0
    for seed in range(40):
        disk = MemoryDisk(seed)
        manager = open_manager(disk)
        [folder] = manager.plan_folders([(FIRST, topic_id)])
        if is_clean:
            assert manager.close({}, broker_epoch=1, wall_ms=1) == []
        folder.make()
        manager = open_manager(disk)
        append(manager, FIRST, 1)
        manager.logs[FIRST].flush_plan().run()
        disk.crash_machine()
        log = open_manager(disk).get(FIRST)
        if log is not None and log.log_end_offset:
            with_records += 1
            assert log.topic_id == topic_id, f"seed {seed}"
    assert with_records, "of no seed the record survives: nothing was tested"


def test_an_error_while_closing_leaves_no_marker() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    manager.create(FIRST, CONFIG, wall_ms=1)
    append(manager, FIRST, 3)
    disk.fails = lambda _, verb, path: OSError(5, "EIO") if verb == "sync" and "a-0" in path else None
    [failure] = manager.close({}, broker_epoch=4, wall_ms=1)
    assert isinstance(failure, OSError)
    disk.work_again()
    manager = open_manager(disk)
    assert manager.previous_broker_epoch is None
    assert len(read_from(manager.logs[FIRST], 0, 3)) == 3


@pytest.mark.parametrize("refusal", ["locked", "of another node"])
def test_a_refused_start_leaves_the_other_directories_as_cleanly_shut_down(refusal: str) -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    manager.create(FIRST, CONFIG, wall_ms=1)
    append(manager, FIRST, 3)
    manager.close({}, broker_epoch=7, wall_ms=1)
    if refusal == "locked":
        lock = disk.lock("/two/.lock")
        with pytest.raises(LockHeld):
            LogManager.open(disk, options(), wall_ms=1)
        lock.release()
    else:
        own = disk.read_file("/two/meta.properties")
        disk.replace_file("/two/meta.properties", b"node.id=77\n")
        with pytest.raises(CorruptCheckpoint, match="belongs to node 77"):
            LogManager.open(disk, options(), wall_ms=1)
        disk.replace_file("/two/meta.properties", own)
    assert open_manager(disk).previous_broker_epoch == 7


def test_a_folder_that_only_looks_like_a_partitions_is_left_alone() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    manager.create(FIRST, CONFIG, wall_ms=1)
    append(manager, FIRST, 3)
    manager.close({}, broker_epoch=7, wall_ms=1)
    folder = manager.logs[FIRST].folder
    lookalike = f"{folder[:-1]}00"
    disk.make_directories(lookalike)
    manager = open_manager(disk)
    assert list(manager.logs) == [FIRST]
    assert manager.duplicates == []
    assert len(read_from(manager.logs[FIRST], 0, 3)) == 3
    assert disk.is_directory(lookalike)


METADATA = "/one/a-0/partition.metadata"


@pytest.mark.parametrize("damage", ["torn", "empty", "zeros", "missing"])
def test_records_without_a_topic_id_become_strays(damage: str) -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    for key in (FIRST, SECOND):
        manager.create(key, CONFIG, wall_ms=1, topic_id=uuid.UUID(int=7))
        append(manager, key, 3)
    manager.close({}, broker_epoch=7, wall_ms=1)
    content = disk.read_file(METADATA)
    if damage == "missing":
        disk.remove(METADATA)
    else:
        left = {"torn": content[:-5], "empty": b"", "zeros": bytes(len(content))}
        disk.replace_file(METADATA, left[damage])
    manager = open_manager(disk)
    (found,) = manager.take_out_unidentified()
    assert list(manager.logs) == [SECOND]
    assert (found.folder, found.log_end_offset) == ("/one/a-0", 3)
    assert "partition.metadata is missing or damaged" in str(found)
    assert disk.exists(f"{found.renamed_to}/00000000000000000000.log")
    assert not manager.removable_folders
    assert manager.create(FIRST, CONFIG, wall_ms=1, topic_id=uuid.UUID(int=8)).log_end_offset == 0


def test_an_interrupted_creation_is_no_damage() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    manager.create(FIRST, CONFIG, wall_ms=1, topic_id=uuid.UUID(int=7))
    disk.replace_file(METADATA, b"")
    manager = open_manager(disk)
    assert manager.take_out_unidentified() == []
    assert not manager.logs
    assert [posixpath.dirname(folder) for folder in manager.removable_folders] == ["/one"]


def test_many_logs_share_few_descriptors_and_cold_reads_are_left_to_another_thread() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    keys = [TopicPartition("many", number) for number in range(20)]
    for key in keys:
        manager.create(key, CONFIG, wall_ms=1)
        append(manager, key, 12)
    assert disk.open_files <= 3
    disk.is_cold = True
    log = manager.logs[keys[7]]
    assert log.read(0, 1000, 12, only_cached=True) is None
    assert len(read_from(log, 0, 12)) == 12
    assert disk.open_files <= 3


@pytest.mark.parametrize(
    ("name", "topic", "partition", "kind"),
    [
        ("my-dashed-topic-12", "my-dashed-topic", 12, FolderKind.LIVE),
        (f"t-3.{'0a' * 16}-delete", "t", 3, FolderKind.DELETE),
        (f"t.x-3.{'0a' * 16}-future", "t.x", 3, FolderKind.FUTURE),
        ("__consumer_offsets-49", "__consumer_offsets", 49, FolderKind.LIVE),
    ],
)
def test_folder_names(name: str, topic: str, partition: int, kind: FolderKind) -> None:
    parsed = parse_folder_name(name)
    assert parsed is not None
    assert (parsed.topic_partition, parsed.kind) == (TopicPartition(topic, partition), kind)


def test_other_folders_are_no_partitions_and_long_topics_can_be_deleted() -> None:
    others = ("snapshots", "t-x", "-3", "t-", "remote-log", "t-00", "t-07", "copy of t-0", "ä-0", "t-0\n")
    assert [parse_folder_name(name) for name in others] == [None] * len(others)
    assert len(delete_folder_name(TopicPartition("t" * 249, 0), "0a" * 16)) == 255


def test_a_reader_without_a_lock_sees_what_is_whole() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = manager.create(FIRST, CONFIG, wall_ms=1)
    append(manager, FIRST, 12)
    reader = LogFolderReader(disk, log.folder)
    half = build_batch((b"half",), base_offset=12, epoch=0)[:40]
    writing = disk.open(log.segments.active.log_path)
    writing.append([half])
    assert reader.end_offset() == 12
    assert [batch.header.base_offset for batch in reader.batches(5, 11)] == list(range(5, 11))


def test_what_a_crash_left_of_files_that_were_being_replaced_is_removed() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    manager.create(FIRST, CONFIG, wall_ms=1)
    folder = manager.logs[FIRST].folder
    left = ["/one/recovery-point-offset-checkpoint.7-1.tmp", f"{folder}/leader-epoch-checkpoint.7-2.tmp"]
    for path in left:
        disk.replace_file(path, b"half")
    again = open_manager(disk)
    assert FIRST in again.logs
    assert not [path for path in left if disk.exists(path)]


@pytest.mark.parametrize("killed", [False, True])
def test_the_folders_above_a_log_directory_survive_a_power_cut(killed: bool) -> None:
    """``killed``: the process that made them ended before they were durable."""
    path = "/new/folder/data"
    for seed in range(20):
        disk = MemoryDisk()
        if killed:
            disk.make_directories(path)
        manager = LogManager.open(disk, replace(options(), directories=[path]), wall_ms=1)
        manager.close({}, broker_epoch=1, wall_ms=1)
        disk.crash_machine(seed)
        assert disk.exists(f"{path}/{names.META_PROPERTIES}")
