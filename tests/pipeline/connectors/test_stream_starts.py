"""Where streams start, and start again: nothing is lost before their first batch is committed."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.pipeline.source.positions import Position
from support.pipeline.filled_topics import Sent
from support.pipeline.spark_streams import Stream

CONNECTORS = ("nilometer", "kafka")


def options(topics, topic, **more):
    return {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, **more}


def send(topics, topic, values):
    topics.send(topic, [Sent(0, None, b"%d" % n) for n in values])


# --- the reader as Spark calls it, without Spark


def planned(reader, end):
    """What the first batch reads when it is run (again), as Spark asks for it."""
    return [
        (one.wanted.partition, one.wanted.start, one.wanted.end)
        for one in reader.partitions(reader.initialOffset(), end)
    ]


def test_a_first_batch_that_is_run_again_starts_where_it_started_before(topics, reader):
    topic = topics.create(1)
    send(topics, topic, range(10))
    first = reader(topic, startingOffsets="latest")
    start = first.initialOffset()
    send(topics, topic, range(5))
    end = first.latestOffset(start, ReadAllAvailable())
    assert planned(first, end) == [(0, 10, 15)]
    send(topics, topic, range(20))
    again = reader(topic, startingOffsets="latest")
    assert planned(again, end) == [(0, 10, 15)]
    behind = again.latestOffset(end, ReadAllAvailable())
    assert [(one.wanted.start, one.wanted.end) for one in again.partitions(end, behind)] == [(15, 35)]
    assert again.latestOffset(behind, ReadAllAvailable()) == behind


def test_a_first_batch_without_records_fixes_the_start_too(topics, reader):
    topic = topics.create(1)
    send(topics, topic, range(10))
    first = reader(topic, startingOffsets="latest")
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    assert planned(first, end) == []
    send(topics, topic, range(5))
    again = reader(topic, startingOffsets="latest")
    assert planned(again, end) == []
    behind = again.latestOffset(end, ReadAllAvailable())
    assert [(one.wanted.start, one.wanted.end) for one in again.partitions(end, behind)] == [(10, 15)]


def test_available_now_on_a_live_topic_ends_at_its_start_or_behind_it(topics, reader):
    topic = topics.create(1)
    send(topics, topic, range(10))
    first = reader(topic, startingOffsets="latest")
    first.prepareForTriggerAvailableNow()
    send(topics, topic, range(5))
    start = first.initialOffset()
    send(topics, topic, range(5))
    end = Position.from_json(first.latestOffset(start, ReadAllAvailable()))
    assert end.offsets == {TopicPartition(topic, 0): 15}
    assert Position.from_json(start).offsets == end.offsets


# --- queries, Spark's own connector beside ours


@pytest.mark.spark
@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_loss_before_the_first_commit_is_a_loss(spark, topics, tmp_path, connector):
    topic = topics.create(1)
    send(topics, topic, range(20))
    stream = Stream(spark, tmp_path, options(topics, topic), connector)

    def fail(_batch, _number):
        raise RuntimeError("the first batch is not committed")

    with pytest.raises(Exception, match="not committed"):
        stream.run_with(fail)
    topics.delete_records(topic, 0, before=8)
    with pytest.raises(Exception, match=r"(?i)offsets 0 to 7|may have been (lost|missed)|not available"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert stream.values() == [b"%d" % n for n in range(8, 20)]


@pytest.mark.spark
@pytest.mark.parametrize("connector", CONNECTORS)
def test_available_now_from_the_latest_offset_of_a_live_topic(spark, topics, tmp_path, connector):
    topic = topics.create(1)
    stop = threading.Event()

    def keep_sending():
        while not stop.is_set():
            send(topics, topic, range(50))

    load = threading.Thread(target=keep_sending)
    load.start()
    try:
        stream = Stream(spark, tmp_path, options(topics, topic, startingOffsets="latest"), connector)
        stream.run()
        send(topics, topic, range(5))
        stream.run()
    finally:
        stop.set()
        load.join()
    offsets = sorted(row.offset for row in stream.rows().select("offset").collect())
    assert len(offsets) >= 5
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
