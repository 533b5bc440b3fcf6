"""A producer with five requests in flight sends all of them again after a restart: each is known."""

from __future__ import annotations

import pytest
from log_model import build_batch

from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import (
    NO_OFFSET,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import ErrorCode, KafkaError
from support.logs.memory_disk import MemoryDisk

FOLDER = "/data/t-0"
PRODUCER = 7


def open_log(disk: MemoryDisk, *, clean: bool = False) -> Log:
    options = OpenOptions(clean=clean, wall_ms=1_000, recovery_point=0)
    return Log.open(SegmentFiles.on(disk), FOLDER, TopicPartition("t", 0), LogConfig(), options)


def produce(log: Log, sequence: int, epoch: int = 0, *, transactional: bool = False) -> int:
    """Append a batch of two records; return its offset, that of the first one if it is a duplicate."""
    records = build_batch((b"v", b"w"), producer=(PRODUCER, epoch, 2 * sequence), transactional=transactional)
    return log.append_as_leader(records, leader_epoch=0, wall_ms=1_000).first_offset


def saved(disk: MemoryDisk, offset: int) -> list[SnapshotEntry]:
    return decode_snapshot(disk.read_file(f"{FOLDER}/{offset:020}.snapshot"))


@pytest.mark.parametrize("end", ["crash", "close"])
def test_a_resent_batch_is_known_though_a_segment_began_after_it(end: str) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for sequence in range(7):
        produce(log, sequence)
    log.roll_now(1_000)
    produce(log, 7)
    if end == "close":
        log.close(wall_ms=1_000)
    disk.crash_process()
    again = open_log(disk, clean=end == "close")
    assert [produce(again, sequence) for sequence in range(3, 8)] == [6, 8, 10, 12, 14]
    with pytest.raises(KafkaError) as refused:
        produce(again, 2)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number, (
        "as before the restart: it is the sixth"
    )
    assert produce(again, 8) == 16


def test_a_later_epoch_begins_without_the_batches_of_the_former_one() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for sequence in range(3):
        produce(log, sequence)
    produce(log, 0, epoch=1)
    log.roll_now(1_000)
    assert [(one.producer_epoch, one.last_sequence) for one in saved(disk, 8)] == [(1, 1)]


def test_a_transaction_is_named_once_and_a_file_of_apache_kafka_has_the_last_batch_alone() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for sequence in range(3):
        produce(log, sequence, transactional=True)
    log.roll_now(1_000)
    entries = saved(disk, 6)
    assert [one.current_txn_first_offset for one in entries] == [NO_OFFSET, NO_OFFSET, 0]
    assert [one.last_offset for one in entries] == [1, 3, 5]
    log.close(wall_ms=1_000)
    disk.replace_file(f"{FOLDER}/{6:020}.snapshot", encode_snapshot(entries[-1:]), sync=True)
    disk.crash_process()
    again = open_log(disk, clean=True)
    assert again.producers.ongoing == {0: PRODUCER}
    assert produce(again, 2, transactional=True) == 4
    with pytest.raises(KafkaError):
        produce(again, 1, transactional=True)
