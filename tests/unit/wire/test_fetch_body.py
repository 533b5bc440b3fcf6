"""Fetch requests read by hand say what the general reader says, in every version, and refuse what lies."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import MalformedRequest
from nilometer.wire.fetch import VERSION_MAX, VERSION_MIN, FetchBody, decode_fetch_body

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
TOPIC_ID = UUID(int=7)


def frame_of(version: int) -> bytes:
    codec = messages.api(ApiKey.FETCH, version)
    name: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "clicks"}
    partitions = tuple(
        codec.make_request(
            "FetchPartition",
            partition=index,
            current_leader_epoch=5 + index,
            fetch_offset=1000 + index,
            last_fetched_epoch=4,
            log_start_offset=3,
            partition_max_bytes=1 << 20,
        )
        for index in range(3)
    )
    fields: dict[str, Any] = {"replica_id": 2}
    if version >= 15:
        state = codec.make_request("ReplicaState", replica_id=2, replica_epoch=99)
        fields = {"replica_state": state, "cluster_id": "a cluster"}
    if version >= 7:
        fields["forgotten_topics_data"] = (
            codec.make_request("ForgottenTopic", **name, partitions=(7, 8)),
            codec.make_request("ForgottenTopic", **name, partitions=()),
        )
    request = codec.request(
        **fields,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        isolation_level=1,
        session_id=77,
        session_epoch=3,
        topics=(
            codec.make_request("FetchTopic", **name, partitions=partitions),
            codec.make_request("FetchTopic", **name, partitions=()),
        ),
        rack_id="räck",
    )
    return messages.encode_request(5, "me", request)[4:]


def decoded(version: int, frame: bytes) -> FetchBody:
    return decode_fetch_body(version, memoryview(frame), messages.decode_request_header(frame).size)


def _topic(message: Any) -> str | bytes:
    return message.topic_id.bytes if hasattr(message, "topic_id") else message.topic


@pytest.mark.parametrize("version", VERSIONS)
def test_it_agrees_with_the_general_reader(version: int) -> None:
    frame = frame_of(version)
    _, general = messages.decode_request(frame)
    state = getattr(general, "replica_state", None)
    expected = FetchBody(
        general.replica_id if state is None else state.replica_id,
        -1 if state is None else state.replica_epoch,
        messages.milliseconds(general.max_wait),
        general.min_bytes,
        general.max_bytes,
        general.isolation_level,
        getattr(general, "session_id", 0),
        getattr(general, "session_epoch", -1),
        [
            (
                _topic(topic),
                [
                    (
                        part.partition,
                        getattr(part, "current_leader_epoch", -1),
                        part.fetch_offset,
                        getattr(part, "last_fetched_epoch", -1),
                        getattr(part, "log_start_offset", -1),
                        part.partition_max_bytes,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in general.topics
        ],
        [(_topic(topic), list(topic.partitions)) for topic in getattr(general, "forgotten_topics_data", ())],
        getattr(general, "rack_id", ""),
    )
    assert decoded(version, frame) == expected
    assert expected.replica_id == 2
    assert (expected.replica_epoch == 99) == (version >= 15)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_short_anywhere_is_refused(version: int) -> None:
    frame = frame_of(version)
    start = messages.decode_request_header(frame).size
    for end in range(start, len(frame)):
        with pytest.raises(MalformedRequest):
            decode_fetch_body(version, memoryview(frame)[:end], start)


@pytest.mark.parametrize("version", [4, 7, 12, 18])
def test_mutated_requests_are_read_or_refused(version: int) -> None:
    chance = random.Random(version)
    frame = frame_of(version)
    start = messages.decode_request_header(frame).size
    refused = 0
    for _ in range(2000):
        mutated = bytearray(frame)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(start, len(frame))] = chance.choice([0, 255, 127, 128, 1])
        try:
            decode_fetch_body(version, memoryview(mutated), start)
        except MalformedRequest:
            refused += 1
    assert refused > 100


def test_tagged_fields_of_newer_readers_are_skipped() -> None:
    """KIP-1166's among them: in version 18 a follower may say which high watermark it knows."""
    codec = messages.api(ApiKey.FETCH, 18)
    part = codec.make_request(
        "FetchPartition", partition=1, fetch_offset=44, replica_directory_id=UUID(int=5), high_watermark=40
    )
    topic = codec.make_request("FetchTopic", topic_id=TOPIC_ID, partitions=(part,))
    frame = messages.encode_request(1, None, codec.request(topics=(topic,)))[4:]
    body = decoded(18, frame)
    assert [wanted.fetch_offset for wanted in body.topics[0].partitions] == [44]
    assert (body.replica_id, body.replica_epoch) == (-1, -1)


def test_a_count_that_cannot_be_is_refused_at_once() -> None:
    frame = bytearray(frame_of(4))
    start = messages.decode_request_header(bytes(frame)).size
    frame[start + 17 : start + 21] = (0x7FFF_FFFF).to_bytes(4, "big")
    with pytest.raises(MalformedRequest, match="array of"):
        decode_fetch_body(4, memoryview(frame), start)
