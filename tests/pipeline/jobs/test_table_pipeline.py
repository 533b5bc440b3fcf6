"""The shipped ``table`` job against the topic's records: each one a row or a dead letter, and once."""

from __future__ import annotations

import json
import struct
from contextlib import closing

import pytest
from confluent_kafka import Producer

from nilometer.pipeline.batches import RunFiles
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run import runner
from nilometer.pipeline.run.samples import sample_records
from nilometer.pipeline.shipped import table
from nilometer.pipeline.tables.delta_store import DeltaStore
from nilometer.pipeline.tables.staging import PART_BYTES_MAX
from support.pipeline.filled_topics import Sent, Topics
from support.pipeline.runs import assert_reported, forget_last_commit, send_values
from support.pipeline.table_batches import READERS
from support.stub_registry import StubRegistry
from support.tier.tiered_cluster import TieredCluster, objects_below

pytestmark = pytest.mark.spark

INFERRED = table.Settings(schema="infer")
COLUMNS = ("order", "customer", "items", "amount", "paid", "at", "channel")


def run_table(spark, topics, topic, output, dead, settings=INFERRED, **options):
    job = runner.Job(
        topic,
        str(output),
        topics.bootstrap,
        available_now=True,
        dead_letters=dead,
        settings=settings,
        options=options,
    )
    return runner.run(spark, table, job)


def account(spark, output):
    """Of all batches: the records read, in the results and rejected, and none beside these."""
    last = RunFiles(spark, str(output)).last()
    assert last is not None
    found = last.totals[""]
    assert found.read == found.of("results") + found.of("rejected")
    return found.read, found.of("results"), found.of("rejected")


def expected_rows(values):
    """Return the rows of the values that have a number as amount, by order; and the other values."""
    said = [json.loads(value) for value in values]
    rows = [{name: one.get(name) for name in COLUMNS} for one in said if one["amount"] != "free"]
    return rows, [value for value, one in zip(values, said, strict=True) if one["amount"] == "free"]


def dead_letters(spark, topics, dead):
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": dead, "includeHeaders": "true"}
    options["kafka.isolation.level"] = "read_committed"
    return spark.read.format("nilometer").options(**options).load().collect()


def test_each_record_is_in_the_table_or_a_dead_letter_once_after_failures(
    spark, topics, tmp_path, monkeypatch
):
    values = [one.value for one in sample_records("table", 3_000)]
    topic, dead = send_values(topics, values, partitions=2), topics.create(1, prefix="dead")
    commit = DeltaStore.commit

    def fail_in_second_batch(self, batch):
        if batch.batch_id == 1:
            raise PipelineError("planted: the process ends here")
        commit(self, batch)

    monkeypatch.setattr(DeltaStore, "commit", fail_in_second_batch)
    with pytest.raises(PipelineError, match="planted"):
        run_table(spark, topics, topic, tmp_path, dead, maxOffsetsPerTrigger="1600")
    monkeypatch.undo()
    run_table(spark, topics, topic, tmp_path, dead, maxOffsetsPerTrigger="1600")
    forget_last_commit(tmp_path)  # as if the process had ended after the table's commit
    run_table(spark, topics, topic, tmp_path, dead, maxOffsetsPerTrigger="1600")
    rows, refused = expected_rows(values)
    found = sorted(READERS["delta"](tmp_path / "table"), key=lambda row: row["order"])
    assert [{name: row[name] for name in COLUMNS} for row in found] == rows
    assert account(spark, tmp_path) == (len(values), len(rows), len(refused))
    letters = dead_letters(spark, topics, dead)
    assert sorted(bytes(one.value) for one in letters) == sorted(refused)
    assert len(refused) > 0
    headers = {one.key: bytes(one.value).decode() for one in letters[0].headers}
    assert headers["dead.topic"] == topic
    assert "got `str` - at `$.amount`" in headers["dead.reason"]
    offsets = {(row["_partition"], row["_offset"]) for row in found}
    assert (int(headers["dead.partition"]), int(headers["dead.offset"])) not in offsets
    assert len(offsets) == len(rows)
    assert_reported(spark, "table", tmp_path)


def test_a_table_goes_on_when_its_topic_is_deleted_and_created_again(spark, topics, tmp_path):
    topic, dead = topics.create(1, prefix="again"), topics.create(1, prefix="dead")
    upserted = table.Settings(schema="infer", format="iceberg", upsert=True)
    first = [Sent(0, b"a", b'{"n": 1}'), Sent(0, b"b", b'{"n": 2}'), Sent(0, b"c", b'{"n": "x"}')]
    topics.send(topic, first)
    run_table(spark, topics, topic, tmp_path, dead, upserted)
    topics.delete(topic)
    topics.create(1, name=topic)
    topics.send(topic, [Sent(0, b"a", None), Sent(0, b"b", b'{"n": 3}'), Sent(0, None, b'{"n": 4}')])
    with pytest.raises(PipelineError, match="deleted and created again"):
        run_table(spark, topics, topic, tmp_path, dead, upserted)
    run_table(spark, topics, topic, tmp_path, dead, upserted, failOnDataLoss="false")
    rows = READERS["iceberg"](tmp_path / "table")
    assert [(row["_key"], row["n"], row["_offset"]) for row in rows] == [(b"b", 3, 1)]
    assert {bytes(one.value) for one in dead_letters(spark, topics, dead)} == {b'{"n": "x"}', b'{"n": 4}'}
    assert account(spark, tmp_path) == (6, 4, 2)  # a deletion is a result, too


def test_a_table_of_a_tiered_topic_begins_in_remote_storage(spark, tmp_path):
    """Through the brokers; what is written afterwards is in the next run."""
    values = [one.value for one in sample_records("table", 12_500)]
    first, then = values[:12_000], values[12_000:]
    tier = tmp_path / "tier"
    tier.mkdir()
    with closing(TieredCluster(tmp_path / "brokers", tier.as_uri(), lambda: objects_below(tier))) as cluster:
        topics = Topics(cluster.bootstrap)
        cluster.create("orders")
        dead = topics.create(1, prefix="dead")
        send_values(topics, first, "orders")
        cluster.wait_tiered("orders", len(first) // 2)
        run_table(spark, topics, "orders", tmp_path / "out", dead, maxOffsetsPerTrigger="5000")
        send_values(topics, then, "orders")
        run_table(spark, topics, "orders", tmp_path / "out", dead)
        rows, refused = expected_rows(values)
        found = sorted(READERS["delta"](tmp_path / "out" / "table"), key=lambda row: row["order"])
        assert [{name: row[name] for name in COLUMNS} for row in found] == rows
        assert account(spark, tmp_path / "out") == (len(values), len(rows), len(refused))
        letters = dead_letters(spark, topics, dead)
        assert sorted(bytes(one.value) for one in letters) == sorted(refused)


def test_avro_values_that_cannot_be_read_and_large_ones_are_dead_letters(spark, topics, tmp_path):
    """Nothing that a client can send stops the job, and a repeated batch does not need the registry."""
    topic = topics.create(1, prefix="avro", config={"max.message.bytes": "4000000"})
    dead = topics.create(1, prefix="dead")
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}
    with StubRegistry() as registry:
        other = registry.add("other-value", "{}", "JSON")
        known = registry.add(f"{topic}-value", schema)
        good = [_avro(known, b"\x02"), _avro(known, b"\x04")]  # 1 and 2
        large = _avro(known, bytes(3_000_000))
        bad = [_avro(99, b"\x02"), _avro(other, b"\x02"), large, b"{}"]
        producer = Producer({"bootstrap.servers": topics.bootstrap, "message.max.bytes": 4_000_000})
        for value in (*good, *bad):
            producer.produce(topic, value)
        assert producer.flush(60) == 0
        settings = table.Settings(registry=registry.url)
        run_table(spark, topics, topic, tmp_path, dead, settings)
        registry.answers_with = 500
        forget_last_commit(tmp_path)  # as if the process had ended after the table's commit
        run_table(spark, topics, topic, tmp_path, dead, settings)
    assert [row["n"] for row in READERS["delta"](tmp_path / "table")] == [1, 2]
    assert account(spark, tmp_path) == (6, 2, 4)
    letters = {
        int(headers["dead.offset"]): (bytes(one.value), headers)
        for one in dead_letters(spark, topics, dead)
        for headers in ({each.key: bytes(each.value).decode() for each in one.headers},)
    }
    assert sorted(letters) == [2, 3, 4, 5]
    assert [value for _, (value, _) in sorted(letters.items())] == [*bad[:2], large[:PART_BYTES_MAX], bad[3]]
    assert "does not have it" in letters[2][1]["dead.reason"]
    assert "of type JSON" in letters[3][1]["dead.reason"]
    assert letters[4][1]["dead.size"] == str(len(large))


def _avro(schema_id: int, encoded: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + encoded
