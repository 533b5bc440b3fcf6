"""``write.format("nilometer")``: what arrives in topics, and how repeats are told."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from pyspark.sql import functions as F

from nilometer.pipeline.errors import OptionError, readable
from nilometer.pipeline.repeats import REPEAT_HEADERS, drop_repeats
from nilometer.pipeline.sink.spark_sink import check_columns, parse_sink_options
from support.pipeline.filled_topics import Sent
from support.pipeline.spark_streams import Stream

pytestmark = pytest.mark.spark

SERVERS = {"kafka.bootstrap.servers": "h:1"}


def to_topic(frame, topics, topic, **more):
    options = {"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, **more}
    frame.write.format("nilometer").options(**options).mode("append").save()


def read(spark, topics, topic, connector="nilometer", **more):
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, **more}
    return spark.read.format(connector).options(**options).load()


def restream(spark, topics, source, target, checkpoint, **more):
    """Copy what is new in one topic to another."""
    from_topic = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": source,
        "startingOffsets": "earliest",
    }
    into_topic = {"kafka.bootstrap.servers": topics.bootstrap, "topic": target}
    query = (
        spark.readStream.format("nilometer")
        .options(**from_topic, **more)
        .load()
        .select("key", "value")
        .writeStream.format("nilometer")
        .options(**into_topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def forget_last_commit(checkpoint):
    """As a crash leaves it between the sink's acknowledgement and the note of it: the batch comes again."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_rows_arrive_as_they_arrive_through_sparks_own_sink(spark, topics):
    """Every column either sink takes: chosen partitions, null keys and values, headers, strings."""
    frame = spark.sql(
        """select * from values
        ('k1', 'v1', 0, array(named_struct('key', 'a', 'value', cast('1' as binary)))),
        (null, 'v2', 1, null),
        ('k3', null, 1, array()),
        ('', 'grüße', 0, array(named_struct('key', 'b', 'value', cast(null as binary))))
        as rows(key, value, partition, headers)"""
    )
    found = []
    for connector, more in (("nilometer", {"repeatHeaders": "false"}), ("kafka", {})):
        topic = topics.create(2)
        options = {"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, **more}
        frame.coalesce(1).write.format(connector).options(**options).save(mode="append")
        rows = read(spark, topics, topic, includeHeaders="true").orderBy("partition", "offset")
        found.append(rows.select("key", "value", "partition", "offset", "headers").collect())
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_the_topic_of_each_row_is_its_column_unless_one_is_given_for_all(spark, topics):
    first, second = topics.create(1), topics.create(1)
    frame = spark.createDataFrame([(first, b"1"), (second, b"2")], "topic string, value binary")
    options = {"kafka.bootstrap.servers": topics.bootstrap}
    frame.write.format("nilometer").options(**options).save(mode="append")
    assert [bytes(row.value) for row in read(spark, topics, first).collect()] == [b"1"]
    to_topic(frame, topics, second)
    assert Counter(bytes(row.value) for row in read(spark, topics, second).collect()) == {b"2": 2, b"1": 1}


def test_keys_go_to_the_partitions_that_kafkas_partitioner_gives(spark, topics):
    ours, theirs = topics.create(3), topics.create(3)
    frame = spark.range(60).select(F.concat(F.lit("key-"), "id").alias("key"), F.lit("v").alias("value"))
    to_topic(frame, topics, ours)
    frame.write.format("kafka").options(
        **{"kafka.bootstrap.servers": topics.bootstrap, "topic": theirs}
    ).save()
    places = [
        {bytes(row.key): row.partition for row in read(spark, topics, name).collect()}
        for name in (ours, theirs)
    ]
    assert places[0] == places[1]
    assert set(places[0].values()) == {0, 1, 2}


def test_many_rows_arrive_once_and_in_the_order_of_their_task(spark, topics):
    topic = topics.create(1)
    to_topic(spark.range(25_000).coalesce(1).selectExpr("string(id) as value"), topics, topic)
    rows = read(spark, topics, topic).orderBy("offset").select("value").toPandas()["value"]
    assert [int(bytes(value)) for value in rows] == list(range(25_000))


def test_a_batch_that_comes_again_is_told_by_its_headers_and_dropped_by_a_reader(spark, topics, tmp_path):
    source, target = topics.create(2), topics.create(2)
    topics.send(source, [Sent(n % 2, b"k%d" % n, b"v%d" % n) for n in range(40)])
    restream(spark, topics, source, target, tmp_path / "checkpoint", maxOffsetsPerTrigger="20")
    forget_last_commit(tmp_path / "checkpoint")
    topics.send(source, [Sent(0, None, b"last")])
    restream(spark, topics, source, target, tmp_path / "checkpoint", maxOffsetsPerTrigger="20")
    records = read(spark, topics, target, includeHeaders="true")
    assert records.count() == 61  # at least once: one batch of 20 is there twice
    once = Counter(bytes(row.value) for row in drop_repeats(records).collect())
    assert once == Counter([*(b"v%d" % n for n in range(40)), b"last"])
    headers = {tuple(one.key for one in row.headers) for row in records.select("headers").collect()}
    assert headers == {REPEAT_HEADERS}
    streamed = (
        drop_repeats(
            spark.readStream.format("nilometer")
            .options(
                **{
                    "kafka.bootstrap.servers": topics.bootstrap,
                    "subscribe": target,
                    "startingOffsets": "earliest",
                    "includeHeaders": "true",
                }
            )
            .load()
        )
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "second"))
        .option("path", str(tmp_path / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    streamed.awaitTermination()
    assert Counter(bytes(row.value) for row in spark.read.parquet(str(tmp_path / "rows")).collect()) == once


def test_a_write_from_foreach_batch_says_which_batch_it_was(spark, topics, tmp_path):
    source, target = topics.create(1), topics.create(1)
    topics.send(source, [Sent(0, None, b"%d" % n) for n in range(6)])

    def write(batch, batch_id):
        to_topic(batch.select("value"), topics, target, writerId="copy")

    frame = (
        spark.readStream.format("nilometer")
        .options(
            **{
                "kafka.bootstrap.servers": topics.bootstrap,
                "subscribe": source,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "3",
            }
        )
        .load()
    )
    checkpoint = tmp_path / "checkpoint"
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    forget_last_commit(checkpoint)
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    query_id = started.id
    records = read(spark, topics, target, includeHeaders="true").orderBy("offset").collect()
    headers = [{one.key: bytes(one.value) for one in row.headers} for row in records]
    assert [one["nilometer.batch"] for one in headers] == [b"0"] * 3 + [b"1"] * 6
    assert {one["nilometer.writer"] for one in headers} == {f"{query_id}/copy".encode()}
    assert headers[3:6] == headers[6:9]
    assert all(left != right for left, right in pairwise(json.dumps(str(one)) for one in headers))


@pytest.mark.parametrize("names", [("", ""), ("first", "second")])
def test_several_writes_of_one_batch_are_no_repeats_of_each_other(spark, topics, tmp_path, names):
    source, target = topics.create(1), topics.create(1)
    topics.send(source, [Sent(0, None, b"%d" % n) for n in range(5)])

    def write(batch, _number):
        for name, sign in zip(names, ("+", "-"), strict=True):
            signed = batch.select(F.concat(F.lit(sign), F.col("value").cast("string")).alias("value"))
            to_topic(signed, topics, target, **({"writerId": name} if name else {}))

    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": source}
    stream = Stream(spark, tmp_path, options)
    stream.run_with(write)
    forget_last_commit(tmp_path / "checkpoint")
    stream.run_with(write)
    records = read(spark, topics, target, includeHeaders="true")
    assert records.count() == 20  # the batch was run twice
    kept = Counter(bytes(row.value) for row in drop_repeats(records).collect())
    assert set(kept) == {b"%s%d" % (sign, n) for sign in (b"+", b"-") for n in range(5)}
    assert set(kept.values()) == {1 if names[0] else 2}  # without a name they are not recognised


def test_a_late_record_that_was_sent_once_is_kept_in_a_stream(spark, topics, tmp_path):
    """The records' times go up, then far back, and up again."""
    topic = topics.create(1)
    times = [1_700_000_000_000 + n * 3_600_000 for n in (*range(10), *range(-40, -20), *range(11))]
    topics.send(topic, [Sent(0, None, b"%d" % n, time) for n, time in enumerate(times)])
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic}
    stream = Stream(spark, tmp_path, {**options, "includeHeaders": "true", "maxOffsetsPerTrigger": "14"})
    stream.run(lambda frame: drop_repeats(frame, "2 hours"))
    assert stream.values() == [b"%d" % n for n in range(len(times))]


@pytest.mark.parametrize("repeat_headers", ["true", "false"])
def test_a_record_that_is_forwarded_loses_the_headers_of_its_first_writer(spark, topics, repeat_headers):
    first, second = topics.create(1), topics.create(1)
    own = F.expr("array(named_struct('key', 'own', 'value', cast('1' as binary)))")
    to_topic(spark.range(4).select(F.lit("v").alias("value"), own.alias("headers")), topics, first)
    records = read(spark, topics, first, includeHeaders="true")
    copies = records.select("value", "headers").crossJoin(spark.range(3)).drop("id")
    to_topic(copies, topics, second, repeatHeaders=repeat_headers)
    forwarded = read(spark, topics, second, includeHeaders="true")
    expected = ("own", *(REPEAT_HEADERS if repeat_headers == "true" else ()))
    assert {tuple(one.key for one in row.headers) for row in forwarded.collect()} == {expected}
    assert drop_repeats(forwarded).count() == 12


def test_headers_of_two_writers_on_one_record_are_read(spark, topics):
    """As records have them that earlier versions of the sink have forwarded: the last ones count."""
    topic = topics.create(1)
    headers = [
        tuple(
            (name, b"%d" % (number // 2 if name == REPEAT_HEADERS[-1] else writer)) for name in REPEAT_HEADERS
        )
        for number in range(4)
        for writer in (number, 9)
    ]
    both = [headers[2 * number] + headers[2 * number + 1] for number in range(4)]
    topics.send(topic, [Sent(0, None, b"%d" % n, headers=one) for n, one in enumerate(both)])
    topics.send(topic, [Sent(0, None, b"%d" % n, headers=both[0][:3]) for n in (4, 5)])
    kept = drop_repeats(read(spark, topics, topic, includeHeaders="true")).collect()
    values = {bytes(row.value) for row in kept}
    assert len(kept) == len(values) == 4
    assert {b"4", b"5"} < values  # headers that are not complete say nothing


def test_refusals_name_what_is_wrong(spark, topics):
    topic = topics.create(1)
    frame = spark.createDataFrame([(b"v", 1)], "value binary, number int")
    with pytest.raises(Exception, match="partition") as error:
        to_topic(frame.withColumn("partition", F.lit(7)), topics, topic)
    assert f"topic {topic} has 1 partitions" in (readable(error.value) or "")
    with pytest.raises(Exception, match="has no topic"):
        frame.withColumn("topic", F.lit(None).cast("string")).write.format("nilometer").options(
            **{"kafka.bootstrap.servers": topics.bootstrap}
        ).save(mode="append")
    with pytest.raises(Exception, match="a topic can only be appended to"):
        frame.write.format("nilometer").options(
            **{"kafka.bootstrap.servers": topics.bootstrap, "topic": topic}
        ).save(mode="overwrite")
    assert read(spark, topics, topic).count() == 0


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"topic": "t"}, "kafka.bootstrap.servers"),
        ({**SERVERS, "topics": "t"}, "option topics.*allowed are topic"),
        ({**SERVERS, "topic": ""}, "names no topic"),
        ({**SERVERS, "topic": "t", "repeatHeaders": "maybe"}, "repeatHeaders"),
        ({**SERVERS, "topic": "t", "kafka.acks": "2"}, "kafka.acks"),
        ({**SERVERS, "topic": "t", "kafka.lingering": "2"}, "kafka.lingering"),
        ({**SERVERS, "topic": "t", "kafka.key.serializer": "x"}, "key.serializer.*column key"),
        (
            {**SERVERS, "topic": "t", "kafka.acks": "1", "kafka.enable.idempotence": "true"},
            "acks must be all",
        ),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(given, names):
    with pytest.raises(OptionError, match=names):
        parse_sink_options(given)


@pytest.mark.parametrize(
    ("types", "names"),
    [
        ({"key": "string"}, "value"),
        ({"value": "binary"}, "topic.*as an option or as a column"),
        ({"value": "int", "topic": "string"}, "column value.*binary or string"),
        ({"value": "string", "topic": "string", "partition": "bigint"}, "column partition.*must be int"),
        ({"value": "string", "topic": "string", "headers": "map<string,string>"}, "column headers"),
    ],
)
def test_a_column_of_the_wrong_type_is_named(types, names):
    with pytest.raises(OptionError, match=names):
        check_columns(types, parse_sink_options(SERVERS))


def test_what_spark_hands_to_every_sink_is_no_unknown_option():
    options = parse_sink_options({**SERVERS, "checkpointLocation": "/c", "TOPIC": "t"})
    assert options.topic == "t"
    assert dict(options.producer)["bootstrap.servers"] == "h:1"


# --- exactly once


def copy_once(spark, topics, source, target, tmp_path, transform=None):
    """A query that copies ``source`` with the sink's option exactlyOnce; it ends when all is copied."""
    options = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": source,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    frame = spark.readStream.format("nilometer").options(**options).load().select("value")
    if transform is not None:
        frame = frame.mapInPandas(transform, "value binary")
    query = (
        frame.writeStream.format("nilometer")
        .options(**{"kafka.bootstrap.servers": topics.bootstrap, "topic": target, "exactlyOnce": "true"})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def committed_values(spark, topics, topic):
    rows = read(spark, topics, topic, **{"kafka.isolation.level": "read_committed"}).collect()
    return Counter(bytes(row.value) for row in rows)


def test_exactly_once_a_batch_that_comes_again_is_written_once(spark, topics, tmp_path):
    source, target = topics.create(2), topics.create(2)
    topics.send(source, [Sent(n % 2, None, b"v%d" % n) for n in range(40)])
    copy_once(spark, topics, source, target, tmp_path)
    forget_last_commit(tmp_path / "checkpoint")
    topics.send(source, [Sent(0, None, b"last")])
    copy_once(spark, topics, source, target, tmp_path)
    expected = Counter([*(b"v%d" % n for n in range(40)), b"last"])
    assert committed_values(spark, topics, target) == expected
    everything = read(spark, topics, target)
    assert everything.count() == 41, "the second run of the batch has not even begun a transaction"


def test_exactly_once_a_batch_with_one_task_that_fails_is_written_once(spark, topics, tmp_path):
    source, target = topics.create(2), topics.create(2)
    topics.send(source, [Sent(n % 2, None, b"%d" % n) for n in range(40)])
    broken = str(tmp_path / "broken")
    open(broken, "w").close()

    def fail_once(frames):
        import os

        for frame in frames:
            yield frame
            if os.path.exists(broken) and any(int(value) % 2 for value in frame["value"]):
                raise ValueError("planted")

    with pytest.raises(Exception, match="planted"):
        copy_once(spark, topics, source, target, tmp_path, fail_once)
    assert set(committed_values(spark, topics, target)) <= {b"%d" % n for n in range(0, 40, 2)}
    (tmp_path / "broken").unlink()
    copy_once(spark, topics, source, target, tmp_path, fail_once)
    assert committed_values(spark, topics, target) == Counter(b"%d" % n for n in range(40))


def test_exactly_once_a_save_within_foreach_batch_needs_a_name_and_is_written_once(spark, topics, tmp_path):
    source, target = topics.create(1), topics.create(1)
    topics.send(source, [Sent(0, None, b"%d" % n) for n in range(6)])
    stream = Stream(spark, tmp_path, {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": source})

    def write(name):
        return lambda batch, _number: to_topic(
            batch.select("value"), topics, target, exactlyOnce="true", **name
        )

    with pytest.raises(Exception, match="needs the option writerId"):
        stream.run_with(write({}))
    stream.run_with(write({"writerId": "copy"}))
    forget_last_commit(tmp_path / "checkpoint")
    stream.run_with(write({"writerId": "copy"}))
    assert committed_values(spark, topics, target) == Counter(b"%d" % n for n in range(6))


def test_exactly_once_two_saves_of_a_batch_job_are_two(spark, topics):
    target = topics.create(1)
    for _ in range(2):
        to_topic(
            spark.range(3).selectExpr("string(id) as value"), topics, target, exactlyOnce="true", writerId="w"
        )
    assert committed_values(spark, topics, target) == Counter({b"0": 2, b"1": 2, b"2": 2})


def test_exactly_once_needs_acknowledgements_by_all_replicas():
    with pytest.raises(OptionError, match="acks"):
        parse_sink_options({**SERVERS, "topic": "t", "exactlyOnce": "true", "kafka.acks": "1"})
    options = parse_sink_options({**SERVERS, "topic": "t", "exactlyOnce": "true"})
    assert (options.exactly_once, options.repeat_headers) == (True, False)
    assert dict(options.producer)["transaction.timeout.ms"] == "900000"
