"""Reading and copying the records of large batches: by columns, by marks, and one by one, with one result."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nilometer.storage.cleaning import batch_cleaner, offset_map
from nilometer.storage.cleaning.batch_cleaner import (
    RUN_MAX,
    RUN_MIN,
    find_run,
    kept_records,
    read_keys,
    record_spans,
)
from nilometer.storage.cleaning.offset_map import (
    DROP,
    KEEP,
    SLOT_BYTES,
    TOMBSTONE,
    UNKNOWN,
    OffsetMap,
    RecordMarks,
)
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.compression import Codec, compress
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.primitives import encode_zigzag
from nilometer.wire.record_batch import BatchHeader, batch_attributes, batches, pack_batch
from nilometer.wire.records import Record, decode_records
from support.logs.log_cleaner import clean_log, make_durable
from support.logs.memory_disk import MemoryDisk
from support.properties import examples

FOLDER = "/data/t-0"
BASE_TIMESTAMP = 1_000


def encoded(delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    def field(content: bytes | None) -> bytes:
        return encode_zigzag(-1) if content is None else encode_zigzag(len(content)) + content

    headers = encode_zigzag(0)
    body = b"\0" + encode_zigzag(timestamp_delta) + encode_zigzag(delta) + field(key) + field(value) + headers
    return encode_zigzag(len(body)) + body


def header_of(count: int, last_delta: int, base_offset: int = 0, codec: Codec = Codec.NONE) -> BatchHeader:
    attributes = batch_attributes(codec)
    return BatchHeader(
        base_offset, 0, 0, 2, 0, attributes, last_delta, BASE_TIMESTAMP, BASE_TIMESTAMP, -1, -1, -1, count
    )


def field_of(chance: random.Random, size: int | None) -> bytes | None:
    """Zeros, too: they look like the lengths of small records."""
    if size is None:
        return None
    return chance.choice((bytes, chance.randbytes))(size)


def records_of(stretches: list[tuple[int, int | None, int | None, int, int]], seed: int) -> list[bytes]:
    """``stretches``: of each the number of records, sizes of key and value, and the steps of timestamp and
    offset from one record to the next."""
    chance = random.Random(seed)
    records: list[bytes] = []
    delta = timestamp = 0
    for count, key_size, value_size, timestamp_step, step in stretches:
        for _ in range(count):
            key, value = field_of(chance, key_size), field_of(chance, value_size)
            records.append(encoded(delta, timestamp, key, value))
            timestamp += timestamp_step
            delta += step
    return records


SIZES = st.one_of(st.none(), st.sampled_from([0, 1, 16, 63, 64, 300]))
STRETCHES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, RUN_MIN - 1, RUN_MIN, 70, RUN_MAX + 40]),
        SIZES,
        SIZES,
        st.sampled_from([0, 0, 1, 3, -5, 9_000]),
        st.sampled_from([1, 1, 1, 2, 90]),
    ),
    min_size=1,
    max_size=5,
)
replayed = examples(80)


@given(stretches=STRETCHES, seed=st.integers(0, 1 << 16))
@replayed
def test_keys_are_read_as_one_by_one(
    stretches: list[tuple[int, int | None, int | None, int, int]], seed: int
) -> None:
    records = records_of(stretches, seed)
    data = b"".join(records)
    header = header_of(len(records), len(records) * 90)
    spans = list(record_spans(data, header))
    keys, deltas, tombstones = read_keys(data, header)
    assert keys == [span[5] for span in spans]
    assert deltas == [span[4] for span in spans]
    assert tombstones == [index for index, span in enumerate(spans) if not span[6]]


@given(stretches=STRETCHES, seed=st.integers(0, 1 << 16), share=st.sampled_from([0.05, 0.5, 0.95]))
@replayed
def test_kept_records_are_copied_unchanged(
    stretches: list[tuple[int, int | None, int | None, int, int]], seed: int, share: float
) -> None:
    records = records_of(stretches, seed)
    chance = random.Random(seed)
    marks = bytearray(DROP if chance.random() < share else KEEP for _ in records)
    marks[chance.randrange(len(marks))] = TOMBSTONE
    data = b"".join(records)
    spans = list(record_spans(data, header_of(len(records), 0)))
    kept = [index for index, mark in enumerate(marks) if mark != DROP]
    assert kept_records(data, bytes(marks)) == (
        b"".join(records[index] for index in kept),
        max(spans[index][2] for index in kept),
    )


def test_records_of_one_layout_are_read_by_columns_up_to_the_first_that_differs() -> None:
    """Or the tests above would compare the reading one by one with itself."""
    alike = records_of([(60, 16, 100, 1, 1)], 1)
    data = b"".join([*alike, encoded(60, 0, b"k" * 16, b"v" * 99), *alike])
    run = find_run(data, 0, 121)
    assert run is not None
    assert run.records == 60
    assert run.end == len(b"".join(alike))
    assert find_run(data, 0, RUN_MIN - 1) is None
    behind = find_run(data, run.end, 61)
    assert behind is None, "a single record is no run"


IN_RUN = [encoded(index, 0, b"k" * 16, b"v" * 50) for index in range(16)]
LIKE_A_VALUE_OF_50 = encode_zigzag(50)


@pytest.mark.parametrize(
    "other",
    [
        encoded(16, 0, b"k" * 16 + LIKE_A_VALUE_OF_50, b"v" * 49),
        encoded(16, 64, b"k" * 15 + LIKE_A_VALUE_OF_50, b"v" * 49),
        encoded(16, 0, b"k" * 16, b"v" * 49 + b"v"),
    ],
    ids=["longer key", "longer timestamp delta", "no difference"],
)
def test_a_record_of_the_same_length_is_not_taken_for_one_of_the_run(other: bytes) -> None:
    assert len(other) == len(IN_RUN[0])
    data = b"".join([*IN_RUN, other])
    spans = list(record_spans(data, header_of(17, 16)))
    found = read_keys(data, header_of(17, 16))
    assert found.keys == [span[5] for span in spans]
    assert found.deltas == [span[4] for span in spans] == list(range(17))
    marks = bytes([*[DROP] * 16, KEEP])
    assert kept_records(data, marks) == (other, spans[16][2])


@given(
    stretches=STRETCHES,
    seed=st.integers(0, 1 << 16),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3),
    cut=st.sampled_from([0, 0, 1, 40]),
)
@replayed
def test_damaged_records_are_refused_as_one_by_one(
    stretches: list[tuple[int, int | None, int | None, int, int]],
    seed: int,
    flips: list[tuple[float, int]],
    cut: int,
) -> None:
    records = records_of(stretches, seed)
    data = bytearray(b"".join(records))
    for where, change in flips:
        data[int(where * len(data))] ^= change
    del data[len(data) - cut :]
    header = header_of(len(records), len(records) * 90)
    try:
        spans = list(record_spans(bytes(data), header))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            read_keys(bytes(data), header)
        return
    keys, deltas, tombstones = read_keys(bytes(data), header)
    assert keys == [span[5] for span in spans]
    assert deltas == [span[4] for span in spans]
    assert tombstones == [index for index, span in enumerate(spans) if not span[6]]


# ── marks ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_has_marks_only_if_all_its_records_were_read() -> None:
    marks = RecordMarks(10, limit=10)
    marks.add(header_of(2, 1, base_offset=8), [0, 1], [])  # below the first offset
    marks.add(header_of(3, 2, base_offset=11), [0, 1, 2], [1])
    marks.add(header_of(2, 3, base_offset=14), [0, 3], [])  # with a gap
    marks.add(header_of(2, 1, base_offset=18), [0, 1], [])
    marks.add(header_of(1, 0, base_offset=20), [0], [])  # above the limit
    assert bytes(marks.marks) == bytes([UNKNOWN, KEEP, TOMBSTONE, KEEP, *[UNKNOWN] * 4, KEEP, KEEP])
    assert marks.of(header_of(3, 2, base_offset=11)) == bytes([KEEP, TOMBSTONE, KEEP])
    for base_offset, count in ((8, 2), (10, 1), (9, 3), (14, 2), (18, 3), (20, 1)):
        assert marks.of(header_of(count, 9, base_offset)) is None
    marks.forget(18)
    assert marks.of(header_of(2, 1, base_offset=18)) is None
    assert marks.of(header_of(3, 2, base_offset=11)) is not None


@pytest.mark.parametrize("deltas", [[0, 0], [1, 0], [0, 3], [-1, 0]])
def test_there_are_no_marks_where_an_offset_is_not_that_of_one_record(deltas: list[int]) -> None:
    marks = RecordMarks(0, limit=100)
    marks.add(header_of(1, 0), [0], [])
    marks.add(header_of(2, 2, base_offset=1), deltas, [])
    marks.add(header_of(1, 0, base_offset=4), [0], [])
    assert marks.of(header_of(1, 0)) is None
    assert marks.of(header_of(1, 0, base_offset=4)) is None


# ── a whole log ─────────────────────────────────────────────────────────────────────────────────────


class Filled:
    """A log with large batches: of one layout or not, compressed or not, with tombstones and gaps."""

    def __init__(self, seed: int, *, hostile: bool = False) -> None:
        self.disk = MemoryDisk()
        self.chance = random.Random(seed)
        self.hostile = hostile
        self.config = LogConfig(
            is_compacted=True,
            is_deleted_by_retention=False,
            segment_bytes=20_000,
            delete_retention_ms=50,
        )
        options = OpenOptions(clean=True, wall_ms=1, is_new=True)
        files = SegmentFiles.on(self.disk)
        self.log = Log.open(files, FOLDER, TopicPartition("t", 0), self.config, options)

    def fill(self, batch_count: int) -> None:
        for _ in range(batch_count):
            self._append(self.chance.choice([1, 5, 40, 90]))
        self.log.roll(1)
        make_durable(self.log)

    def _append(self, count: int) -> None:
        chance = self.chance
        keys, sizes = chance.choice([(12, [10]), (60, [10]), (60, [0, 10, 70])])
        key_format = chance.choice([b"key-%03d", b"%d"])
        tombstones = chance.choice([0.0, 0.0, 0.1, 1.0])
        step = chance.choice([1, 1, 1, 3])
        deltas = [index * step for index in range(count)]
        if self.hostile and chance.random() < 0.2:
            chance.shuffle(deltas)
            deltas[0] = chance.choice([*deltas, -300])
        records = [
            encoded(
                delta,
                chance.randrange(3),
                None if chance.random() < 0.01 else key_format % chance.randrange(keys),
                None if chance.random() < tombstones else chance.randbytes(chance.choice(sizes)),
            )
            for delta in deltas
        ]
        codec = chance.choice([Codec.NONE, Codec.NONE, Codec.LZ4])
        header = header_of(count, (count - 1) * step, self.log.log_end_offset, codec)
        packed = pack_batch(header, compress(codec, b"".join(records)))
        self.log.append_as_follower(packed, wall_ms=1)

    def contents(self) -> dict[str, bytes]:
        names = self.disk.list_directory(FOLDER)
        return {name: self.disk.read_file(f"{FOLDER}/{name}") for name in names}

    def records(self) -> list[Record]:
        found: list[Record] = []
        offset = self.log.log_start_offset
        while (part := self.log.read(offset, 5_000, self.log.log_end_offset)) is not None and part.records:
            for position, header in batches(part.records):
                found += decode_records(part.records, position, header)
            offset = part.next_offset
        return found


def rounds_of(filled: Filled, buffer_bytes: int) -> list[dict[str, bytes]]:
    """Compact three times, more records between; return the files after each round."""
    found: list[dict[str, bytes]] = []
    for number, batch_count in enumerate((25, 10, 5)):
        filled.fill(batch_count)
        clean_log(filled.log, wall_ms=100 * (number + 1), buffer_bytes=buffer_bytes, slice_bytes=1_000)
        found.append(filled.contents())
        if number == 1:
            filled.log.cleaned_offset = 0  # as after a lost checkpoint: gaps are in the dirty part
    return found


@pytest.mark.interpreted
@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("buffer_bytes", [1 << 20, 4_000, 600])
@pytest.mark.parametrize("seed", range(3))
def test_marks_and_the_search_for_keys_leave_the_same_files(
    monkeypatch: pytest.MonkeyPatch, seed: int, buffer_bytes: int, hostile: bool
) -> None:
    with_marks = rounds_of(Filled(seed, hostile=hostile), buffer_bytes)
    monkeypatch.setattr(RecordMarks, "of", lambda self, header: None)
    assert rounds_of(Filled(seed, hostile=hostile), buffer_bytes) == with_marks


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(3))
def test_a_log_of_large_batches_keeps_the_newest_record_of_each_key(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    answers: list[bool] = []
    of = RecordMarks.of

    def counted(self: RecordMarks, header: BatchHeader) -> bytes | None:
        found = of(self, header)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(RecordMarks, "of", counted)
    filled = Filled(seed)
    filled.fill(40)
    newest = {record.key: record for record in filled.records() if record.key is not None}
    clean_log(filled.log, wall_ms=100)
    assert filled.records() == sorted(newest.values(), key=lambda record: record.offset)
    assert answers.count(True) > answers.count(False) > 0


def test_above_the_record_that_did_not_fit_into_the_offset_map_all_records_stay() -> None:
    """Also tombstones whose time has come, and records without a key."""
    filled = Filled(0)
    records = [encoded(delta, 0, b"%d" % delta, None) for delta in range(4)]
    records.append(encoded(4, 0, None, b"value"))
    attributes = batch_attributes(delete_horizon=True)
    header = structs.replace(header_of(5, 4), attributes=attributes, base_timestamp=50)
    filled.log.append_as_follower(pack_batch(header, b"".join(records)), wall_ms=1)
    filled.log.roll(1)
    make_durable(filled.log)
    clean_log(filled.log, wall_ms=100, buffer_bytes=3 * SLOT_BYTES)
    assert filled.log.cleaned_offset == 2
    assert [record.offset for record in filled.records()] == [2, 3, 4]


NO_CLOCK_HAD = BASE_TIMESTAMP - (1 << 63) + 1


def compacted(records: list[bytes], timestamps: int, wall_ms: int = 100) -> list[Record]:
    """Append a batch as a leader's, compact it twice, and return its records."""
    filled = Filled(0)
    header = structs.replace(header_of(len(records), len(records) - 1), base_timestamp=timestamps)
    filled.log.append_as_follower(pack_batch(header, b"".join(records)), wall_ms=1)
    for round_ms in (wall_ms, wall_ms + 1):
        filled.log.roll(round_ms)
        make_durable(filled.log)
        clean_log(filled.log, wall_ms=round_ms)
    return filled.records()


def test_a_tombstone_whose_time_is_not_told_from_the_horizon_in_64_bits_stays() -> None:
    records = [encoded(0, 0, b"a", b"1"), encoded(1, NO_CLOCK_HAD - BASE_TIMESTAMP, b"b", None)]
    found = compacted(records, BASE_TIMESTAMP)
    assert [(one.key, one.timestamp) for one in found] == [(b"a", BASE_TIMESTAMP), (b"b", NO_CLOCK_HAD)]


def test_a_record_after_all_times_is_copied_as_it_is() -> None:
    latest = (1 << 63) - 1
    records = [encoded(0, 0, b"a", b"1"), encoded(1, 0, b"a", b"2"), encoded(2, latest, b"b", b"3")]
    found = compacted(records, BASE_TIMESTAMP)
    assert [(one.key, one.value, one.timestamp - BASE_TIMESTAMP) for one in found] == [
        (b"a", b"2", 0),
        (b"b", b"3", latest),
    ]


def test_other_threads_may_run_while_a_large_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops keep the interpreter's lock."""
    calls: dict[str, int] = {}
    for module in (batch_cleaner, offset_map):
        name = module.__name__

        def count(name: str = name) -> None:
            calls[name] = calls.get(name, 0) + 1

        monkeypatch.setattr(module, "let_threads_run", count)
    records = [encoded(delta, 0, b"%d" % delta + b"." * (delta % 3), b"") for delta in range(5_000)]
    data, header = b"".join(records), header_of(5_000, 4_999)
    keys = read_keys(data, header)
    offsets, marks = OffsetMap(1 << 20), RecordMarks(0, 1 << 20)
    assert offsets.put_all(zip(keys.keys, keys.deltas, strict=True), 0, marks) is None
    assert offsets.newest(keys.keys) == list(range(5_000))
    kept_records(data, bytes((KEEP, DROP)) * 2_500)
    assert calls[batch_cleaner.__name__] >= 8
    assert calls[offset_map.__name__] >= 8
