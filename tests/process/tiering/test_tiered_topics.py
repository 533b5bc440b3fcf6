"""Tiered topics of three real brokers, whose remote storage is a folder: every record is read again, from
wherever it is, by clients of another project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from support.eventually import eventually
from support.tier.tiered_cluster import RECORDS, VALUE, TieredCluster, objects_below


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def tiered(tier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredCluster]:
    with closing(
        TieredCluster(tmp_path_factory.mktemp("brokers"), tier.as_uri(), lambda: objects_below(tier))
    ) as cluster:
        yield cluster


@pytest.mark.quick
def test_every_record_is_read_across_tier_and_log_and_a_change_of_the_leader(tiered: TieredCluster) -> None:
    tiered.check_every_record_across_a_change_of_the_leader("across")
    assert tiered.offset("across", OffsetSpec.earliest()) == 0


def test_records_behind_the_whole_retention_leave_the_tier(tiered: TieredCluster) -> None:
    tiered.create("short", retention_bytes="2500000")
    tiered.produce("short", 0)
    eventually(lambda: tiered.offset("short", OffsetSpec.earliest()) > RECORDS // 8, "the log begins later")
    start = tiered.offset("short", OffsetSpec.earliest())
    assert tiered.keys("short", start, RECORDS) == list(range(start, RECORDS))


def test_deleted_records_leave_the_tier(tiered: TieredCluster) -> None:
    tiered.create("deleted-records")
    before = tiered.objects()
    tiered.produce("deleted-records", 0)
    tiered.wait_tiered("deleted-records", RECORDS // 2)
    end = TopicPartition("deleted-records", 0, RECORDS // 4 + 7)
    assert tiered.admin.delete_records([end])[end].result(30).low_watermark == end.offset
    assert tiered.offset("deleted-records", OffsetSpec.earliest()) == end.offset
    assert tiered.keys("deleted-records", end.offset, RECORDS) == list(range(end.offset, RECORDS))
    everything = TopicPartition("deleted-records", 0, RECORDS)
    tiered.admin.delete_records([everything])[everything].result(30)
    eventually(lambda: not tiered.segments_since(before), "no segment of it is left")


def test_a_topic_that_is_deleted_leaves_no_object_and_its_name_shows_nothing_old(
    tiered: TieredCluster,
) -> None:
    before = tiered.objects()
    tiered.create("again")
    tiered.produce("again", 0)
    tiered.wait_tiered("again", RECORDS // 2)
    assert len(tiered.objects()) > len(before) + 2
    tiered.admin.delete_topics(["again"])["again"].result(30)
    eventually(lambda: not tiered.folders_since(before), "no object of the deleted topic is left")
    tiered.create("again")
    tiered.produce("again", 100, 10)
    assert tiered.keys("again", 0, 110) == list(range(100, 110))


def test_aborted_transactions_in_the_tier_are_not_read(tiered: TieredCluster) -> None:
    tiered.create("transactions")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": tiered.bootstrap, "transactional.id": "writer", "log_level": 0}
    )
    producer.init_transactions(30)
    expected = list[int]()
    for number in range(40):
        producer.begin_transaction()
        keys = range(100 * number, 100 * number + 100)
        for key in keys:
            producer.produce("transactions", VALUE, b"%d" % key, 0)
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            expected += keys
    tiered.wait_tiered("transactions", 2_000)
    assert tiered.keys("transactions", 0, 4_000, **{"isolation.level": "read_committed"}) == expected


def test_a_topic_with_records_becomes_tiered_and_ends_to_be(tiered: TieredCluster) -> None:
    tiered.create("later", remote_storage_enable="false")
    before = tiered.objects()
    tiered.produce("later", 0)
    assert not tiered.folders_since(before)
    tiered.configure("later", remote_storage_enable="true")
    tiered.wait_tiered("later", RECORDS // 2)
    assert tiered.keys("later", 0, RECORDS) == list(range(RECORDS))
    tiered.configure("later", remote_storage_enable="false", remote_log_delete_on_disable="true")
    eventually(lambda: not tiered.segments_since(before), "no segment is left in the store")
    start = tiered.offset("later", OffsetSpec.earliest())
    assert start > RECORDS // 2
    assert tiered.keys("later", start, RECORDS) == list(range(start, RECORDS))


def test_without_its_store_a_topic_is_written_and_read_and_keeps_what_is_not_copied(
    tiered: TieredCluster,
    tier: Path,
) -> None:
    tiered.create("alone")
    tiered.produce("alone", 0, 100)
    hidden = tier.with_name("hidden")
    tier.rename(hidden)
    try:
        tiered.produce("alone", 100)
        assert tiered.keys("alone", 0, RECORDS + 100) == list(range(RECORDS + 100))
        assert tiered.local_starts("alone") == [0, 0, 0]
    finally:
        hidden.rename(tier)
    tiered.wait_tiered("alone", RECORDS // 2)
    assert tiered.keys("alone", 0, RECORDS + 100) == list(range(RECORDS + 100))
