"""Messages between brokers, from the bytes of their connection: whole, split, in flight, dropped."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest

from nilometer.identifiers import topic_id_of
from nilometer.simulation.cluster_recorder import Conversation, Message
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.fetch import (
    EpochEndOffset,
    FetchedPartition,
    FetchedTopic,
    encode_fetch_response,
    encode_follower_fetch,
    encode_wanted,
)
from nilometer.wire.messages import api, encode_request, encode_response, request_header
from nilometer.wire.record_batch import BatchHeader, pack_batch

ORDERS, OTHER = UUID(int=1), UUID(int=2)
NAMES = {topic_id_of(ORDERS): "orders"}
VERSION = 17


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def fetch(correlation_id: int, topic: UUID, *wanted: tuple[int, int, int]) -> bytes:
    """``wanted``: (partition, offset, last epoch)."""
    parts = [encode_wanted(partition, 3, offset, epoch, 0, 1_000) for partition, offset, epoch in wanted]
    body = encode_follower_fetch(2, 9, (500, 1, 1_000), (0, 0), {topic.bytes: parts} if parts else {}, {})
    return frame(request_header(api(ApiKey.FETCH, VERSION), correlation_id, "replica") + body)


def fetched(correlation_id: int, topic: UUID, *found: FetchedPartition) -> bytes:
    topics = [FetchedTopic(topic.bytes, found)] if found else []
    return b"".join(map(bytes, encode_fetch_response(VERSION, correlation_id, 0, 0, 7, topics)))


def sent(stream_data: bytes, conversation: Conversation, *, response: bool = False) -> list[Message]:
    stream = conversation.responses if response else conversation.requests
    return [message for _, message in stream.on_sent(stream_data, count().__next__)]


def test_a_fetch_says_what_it_asks_for() -> None:
    found = sent(fetch(1, ORDERS, (0, 5, 2), (1, 0, -1)), Conversation(NAMES))
    text = "Fetch orders-0 from 5 (last epoch 2), orders-1 from 0"
    assert found == [Message(text, ("orders-0", "orders-1"))]


def test_a_long_list_is_cut_but_keeps_its_partitions() -> None:
    (found,) = sent(fetch(1, ORDERS, *((number, 0, -1) for number in range(6))), Conversation(NAMES))
    assert found.text.endswith("orders-3 from 0, and 2 more")
    assert len(found.partitions) == 6


@pytest.mark.parametrize("data", [fetch(1, ORDERS), fetch(1, OTHER, (0, 5, 2))])
def test_a_fetch_of_nothing_that_is_recorded_is_left_out(data: bytes) -> None:
    assert sent(data, Conversation(NAMES)) == []


def batch(base_offset: int, records: int) -> bytes:
    header = BatchHeader(base_offset, 0, 3, 2, 0, 0, records - 1, 0, 0, -1, -1, -1, records)
    return pack_batch(header, b"records")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (FetchedPartition(0, 0, 9, 9, 0), "no records, HW 9"),
        (FetchedPartition(0, 0, 9, 9, 0, [batch(5, 1) + batch(6, 3)]), "offsets 5 to 8, HW 9"),
        (FetchedPartition(0, 1, 9, 9, 0), "OFFSET_OUT_OF_RANGE"),
        (
            FetchedPartition(0, 0, 9, 9, 0, diverging_epoch=EpochEndOffset(2, 17)),
            "diverges: epoch 2 ends at 17",
        ),
        (FetchedPartition(0, 0, 9, 9, 0, [b"\x00" * 80]), "damaged records, HW 9"),
    ],
)
def test_a_response_says_what_it_brings(answer: FetchedPartition, text: str) -> None:
    conversation = Conversation(NAMES)
    sent(fetch(4, ORDERS, (0, 5, 2)), conversation)
    found = sent(fetched(4, ORDERS, answer), conversation, response=True)
    assert found == [Message(f"Fetch response orders-0 {text}", ("orders-0",))]


def test_another_message_is_named_and_its_response_too() -> None:
    conversation = Conversation(NAMES)
    request = api(ApiKey.BROKER_HEARTBEAT, 1)
    asked = request.request(broker_id=1, broker_epoch=2, current_metadata_offset=0, want_fence=False)
    assert sent(encode_request(5, None, asked), conversation) == [Message("BrokerHeartbeat", ())]
    answer = encode_response(5, ApiKey.BROKER_HEARTBEAT, 1, request.response())
    assert sent(answer, conversation, response=True) == [Message("BrokerHeartbeat response", ())]


def test_a_change_of_the_isr_names_its_members() -> None:
    codec = api(ApiKey.ALTER_PARTITION, 3)
    members = tuple(codec.make_request("BrokerState", broker_id=one, broker_epoch=4) for one in (1, 3))
    partition = codec.make_request(
        "PartitionData",
        partition_index=2,
        leader_epoch=1,
        new_isr_with_epochs=members,
        leader_recovery_state=0,
        partition_epoch=5,
    )
    topic = codec.make_request("TopicData", topic_id=ORDERS, partitions=(partition,))
    request = codec.request(broker_id=1, broker_epoch=4, topics=(topic,))
    found = sent(encode_request(6, None, request), Conversation(NAMES))
    assert found == [Message("AlterPartition orders-2 ISR 1, 3", ("orders-2",))]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_message_arrives_with_its_last_byte(size: int) -> None:
    data = fetch(1, ORDERS, (0, 5, 2)) + fetch(2, OTHER, (0, 5, 2)) + fetch(3, ORDERS, (1, 7, 2))
    first_end = len(fetch(1, ORDERS, (0, 5, 2)))
    stream, number = Conversation(NAMES).requests, count(1)
    parts = [data[begin : begin + size] for begin in range(0, len(data), size)]
    numbers = [one for part in parts for one, _ in stream.on_sent(part, number.__next__)]
    arrived: list[tuple[int, int]] = []
    for index, part in enumerate(parts):
        arrived += [(one, index * size + len(part)) for one, _ in stream.on_arrived(len(part))]
    assert numbers == [one for one, _ in arrived] == [1, 2]
    assert arrived[0][1] - first_end in range(size)
    assert arrived[1][1] == len(data)


def test_what_is_dropped_does_not_arrive_later() -> None:
    stream, number = Conversation(NAMES).requests, count(1)
    data = fetch(1, ORDERS, (0, 5, 2))
    stream.on_sent(data, number.__next__)
    assert [one for one, _ in stream.on_dropped()] == [1]
    assert stream.on_arrived(len(data)) == stream.on_dropped() == []
