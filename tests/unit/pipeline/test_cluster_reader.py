"""The cluster as a task reads it: answers that a broker gives only when it must, from a scripted one."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest

from nilometer.client.network.client import Client
from nilometer.pipeline.errors import DataLoss
from nilometer.pipeline.source.cluster.cluster_reader import ClusterReader
from nilometer.pipeline.source.positions import OffsetRange
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import BatchBuilder
from support.scripted.scripted_broker import ScriptedBroker

TOPIC = "events"
TOPIC_ID = uuid.UUID(int=7)


def a_batch(count: int, base: int = 0) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000 + number, None, b"v%d" % number, [])
    return builder.build(base)


def records_answer(codec, records: bytes, end: int):
    partition = codec.make(
        "PartitionData",
        partition_index=0,
        error_code=ErrorCode.none,
        high_watermark=end,
        last_stable_offset=end,
        records=records,
    )
    topic = codec.make("FetchableTopicResponse", topic=TOPIC, topic_id=TOPIC_ID, partitions=(partition,))
    return codec.response(responses=(topic,))


async def fetched_from(broker: ScriptedBroker, wanted: OffsetRange, fail_on_data_loss: bool):
    reader = ClusterReader({"bootstrap.servers": broker.address}.items())
    try:
        return await asyncio.to_thread(
            lambda: list(reader.fetch(wanted, fail_on_data_loss=fail_on_data_loss))
        )
    finally:
        await asyncio.to_thread(reader.close)


def read_from_a_broker_that_answers(*answers, end: int = 3, fail_on_data_loss: bool = True):
    """What is fetched up to ``end``, and how often the broker was asked; the last answer is repeated."""

    async def run():
        async with ScriptedBroker() as broker:
            broker.topics[TOPIC] = [(1, 0)]
            broker.topic_ids[TOPIC] = TOPIC_ID
            broker.handlers[ApiKey.FETCH] = lambda _, codec: answers[
                min(broker.count(ApiKey.FETCH), len(answers)) - 1
            ](codec)
            wanted = OffsetRange(TOPIC, str(TOPIC_ID), 0, 0, end)
            found = await fetched_from(broker, wanted, fail_on_data_loss)
            return found, broker.count(ApiKey.FETCH)

    return asyncio.run(run())


def three_records(codec):
    return records_answer(codec, a_batch(3), 3)


def test_an_answer_without_records_from_a_throttled_fetch_is_waited_for():
    def throttled(codec):
        return codec.response(throttle_time_ms=20, responses=())

    found, asked = read_from_a_broker_that_answers(*[throttled] * 3, three_records)
    assert asked == 4
    assert [one.next_offset for one in found] == [3]


def test_an_answer_that_leaves_the_partition_out_is_asked_for_again():
    found, asked = read_from_a_broker_that_answers(lambda codec: codec.response(responses=()), three_records)
    assert asked == 2
    assert [one.next_offset for one in found] == [3]


def nothing_more(codec):
    return records_answer(codec, b"", 3)


@pytest.fixture
def few_attempts(monkeypatch):
    """The client gives up after five attempts, however long these take."""

    async def retry(client, attempt, _timeout_ms):
        for _ in range(4):
            with contextlib.suppress(KafkaError):
                return await attempt()
            await client.refresh()
        return await attempt()

    monkeypatch.setattr(Client, "retry", retry)


def test_a_log_that_ends_before_the_planned_end_for_long_is_a_loss(few_attempts):
    """As after an election that was not clean, between the plan and the reading."""
    with pytest.raises(DataLoss, match="can be read up to offset 3 only, not to 9"):
        read_from_a_broker_that_answers(three_records, nothing_more, end=9)


def test_a_log_that_ends_before_the_planned_end_is_read_to_its_own_where_losses_are_let_pass(few_attempts):
    found, asked = read_from_a_broker_that_answers(
        three_records, nothing_more, end=9, fail_on_data_loss=False
    )
    assert [one.next_offset for one in found] == [3, 9]
    assert asked == 1 + 5


def test_a_leader_that_learns_its_high_watermark_late_is_waited_for():
    def the_rest(codec):
        return records_answer(codec, a_batch(6, base=3), 9)

    found, _ = read_from_a_broker_that_answers(three_records, nothing_more, nothing_more, the_rest, end=9)
    assert [one.next_offset for one in found] == [3, 9]
