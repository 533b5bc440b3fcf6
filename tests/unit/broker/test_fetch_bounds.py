"""Up to which offset a leader serves a consumer: below what is not committed or not decided yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.replicas.fetch_reader import READ_US, FetchReader, ReaderIdentity
from nilometer.broker.replicas.fetch_session import FetchPartition, TopicKey
from nilometer.broker.replicas.replication_quota import ReplicationQuota
from nilometer.runtime.runtime import SystemClock
from nilometer.storage import reading
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder
from support.logs.memory_disk import MemoryDisk


def leader(high_watermark: int) -> SimpleNamespace:
    """Leads a log with six batches of a record; from the third one on they are of an open transaction."""
    options = OpenOptions(clean=True, wall_ms=1)
    log = Log.open(SegmentFiles.on(MemoryDisk()), "/t-0", TopicPartition("t", 0), LogConfig(), options)
    for number in range(6):
        builder = BatchBuilder()
        builder.append(1, None, b"%d" % number)
        records = builder.build(0, 7, 0, number, transactional=number >= 2)
        log.append_as_leader(records, leader_epoch=0, wall_ms=1)
    role = SimpleNamespace(high_watermark=high_watermark)
    return SimpleNamespace(
        topic="t", key=SimpleNamespace(partition=0), log=log, check_reader=lambda epoch: role
    )


@pytest.mark.parametrize(("high_watermark", "isolated_end"), [(1, 1), (2, 2), (4, 2), (6, 2)])
@pytest.mark.parametrize("read_committed", [False, True])
def test_a_consumer_reads_what_is_committed(
    high_watermark: int, isolated_end: int, read_committed: bool
) -> None:
    partition = leader(high_watermark)
    replicas = SimpleNamespace(serves_from_followers=False, partition=lambda name, index: partition)
    reader = FetchReader(
        cast(Any, replicas),
        ReaderIdentity(-1, -1, read_committed, ""),
        lambda: [FetchPartition(TopicKey.of("t"), 0, 0, 10_000)],
        10_000,
        lambda asked, found: None,
        ReplicationQuota(SystemClock()),
        cpu_us=lambda: 0,
    )
    reader.read()
    (outcome,) = reader.outcomes
    read = [header.base_offset for _, header in batches(outcome.records)]
    assert read == list(range(isolated_end if read_committed else high_watermark))
    assert (outcome.high_watermark, outcome.last_stable_offset) == (high_watermark, isolated_end)
    assert outcome.aborted == ([] if read_committed else None)


@pytest.mark.parametrize("nearer", [0, 3, None])
def test_a_consumer_that_is_to_read_from_a_nearer_replica_gets_no_records(nearer: int | None) -> None:
    partition = leader(6)
    partition.check_consumer = partition.check_reader
    replicas = SimpleNamespace(
        serves_from_followers=True,
        partition=lambda name, index: partition,
        preferred_read_replica=lambda role, rack, offset: nearer,
    )
    reader = FetchReader(
        cast(Any, replicas),
        ReaderIdentity(-1, -1, False, "rack"),
        lambda: [FetchPartition(TopicKey.of("t"), 0, 0, 10_000)],
        10_000,
        lambda asked, found: None,
        ReplicationQuota(SystemClock()),
        cpu_us=lambda: 0,
    )
    reader.read()
    (outcome,) = reader.outcomes
    assert outcome.preferred_read_replica == (-1 if nearer is None else nearer)
    assert bool(outcome.size) == (nearer is None)


def test_a_read_has_a_bounded_number_of_batches_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "BATCHES_MAX", 4)
    log = leader(6).log
    read = log.read(0, 10_000, 6, only_cached=True)
    assert [header.base_offset for _, header in batches(read.records)] == [0, 1, 2, 3]
    rest = log.read(read.next_offset, 10_000, 6, only_cached=True)
    assert [header.base_offset for _, header in batches(rest.records)] == [4, 5]


def test_a_fetch_whose_time_is_over_reads_no_further_partition() -> None:
    partition, used_us = leader(6), 0
    replicas = SimpleNamespace(serves_from_followers=False, partition=lambda name, index: partition)

    def take_long(_asked: FetchPartition, _found: object) -> None:
        nonlocal used_us
        used_us += READ_US

    reader = FetchReader(
        cast(Any, replicas),
        ReaderIdentity(-1, -1, False, ""),
        lambda: [FetchPartition(TopicKey.of("t"), index, 0, 10_000) for index in range(3)],
        10_000,
        take_long,
        ReplicationQuota(SystemClock()),
        cpu_us=lambda: used_us,
    )
    for _ in range(2):
        reader.read()
        assert [(outcome.size > 0, outcome.has_more) for outcome in reader.outcomes] == [
            (True, False),
            (True, False),
            (False, True),
        ]
