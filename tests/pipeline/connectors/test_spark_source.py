"""``format("nilometer")`` in Spark: the contract of batches and streams, Spark's own connector beside it."""

from __future__ import annotations

import json
import uuid

import pytest

from nilometer.pipeline.errors import readable
from support.pipeline.filled_topics import Sent
from support.pipeline.spark_streams import Stream, values_of

pytestmark = pytest.mark.spark

CONNECTORS = ("nilometer", "kafka")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def options(topics, topic, **more):
    return {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, **more}


def read(spark, topics, topic, connector="nilometer", **more):
    return spark.read.format(connector).options(**options(topics, topic, **more)).load()


def numbered(count, partitions=2, start=0) -> list[Sent]:
    return [
        Sent(n % partitions, b"k%d" % n, b"v%d" % n, 1_700_000_000_000 + n)
        for n in range(start, start + count)
    ]


@pytest.fixture
def stream(spark, topics, tmp_path):
    def make(topic, **more):
        return Stream(spark, tmp_path / f"stream-{uuid.uuid4().hex[:6]}", options(topics, topic, **more))

    return make


# --- the same rows as Spark's own connector


def test_batches_of_each_codec_give_the_rows_that_sparks_connector_gives(spark, topics):
    topic = topics.create(3)
    records = [
        Sent(0, None, None),
        Sent(0, b"", b"", -1 & 0),
        Sent(1, b"key", "grüße".encode(), 1_700_000_000_123, (("a", b"1"), ("b", None), ("a", b""))),
        *[
            Sent(n % 3, b"k%d" % n, b"value " * (n % 50), 1_600_000_000_000 + n, (("n", b"%d" % n),))
            for n in range(400)
        ],
    ]
    for codec in CODECS:
        topics.send(topic, records, codec)
    ours, theirs = (read(spark, topics, topic, connector, includeHeaders="true") for connector in CONNECTORS)
    assert ours.schema == theirs.schema
    rows = [frame.orderBy("partition", "offset").collect() for frame in (ours, theirs)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == len(records) * len(CODECS)


def test_offsets_given_by_partition_mean_the_same_to_both(spark, topics):
    topic = topics.create(2)
    topics.send(topic, numbered(40))
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 5, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": -1, "1": 3}}),
    }
    ours, theirs = (values_of(read(spark, topics, topic, connector, **bounds)) for connector in CONNECTORS)
    assert ours == theirs
    assert len(ours) == 15 + 3


def test_assign_and_pattern_choose_what_they_choose_for_sparks_connector(spark, topics):
    first, second = topics.create(2, prefix="chosen"), topics.create(1, prefix="chosen")
    topics.send(first, numbered(10))
    topics.send(second, numbered(3, partitions=1))
    choices = (
        ({"assign": json.dumps({first: [1], second: [0]})}, 5 + 3),
        ({"subscribePattern": f"{first}|chos.n-{second.removeprefix('chosen-')}"}, 10 + 3),
    )
    for choice, count in choices:
        frames = [
            spark.read.format(connector)
            .options(**{"kafka.bootstrap.servers": topics.bootstrap, **choice})
            .load()
            for connector in CONNECTORS
        ]
        ours, theirs = ({(r.topic, r.partition, r.offset) for r in frame.collect()} for frame in frames)
        assert ours == theirs
        assert len(ours) == count


# --- batches


def test_options_of_sparks_connector_for_groups_and_retries_are_options_of_both(spark, topics):
    topic = topics.create(1)
    topics.send(topic, numbered(5, partitions=1))
    more = {
        "kafka.group.id": "billing",
        "groupIdPrefix": "x",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "20",
        "kafkaConsumer.pollTimeoutMs": "20000",
    }
    assert [read(spark, topics, topic, connector, **more).count() for connector in CONNECTORS] == [5, 5]


@pytest.mark.parametrize(
    ("trigger", "says"),
    [
        ({"continuous": "1 second"}, "nilometer does not support continuous processing"),
        ({"realTime": "5 seconds"}, "not supported in Real-time Mode"),
    ],
)
def test_triggers_that_spark_has_for_no_python_source_are_refused_by_name(
    spark, topics, tmp_path, trigger, says
):
    topic = topics.create(1)
    query = spark.readStream.format("nilometer").options(**options(topics, topic)).load().writeStream
    query = query.format("console").outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match=says):
        query.trigger(**trigger).start().awaitTermination(120)


@pytest.mark.quick
def test_an_empty_topic_is_an_empty_table(spark, topics):
    assert read(spark, topics, topics.create(2)).collect() == []


def test_min_partitions_splits_large_partitions_and_loses_nothing(spark, topics):
    topic = topics.create(2)
    topics.send(topic, [*numbered(100, partitions=1), Sent(1, None, b"last")])
    frame = read(spark, topics, topic, minPartitions="5")
    assert frame.rdd.getNumPartitions() >= 5
    assert values_of(frame) == [*[b"v%d" % n for n in range(100)], b"last"]


def test_records_deleted_before_they_are_read_are_a_loss_or_are_left_out(spark, topics):
    topic = topics.create(1)
    topics.send(topic, numbered(20, partitions=1))
    topics.delete_records(topic, 0, before=8)
    given = {"startingOffsets": json.dumps({topic: {"0": 2}})}
    with pytest.raises(Exception, match="offsets 2 to 7") as error:
        read(spark, topics, topic, **given).collect()
    assert "log starts at 8" in str(readable(error.value))
    assert len(values_of(read(spark, topics, topic, failOnDataLoss="false", **given))) == 12


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startOffsets": "earliest"}, "startOffsets"),
        ({"includeHeaders": "yes"}, "includeHeaders"),
        ({"endingOffsets": '{"%s": {"0": 99}}'}, "beyond its end"),
        ({"startingOffsets": '{"%s": {"7": 1}}'}, "an offset for each partition"),
    ],
)
def test_a_wrong_option_is_named(spark, topics, given, says):
    topic = topics.create(1)
    given = {name: value.replace("%s", topic) for name, value in given.items()}
    with pytest.raises(Exception, match=f"(?i){says}") as error:
        read(spark, topics, topic, **given).collect()
    assert says.lower() in readable(error.value).lower()


def test_a_topic_that_is_not_there_is_named(spark, topics):
    with pytest.raises(Exception, match="topic nowhere does not exist"):
        read(spark, topics, "nowhere").collect()


# --- streams


@pytest.mark.quick
def test_a_stream_goes_on_where_its_checkpoint_says_and_repeats_nothing(stream, topics):
    topic = topics.create(2)
    topics.send(topic, numbered(30))
    job = stream(topic)
    job.run()
    topics.send(topic, numbered(12, start=30))
    job.run()
    job.run()
    assert sorted(job.values()) == sorted(b"v%d" % n for n in range(42))


def test_available_now_reads_in_steps_of_the_limit_up_to_what_was_there(stream, topics):
    topic = topics.create(2)
    topics.send(topic, numbered(50))
    job = stream(topic, maxOffsetsPerTrigger="20")
    query = job.run()
    rows = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(rows) == 50
    assert len(rows) == 3
    assert max(rows) <= 21
    end = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    assert end[topic] == {"0": 25, "1": 25}


def test_partitions_added_later_are_read_from_their_start(stream, topics):
    topic = topics.create(1)
    topics.send(topic, numbered(5, partitions=1))
    job = stream(topic)
    job.run()
    topics.add_partitions(topic, 3)
    topics.send(topic, [Sent(2, None, b"new partition")])
    job.run()
    assert job.values() == [*[b"v%d" % n for n in range(5)], b"new partition"]


def test_a_topic_created_again_is_a_loss_or_read_again_but_never_mistaken(stream, topics):
    topic = topics.create(1)
    topics.send(topic, numbered(5, partitions=1))
    strict = stream(topic)
    strict.run()
    topics.delete(topic)
    topics.create(1, name=topic)
    topics.send(topic, numbered(8, partitions=1, start=100))
    with pytest.raises(Exception, match="deleted and created again"):
        strict.run()
    strict.options["failOnDataLoss"] = "false"
    strict.run()
    assert sorted(strict.values()) == sorted(
        [*(b"v%d" % n for n in range(5)), *(b"v%d" % n for n in range(100, 108))]
    )


def test_a_running_stream_sees_what_comes(spark, topics):
    topic = topics.create(1)
    name = f"seen_{uuid.uuid4().hex[:6]}"
    given = options(topics, topic, startingOffsets="latest")
    frame = spark.readStream.format("nilometer").options(**given).load()
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        query.processAllAvailable()
        for round_number in range(3):
            topics.send(topic, [Sent(0, None, b"%d" % round_number)])
            query.processAllAvailable()
            assert values_of(spark.table(name)) == [b"%d" % n for n in range(round_number + 1)]
        latest = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert latest[topic] == {"0": 3}
    finally:
        query.stop()
