"""What happens at a bound exactly, where one more or less is another outcome."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from log_model import build_batch

from nilometer.runtime import File
from nilometer.storage import names
from nilometer.storage.directories.log_directory import META_PROPERTIES_VERSION, check_versions
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import SEQUENCE_MAX
from nilometer.storage.reading import READ_AHEAD_BYTES, WALK_BYTES_MAX
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.indexes import OFFSET_ENTRY_SIZE, RELATIVE_OFFSET_MAX
from nilometer.storage.segments.segment_files import WHOLE_BYTES_MAX, FilePool, IndexFiles, SegmentFiles
from nilometer.storage.topic_config import INDEX_INTERVAL_MAX, LogConfig
from nilometer.wire.errors import ErrorCode, KafkaError
from support.logs.compaction_scenario import CompactionScenario
from support.logs.log_cleaner import clean_log, make_durable
from support.logs.memory_disk import MemoryDisk, MemoryFile

SEGMENT_MS = 5_000
ENTRIES = WHOLE_BYTES_MAX // OFFSET_ENTRY_SIZE + 100


def new_log(config: LogConfig) -> Log:
    options = OpenOptions(clean=True, wall_ms=1_000, recovery_point=0, log_start_offset=0)
    return Log.open(SegmentFiles.on(MemoryDisk(1)), "/data/t-0", TopicPartition("t", 0), config, options)


def append(log: Log, timestamp: int = 1_000, producer: tuple[int, int, int] = (-1, -1, -1)) -> int:
    records = build_batch((b"one", b"two"), timestamp=timestamp - 1, producer=producer)
    return log.append_as_leader(records, leader_epoch=0, wall_ms=1_000).first_offset


@pytest.mark.parametrize(("waited_ms", "segments"), [(SEGMENT_MS, 1), (SEGMENT_MS + 1, 2)])
def test_a_segment_is_rolled_when_it_has_waited_longer_than_segment_ms(waited_ms: int, segments: int) -> None:
    log = new_log(LogConfig(segment_ms=SEGMENT_MS))
    append(log, 1_000)
    append(log, 1_000 + waited_ms)
    assert len(log.segments) == segments


@pytest.mark.parametrize(("less", "segments"), [(0, 1), (1, 2)])
def test_a_segment_is_rolled_when_a_batch_would_make_it_larger_than_segment_bytes(
    less: int, segments: int
) -> None:
    size = len(build_batch((b"one", b"two")))
    log = new_log(LogConfig(segment_bytes=2 * size - less))
    append(log)
    append(log)
    assert len(log.segments) == segments


def test_a_batch_whose_sequences_begin_again_is_known_when_it_is_repeated() -> None:
    log = new_log(LogConfig())
    append(log, producer=(7, 0, SEQUENCE_MAX - 2))
    first = append(log, producer=(7, 0, SEQUENCE_MAX))  # its second record has sequence 0
    assert append(log, producer=(7, 0, SEQUENCE_MAX)) == first
    assert append(log, producer=(7, 0, 1)) == first + 2
    with pytest.raises(KafkaError) as caught:
        append(log, producer=(7, 0, 4))
    assert caught.value.code is ErrorCode.out_of_order_sequence_number


def test_a_read_of_nothing_is_in_the_segment_of_its_offset() -> None:
    log = new_log(LogConfig(segment_ms=SEGMENT_MS))
    append(log, 1_000)
    append(log, 1_000 + 2 * SEGMENT_MS)
    end = log.log_end_offset
    found = log.read(end, 1_000, end)
    assert found is not None
    assert (found.records, found.path) == (b"", log.segments.active.log_path)


def test_a_batch_larger_than_the_limit_and_what_is_read_ahead_is_read_whole() -> None:
    log = new_log(LogConfig())
    records = build_batch((bytes(2 * READ_AHEAD_BYTES),))
    log.append_as_leader(records, leader_epoch=0, wall_ms=1_000)
    append(log)
    found = log.read(0, 1, log.log_end_offset)
    assert found is not None
    assert (len(found.records), found.next_offset) == (len(records), 1)


@pytest.mark.parametrize("version", [META_PROPERTIES_VERSION, META_PROPERTIES_VERSION + 1])
def test_a_later_version_of_meta_properties_is_refused(version: int) -> None:
    disk = MemoryDisk(1)
    disk.make_directories("/data")
    disk.replace_file(f"/data/{names.META_PROPERTIES}", b"node.id=1\nversion=%d\n" % version)
    if version == META_PROPERTIES_VERSION:
        check_versions(disk, "/data")
        return
    with pytest.raises(
        CorruptCheckpoint, match=f"has version {version}, but this version of the broker reads"
    ):
        check_versions(disk, "/data")


def test_a_round_counts_what_it_has_read_and_kept_and_closes_its_files() -> None:
    scenario = CompactionScenario()
    for number in range(4):
        scenario.append([(b"a", b"%d" % number)])
    scenario.roll()
    make_durable(scenario.log)
    before = scenario.disk.open_files
    statistics = clean_log(scenario.log, wall_ms=scenario.now_ms)
    assert statistics is not None
    assert (statistics.records_read, statistics.records_kept) == (4, 1)
    assert scenario.disk.open_files <= before


class CountingDisk(MemoryDisk):
    """Counts the bytes that are read of indexes."""

    index_bytes = 0

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        file = super().open(path, create=create, writable=writable, private=private)
        assert isinstance(file, MemoryFile)
        read_at = file.read_at

        def counted(position: int, length: int) -> bytes:
            self.index_bytes += length if path.endswith("index") else 0
            return read_at(position, length)

        file.read_at = counted  # type: ignore[method-assign]
        return file

    def read_file(self, path: str) -> bytes:
        self.index_bytes += self.file_size(path) if path.endswith("index") else 0
        return super().read_file(path)


@pytest.mark.parametrize("only_cached", [True, False])
def test_a_read_looks_at_few_entries_of_a_large_index(only_cached: bool) -> None:
    """A full index of 2 MiB, with that of times, held the event loop for 100 ms."""
    disk, config = CountingDisk(1), LogConfig(index_interval_bytes=0)
    key, options = TopicPartition("t", 0), OpenOptions(clean=True, wall_ms=1_000)
    written = Log.open(SegmentFiles.on(disk), "/data/t-0", key, config, options)
    for number in range(ENTRIES):
        append(written, number)
    written.roll(wall_ms=1_000)
    append(written, ENTRIES)
    written.close(wall_ms=1_000)
    log = Log.open(SegmentFiles.on(disk), "/data/t-0", key, config, options)
    disk.index_bytes = 0
    found = log.read(ENTRIES, 1, log.log_end_offset, only_cached=only_cached)
    assert found is not None and found.records
    assert 0 < disk.index_bytes < 30 * OFFSET_ENTRY_SIZE


def test_a_long_interval_of_the_index_leaves_few_batches_to_walk_over() -> None:
    """Over the headers of all batches of a segment, a fetch walked for seconds."""
    log = new_log(LogConfig(index_interval_bytes=2**31 - 1))
    size = len(build_batch((b"one", b"two")))
    while log.size < 3 * INDEX_INTERVAL_MAX:
        append(log)
    indexes = log.segments.active.indexes()
    positions = [position for _, position in indexes.offsets.entries()]
    assert len(positions) == 2
    assert all(later - before <= INDEX_INTERVAL_MAX + size for before, later in pairwise((0, *positions)))


def test_a_read_on_the_event_loop_leaves_a_long_walk_to_another_thread() -> None:
    """As over a segment that was written before with a longer interval."""
    log = new_log(LogConfig())
    while log.size < 2 * WALK_BYTES_MAX:
        append(log)
    log.segments.active.reset_indexes()
    log.read_hints = {}
    last = log.log_end_offset - 1
    assert log.read(last, 1, log.log_end_offset, only_cached=True) is None
    found = log.read(last, 1, log.log_end_offset)
    assert found is not None and found.records


@pytest.mark.parametrize("offset", [5, 6, RELATIVE_OFFSET_MAX - 1, RELATIVE_OFFSET_MAX])
def test_preallocated_zeros_of_an_index_are_behind_the_largest_offset_of_a_segment(offset: int) -> None:
    disk = MemoryDisk(1)
    disk.make_directories("/data/t-0")
    index = IndexFiles(FilePool(disk, 10), "/data/t-0", 0)
    for entry in (struct.pack(">ii", 5, 100), bytes(100 * OFFSET_ENTRY_SIZE)):
        index.append(names.INDEX_SUFFIX, entry)
    assert index.entry_if_cached(offset) == index.entry_apart(offset) == (5, 100)
