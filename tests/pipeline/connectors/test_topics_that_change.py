"""Topics that change while a stream reads them: partitions given, records deleted, a log cut, a new topic.

The stream's reader is called as Spark calls it. What it must do is what Spark's own connector does, but for a
topic created again, which that one cannot tell from the first.
"""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from nilometer.pipeline.errors import DataLoss
from support.pipeline.filled_topics import Sent

TOLERANT = {"failOnDataLoss": "false"}


def send(topics, topic, count, partition=0):
    topics.send(topic, [Sent(partition, None, b"%d" % n) for n in range(count)])


class Following:
    """A stream of which each ``plan`` is a batch that begins where the last one ended."""

    def __init__(self, reader):
        self.reader = reader
        self.at = reader.initialOffset()

    def plan(self):
        begin, self.at = self.at, self.reader.latestOffset(self.at, ReadAllAvailable())
        return self.reader.partitions(begin, self.at)

    def read(self, planned):
        """(partition, offset) of the records that are planned."""
        return [
            (row["partition"], row["offset"])
            for one in planned
            for batch in self.reader.read(one)
            for row in batch.to_pylist()
        ]


@pytest.fixture
def stream(topics, reader):
    def make(topic, **more):
        return Following(reader(topic, startingOffsets="earliest", **more))

    return make


def offsets(first, last, partition=0):
    return [(partition, offset) for offset in range(first, last)]


def test_partitions_given_meanwhile_are_read_from_their_start(topics, stream):
    topic = topics.create(1)
    send(topics, topic, 5)
    following = stream(topic)
    assert following.read(following.plan()) == offsets(0, 5)
    topics.add_partitions(topic, 3)
    send(topics, topic, 4, partition=2)
    send(topics, topic, 1)
    assert following.read(following.plan()) == [*offsets(5, 6), *offsets(0, 4, partition=2)]
    assert following.plan() == []


@pytest.mark.parametrize(("before", "left"), [(8, 8), (20, 20), (25, 20)])
def test_records_deleted_between_plan_and_reading_are_a_loss_or_left_out(topics, stream, before, left):
    topic = topics.create(1)
    send(topics, topic, 20)
    strict, tolerant = stream(topic), stream(topic, **TOLERANT)
    planned = [one.plan() for one in (strict, tolerant)]
    send(topics, topic, 10)
    topics.delete_records(topic, 0, before)
    with pytest.raises(DataLoss, match=f"offsets 0 to {left - 1} of .* its log starts at {before}"):
        strict.read(planned[0])
    assert tolerant.read(planned[1]) == offsets(left, 20)
    assert tolerant.read(tolerant.plan()) == offsets(max(before, 20), 30)


def test_records_deleted_before_they_are_planned_are_a_loss_or_left_out(topics, stream):
    topic = topics.create(1)
    send(topics, topic, 5)
    strict, tolerant = stream(topic), stream(topic, **TOLERANT)
    for one in (strict, tolerant):
        assert one.read(one.plan()) == offsets(0, 5)
    send(topics, topic, 10)
    topics.delete_records(topic, 0, 9)
    with pytest.raises(DataLoss, match="offsets 5 to 8"):
        strict.read(strict.plan())
    assert tolerant.read(tolerant.plan()) == offsets(9, 15)


def test_a_partition_whose_first_records_are_gone_when_it_is_first_seen(topics, stream):
    topic = topics.create(1)
    strict, tolerant = stream(topic), stream(topic, **TOLERANT)
    topics.add_partitions(topic, 2)
    send(topics, topic, 9, partition=1)
    topics.delete_records(topic, 1, 3)
    with pytest.raises(DataLoss, match="offsets 0 to 2"):
        strict.read(strict.plan())
    assert tolerant.read(tolerant.plan()) == offsets(3, 9, partition=1)


def created_again(topics, topic, count):
    topics.delete(topic)
    topics.create(1, name=topic)
    send(topics, topic, count)


@pytest.mark.parametrize("count", [3, 30])
def test_a_topic_created_again_between_two_batches(topics, stream, count):
    topic = topics.create(1)
    send(topics, topic, 5)
    strict, tolerant = stream(topic), stream(topic, **TOLERANT)
    for one in (strict, tolerant):
        assert one.read(one.plan()) == offsets(0, 5)
    created_again(topics, topic, count)
    with pytest.raises(DataLoss, match="deleted and created again"):
        strict.plan()
    assert tolerant.read(tolerant.plan()) == offsets(0, count)
    assert tolerant.plan() == []


def test_a_worker_that_knows_the_deleted_topic_reads_the_one_that_was_planned(topics, stream):
    topic = topics.create(1)
    send(topics, topic, 5)
    driver, worker = (stream(topic, **TOLERANT, **{"kafka.client.id": name}) for name in ("driver", "worker"))
    assert worker.read(driver.plan()) == offsets(0, 5)
    created_again(topics, topic, 5)
    assert worker.read(driver.plan()) == offsets(0, 5)


def test_a_topic_created_again_between_plan_and_reading_gives_none_of_its_records(topics, stream):
    topic = topics.create(1)
    send(topics, topic, 5)
    strict, tolerant = stream(topic), stream(topic, **TOLERANT)
    planned = [one.plan() for one in (strict, tolerant)]
    created_again(topics, topic, 7)
    with pytest.raises(DataLoss, match="deleted and created again"):
        strict.read(planned[0])
    assert tolerant.read(planned[1]) == []
    assert tolerant.read(tolerant.plan()) == offsets(0, 7)


def test_a_log_that_ends_below_what_was_read(topics, stream):
    """As after an election that was not clean: here by a topic whose position has no id to tell it by."""
    topic = topics.create(1)
    send(topics, topic, 9)
    strict, tolerant = stream(topic), stream(topic, **TOLERANT)
    for one in (strict, tolerant):
        assert one.read(one.plan()) == offsets(0, 9)
        del one.at["#topic-ids"]
    created_again(topics, topic, 4)
    with pytest.raises(DataLoss, match="was read up to offset 9, but its end offset is now 4"):
        strict.plan()
    assert tolerant.plan() == []
    send(topics, topic, 6)
    assert tolerant.read(tolerant.plan()) == offsets(4, 10)
