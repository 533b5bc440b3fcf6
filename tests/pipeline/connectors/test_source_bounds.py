"""Where reading begins, ends, is cut and waits, beside Spark's own connector: it takes the same options."""

from __future__ import annotations

import json
import uuid

import pytest
from pyspark.sql import functions as F

from nilometer.pipeline.errors import readable
from support.brokers.nilometer_broker import NilometerBroker
from support.pipeline.filled_topics import Sent

pytestmark = pytest.mark.spark

CONNECTORS = ("nilometer", "kafka")
AT = 1_700_000_000_000
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def filled(topics):
    """Two partitions of 20 records each, a second between two."""
    topic = topics.create(2)
    topics.send(topic, [Sent(n % 2, None, b"%d" % n, AT + n * 1_000) for n in range(40)])
    return topic


@pytest.fixture
def pushing(spark):
    spark.conf.set(PUSH_DOWN, "true")
    yield spark
    spark.conf.unset(PUSH_DOWN)


def load(spark, topics, topic, connector="nilometer", **more):
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, **more}
    return spark.read.format(connector).options(**options).load()


def numbers(frame):
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def times(topic, first, second):
    return json.dumps({topic: {"0": AT + first * 1_000, "1": AT + second * 1_000}})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (lambda _: {"startingTimestamp": str(AT + 30_000)}, set(range(30, 40))),
        (lambda _: {"endingTimestamp": str(AT + 5_000)}, set(range(5))),
        (lambda topic: {"startingOffsetsByTimestamp": times(topic, 36, 39)}, {36, 38, 39}),
        (lambda topic: {"endingOffsetsByTimestamp": times(topic, 2, 99)}, {0, *range(1, 40, 2)}),
        (
            lambda _: {
                "startingTimestamp": str(AT + 39_000),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            {39},
        ),
    ],
    ids=["from", "until", "from-by-partition", "until-by-partition", "or-latest"],
)
def test_times_mean_what_they_mean_to_sparks_connector(spark, topics, filled, given, wanted):
    for connector in CONNECTORS:
        assert numbers(load(spark, topics, filled, connector, **given(filled))) == sorted(wanted), connector


def test_a_start_later_than_every_record_is_an_error_unless_the_end_will_do(spark, topics, filled):
    given = {"startingTimestamp": str(AT + 39_000)}
    with pytest.raises(Exception, match="no record with this timestamp") as error:
        load(spark, topics, filled, **given).collect()
    assert f"{filled}-0" in (readable(error.value) or "")


def test_a_task_reads_no_more_records_than_allowed(spark, topics, filled):
    frame = load(spark, topics, filled, maxRecordsPerPartition="7")
    sizes = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
    assert len(sizes) == 6
    assert max(sizes) <= 7
    assert numbers(frame) == list(range(40))


def test_filters_that_are_pushed_down_give_the_rows_that_they_give_otherwise(pushing, topics, filled):
    at = F.timestamp_millis(F.lit(AT + 30_500))
    conditions = [
        F.col("offset") >= 17,
        (F.col("offset") > 3) & (F.col("offset") <= 5) & (F.col("partition") == 1),
        F.col("offset").isin(0, 9) & (F.col("topic") == filled),
        F.col("timestamp") > at,
        (F.col("timestamp") > at) | (F.col("offset") == 0),
        F.col("timestamp") > F.timestamp_millis(F.lit(AT + 99_000)),
        F.col("topic") == "another",
    ]
    for condition in conditions:
        ours = load(pushing, topics, filled, pushDownFilters="true").where(condition)
        theirs = load(pushing, topics, filled, "kafka").where(condition)
        assert numbers(ours) == numbers(theirs)


def test_filters_that_are_pushed_down_spare_the_reading(pushing, topics, filled):
    frame = load(pushing, topics, filled, maxRecordsPerPartition="1", pushDownFilters="true")
    assert frame.where("offset >= 18").rdd.getNumPartitions() == 4
    assert frame.where("partition = 1 AND offset < 3").rdd.getNumPartitions() == 3
    later = frame.where(F.col("timestamp") >= F.timestamp_millis(F.lit(AT + 36_000)))
    assert later.rdd.getNumPartitions() == 4


def test_a_stream_waits_for_enough_records_but_not_for_ever(spark, topics):
    topic = topics.create(1)
    name = f"enough_{uuid.uuid4().hex[:6]}"

    def stream(delay):
        return (
            spark.readStream.format("nilometer")
            .options(
                **{
                    "kafka.bootstrap.servers": topics.bootstrap,
                    "subscribe": topic,
                    "startingOffsets": "earliest",
                    "minOffsetsPerTrigger": "10",
                    "maxTriggerDelay": delay,
                }
            )
            .load()
            .writeStream.format("memory")
            .queryName(f"{name}_{delay}")
            .start()
        )

    patient, hasty = stream("1h"), stream("1ms")
    try:
        topics.send(topic, [Sent(0, None, b"%d" % n) for n in range(4)])
        hasty.processAllAvailable()
        patient.processAllAvailable()
        assert numbers(spark.table(f"{name}_1ms")) == [0, 1, 2, 3]
        assert numbers(spark.table(f"{name}_1h")) == []
        topics.send(topic, [Sent(0, None, b"%d" % n) for n in range(4, 10)])
        patient.processAllAvailable()
        assert numbers(spark.table(f"{name}_1h")) == list(range(10))
    finally:
        patient.stop()
        hasty.stop()


def test_a_running_stream_reads_partitions_that_are_added(spark, topics):
    topic = topics.create(1)
    name = f"added_{uuid.uuid4().hex[:6]}"
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic}
    query = (
        spark.readStream.format("nilometer")
        .options(**options)
        .load()
        .writeStream.format("memory")
        .queryName(name)
        .start()
    )
    try:
        query.processAllAvailable()
        topics.add_partitions(topic, 3)
        topics.send(topic, [Sent(n % 3, None, b"%d" % n) for n in range(9)])
        query.processAllAvailable()
        assert numbers(spark.table(name)) == list(range(9))
    finally:
        query.stop()


def test_a_running_stream_ends_with_a_clear_error_where_its_topic_is_created_again(spark, topics):
    topic = topics.create(1)
    topics.send(topic, [Sent(0, None, b"%d" % n) for n in range(3)])
    name = f"again_{uuid.uuid4().hex[:6]}"
    options = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    query = (
        spark.readStream.format("nilometer")
        .options(**options)
        .load()
        .writeStream.format("memory")
        .queryName(name)
        .start()
    )
    try:
        query.processAllAvailable()
        topics.delete(topic)
        topics.create(1, name=topic)
        topics.send(topic, [Sent(0, None, b"%d" % n) for n in range(10, 15)])
        # What the stream meets depends on when it looks: no topic, or another one.
        with pytest.raises(Exception, match=r"created again|does not exist any more") as error:
            query.awaitTermination()
        assert "failOnDataLoss=false" in (readable(error.value) or "")
        assert numbers(spark.table(name)) == [0, 1, 2]
    finally:
        query.stop()


def test_a_broker_that_dies_during_a_batch_costs_time_and_no_record(spark, topics, tmp_path):
    """The broker is killed while a task is between two fetches, and comes back: nothing lost or repeated."""
    from confluent_kafka.admin import AdminClient, NewTopic

    from nilometer.pipeline.decode.column_decoder import ColumnDecoder
    from nilometer.pipeline.source.cluster.cluster_reader import ClusterReader
    from nilometer.pipeline.source.positions import OffsetRange
    from nilometer.pipeline.source.source_options import parse_options
    from support.pipeline.filled_topics import KEEP, Topics

    with NilometerBroker(tmp_path / "data") as broker:
        own = Topics(broker.bootstrap)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1, config=KEEP)])["t"].result(30)
        for first in range(0, 5_000, 250):  # a batch each time: a fetch is never cut inside one
            own.send("t", [Sent(0, None, b"%06d" % n * 20) for n in range(first, first + 250)])
        given = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": "t",
            "kafka.max.partition.fetch.bytes": "60000",
        }
        reader = ClusterReader.shared(parse_options(given, streaming=False).consumer)
        decoder = ColumnDecoder("t", 0, 0, 5_000)
        rows, fetches = 0, 0
        try:
            for fetched in reader.fetch(OffsetRange("t", "", 0, 0, 5_000), fail_on_data_loss=True):
                fetches += 1
                if fetches == 3:
                    broker.kill()
                    broker.start()
                rows += sum(batch.num_rows for batch in decoder.add(fetched.records))
        finally:
            reader.close()
        values = [value for batch in decoder.take() for value in batch.column("value").to_pylist()]
        assert fetches > 5
        assert values == [b"%06d" % n * 20 for n in range(5_000)]
        assert rows == 0
        assert load(spark, own, "t").count() == 5_000
