"""The cluster as a task reads it: answers that a broker gives only when it must, from a scripted one."""

from __future__ import annotations

import asyncio
import uuid

from nilometer.pipeline.cluster_reader import ClusterReader
from nilometer.pipeline.offsets import OffsetRange
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.scripted_broker import ScriptedBroker

TOPIC = "events"
TOPIC_ID = uuid.UUID(int=7)


def a_batch(count: int) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000 + number, None, b"v%d" % number, [])
    return builder.build(0)


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


async def fetched_from(broker: ScriptedBroker, wanted: OffsetRange, **settings: str):
    reader = ClusterReader({"bootstrap.servers": broker.address, **settings}.items())
    try:
        return await asyncio.to_thread(lambda: list(reader.fetch(wanted, fail_on_data_loss=True)))
    finally:
        await asyncio.to_thread(reader.close)


def read_from_a_broker_that_answers(*answers, **settings: str):
    """What is fetched of three records, and how often the broker was asked; the last answer is repeated."""

    async def run():
        async with ScriptedBroker() as broker:
            broker.topics[TOPIC] = [(1, 0)]
            broker.topic_ids[TOPIC] = TOPIC_ID
            broker.handlers[ApiKey.FETCH] = lambda _, codec: answers[
                min(broker.count(ApiKey.FETCH), len(answers)) - 1
            ](codec)
            found = await fetched_from(broker, OffsetRange(TOPIC, str(TOPIC_ID), 0, 0, 3), **settings)
            return found, broker.count(ApiKey.FETCH)

    return asyncio.run(run())


def three_records(codec):
    return records_answer(codec, a_batch(3), 3)


def test_an_answer_without_records_from_a_throttled_fetch_is_waited_for():
    def throttled(codec):
        return codec.response(throttle_time_ms=40, responses=())

    # What the quota has it wait is no failure: here it is more than the time for one fetch.
    settings = {"default.api.timeout.ms": "1000", "request.timeout.ms": "500"}
    found, asked = read_from_a_broker_that_answers(*[throttled] * 30, three_records, **settings)
    assert asked == 31
    assert [one.next_offset for one in found] == [3]


def test_an_answer_that_leaves_the_partition_out_is_asked_for_again():
    found, asked = read_from_a_broker_that_answers(lambda codec: codec.response(responses=()), three_records)
    assert asked == 2
    assert [one.next_offset for one in found] == [3]
