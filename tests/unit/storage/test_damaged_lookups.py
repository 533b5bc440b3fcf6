"""A bit that flips in a header or an index never makes a reader skip a record or take one for another."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from log_model import build_batch

from nilometer.steps import at_once
from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.log import Log
from nilometer.storage.log_reader import LogFolderReader
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments import segment_files
from nilometer.storage.segments.indexes import CorruptIndex, OffsetIndex
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, batches
from nilometer.wire.records import decode_records
from support.logs.memory_disk import MemoryDisk

FOLDER, KEY = "/data/t-0", TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=280, index_interval_bytes=150)
END = 21
Found = list[tuple[int, bytes]]


def write_log(gaps: bool) -> MemoryDisk:
    """Seven batches of three records each, in three segments.

    With ``gaps`` two batches are compacted away, and five are in two segments. One gap is inside the first
    segment, the other between the two.
    """
    disk = MemoryDisk()
    log = open_log(disk)
    for number in range(7):
        base_offset = 3 * number
        if gaps and number in (2, 4):
            continue
        values = tuple(b"%d" % (base_offset + index) for index in range(3))
        log.append_as_follower(build_batch(values, base_offset=base_offset, epoch=0), wall_ms=1)
    log.close(wall_ms=1)
    assert [segment.base_offset for segment in log.segments] == ([0, 15] if gaps else [0, 9, 18])
    return disk


def open_log(disk: MemoryDisk) -> Log:
    disk.crash_process()
    return Log.open(SegmentFiles.on(disk), FOLDER, KEY, CONFIG, OpenOptions(clean=True, wall_ms=1))


def read_to_end(log: Log, offset: int, *, only_cached: bool = False) -> Found:
    """What a reader gets from ``offset`` on, up to the end or the first damage."""
    found: Found = []
    while offset < log.log_end_offset:
        try:
            part = log.read(offset, 300, log.log_end_offset, only_cached=only_cached)
        except CorruptRecordFound:
            return [*found, (-1, b"damage")]
        assert part is not None
        assert part.records, f"nothing at {offset}, and no damage"
        found += records_of(part.records, offset)
        offset = part.next_offset
    return found


def records_of(data: object, offset: int) -> Iterator[tuple[int, bytes]]:
    records = bytes(data)  # type: ignore[call-overload]
    for position, header in batches(records):
        for record in decode_records(records, position, header):
            if record.offset >= offset:
                assert record.value is not None
                yield record.offset, record.value


def flips(disk: MemoryDisk, name: str, positions: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Flip each bit in turn, and back again."""
    whole = bytes(disk.read_file(f"{FOLDER}/{name}"))
    for position in positions:
        for bit in range(8):
            disk._file(f"{FOLDER}/{name}").data[position] ^= 1 << bit
            yield position, bit
            disk._file(f"{FOLDER}/{name}").data[:] = whole


def header_positions(data: bytes, first: int = 0) -> Iterator[int]:
    for position, _ in batches(data):
        yield from range(position + first, position + HEADER_BYTES)


def log_names(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list_directory(FOLDER) if name.endswith(".log")]


def expect_prefix(found: Found, whole: Found, where: object) -> None:
    """All that there is, or all up to the damage."""
    if found and found[-1][0] < 0:
        assert found[:-1] == whole[: len(found) - 1], where
    else:
        assert found == whole, where


@pytest.mark.parametrize(
    ("gaps", "only_cached"),
    [
        (False, False),
        pytest.param(True, False, marks=pytest.mark.thorough),
        pytest.param(False, True, marks=pytest.mark.thorough),
    ],
)
def test_no_bit_of_a_header_makes_a_reader_skip_records(gaps: bool, only_cached: bool) -> None:
    """Between two gaps nothing tells where a batch begins but its base offset, which no CRC covers."""
    disk = write_log(gaps)
    whole = read_to_end(open_log(disk), 0)
    assert len(whole) == (15 if gaps else 21)
    for name in log_names(disk):
        data = bytes(disk.read_file(f"{FOLDER}/{name}"))
        log = open_log(disk)
        for place in flips(disk, name, header_positions(data, first=8 if gaps else 0)):
            log.read_hints = {}
            for offset in range(0, END, 2):
                due = [one for one in whole if one[0] >= offset]
                found = read_to_end(log, offset, only_cached=only_cached)
                expect_prefix(found, due, (name, place, offset))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("only_cached", [False, True])
@pytest.mark.parametrize("whole_bytes_max", [-1, 1000], ids=["large", "small"])
def test_no_bit_of_an_index_makes_a_reader_skip_records(
    gaps: bool, only_cached: bool, whole_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large index only those entries are read that a search looks at."""
    monkeypatch.setattr(segment_files, "WHOLE_BYTES_MAX", whole_bytes_max)
    disk = write_log(gaps)
    whole = read_to_end(open_log(disk), 0)
    for name in disk.list_directory(FOLDER):
        if not name.endswith((".index", ".timeindex")):
            continue
        for place in flips(disk, name, iter(range(disk.file_size(f"{FOLDER}/{name}")))):
            log = open_log(disk)
            assert log.damages == ()
            for offset in range(0, END, 4):
                due = [one for one in whole if one[0] >= offset]
                assert read_to_end(log, offset, only_cached=only_cached) == due, (name, place)


def test_the_first_entry_of_an_index_may_be_of_the_first_batch_and_is_not_before_it() -> None:
    def parsed(offset: int, position: int) -> OffsetIndex:
        return OffsetIndex.parse(10, struct.pack(">4i", offset, position, 7, 700))

    assert parsed(0, 0).entries() == [(10, 0), (17, 700)]
    for before in ((-1, 0), (0, -1)):
        with pytest.raises(CorruptIndex, match="negative"):
            parsed(*before)


@pytest.mark.parametrize("gaps", [False, True])
def test_a_check_of_a_segment_finds_what_stops_a_reader(gaps: bool) -> None:
    """Else the damage would never be repaired. The offset it names is the first one that is not good."""
    disk = write_log(gaps)
    whole = read_to_end(open_log(disk), 0)
    log = open_log(disk)
    reader = LogFolderReader(disk, FOLDER)
    for name in log_names(disk)[:-1]:  # of the last segment the end may be half written
        data = bytes(disk.read_file(f"{FOLDER}/{name}"))
        for place in flips(disk, name, header_positions(data)):
            log.read_hints = {}
            found = read_to_end(log, 0)
            if found[-1][0] >= 0:
                continue
            good = found[-2][0] + 1 if len(found) > 1 else 0
            with pytest.raises(CorruptRecordFound) as damage:
                for _ in reader.batches():
                    pass
            assert (
                good <= damage.value.offset <= next((offset for offset, _ in whole if offset >= good), END)
            ), (name, place)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_flipped_last_offset_of_the_last_batch_is_found_when_the_log_is_opened(indexed: bool) -> None:
    disk = write_log(gaps=False)
    name = log_names(disk)[-1]
    path = f"{FOLDER}/{name}"
    if not indexed:
        disk._file(path.replace(".log", ".index")).data[:] = b""
    last = [position for position, _ in batches(bytes(disk.read_file(path)))][-1]
    disk._file(path).data[last + 26] ^= 1  # last offset delta 2 becomes 3
    log = open_log(disk)
    assert log.log_end_offset == END - 3
    assert log.damages


def test_no_bit_of_a_header_or_an_index_makes_a_search_by_time_skip_a_record() -> None:
    """Within one segment. The CRC does not cover the base offset and the length of a batch."""
    disk = MemoryDisk()
    config = LogConfig(index_interval_bytes=150)
    disk.crash_process()
    options = OpenOptions(clean=True, wall_ms=1)
    log = Log.open(SegmentFiles.on(disk), FOLDER, KEY, config, options)
    for number in range(8):
        log.append_as_leader(build_batch((b"v",), timestamp=1_000 + number), leader_epoch=0, wall_ms=1)
    log.roll(wall_ms=1)
    first = log.segments.first
    assert first.largest_timestamp() == 1_007
    for name in [name for name in disk.list_directory(FOLDER) if name.startswith("0" * 20)]:
        data = bytes(disk.read_file(f"{FOLDER}/{name}"))
        if name.endswith(".log"):
            positions = header_positions(data)
        elif name.endswith("index"):
            positions = iter(range(len(data)))
        else:
            continue
        for place in flips(disk, name, positions):
            log.files.index_cache.forget(first.log_path)
            for number in range(8):
                try:
                    found = at_once(log.offset_for_timestamp(1_000 + number))
                except KafkaError:
                    continue
                assert found is not None, (name, place, number)
                assert (found.timestamp, found.offset) == (1_000 + number, number), (name, place)


def write_timed_log(timestamps: Sequence[int]) -> MemoryDisk:
    """One batch of one record for each, about three in a segment."""
    disk = MemoryDisk()
    log = open_log(disk)
    for offset, timestamp in enumerate(timestamps):
        records = build_batch((b"v",), timestamp=timestamp, base_offset=offset, epoch=0)
        log.append_as_follower(records, wall_ms=1)
    log.close(wall_ms=1)
    assert len(log.segments) > 3
    return disk


def damaged_indexes(disk: MemoryDisk) -> Iterator[object]:
    """Each bit of each index flips, each end is cut off, each file is lost; and is put right again."""
    for name in [name for name in disk.list_directory(FOLDER) if name.endswith("index")]:
        file = disk._file(f"{FOLDER}/{name}")
        whole = bytes(file.data)
        yield from ((name, place) for place in flips(disk, name, iter(range(len(whole)))))
        for size in range(len(whole)):
            file.data[:] = whole[:size]
            yield name, f"{size} bytes"
            file.data[:] = whole
        disk.remove(f"{FOLDER}/{name}")
        yield name, "lost"
        disk.open(f"{FOLDER}/{name}", create=True).append([whole])


RISING = tuple(range(1_000, 1_013))
GOING_BACK = (1_000, 1_001, 1_009, 1_002, 1_003, 1_011, 1_004, 1_005, 1_005, 1_012, 1_007, 1_012, 1_001)


@pytest.mark.parametrize("timestamps", [RISING, GOING_BACK])
def test_no_damage_of_an_index_hides_a_record_from_a_search_by_time(timestamps: Sequence[int]) -> None:
    disk = write_timed_log(timestamps)
    newest = max(timestamps)
    for place in damaged_indexes(disk):
        log = open_log(disk)
        for wanted in range(999, newest + 2):
            found = at_once(log.offset_for_timestamp(wanted))
            due = next(((t, offset) for offset, t in enumerate(timestamps) if t >= wanted), None)
            assert (found and found[:2]) == due, (place, wanted)
        last = at_once(log.offset_of_max_timestamp())
        assert last is not None, place
        assert last[:2] == (newest, timestamps.index(newest)), place


@pytest.mark.parametrize("timestamps", [RISING, GOING_BACK])
def test_no_damage_of_an_index_makes_a_segment_older_or_younger(timestamps: Sequence[int]) -> None:
    """Retention by age would delete it too early, never, or fail."""
    disk = write_timed_log(timestamps)
    for place in damaged_indexes(disk):
        log = open_log(disk)
        bounds = [*(segment.base_offset for segment in log.segments), len(timestamps)]
        due = [max(timestamps[begin:end]) for begin, end in pairwise(bounds)]
        assert [segment.largest_timestamp() for segment in log.segments] == due, place


def test_a_log_with_a_damaged_index_can_be_cut_anywhere() -> None:
    for offset in (2, 7):
        disk = write_timed_log(RISING)
        before = {name: bytes(disk.read_file(f"{FOLDER}/{name}")) for name in disk.list_directory(FOLDER)}
        for place in damaged_indexes(disk):
            log = open_log(disk)
            log.truncate_to(offset, wall_ms=1)
            assert log.log_end_offset == offset, place
            more = build_batch((b"more",), timestamp=2_000, base_offset=offset, epoch=0)
            log.append_as_follower(more, wall_ms=1)
            assert [found for found, _ in read_to_end(log, 0)] == list(range(offset + 1)), place
            found = at_once(log.offset_for_timestamp(1_999))
            assert found is not None, place
            assert found.offset == offset, place
            for name in disk.list_directory(FOLDER):
                disk.remove(f"{FOLDER}/{name}")
            for name, data in before.items():
                disk.open(f"{FOLDER}/{name}", create=True).append([data])


def test_a_damaged_index_of_aborted_transactions_is_an_error_of_its_log_alone() -> None:
    disk = write_log(gaps=False)
    disk.open(f"{FOLDER}/{'0' * 20}.txnindex", create=True).append([b"half of an entry"])
    with pytest.raises(KafkaError) as error:
        open_log(disk).aborted_transactions(0, END)
    assert error.value.code is ErrorCode.kafka_storage_error
