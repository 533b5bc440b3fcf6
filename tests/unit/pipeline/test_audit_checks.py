"""What an audit finds in one replica, without Spark: each damage by kind, file and place."""

from __future__ import annotations

import random
import struct

import pytest

from nilometer.pipeline.audit.segment_check import Kind
from nilometer.storage import names
from nilometer.wire.compression import Codec
from support.logs.folder_logs import FolderLog
from support.pipeline.audit_checks import findings_in


def findings_of(log):
    return findings_in(log.log_dir)


def only(log, kind):
    """The one finding, of the kind that is expected."""
    found = findings_of(log)
    assert [one.kind for one in found] == [kind], found
    return found[0]


def rows(start, count):
    return [(5_000 + n, b"k%d" % n, b"v" * 20) for n in range(start, start + count)]


@pytest.fixture
def log(tmp_path):
    """400 records in 40 batches, 4 segments and 3 epochs; times that go up and down."""
    log, chance = FolderLog(tmp_path / "logs", "events"), random.Random(5)
    for number in range(40):
        if number and number % 10 == 0:
            log.roll()
        log.append(
            [(5_000 + chance.randrange(300) + 10 * number, b"k", b"v" * 20) for _ in range(10)],
            epoch=number // 16,
            codec=Codec(number % 5),
        )
    log.checkpoint()
    return log


def positions(log, base_offset):
    """Where each batch of a segment begins."""
    data, found, at = log.path(".log", base_offset).read_bytes(), [], 0
    while at < len(data):
        found.append(at)
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    return found


def patch(path, position, data):
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


# --- nothing


def test_nothing_is_found_in_a_good_log(log):
    assert findings_of(log) == []


def test_nothing_is_found_in_a_log_that_is_being_written(log):
    with log.path(".log").open("ab") as file:
        file.write(log.path(".log").read_bytes()[:150])  # the beginning of a batch
    assert findings_of(log) == []
    log.path(".timeindex").write_bytes(b"")
    log.path(".index").write_bytes(log.path(".index").read_bytes()[:-8])
    assert findings_of(log) == []


def test_nothing_is_found_in_files_made_longer_ahead(log):
    for suffix in (".log", ".index", ".timeindex"):
        with log.path(suffix).open("ab") as file:
            file.write(bytes(4096))
    assert findings_of(log) == []


def test_index_entries_of_several_batches_at_once_are_right(log):
    """Brokers before 4.1 index what is appended together by its first byte and its last offset."""
    at = positions(log, 0)
    entries = [(29, at[1]), (59, at[3]), (99, at[8])]
    log.path(".index", 0).write_bytes(b"".join(struct.pack(">ii", *one) for one in entries))
    assert findings_of(log) == []
    entries[0] = (49, at[1])  # reaches beyond where the next entry leads
    log.path(".index", 0).write_bytes(b"".join(struct.pack(">ii", *one) for one in entries))
    assert only(log, Kind.INDEX).position == 0


def test_gaps_are_right_where_the_cleaner_has_been_and_wrong_elsewhere(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    log.append(rows(0, 5))
    log.append(rows(5, 5), skip=40)
    log.next_offset += 15
    log.roll()
    log.append(rows(10, 5))
    log.checkpoint()
    found = [(one.kind, one.offset) for one in findings_of(log)]
    assert found == [(Kind.MISSING_RECORDS, 5), (Kind.MISSING_RECORDS, 50)]
    (log.log_dir / "cleaner-offset-checkpoint").write_text("0\n1\nevents 0 65\n")
    assert findings_of(log) == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_sealed_segment_whose_largest_time_is_zero(tmp_path, count):
    """The entry of time 0 at relative offset 0 is twelve zeros, as is the room that Kafka makes ahead."""
    log = FolderLog(tmp_path / "logs", "events")
    log.append([(0, b"k", b"v")] * count)
    log.roll()
    log.append([(7, b"k", b"v")])
    log.checkpoint()
    assert findings_of(log) == []
    log.path(".timeindex", 0).write_bytes(b"")
    assert only(log, Kind.TIME_INDEX).position is None


def test_segments_that_retention_has_deleted_are_no_loss(log):
    for suffix in (".log", ".index", ".timeindex"):
        log.path(suffix, 0).unlink()
    log._epochs = [(0, 100), *log._epochs[1:]]
    log.checkpoint(log_start=100)
    assert findings_of(log) == []


# --- the log


def test_a_flipped_bit_anywhere_in_a_log_is_found(log):
    chance = random.Random(7)
    for _ in range(150):
        base = chance.choice([0, 100, 200])
        path = log.path(".log", base)
        content = path.read_bytes()
        position = chance.randrange(len(content))
        patch(path, position, bytes([content[position] ^ 1 << chance.randrange(8)]))
        found = findings_of(log)
        start = max(one for one in positions_of(content) if one <= position)
        assert found, f"byte {position} of {path}"
        told = {(one.path, one.position) for one in found}
        index = {str(log.path(suffix, base)) for suffix in (".index", ".timeindex")}
        epochs = {str(log.folder / "leader-epoch-checkpoint")}
        assert (str(path), start) in told or {one.path for one in found} <= {str(path), *index, *epochs}
        path.write_bytes(content)
    assert findings_of(log) == []


def positions_of(content):
    at = 0
    while at < len(content):
        yield at
        at += 12 + struct.unpack_from(">i", content, at + 8)[0]


def test_damaged_records_are_found_in_their_batch_and_what_follows_is_still_checked(log):
    at = positions(log, 100)
    for number in (3, 7):
        patch(log.path(".log", 100), at[number] + 70, b"\xff\xff")
    found = findings_of(log)
    assert [(one.kind, one.position, one.offset) for one in found] == [
        (Kind.CORRUPT_BATCH, at[3], 130),
        (Kind.CORRUPT_BATCH, at[7], 170),
    ]
    assert all("CRC" in one.what and one.path == str(log.path(".log", 100)) for one in found)


def test_a_header_that_leads_nowhere_is_found_and_the_index_leads_on(log):
    at = positions(log, 100)
    patch(log.path(".log", 100), at[4] + 8, struct.pack(">i", 5))
    patch(log.path(".log", 100), at[8] + 70, b"\xff\xff")
    found = [(one.kind, one.position) for one in findings_of(log)]
    assert (Kind.CORRUPT_BATCH, at[4]) in found
    assert (Kind.CORRUPT_BATCH, at[8]) in found


def test_a_sealed_segment_that_was_cut_is_found(log):
    path = log.path(".log", 200)
    path.write_bytes(path.read_bytes()[:-9])
    found = {one.kind: one for one in findings_of(log)}
    assert found[Kind.CORRUPT_BATCH].position == positions(log, 200)[-1]
    assert found[Kind.MISSING_RECORDS].offset == 290
    assert "290 to 299" in found[Kind.MISSING_RECORDS].what


def test_the_last_segment_cut_below_the_high_watermark_is_found(log):
    path = log.path(".log")
    path.write_bytes(path.read_bytes()[: positions(log, 300)[5]])
    found = {one.kind for one in findings_of(log)}
    assert Kind.MISSING_RECORDS in found
    assert "below its high watermark 400" in next(
        one.what for one in findings_of(log) if one.kind is Kind.MISSING_RECORDS
    )


def test_first_segments_that_are_in_remote_storage_are_not_missing(log):
    for suffix in (".log", ".index", ".timeindex"):
        log.path(suffix, 0).unlink()
    assert only(log, Kind.MISSING_RECORDS).offset == 0
    (log.folder / names.TIER_MARKER).touch()
    assert findings_of(log) == []


@pytest.mark.parametrize("base", [0, 100, 200, 300])
def test_a_missing_segment_is_found_by_its_name(log, base):
    for suffix in (".log", ".index", ".timeindex"):
        log.path(suffix, base).unlink()
    found = [one for one in findings_of(log) if one.kind is Kind.MISSING_RECORDS]
    assert len(found) == 1
    if base < 300:
        assert found[0].path == str(log.path(".log", base))
        assert found[0].offset == base
    else:
        assert "ends at 300, below its high watermark 400" in found[0].what


def test_a_replica_without_any_segment_is_found(log):
    for path in log.folder.glob("*0*"):
        path.unlink()
    assert "there is no segment" in only(log, Kind.MISSING_RECORDS).what


# --- indexes


def test_any_changed_entry_of_an_offset_index_is_found_by_its_number(log):
    chance, path = random.Random(9), log.path(".index", 100)
    content = path.read_bytes()
    for _ in range(60):
        entry, change = chance.randrange(9), chance.choice([-30, -10, -1, 1, 3, 10, 2000])
        at = entry * 8 + chance.choice([0, 4])
        (value,) = struct.unpack_from(">i", content, at)
        patch(path, at, struct.pack(">i", value + change))
        found = findings_of(log)
        assert {one.kind for one in found} == {Kind.INDEX}, (entry, at, change)
        assert any(one.position in (entry * 8, entry * 8 + 8) for one in found)
        assert all(one.path == str(path) for one in found)
        path.write_bytes(content)


def test_any_changed_entry_of_a_time_index_is_found_by_its_number(log):
    chance, path = random.Random(9), log.path(".timeindex", 100)
    content = path.read_bytes()
    for _ in range(40):
        entry = chance.randrange(len(content) // 12)
        timestamp, offset = struct.unpack_from(">qi", content, entry * 12)
        if chance.random() < 0.5:
            timestamp += chance.choice([-1, 1, 100])
        else:
            offset += chance.choice([-10, 10])
        patch(path, entry * 12, struct.pack(">qi", timestamp, offset))
        found = findings_of(log)
        assert {one.kind for one in found} == {Kind.TIME_INDEX}
        assert entry * 12 in {one.position for one in found}
        path.write_bytes(content)


def test_a_time_index_without_the_segments_largest_time_is_found(log):
    path = log.path(".timeindex", 0)
    path.write_bytes(path.read_bytes()[:-12])
    assert "the largest timestamp is" in only(log, Kind.TIME_INDEX).what


def test_an_index_that_is_missing_is_found(log):
    log.path(".index", 100).unlink()
    assert only(log, Kind.INDEX).path == str(log.path(".index", 100))


def test_an_entry_for_a_transaction_that_was_not_aborted_is_found(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    first = log.append(rows(0, 4), producer_id=7, transactional=True)
    marker = log.end_transaction(7, commit=False)
    log.index_aborted(7, first, marker, marker + 1)
    log.append(rows(4, 4))
    log.checkpoint()
    assert findings_of(log) == []
    log.index_aborted(8, 0, marker + 2, marker + 3)
    found = only(log, Kind.TRANSACTION_INDEX)
    assert found.position == 34
    assert "producer 8" in found.what


# --- epochs and checkpoints


def test_an_epoch_chain_that_does_not_fit_the_log_is_found(log):
    path = log.folder / "leader-epoch-checkpoint"
    for lines, says in (
        ("0 0\n1 160\n2 330", "epoch 1 at offset 320; the log has epoch 2"),
        ("0 0\n1 160\n2 310", "epoch 2 at offset 310; the log has epoch 1"),
        ("0 0\n2 160", "epoch 2 at offset 160; the log has epoch 1"),
        ("0 0\n1 160\n2 320\n3 900", "after the end of the log"),
        ("0 0\n2 160\n1 320", "epoch 1 from offset 320 after epoch 2"),
    ):
        path.write_text(f"0\n{lines.count(chr(10)) + 1}\n{lines}\n")
        found = findings_of(log)
        assert {one.kind for one in found} == {Kind.EPOCH}, lines
        assert {one.path for one in found} == {str(path)}
        assert says in " ".join(one.what for one in found)
    path.write_text("0\n7\n0 0\n")
    assert only(log, Kind.EPOCH).what == "the checkpoint cannot be read"


@pytest.mark.parametrize("rolls", [False, True])
def test_an_epoch_whose_first_records_were_cleaned_away_is_right(tmp_path, rolls):
    log = FolderLog(tmp_path / "logs", "events")
    log.append(rows(0, 5))
    if rolls:
        log.next_offset += 3
        log.roll()
    log.append(rows(5, 5), epoch=3, skip=20)
    log.append(rows(10, 5), epoch=3)
    newest = log.next_offset - 10
    log._epochs = [(0, 0), (1, 6), (2, 14), (3, newest - 4)]  # nothing is left of epochs 1 and 2
    log.checkpoint()
    (log.log_dir / "cleaner-offset-checkpoint").write_text(f"0\n1\nevents 0 {newest}\n")
    assert findings_of(log) == []
    log._epochs[-1] = (3, newest + 5)
    log.checkpoint()
    wrong = findings_of(log)
    assert {one.kind for one in wrong} == {Kind.EPOCH}, "the batch at the end of the gap is of epoch 3"
    log._epochs = [(0, 0), (1, 3), (3, newest)]
    log.checkpoint()
    assert "epoch 1 at offset 3; the log has epoch 0" in only(log, Kind.EPOCH).what


def test_an_epoch_that_goes_back_in_the_log_is_found(log):
    at = positions(log, 300)
    patch(log.path(".log"), at[6] + 12, struct.pack(">i", 1))
    found = findings_of(log)
    assert {one.kind for one in found} == {Kind.EPOCH}
    assert (str(log.path(".log")), at[6]) in {(one.path, one.position) for one in found}


def test_a_damaged_producer_snapshot_is_found(log):
    log.path(".snapshot", 200).write_bytes(b"\0\1 no snapshot at all")
    assert only(log, Kind.PRODUCER_SNAPSHOT).path == str(log.path(".snapshot", 200))
