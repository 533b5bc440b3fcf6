"""Partitions' folders read without Spark: slices, bounds, transactions, damage; files written by hand."""

from __future__ import annotations

import random
import shutil

import pytest

from nilometer.pipeline.decode.column_decoder import KAFKA_COLUMNS, LOG_COLUMNS
from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.log_folders import log_slices
from nilometer.pipeline.source.log_folders.log_plan import parse_log_options, plan
from nilometer.pipeline.source.log_folders.log_slices import LogPart
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.log_folders.places import find_replicas
from nilometer.pipeline.source.positions import Bounds
from nilometer.wire.compression import Codec
from support.logs.folder_logs import FolderLog

COLUMNS = KAFKA_COLUMNS + LOG_COLUMNS


def numbered(start, count, size=20):
    return [(1_000 + n, b"k%d" % n, (b"v%d" % n).ljust(size)) for n in range(start, start + count)]


def rows_of(place, bounds=None, **given):
    options = parse_log_options({"path": str(place), **given})
    slices = plan(options, bounds or Bounds())
    return [row for one in slices for batch in read_slice(options, COLUMNS, one) for row in batch.to_pylist()]


def offsets_of(place, bounds=None, **given):
    return [row["offset"] for row in rows_of(place, bounds, **given)]


@pytest.fixture
def log(tmp_path):
    """400 records in 40 batches and 4 segments."""
    log = FolderLog(tmp_path / "logs", "events")
    for number in range(40):
        if number and number % 10 == 0:
            log.roll()
        log.append(numbered(number * 10, 10), epoch=number // 16, codec=Codec(number % 5))
    log.checkpoint()
    return log


# --- slices


def test_every_record_once_however_the_work_is_divided(log):
    expected = [(n, b"k%d" % n, n // 160) for n in range(400)]
    for given in (
        {},
        {"bytesPerPartition": "1"},
        {"bytesPerPartition": "700"},
        {"minPartitions": "7"},
        {"maxRecordsPerPartition": "3"},
        {"maxRecordsPerPartition": "33", "bytesPerPartition": "2000"},
    ):
        rows = rows_of(log.log_dir, **given)
        assert [(row["offset"], row["key"], row["leader_epoch"]) for row in rows] == expected, given


def test_slices_begin_at_batches_and_take_about_what_was_asked_for(log):
    options = parse_log_options({"path": str(log.log_dir), "bytesPerPartition": "1000"})
    slices = plan(options, Bounds())
    assert 8 <= len(slices) <= 24
    assert all(one.start % 10 == 0 for one in slices)
    assert [one.end for one in slices[:-1]] == [one.start for one in slices[1:]]


def test_small_segments_are_read_together(log):
    options = parse_log_options({"path": str(log.log_dir), "bytesPerPartition": "10000000"})
    assert [(one.start, one.end) for one in plan(options, Bounds())] == [(0, 400)]


def test_random_ranges_are_what_lies_in_them(log):
    chance = random.Random(6)
    for _ in range(60):
        start = chance.randrange(400)
        end = chance.randrange(start, 401)
        bounds = Bounds(first=start, last=end - 1)
        given = {"bytesPerPartition": str(chance.choice([1, 500, 3000, 10**7]))}
        assert offsets_of(log.log_dir, bounds, **given) == list(range(start, end))


def test_a_time_leaves_out_segments_and_nothing_that_is_as_late(log):
    options = parse_log_options({"path": str(log.log_dir), "bytesPerPartition": "1"})
    late = plan(options, Bounds(since_ms=1_000 + 255))
    assert late[0].start > 240
    rows = rows_of(log.log_dir, Bounds(since_ms=1_000 + 255))
    assert set(range(255, 400)) <= {row["offset"] for row in rows}


def test_times_as_starting_and_ending_offsets(log):
    assert offsets_of(log.log_dir, startingTimestamp="1255", endingTimestamp="1301") == list(range(255, 301))
    assert offsets_of(log.log_dir, startingTimestamp="0", endingTimestamp="9999") == list(range(400))
    with pytest.raises(OptionError, match="no record with this timestamp"):
        offsets_of(log.log_dir, startingTimestamp="9999")


def test_a_control_record_counts_in_a_search_by_time_as_it_does_for_brokers(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    log.append([(10, b"k", b"v")], producer_id=7, transactional=True)
    log.end_transaction(7, commit=True, timestamp=500)
    log.append([(20, b"k", b"early"), (600, b"k", b"late")])
    log.checkpoint()
    assert offsets_of(log.log_dir, startingTimestamp="400") == [2, 3]


# --- how far may be read


def test_nothing_at_or_above_the_checkpointed_high_watermark_is_read(log):
    log.checkpoint(high_watermark=137)
    assert offsets_of(log.log_dir) == list(range(137))


def test_without_a_checkpoint_reading_is_refused_unless_the_end_is_asked_for(log):
    (log.log_dir / "replication-offset-checkpoint").unlink()
    with pytest.raises(SourceError, match="highWatermark=logEnd"):
        offsets_of(log.log_dir)
    assert offsets_of(log.log_dir, highWatermark="logEnd") == list(range(400))
    assert offsets_of(log.folder, highWatermark="logEnd") == list(range(400))


def test_records_below_the_log_start_are_not_read(log):
    log.checkpoint(log_start=23)
    assert offsets_of(log.log_dir) == list(range(23, 400))
    given = {"startingOffsets": '{"events": {"0": 5}}'}
    with pytest.raises(DataLoss, match="its log starts at 23"):
        offsets_of(log.log_dir, **given)
    assert offsets_of(log.log_dir, failOnDataLoss="false", **given) == list(range(23, 400))


def test_of_several_replicas_the_one_that_may_be_read_furthest_is_taken(log, tmp_path):
    shutil.copytree(log.log_dir, tmp_path / "behind" / "logs")
    checkpoint = tmp_path / "behind" / "logs" / "replication-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace(" 400", " 250"))
    both = f"{tmp_path / 'behind'},{log.log_dir}"
    options = parse_log_options({"logDirs": both})
    assert {one.place for one in plan(options, Bounds())} == {str(log.folder)}
    assert offsets_of(tmp_path / "behind") == list(range(250))


def test_replicas_of_two_topics_of_one_name_are_not_mixed(log, tmp_path):
    shutil.copytree(log.log_dir, tmp_path / "old" / "logs")
    for place, topic_id in ((log.folder, "a" * 21 + "A"), (tmp_path / "old/logs/events-0", "b" * 21 + "A")):
        (place / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    with pytest.raises(SourceError, match="two topics named events"):
        offsets_of(tmp_path)


# --- a folder that changes


def test_segments_that_retention_deletes_before_they_are_read_are_a_loss_or_left_out(log):
    options = parse_log_options({"path": str(log.log_dir), "bytesPerPartition": "1"})
    tolerant = parse_log_options({"path": str(log.log_dir), "failOnDataLoss": "false"})
    slices = plan(options, Bounds())
    for suffix in (".log", ".index", ".timeindex"):
        log.path(suffix, 0).unlink()
    with pytest.raises(DataLoss, match="its log starts at 100"):
        list(read_slice(options, COLUMNS, slices[0]))
    kept = [batch.num_rows for one in slices for batch in read_slice(tolerant, COLUMNS, one)]
    assert sum(kept) == 300


def test_a_plan_holds_when_segments_are_merged_into_one(log):
    """As compaction does it: offsets stay, positions and files do not."""
    options = parse_log_options({"path": str(log.log_dir), "bytesPerPartition": "1"})
    slices = plan(options, Bounds())
    merged = b"".join(log.path(".log", base).read_bytes() for base in (0, 100, 200))
    log.path(".log", 0).write_bytes(merged)
    for base in (100, 200):
        for suffix in (".log", ".index", ".timeindex"):
            log.path(suffix, base).unlink()
    rows = [
        row for one in slices for batch in read_slice(options, ("offset",), one) for row in batch.to_pylist()
    ]
    assert [row["offset"] for row in rows] == list(range(400))


def test_a_batch_that_is_being_written_ends_the_log(log):
    (log.log_dir / "replication-offset-checkpoint").unlink()
    with log.path(".log").open("r+b") as file:
        file.truncate(log.path(".log").stat().st_size - 7)
    assert offsets_of(log.log_dir, highWatermark="logEnd") == list(range(390))


def test_a_log_that_ends_below_its_high_watermark_is_a_loss(log):
    log.checkpoint(high_watermark=420)
    with pytest.raises(DataLoss, match="offsets 400 to 419"):
        offsets_of(log.log_dir)


def test_a_compaction_that_was_left_half_done_is_said(log, monkeypatch):
    monkeypatch.setattr(log_slices, "REPLACEMENT_WAIT_S", 0.0)
    log.path(".log.swap", 0).write_bytes(log.path(".log", 0).read_bytes())
    with pytest.raises(SourceError, match="unfinished compaction"):
        offsets_of(log.log_dir)


# --- damage


def test_a_flipped_bit_is_an_error_that_names_file_and_offset(log):
    data = bytearray(log.path(".log", 100).read_bytes())
    data[-3] ^= 4
    log.path(".log", 100).write_bytes(data)
    with pytest.raises(
        SourceError, match=r"00000000000000000100\.log is damaged: batch at offset 190: computed CRC"
    ):
        offsets_of(log.log_dir)


def test_bytes_that_are_no_batch_are_an_error_with_their_position(log):
    data = bytearray(log.path(".log", 0).read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second + 16] = 9
    log.path(".log", 0).write_bytes(data)
    with pytest.raises(SourceError, match=rf"damaged at byte {second}"):
        offsets_of(log.log_dir)


def test_wrong_index_entries_cost_time_and_nothing_else(log):
    chance = random.Random(3)
    for base in (0, 100, 200, 300):
        path = log.path(".index", base)
        data = bytearray(path.read_bytes())
        for at in range(4, len(data), 8):
            data[at : at + 4] = (int.from_bytes(data[at : at + 4], "big") + chance.randrange(9)).to_bytes(
                4, "big"
            )
        path.write_bytes(data)
    for given in ({"bytesPerPartition": "1"}, {"maxRecordsPerPartition": "7"}):
        assert offsets_of(log.log_dir, **given) == list(range(400))


# --- transactions


@pytest.fixture
def transactional(tmp_path):
    """Committed and aborted transactions of three producers, mixed, and one that is open; and what holds."""
    log = FolderLog(tmp_path / "logs", "events")
    chance, committed, pending = random.Random(11), [], {}
    for number in range(120):
        if number and number % 40 == 0:
            log.roll()
        producer = chance.choice([7, 8, 9])
        if producer in pending and chance.random() < 0.3:
            commit = chance.random() < 0.5
            first, offsets = pending.pop(producer)
            marker = log.end_transaction(producer, commit=commit)
            if commit:
                committed += offsets
            else:
                log.index_aborted(
                    producer, first, marker, min([marker + 1, *(one[0] for one in pending.values())])
                )
        elif chance.random() < 0.2:
            base = log.append(numbered(number, 2), codec=Codec.LZ4)
            committed += [base, base + 1]
        else:
            base = log.append(numbered(number, 3), producer_id=producer, transactional=True)
            first, offsets = pending.setdefault(producer, (base, []))
            offsets += range(base, base + 3)
    log.checkpoint()
    assert pending
    stable = min(first for first, _ in pending.values())
    return log, sorted(offset for offset in committed if offset < stable)


def test_read_committed_by_the_index_of_aborted_transactions(transactional):
    log, committed = transactional
    for given in ({}, {"bytesPerPartition": "300"}):
        assert offsets_of(log.log_dir, **{"isolation.level": "read_committed", **given}) == committed
    assert len(offsets_of(log.log_dir)) > len(committed)


def test_read_committed_by_control_batches_where_there_is_no_index(transactional):
    log, committed = transactional
    for path in log.folder.iterdir():
        if path.suffix in (".index", ".txnindex", ".timeindex"):
            path.unlink()
    found = offsets_of(log.folder, **{"kafka.isolation.level": "read_committed", "bytesPerPartition": "300"})
    assert found == committed


def test_a_transaction_whose_marker_lies_above_the_high_watermark_is_open(transactional):
    log, committed = transactional
    for high_watermark in range(0, log.next_offset, 17):
        log.checkpoint(high_watermark)
        (replica,) = find_replicas([str(log.log_dir)])
        whole = LogPart(replica, tuple(replica.segments()), 0, high_watermark)
        stable = log_slices.last_stable_offset([whole])
        found = offsets_of(log.log_dir, **{"isolation.level": "read_committed"})
        assert found == [offset for offset in committed if offset < stable]


def test_an_abort_marker_above_the_last_stable_offset_counts_without_an_index(tmp_path):
    log = FolderLog(tmp_path / "logs", "events")
    log.append(numbered(0, 3), producer_id=7, transactional=True)
    log.append(numbered(3, 3), producer_id=8, transactional=True)
    log.end_transaction(7, commit=False)
    log.checkpoint()
    log.path(".index").unlink()
    assert offsets_of(log.log_dir, **{"isolation.level": "read_committed"}) == []


# --- options


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": ""}, "give path, paths, logDirs, archive or tier"),
        ({"path": "/nowhere"}, "not a folder"),
        ({"path": "nosuch://place"}, "nosuch"),
        ({"paths": "a,b"}, "JSON"),
        ({"highWatermark": "guess"}, "checkpoint, logEnd"),
        ({"isolation.level": "dirty"}, "read_uncommitted, read_committed"),
        ({"bytesPerPartition": "0"}, "1 or more"),
        ({"subscribe": "others"}, "others has no replica in"),
        ({"assign": '{"events": [0, 3]}'}, "events-3 has no replica in"),
        ({"kafka.bootstrap.servers": "h:1"}, "no broker is contacted"),
        ({"maxOffsetsPerTrigger": "5"}, "has no effect in a batch"),
        ({"startOffset": "1"}, "no such option"),
        ({"startingOffsets": '{"events": {"0": 401}}'}, "beyond its end offset, 400"),
        ({"endingOffsets": '{"events": {"1": 4}}'}, "events-0 has none"),
    ],
)
def test_what_is_wrong_is_said(log, given, says):
    with pytest.raises((OptionError, SourceError), match=says):
        offsets_of(log.log_dir, **given)


def test_no_place_at_all_is_said():
    with pytest.raises(OptionError, match="path, paths, logDirs, archive or tier"):
        parse_log_options({})


# --- tiered topics


@pytest.fixture
def tiered(log):
    """Begins at offset 23; the records below 100 are in remote storage only."""
    for suffix in (".log", ".index", ".timeindex"):
        log.path(suffix, 0).unlink()
    log.checkpoint(log_start=23)
    (log.folder / "begins-in-remote-storage").touch()
    return log


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"startingOffsets": '{"events": {"0": 50}}'},
        {"startingTimestamp": "1050"},
        {"isolation.level": "read_committed"},
        {"endingOffsets": '{"events": {"0": 60}}'},
    ],
)
def test_records_in_remote_storage_are_an_error_unless_the_option_allows_it(tiered, given):
    first = 50 if len(given) == 1 and "starting" in str(given) else 23
    with pytest.raises(DataLoss, match=r"offsets .* of events-0 are not in its folder, .* tiered") as error:
        offsets_of(tiered.log_dir, **given)
    last = 59 if "ending" in str(given) else 99
    first = 23 if "startingTimestamp" in given else first
    assert f"offsets {first} to {last} " in str(error.value)
    expected = [] if "ending" in str(given) else list(range(100, 400))
    assert offsets_of(tiered.log_dir, failOnDataLoss="false", **given) == expected


@pytest.mark.parametrize(
    "given", [{"startingOffsets": '{"events": {"0": 100}}'}, {"startingTimestamp": "1101"}]
)
def test_what_is_in_the_folder_of_a_tiered_topic_is_read(tiered, given):
    assert offsets_of(tiered.log_dir, **given)[-1] == 399


def test_a_tiered_log_whose_start_is_not_checkpointed_begins_with_its_leader_epochs(tiered):
    tiered.checkpoint(log_start=0)
    epochs = tiered.folder / "leader-epoch-checkpoint"
    epochs.write_text("0\n1\n0 50\n")
    with pytest.raises(DataLoss, match="offsets 50 to 99 "):
        offsets_of(tiered.log_dir)
    epochs.write_text("damaged")
    with pytest.raises(SourceError, match="leader-epoch-checkpoint"):
        offsets_of(tiered.log_dir)


def test_a_tiered_topic_whose_records_are_all_in_its_folder_is_read(tiered):
    tiered.checkpoint(log_start=100)
    assert offsets_of(tiered.log_dir) == list(range(100, 400))
