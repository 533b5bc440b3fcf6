"""``format("nilometer-log")`` in Spark: without brokers the rows that both other sources get from these."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC

import pytest

from nilometer.client.producer.producer import Producer
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.pipeline.errors import readable
from nilometer.pipeline.export.topic_export import export_topics
from nilometer.runtime import Runtime
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka, run_tool
from support.logs.segments import stored_batches
from support.pipeline.archives import archive_topics
from support.pipeline.audit_checks import findings_in
from support.pipeline.checkpoints import wait_for_checkpoint
from support.pipeline.filled_topics import Sent, Topics
from support.pipeline.live_folders import copy_live_folder
from support.pipeline.spark_streams import Stream

pytestmark = pytest.mark.spark

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
QUICK = {"replica.high.watermark.checkpoint.interval.ms": "100"}
COUNT = 600


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with NilometerBroker(tmp_path_factory.mktemp("log-source") / "data", QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker):
    """Records of all codecs, with headers, nulls and times, in 3 partitions and several small segments."""
    topics = Topics(broker.bootstrap)
    name = topics.create(3, config={"segment.ms": "150000", "index.interval.bytes": "512"})
    for number, codec in enumerate(CODECS):
        records = [
            Sent(
                n % 3,
                None if n % 7 == 0 else b"k%d" % n,
                None if n % 11 == 0 else b"value %d " % n * (n % 40),
                1_700_000_000_000 + n * 1_000,
                (("n", b"%d" % n), ("none", None)) if n % 5 == 0 else (),
            )
            for n in range(number * COUNT // 5, (number + 1) * COUNT // 5)
        ]
        for start in range(0, len(records), 30):
            topics.send(name, records[start : start + 30], codec)
    wait_for_checkpoint(broker.data_dir, name, dict.fromkeys(range(3), COUNT // 3))
    assert len(list((broker.data_dir / f"{name}-0").glob("*.log"))) > 1
    return name


def through_brokers(spark, broker, topic, connector, **given):
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **given}
    return spark.read.format(connector).options(**options).load()


def from_folders(spark, place, topic=None, **given):
    chosen = {} if topic is None else {"subscribe": topic}
    return spark.read.format("nilometer-log").options(**chosen, **given).load(str(place))


def exported(spark, place, topic, folder, **given):
    """What Spark reads of the files that an export has written."""
    export_topics(spark, {"path": str(place), "subscribe": topic, **given}, folder)
    return spark.read.parquet(str(folder / "data" / "*"))


def rows(frame, *columns):
    chosen = frame.select(*columns) if columns else frame
    return sorted(chosen.collect(), key=lambda row: (row.partition, row.offset))


# --- the same rows as the sources with brokers


def test_all_three_sources_and_an_export_give_the_same_rows(spark, broker, topic, tmp_path):
    columns = (*KAFKA_COLUMNS, "headers")
    theirs = rows(through_brokers(spark, broker, topic, "kafka", includeHeaders="true"), *columns)
    brokers = rows(through_brokers(spark, broker, topic, "nilometer", includeHeaders="true"), *columns)
    frame = from_folders(spark, broker.data_dir, topic, includeHeaders="true", bytesPerPartition="4096")
    assert frame.rdd.getNumPartitions() > 6
    assert rows(frame, *columns) == theirs == brokers
    assert len(theirs) == COUNT
    files = exported(spark, broker.data_dir, topic, tmp_path / "export", bytesPerPartition="4096")
    assert files.schema == frame.select(*files.columns).schema
    assert len(files.columns) == len(frame.columns)
    assert rows(files, *frame.columns) == rows(frame)


def test_offsets_and_times_mean_the_same_to_all_three(spark, broker, topic):
    choices = (
        {
            "startingOffsets": json.dumps({topic: {"0": 5, "1": -2, "2": 199}}),
            "endingOffsets": json.dumps({topic: {"0": -1, "1": 3, "2": 200}}),
        },
        {"startingTimestamp": "1700000100500", "endingTimestamp": "1700000300000"},
    )
    for given in choices:
        found = [
            rows(through_brokers(spark, broker, topic, name, **given), "partition", "offset")
            for name in ("kafka", "nilometer")
        ]
        found.append(rows(from_folders(spark, broker.data_dir, topic, **given), "partition", "offset"))
        assert found[0] == found[1] == found[2]
        assert 0 < len(found[0]) < COUNT


def test_a_copy_in_other_storage_gives_the_same_rows(spark, broker, topic, tmp_path):
    copy_live_folder(broker.data_dir, tmp_path / "copy")
    here = rows(from_folders(spark, broker.data_dir, topic))
    assert rows(from_folders(spark, (tmp_path / "copy").as_uri(), topic)) == here
    folders = [str(tmp_path / "copy" / f"{topic}-{number}") for number in range(3)]
    assert rows(spark.read.format("nilometer-log").load(folders)) == here


def test_an_archive_and_the_log_give_the_same_rows_as_the_log_alone(spark, broker, topic, tmp_path):
    archive_topics([broker.data_dir], [topic], tmp_path / "archive")
    here = rows(from_folders(spark, broker.data_dir, topic))
    reader = spark.read.format("nilometer-log").option("archive", str(tmp_path / "archive"))
    alone = rows(reader.option("subscribe", topic).load())
    ends = {
        part: max((row.offset for row in alone if row.partition == part), default=-1) for part in range(3)
    }
    assert alone == [row for row in here if row.offset <= ends[row.partition]]
    assert 0 < len(alone) < len(here)
    # The log is a copy without the segments that are in the archive.
    copy_live_folder(broker.data_dir, tmp_path / "copy")
    for part, end in ends.items():
        folder = tmp_path / "copy" / f"{topic}-{part}"
        for path in sorted(folder.glob("*.log")):
            if int(path.stem) <= end:
                path.unlink()
    both = reader.option("subscribe", topic).option("bytesPerPartition", "4096")
    assert rows(both.load(str(tmp_path / "copy"))) == here


# --- transactions


PART = 1
"""The partition that all transactions are in."""


async def write_transactions(bootstrap, topic, tags):
    """What the tags name, one behind the other; the transaction that is left open, if any is.

    c: committed, a: aborted, p: without a transaction, o: left open. The others come while ``o`` is open.
    """
    left_open = None
    for number, tag in enumerate(tags):
        settings = {"bootstrap.servers": bootstrap, "linger.ms": "0"}
        if tag == "p":
            async with Producer(Runtime.system(), settings) as plain:
                await plain.send_and_wait(topic, b"p%d" % number, partition=PART)
            continue
        settings["transactional.id"] = f"{topic}-{number}"
        producer = await TransactionalProducer(Runtime.system(), settings).__aenter__()
        await producer.begin()
        for n in range(30):
            await (await producer.send(topic, b"%s%d %d" % (tag.encode(), number, n), partition=PART))
        if tag == "o":
            left_open = producer
            continue
        await (producer.commit() if tag == "c" else producer.abort())
        await producer.close()
    return left_open


def test_a_reader_of_committed_records_skips_aborted_ones_and_stops_before_an_open_transaction(
    spark, broker, tmp_path
):
    topics = Topics(broker.bootstrap)
    name = topics.create(2, config={"segment.bytes": "1048576"})
    given = {"kafka.isolation.level": "read_committed"}
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name, **given}
    stream = Stream(spark, tmp_path / "stream", {**options, "maxOffsetsPerTrigger": "25"})

    def values(frame):
        return [bytes(row.value) for row in rows(frame)]

    def all_see(*tags):
        expected = [
            b"p%d" % n if tag == "p" else b"%s%d %d" % (tag.encode(), n, i)
            for n, tag in tags
            for i in range(1 if tag == "p" else 30)
        ]
        for connector in ("kafka", "nilometer"):
            # Some ranges begin in the middle of a transaction, aborted or not.
            frame = through_brokers(spark, broker, name, connector, **given, minPartitions="11")
            assert values(frame) == expected, connector
        frame = from_folders(spark, broker.data_dir, name, bytesPerPartition="500", **given)
        assert values(frame) == expected
        stream.run()
        assert stream.values() == expected

    with asyncio.Runner() as runner:
        producer = runner.run(write_transactions(broker.bootstrap, name, "capcoacp"))
        end = 6 * 30 + 2 + 5  # records of transactions, others, and markers
        wait_for_checkpoint(broker.data_dir, name, {0: 0, PART: end})
        before = [(0, "c"), (2, "p"), (3, "c")]
        all_see(*before)
        everything = through_brokers(spark, broker, name, "nilometer")
        assert everything.count() == 6 * 30 + 2
        runner.run(producer.commit())
        runner.run(producer.close())
        wait_for_checkpoint(broker.data_dir, name, {0: 0, PART: end + 1})
        all_see(*before, (4, "o"), (6, "c"), (7, "p"))


# --- what only the log tells


def test_epoch_producer_and_attributes_are_those_of_each_records_batch(spark, broker, topic):
    found = rows(from_folders(spark, broker.data_dir, topic))
    expected = {
        (number, offset): (batch.leader_epoch, batch.producer_id, batch.attributes)
        for number in range(3)
        for batch in stored_batches(broker.data_dir, topic, number)
        for offset in range(batch.base_offset, batch.last_offset + 1)
    }
    assert {
        (row.partition, row.offset): (row.leader_epoch, row.producer_id, row.batch_attributes)
        for row in found
    } == expected
    assert {attributes & 7 for _, _, attributes in expected.values()} == set(range(5))


def test_a_schema_names_the_columns_that_are_made(spark, broker, topic):
    reader = spark.read.format("nilometer-log").option("subscribe", topic)
    frame = reader.schema("offset bigint, leader_epoch int, partition int").load(str(broker.data_dir))
    assert frame.columns == ["offset", "leader_epoch", "partition"]
    expected = rows(from_folders(spark, broker.data_dir, topic), *frame.columns)
    assert rows(frame) == expected
    with pytest.raises(Exception, match="must be some of these columns") as error:
        reader.schema("offset int").load(str(broker.data_dir)).collect()
    assert "offset bigint" in str(readable(error.value))


# --- filters


def test_pushed_filters_skip_segments_and_change_no_row(spark, broker, topic):
    def seconds_of(row):
        return row.timestamp.replace(tzinfo=UTC).timestamp()

    conditions = (
        ("offset >= 120 and offset < 150 and value is not null", lambda row: 120 <= row.offset < 150),
        ("partition in (0, 2) and offset = 7", lambda row: row.partition != 1 and row.offset == 7),
        ("timestamp >= timestamp_millis(1700000500000)", lambda row: seconds_of(row) >= 1_700_000_500),
    )
    columns = "value binary, partition int, offset bigint, timestamp timestamp"
    reader = spark.read.format("nilometer-log").schema(columns)
    reader.option("subscribe", topic).option("bytesPerPartition", "2048")
    whole = reader.load(str(broker.data_dir))
    all_rows, all_tasks = rows(whole), whole.rdd.getNumPartitions()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition, holds in conditions:
            pushed = reader.option("pushDownFilters", "true").load(str(broker.data_dir)).where(condition)
            expected = [
                row for row in all_rows if holds(row) and (row.value is not None or "null" not in condition)
            ]
            assert rows(pushed) == expected
            assert 0 < len(expected) < COUNT
            assert pushed.rdd.getNumPartitions() < all_tasks
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


# --- a folder that Apache Kafka wrote


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    overrides = {
        "log.cleaner.backoff.ms": "200",
        "log.initial.task.delay.ms": "100",
        "log.retention.check.interval.ms": "1000",
        "replica.high.watermark.checkpoint.interval.ms": "200",
        # A quota looks back one second, not ten.
        "quota.window.num": "2",
        "quota.window.size.seconds": "1",
    }
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), overrides=overrides) as running:
        yield running


@pytest.mark.java
def test_transactions_that_apache_kafka_wrote(spark, kafka, tmp_path):
    from confluent_kafka import Producer

    topics = Topics(kafka.bootstrap)
    name = topics.create(1, config={"segment.bytes": "1048576"})
    outcomes = "caacacca"
    for number, outcome in enumerate(outcomes):
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{name}-{number % 3}"}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for n in range(10):
            producer.produce(name, b"%s %d" % (outcome.encode(), n), partition=0)
        # An abort drops what is still queued here: only what the broker has can be aborted there.
        assert producer.flush(30) == 0
        topics.send(name, [Sent(0, None, b"plain %d" % number)])
        (producer.commit_transaction if outcome == "c" else producer.abort_transaction)(30)
    # A marker of each transaction too: a coordinator writes it behind its answer, when it comes to that.
    wait_for_checkpoint(kafka.data_dir, name, {0: len(outcomes) * (10 + 1 + 1)})
    for level in ("read_committed", "read_uncommitted"):
        given = {"kafka.isolation.level": level}
        theirs = rows(through_brokers(spark, kafka, name, "kafka", **given), *KAFKA_COLUMNS)
        assert rows(through_brokers(spark, kafka, name, "nilometer", **given), *KAFKA_COLUMNS) == theirs
        assert rows(from_folders(spark, kafka.data_dir, name, **given), *KAFKA_COLUMNS) == theirs
        files = exported(spark, kafka.data_dir, name, tmp_path / level, **given)
        assert rows(files, *KAFKA_COLUMNS) == theirs
        aborted = [row for row in theirs if bytes(row.value).startswith(b"a ")]
        assert len(aborted) == (0 if level == "read_committed" else 10 * outcomes.count("a"))
        assert len(theirs) - len(aborted) == len(outcomes) + 10 * outcomes.count("c")


@pytest.mark.java
def test_a_topic_that_apache_kafka_compacted(spark, kafka, tmp_path):
    topics = Topics(kafka.bootstrap)
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    name = topics.create(1, config=settings)
    folder = kafka.data_dir / f"{name}-0"
    for number in range(4):
        topics.send(name, [Sent(0, b"k%d" % (n % 9), b"%d" % number) for n in range(60)])
    topics.send(name, [Sent(0, b"last", b"rolls the segment", 1_700_000_010_000)])

    def is_compacted():
        kept = sum(batch.records_count for batch in stored_batches(kafka.data_dir, name, 0))
        return kept < 60 and not list(folder.glob("*.swap"))

    eventually(is_compacted, "the log is compacted")
    end = stored_batches(kafka.data_dir, name, 0)[-1].last_offset + 1
    wait_for_checkpoint(kafka.data_dir, name, {0: end})
    bounds = {"endingOffsets": json.dumps({name: {"0": end}})}
    theirs = rows(through_brokers(spark, kafka, name, "kafka", **bounds), *KAFKA_COLUMNS)
    newest = {bytes(row.key): row.offset for row in theirs}
    for frame in (
        from_folders(spark, kafka.data_dir, name, bytesPerPartition="64", **bounds),
        exported(spark, kafka.data_dir, name, tmp_path / "export", bytesPerPartition="64", **bounds),
        through_brokers(spark, kafka, name, "nilometer", **bounds),
    ):
        ours = rows(frame, *KAFKA_COLUMNS)
        assert {bytes(row.key): row.offset for row in ours} == newest
        assert [row for row in ours if newest[bytes(row.key)] == row.offset] == [
            row for row in theirs if newest[bytes(row.key)] == row.offset
        ]
        assert len(ours) < 60


@pytest.mark.java
def test_a_reader_above_its_quota_waits_and_gets_everything(spark, kafka):
    """What Apache Kafka answers to a throttled fetch has no topics in it."""
    topics = Topics(kafka.bootstrap)
    name = topics.create(1)
    for number in range(4):
        topics.send(name, [Sent(0, None, b"%d " % number * 4_000)])
    change = "--alter --add-config consumer_byte_rate=8000 --entity-type clients --entity-name slow"
    run_tool("org.apache.kafka.tools.ConfigCommand", "--bootstrap-server", kafka.bootstrap, *change.split())
    given = {"kafka.client.id": "slow", "kafka.max.partition.fetch.bytes": "9000"}
    theirs = rows(through_brokers(spark, kafka, name, "kafka", **given), *KAFKA_COLUMNS)
    assert rows(through_brokers(spark, kafka, name, "nilometer", **given), *KAFKA_COLUMNS) == theirs
    assert len(theirs) == 4


@pytest.mark.java
def test_an_audit_finds_nothing_in_what_apache_kafka_wrote_and_writes(kafka):
    """Behind the tests above: transactions, a compacted log, and segments that roll meanwhile."""
    topics = Topics(kafka.bootstrap)
    name = topics.create(2, config={"segment.ms": "100", "index.interval.bytes": "100"})
    for number in range(6):
        records = [Sent(n % 2, b"k", b"v" * n, 1_700_000_000_000 + 60 * n + 500 * number) for n in range(30)]
        topics.send(name, records, CODECS[number % 5])
        if number % 2:
            assert findings_in(kafka.data_dir) == []
    assert len(list((kafka.data_dir / f"{name}-0").glob("*.log"))) > 4
