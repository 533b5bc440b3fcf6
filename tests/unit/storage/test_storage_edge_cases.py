"""The edge cases of one replica's log, each named after the ticket or proposal where it was met."""

from __future__ import annotations

import errno
import random

import pytest
from log_model import build_batch, read_from

from nilometer.storage.errors import CorruptRecordFound, LogFenced, OffsetOutOfRange, UnexpectedAppendOffset
from nilometer.storage.leader_epoch_cache import LeaderEpochCache
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.reading import ABORTED_MAX
from nilometer.storage.recovery import DamageKind, OpenOptions
from nilometer.storage.removal import SEGMENTS_AT_ONCE
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import ControlType, EndTxnMarker, build_end_txn_marker
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
FOLDER = "/data/t-0"
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def open_log(
    disk: MemoryDisk,
    config: LogConfig = SMALL,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    start: int = 0,
) -> Log:
    disk.crash_process()
    options = OpenOptions(clean=clean, wall_ms=1_000, recovery_point=recovery_point, log_start_offset=start)
    return Log.open(SegmentFiles.on(disk), FOLDER, KEY, config, options)


def append(log: Log, count: int, *, epoch: int = 0, values: int = 1) -> None:
    for number in range(count):
        records = build_batch(tuple(b"%d-%d" % (number, index) for index in range(values)))
        log.append_as_leader(records, leader_epoch=epoch, wall_ms=1_000)


def produce(log: Log, producer: tuple[int, int, int], *, transactional: bool = False) -> int:
    records = build_batch((b"v",), producer=producer, transactional=transactional)
    return log.append_as_leader(records, leader_epoch=0, wall_ms=1_000).first_offset


def end_transaction(log: Log, producer_id: int, kind: ControlType, epoch: int = 0) -> int:
    marker = build_end_txn_marker(EndTxnMarker(kind, 1, 1_000), producer_id=producer_id, producer_epoch=epoch)
    info = log.append_as_leader(marker, leader_epoch=0, wall_ms=1_000, origin=AppendOrigin.COORDINATOR)
    return info.first_offset


def refused(code: ErrorCode, log: Log, records: bytes) -> None:
    end = log.log_end_offset
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(records, leader_epoch=0, wall_ms=1_000)
    assert error.value.code is code
    assert log.log_end_offset == end, "a refused append changes nothing"


# -- epochs


def test_kafka_7415_an_epoch_below_the_first_known_one_answers_with_the_first_start() -> None:
    cache = LeaderEpochCache(MemoryDisk(), "/epochs", [(5, 100), (7, 200)])
    assert cache.end_offset_for(3, 300) == (3, 100)


def test_kafka_7415_a_leader_that_never_wrote_is_in_the_cache() -> None:
    log = open_log(MemoryDisk())
    append(log, 2, epoch=1)
    log.epochs.begin(4, log.log_end_offset)
    assert log.end_offset_for_epoch(1) == (1, 2)
    assert log.end_offset_for_epoch(4) == (4, 2)


def test_kafka_7415_of_two_epochs_that_begin_at_one_offset_the_later_is_kept() -> None:
    log = open_log(MemoryDisk())
    append(log, 2, epoch=1)
    for epoch in (4, 5):
        log.epochs.begin(epoch, log.log_end_offset)
    assert log.epochs.entries == ((1, 0), (5, 2))


def test_epochs_above_the_records_are_dropped_when_a_log_is_opened() -> None:
    """The checkpoint may be older than a truncation, and have epochs of records that are no more."""
    disk = MemoryDisk()
    log = open_log(disk, LogConfig())
    append(log, 6, epoch=1)
    log.close(wall_ms=1)
    for stale in (b"0\n2\n1 0\n3 6\n", b"0\n3\n1 0\n2 9\n3 11\n"):
        disk.replace_file(f"{FOLDER}/leader-epoch-checkpoint", stale)
        assert open_log(disk, LogConfig()).epochs.entries == ((1, 0),)
    for number in range(6, 9):  # after a truncation to 6 the leader sent records of epoch 1
        records = build_batch((b"v",), base_offset=number, epoch=1)
        log = open_log(disk, LogConfig())
        log.append_as_follower(records, wall_ms=1_000)
    disk.replace_file(f"{FOLDER}/leader-epoch-checkpoint", b"0\n2\n1 0\n3 7\n")
    assert open_log(disk, LogConfig(), clean=False).epochs.entries == ((1, 0),)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 12)), (1, (0, 12)), (2, (2, 30)), (3, (-1, -1))],
)
def test_kip_279_the_largest_epoch_not_above_the_asked_one_answers(
    asked: int, answer: tuple[int, int]
) -> None:
    cache = LeaderEpochCache(MemoryDisk(), "/epochs", [(0, 0), (2, 12)])
    assert cache.end_offset_for(asked, 30) == answer


def test_kafka_10432_epoch_zero_is_rebuilt_by_recovery() -> None:
    disk = MemoryDisk()
    append(open_log(disk), 5, epoch=0)
    disk.remove(f"{FOLDER}/leader-epoch-checkpoint")
    assert open_log(disk, clean=False).epochs.entries == ((0, 0),)


def test_kafka_10706_truncating_to_the_end_still_trims_the_epochs() -> None:
    log = open_log(MemoryDisk())
    append(log, 3, epoch=1)
    log.epochs.begin(2, 3)
    assert log.truncate_to(3, wall_ms=1).log_end_offset == 3
    assert log.epochs.entries == ((1, 0),)


def test_a_torn_epoch_checkpoint_is_rebuilt_from_the_batches() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for epoch in (0, 3, 4):
        append(log, 2, epoch=epoch)
    disk.replace_file(f"{FOLDER}/leader-epoch-checkpoint", b"0\n3\n0 0\n3 ")
    assert open_log(disk, clean=False, recovery_point=6).epochs.entries == ((0, 0), (3, 2), (4, 4))


# -- log start, retention, disk errors


def test_kafka_5634_retention_keeps_what_is_not_below_the_high_watermark() -> None:
    log = open_log(MemoryDisk(), LogConfig(segment_bytes=300, retention_bytes=0))
    append(log, 20)
    log.delete_old_segments(high_watermark=7, wall_ms=1_000)
    assert 0 < log.log_start_offset <= 7
    log.delete_old_segments(high_watermark=20, wall_ms=1_000)
    assert log.log_start_offset == 20
    assert log.segments.active.size == 0


def test_retention_deletes_many_segments_in_steps() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogConfig(segment_bytes=100, retention_bytes=0))
    append(log, 3 * SEGMENTS_AT_ONCE)
    assert len(log.segments) == 3 * SEGMENTS_AT_ONCE
    begins: list[int] = []
    while log.delete_old_segments(log.log_end_offset, wall_ms=1_000):
        begins.append(log.log_start_offset)
    assert begins == [SEGMENTS_AT_ONCE, 2 * SEGMENTS_AT_ONCE, 3 * SEGMENTS_AT_ONCE]
    assert open_log(disk, clean=False).log_start_offset == log.log_end_offset


def test_retention_by_time_rolls_the_active_segment_when_all_is_expired() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogConfig(retention_ms=100))
    append(log, 3)
    assert log.delete_old_segments(3, wall_ms=1_050) == []
    removable = log.delete_old_segments(3, wall_ms=2_000)
    assert log.log_start_offset == log.log_end_offset == 3
    assert f"{FOLDER}/00000000000000000000.log.deleted" in removable
    append(log, 1)
    assert open_log(disk, clean=False).log_end_offset == 4
    assert not disk.exists(removable[0]), "a restart removes what was left behind"


def test_kafka_6975_a_new_follower_takes_a_first_batch_that_straddles_the_log_start() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.truncate_fully_and_start_at(3, wall_ms=1)
    records = build_batch((b"a", b"b", b"c", b"d"), base_offset=1, epoch=0)
    log.append_as_follower(records, wall_ms=1_000)
    assert (log.log_start_offset, log.log_end_offset) == (3, 5)
    assert [offset for offset, _ in read_from(log, 3, 5)] == [1, 2, 3, 4]
    assert open_log(disk, clean=False, start=3).log_end_offset == 5
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(build_batch((b"a",), base_offset=4, epoch=0), wall_ms=1_000)


def test_delete_records_above_the_high_watermark_is_out_of_range() -> None:
    log = open_log(MemoryDisk())
    append(log, 5)
    with pytest.raises(KafkaError) as error:
        log.advance_log_start_offset(4, high_watermark=3)
    assert error.value.code is ErrorCode.offset_out_of_range
    assert log.advance_log_start_offset(3, high_watermark=3)
    with pytest.raises(OffsetOutOfRange):
        log.read(2, 100, 5)


@pytest.mark.parametrize("at", range(1, 6))
def test_kafka_10778_the_first_disk_error_fences_the_log(at: int) -> None:
    disk = MemoryDisk(seed=at)
    log = open_log(disk)
    append(log, 3)
    disk.fail_once(at, errno.ENOSPC)
    with pytest.raises(LogFenced) as first:
        append(log, 50)
    written = log.log_end_offset
    with pytest.raises(LogFenced) as later:
        append(log, 1)
    assert later.value.reason is first.value.reason
    assert later.value.reason.errno == errno.ENOSPC
    assert log.log_end_offset == written
    again = open_log(disk, clean=False)
    assert written <= again.log_end_offset <= written + 1
    assert len(read_from(again, 0, again.log_end_offset)) == again.log_end_offset


# -- producers and transactions


def test_kafka_12153_truncation_takes_an_open_transaction_along() -> None:
    log = open_log(MemoryDisk())
    append(log, 4)
    assert produce(log, (9, 0, 0), transactional=True) == 4
    assert log.last_stable_offset(5) == 4
    log.truncate_to(3, wall_ms=1)
    assert log.last_stable_offset(3) == 3
    assert not log.producers.ongoing


def test_kafka_9892_a_bad_snapshot_is_rebuilt_from_the_log() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for sequence in range(12):
        produce(log, (7, 0, sequence))
    log.close(wall_ms=1)
    disk.flip_bit(f"{FOLDER}/00000000000000000012.snapshot", 20)
    again = open_log(disk)
    assert again.producers.producers[7].last_sequence == 11
    assert produce(again, (7, 0, 12)) == 12


def test_kafka_6003_a_follower_takes_sequences_as_they_come() -> None:
    log = open_log(MemoryDisk())
    for offset, sequence in enumerate((40, 7, 90)):
        records = build_batch((b"v",), base_offset=offset, epoch=0, producer=(7, 0, sequence))
        log.append_as_follower(records, wall_ms=1_000)
    assert log.log_end_offset == 3
    assert log.producers.producers[7].last_sequence == 90


@pytest.mark.parametrize("orderly", [True, False])
def test_kafka_7190_a_producer_outlives_its_records(orderly: bool) -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogConfig(segment_bytes=300, retention_bytes=0))
    for sequence in range(10):
        produce(log, (7, 0, sequence))
    log.delete_old_segments(10, 1_000)
    assert log.is_empty
    if orderly:
        log.close(wall_ms=1)
    again = open_log(disk, clean=orderly, start=10)
    assert produce(again, (7, 0, 10)) == 10
    refused(ErrorCode.out_of_order_sequence_number, again, build_batch((b"v",), producer=(7, 0, 12)))
    assert list(again.producers.remove_expired(1_000 + 86_400_000)) == [1]
    assert produce(again, (7, 0, 55)) == 11


def test_lost_acknowledgement_the_last_five_batches_are_known() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for sequence in range(7):
        produce(log, (7, 0, sequence))
    again = open_log(disk, clean=False)
    for sequence in range(2, 7):
        info = again.append_as_leader(
            build_batch((b"v",), producer=(7, 0, sequence)), leader_epoch=0, wall_ms=1_000
        )
        assert (info.duplicate, info.first_offset) == (True, sequence)
    refused(ErrorCode.out_of_order_sequence_number, again, build_batch((b"v",), producer=(7, 0, 1)))
    assert again.log_end_offset == 7


def test_sequences_wrap_and_gaps_and_old_epochs_are_refused() -> None:
    log = open_log(MemoryDisk())
    produce(log, (7, 3, 2**31 - 1))  # nothing is known of the producer: any sequence may begin (KIP-360)
    produce(log, (7, 3, 0))
    refused(ErrorCode.out_of_order_sequence_number, log, build_batch((b"v",), producer=(7, 3, 2)))
    refused(ErrorCode.invalid_producer_epoch, log, build_batch((b"v",), producer=(7, 2, 1)))
    refused(ErrorCode.out_of_order_sequence_number, log, build_batch((b"v",), producer=(7, 4, 1)))
    produce(log, (7, 4, 0))


@pytest.mark.parametrize(("more", "told"), [(0, ABORTED_MAX), (1, 1)])
def test_of_many_aborted_transactions_those_of_the_records_producers_are_told(more: int, told: int) -> None:
    """All were open at the same time, and a fetch may be of one batch."""
    log = open_log(MemoryDisk())
    producers = range(ABORTED_MAX + more)
    for producer in producers:
        produce(log, (producer, 0, 0), transactional=True)
    for producer in producers:
        end_transaction(log, producer, ControlType.ABORT)
    first = len(producers)
    read = log.read(first, 1, log.log_end_offset, min_one=True)
    assert read is not None
    found = log.aborted_transactions(first, read.next_offset, read.records)
    assert [txn.producer_id for txn in found] == list(producers)[:told]
    assert len(log.aborted_transactions(first, read.next_offset)) == len(producers)


@pytest.mark.parametrize("restart", ["none", "orderly", "crash"])
def test_aborted_transactions_are_found_and_the_stable_offset_waits_for_the_watermark(restart: str) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    produce(log, (1, 0, 0), transactional=True)  # 0
    produce(log, (2, 0, 0), transactional=True)  # 1
    assert log.last_stable_offset(2) == 0
    append(log, 4)  # 2-5
    assert end_transaction(log, 2, ControlType.ABORT) == 6
    assert log.last_stable_offset(7) == 0
    assert end_transaction(log, 1, ControlType.COMMIT) == 7
    assert log.last_stable_offset(7) == 0, "the commit marker at 7 is not replicated yet"
    assert log.last_stable_offset(8) == 8
    if restart != "none":
        if restart == "orderly":
            log.close(wall_ms=1)
        log = open_log(disk, clean=restart == "orderly")
    assert log.last_stable_offset(8) == 8
    assert [(txn.producer_id, txn.first_offset) for txn in log.aborted_transactions(0, 8)] == [(2, 1)]
    assert log.aborted_transactions(7, 8) == []


def test_the_index_of_aborted_transactions_is_not_read_again_after_each_abort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    read, log = list[str](), open_log(disk)
    read_file = MemoryDisk.read_file
    monkeypatch.setattr(
        MemoryDisk, "read_file", lambda self, path: read.append(path) or read_file(self, path)
    )
    for number in range(20):
        produce(log, (number, 0, 0), transactional=True)
        marker = end_transaction(log, number, ControlType.ABORT)
        found = log.aborted_transactions(0, marker + 1)
        assert [txn.producer_id for txn in found] == list(range(number + 1))
        last = log.aborted_transactions(marker - 1, marker + 1)
        assert [txn.producer_id for txn in last] == [number]
    assert len(read) == len(set(read)), "each segment's once"
    assert [txn.producer_id for txn in open_log(disk).aborted_transactions(10, 20)] == list(range(5, 10))


def test_a_transactional_producer_is_kept_while_its_transaction_is_open() -> None:
    log = open_log(MemoryDisk())
    produce(log, (7, 0, 0), transactional=True)
    produce(log, (8, 0, 0))

    def left_after(idle_ms: int) -> list[int]:
        list(log.producers.remove_expired(1_000 + idle_ms))
        return list(log.producers.producers)

    assert left_after(86_400_000 - 1) == [7, 8]
    assert left_after(86_400_000) == [7]
    end_transaction(log, 7, ControlType.COMMIT)
    assert left_after(86_400_000) == []


def test_a_producer_writes_nothing_outside_of_its_open_transaction() -> None:
    log = open_log(MemoryDisk())
    produce(log, (7, 0, 0), transactional=True)
    refused(ErrorCode.invalid_txn_state, log, build_batch((b"v",), producer=(7, 0, 1)))
    assert produce(log, (7, 0, 1), transactional=True) == 1


def test_a_coordinator_that_was_replaced_writes_no_marker() -> None:
    log = open_log(MemoryDisk())
    produce(log, (7, 0, 0), transactional=True)
    assert end_transaction(log, 7, ControlType.COMMIT) == 1  # of coordinator epoch 1
    produce(log, (7, 0, 1), transactional=True)
    marker = build_end_txn_marker(EndTxnMarker(ControlType.ABORT, 0, 1_000), producer_id=7, producer_epoch=0)
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(marker, leader_epoch=0, wall_ms=1_000, origin=AppendOrigin.COORDINATOR)
    assert error.value.code is ErrorCode.transaction_coordinator_fenced
    assert (log.log_end_offset, log.last_stable_offset(3)) == (3, 2)


# -- damage


@pytest.mark.parametrize("position", [0, 16, 17, 30, 60, 65])
def test_a_flipped_bit_is_reported_by_place_and_nothing_behind_it_is_served(position: int) -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogConfig())
    append(log, 10)
    size = log.segments.active.size // 10
    path = f"{FOLDER}/00000000000000000000.log"
    disk.flip_bit(path, 4 * size + position, bit=6)
    assert [offset for offset, _ in read_prefix(log)] == [0, 1, 2, 3]
    with pytest.raises(CorruptRecordFound) as found:
        log.read(4, 10_000, 10)
    assert (found.value.path, found.value.position) == (path, 4 * size)

    again = open_log(disk, LogConfig(), clean=False)
    assert again.log_end_offset == 4
    [damage] = again.damages
    assert (damage.path, damage.position, damage.kind) == (path, 4 * size, DamageKind.DAMAGED)
    [evidence] = damage.evidence
    assert disk.file_size(evidence) == 6 * size
    append(again, 1)
    assert len(read_from(again, 0, 5)) == 5


def read_prefix(log: Log) -> list[tuple[int, bytes]]:
    part = log.read(0, 10_000, log.log_end_offset)
    assert part is not None
    return read_from(log, 0, part.next_offset)


def test_a_tail_torn_at_any_byte_is_cut_and_all_before_it_kept() -> None:
    disk = MemoryDisk()
    append(open_log(disk, LogConfig()), 4, values=2)
    path = f"{FOLDER}/00000000000000000000.log"
    whole = disk.read_file(path)
    size = len(whole) // 4
    for length in range(2 * size, len(whole)):
        disk.replace_file(path, whole[:length])
        log = open_log(disk, LogConfig(), clean=False)
        kept = length // size
        assert log.log_end_offset == 2 * kept
        assert len(read_from(log, 0, 2 * kept)) == 2 * kept
        assert [damage.kind for damage in log.damages] == ([DamageKind.TORN] if length % size else [])
        append(log, 1, values=2)
        assert len(read_from(log, 0, 2 * kept + 2)) == 2 * kept + 2


def test_missing_and_torn_indexes_are_rebuilt() -> None:
    for clean in (True, False):
        disk = MemoryDisk()
        log = open_log(disk)
        append(log, 40)
        assert len(log.segments) > 4
        log.close(wall_ms=1)
        before = {
            name: disk.read_file(f"{FOLDER}/{name}")
            for name in disk.list_directory(FOLDER)
            if name.endswith(("index", "timeindex"))
        }
        names = sorted(before)
        disk.remove(f"{FOLDER}/{names[0]}")
        disk.replace_file(f"{FOLDER}/{names[3]}", before[names[3]] + b"torn")
        again = open_log(disk, clean=clean, recovery_point=40)
        assert len(read_from(again, 0, 40)) == 40
        again.close(wall_ms=1)
        after = {name: disk.read_file(f"{FOLDER}/{name}") for name in names}
        assert after == before


@pytest.mark.parametrize("seed", range(20))
def test_the_last_stable_offset_is_the_earliest_of_all_unstable_transactions(seed: int) -> None:
    """Whatever begins, ends and is replicated in whichever order, and after a restart."""
    chance, disk = random.Random(seed), MemoryDisk()
    log, high_watermark = open_log(disk), 0
    began: dict[int, int] = {}  # producer id → first offset of its open transaction
    ended: list[tuple[int, int]] = []  # first offset, offset of the marker
    sequences = dict.fromkeys(range(8), 0)
    for _ in range(120):
        producer_id = chance.randrange(8)
        if producer_id in began and chance.random() < 0.4:
            last_stable = min([first for other, first in began.items() if other != producer_id], default=-1)
            kind = chance.choice([ControlType.COMMIT, ControlType.ABORT])
            marker = end_transaction(log, producer_id, kind)
            first = began.pop(producer_id)
            ended.append((first, marker))
            if kind is ControlType.ABORT:
                aborted = log.aborted_transactions(first, marker + 1)[-1]
                assert aborted.last_offset == marker
                assert aborted.last_stable_offset == (marker + 1 if last_stable < 0 else last_stable)
        else:
            offset = produce(log, (producer_id, 0, sequences[producer_id]), transactional=True)
            sequences[producer_id] += 1
            began.setdefault(producer_id, offset)
        if chance.random() < 0.3:
            high_watermark = chance.randint(high_watermark, log.log_end_offset)
            log.producers.on_high_watermark(high_watermark)
        if chance.random() < 0.02:
            log.close(wall_ms=1_000)
            log, high_watermark = open_log(disk), log.log_end_offset
        unstable = [*began.values(), *(first for first, marker in ended if marker >= high_watermark)]
        assert log.last_stable_offset(high_watermark) == min([*unstable, high_watermark])


def test_the_last_stable_offset_is_never_below_the_log_start() -> None:
    """DeleteRecords may pass the beginning of an open transaction."""
    log = open_log(MemoryDisk())
    log.append_as_leader(
        build_batch((b"a", b"b", b"c"), producer=(7, 0, 0), transactional=True), leader_epoch=0, wall_ms=1
    )
    log.append_as_leader(build_batch((b"d",)), leader_epoch=0, wall_ms=1)
    assert log.last_stable_offset(4) == 0
    log.advance_log_start_offset(2, 4)
    assert log.last_stable_offset(4) == 2
