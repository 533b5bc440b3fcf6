"""Produce requests read by hand say what the general reader says, copy nothing, and refuse what lies."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from nilometer.wire import messages, produce
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.body_reader import BodyReader, end
from nilometer.wire.errors import MalformedRequest
from nilometer.wire.primitives import TAGS_MAX, encode_unsigned
from nilometer.wire.produce import (
    VERSION_MAX,
    VERSION_MIN,
    ProduceBody,
)
from support.wire.produce_requests import decode_produce_body, encode_produce_request

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
TOPIC_ID = UUID(int=7)


def frame_of(version: int, transactional_id: str | None = None) -> bytes:
    topic = TOPIC_ID if version >= 13 else "clicks"
    buffers = encode_produce_request(
        version,
        5,
        "me",
        [(topic, [(0, b"a" * 70), (3, b"b" * 5000)]), (topic, [(9, b"c")])],
        acks=-1,
        timeout_ms=1500,
        transactional_id=transactional_id,
    )
    return b"".join(bytes(buffer) for buffer in buffers)[4:]


def decoded(version: int, frame: bytes):
    header = messages.decode_request_header(frame)
    return decode_produce_body(version, memoryview(frame), header.size)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "", "mover-1"])
def test_it_agrees_with_the_general_reader(version, transactional_id):
    frame = frame_of(version, transactional_id)
    body = decoded(version, frame)
    _, general = messages.decode_request(frame)
    assert body.transactional_id == general.transactional_id == transactional_id
    assert (
        (body.acks, body.timeout_ms) == (general.acks, messages.milliseconds(general.timeout)) == (-1, 1500)
    )
    assert [
        (topic.topic, [(part.partition, bytes(part.records)) for part in topic.partitions])
        for topic in body.topics
    ] == [
        (
            topic.topic_id if version >= 13 else topic.name,
            [(part.index, part.records) for part in topic.partition_data],
        )
        for topic in general.topic_data
    ]


def test_records_are_views_on_the_frame():
    frame = frame_of(9)
    assert decoded(9, frame).topics[0].partitions[1].records.obj is frame


@pytest.mark.parametrize("version", VERSIONS)
def test_null_records_are_told_apart_from_none(version):
    codec = messages.api(ApiKey.PRODUCE, version)
    part = codec.make_request("PartitionProduceData", index=0, records=None)
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "t"}
    topic = codec.make_request("TopicProduceData", **name, partition_data=(part,))
    request = codec.request(transactional_id=None, acks=1, timeout_ms=0, topic_data=(topic,))
    frame = messages.encode_request(1, None, request)[4:]
    assert decoded(version, frame).topics[0].partitions[0].records is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_short_anywhere_is_refused(version):
    frame = frame_of(version, "mover-1")
    start = messages.decode_request_header(frame).size
    for size in range(start, len(frame)):
        with pytest.raises(MalformedRequest):
            decode_produce_body(version, memoryview(frame)[:size], start)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_mutated_requests_are_read_or_refused(version):
    chance = random.Random(version)
    frame = frame_of(version, "mover-1")
    start = messages.decode_request_header(frame).size
    refused = 0
    for _ in range(3000):
        mutated = bytearray(frame)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(start, min(len(frame), start + 60))] = chance.choice(
                [0, 255, 127, 128, 1]
            )
        try:
            decode_produce_body(version, memoryview(mutated), start)
        except MalformedRequest:
            refused += 1
    assert refused > 100


def test_tagged_fields_of_newer_clients_are_skipped():
    frame = bytearray(frame_of(9))
    start = messages.decode_request_header(bytes(frame)).size
    assert frame[start] == 0
    frame[start : start + 1] = b"\x01\x07\x03xyz"  # one field, number 7, three bytes
    assert decode_produce_body(9, memoryview(frame), start).acks == -1


@pytest.mark.parametrize("place", ["request", "header"])
def test_too_many_tagged_fields_are_refused_at_once(place):
    frame = bytearray(frame_of(9))
    start = messages.decode_request_header(bytes(frame)).size
    at = start if place == "header" else len(frame) - 1
    assert frame[at] == 0
    for count in (TAGS_MAX, TAGS_MAX + 1):
        tags = b"".join(bytes((0x20 + number, 0)) for number in range(count))
        tagged = memoryview(frame[:at] + encode_unsigned(count) + tags + frame[at + 1 :])
        if count == TAGS_MAX:
            assert decode_produce_body(9, tagged, start).acks == -1
        else:
            with pytest.raises(MalformedRequest, match="33 tagged fields in one place"):
                decode_produce_body(9, tagged, start)


def test_a_tagged_field_that_is_repeated_is_refused():
    frame = frame_of(9)
    start = messages.decode_request_header(frame).size
    with pytest.raises(MalformedRequest, match="tagged field 32 after 32"):
        decode_produce_body(9, memoryview(frame[:-1] + b"\x02\x20\x00\x20\x00"), start)


def test_a_count_that_cannot_be_is_refused_at_once():
    frame = bytearray(frame_of(3))
    start = messages.decode_request_header(bytes(frame)).size
    frame[start + 8 : start + 12] = (0x7FFF_FFFF).to_bytes(4, "big")
    with pytest.raises(MalformedRequest, match="array of"):
        decode_produce_body(3, memoryview(frame), start)


USUAL = {
    3: produce._usual_legacy,
    8: produce._usual_legacy,
    9: produce._usual_named,
    13: produce._usual_by_id,
}


def fields(body: ProduceBody) -> Any:
    topics = [
        (each.topic, [(part.partition, part.records) for part in each.partitions]) for each in body.topics
    ]
    return body.transactional_id, body.acks, body.timeout_ms, topics


@pytest.mark.parametrize("version", USUAL)
@pytest.mark.parametrize("size", [1, 70, 200, 20_000])
def test_the_usual_request_is_read_at_once_as_it_is_read_field_by_field(version: int, size: int) -> None:
    topic = TOPIC_ID if version >= 13 else "clicks"
    buffers = encode_produce_request(
        version, 5, None, [(topic, [(3, b"a" * size)])], acks=-1, timeout_ms=1500
    )
    frame = b"".join(bytes(buffer) for buffer in buffers)[4:]
    start = messages.decode_request_header(frame).size
    chance, at_once = random.Random(size), 0
    for attempt in range(3000):
        mutated = bytearray(frame)
        for _ in range(chance.randint(1, 3) if attempt else 0):
            place = chance.choice([chance.randrange(start, start + 40), -chance.randint(1, 4)])
            mutated[place if place < len(frame) else -1] = chance.choice([0, 255, 127, 128, 1, 2, 3, 7])
        view = memoryview(bytes(mutated))
        try:
            found = USUAL[version](view, start)
        except (MalformedRequest, UnicodeDecodeError, IndexError):
            with pytest.raises(MalformedRequest):
                decode_produce_body(version, view, start)
            continue
        if found is not None:
            at_once += 1
            reader = BodyReader(view, start, flexible=version >= 9)
            assert fields(found) == fields(end(produce._body(reader, by_id=version >= 13)))
            assert reader.position == len(view)
    assert at_once > 100
    usual = decoded(version, frame)
    assert fields(usual) == (None, -1, 1500, [(topic, [(3, b"a" * size)])])
    assert USUAL[version](memoryview(frame), start) is not None


@pytest.mark.parametrize("version", USUAL)
def test_a_usual_request_cut_short_anywhere_is_refused(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "clicks"
    buffers = encode_produce_request(version, 5, None, [(topic, [(3, b"abc")])], acks=-1, timeout_ms=1500)
    frame = b"".join(bytes(buffer) for buffer in buffers)[4:]
    start = messages.decode_request_header(frame).size
    for size in range(start, len(frame)):
        with pytest.raises(MalformedRequest):
            decode_produce_body(version, memoryview(frame)[:size], start)


def test_a_topic_without_partitions_is_read() -> None:
    buffers = encode_produce_request(9, 5, None, [("t", [])], acks=1, timeout_ms=5)
    assert fields(decoded(9, b"".join(map(bytes, buffers))[4:]))[3] == [("t", [])]
    buffers = encode_produce_request(9, 5, None, [], acks=1, timeout_ms=5)
    assert fields(decoded(9, b"".join(map(bytes, buffers))[4:]))[3] == []


def test_tagged_fields_after_a_topic_without_partitions_are_skipped() -> None:
    buffers = encode_produce_request(9, 5, None, [("t", [])], acks=1, timeout_ms=5)
    frame = b"".join(map(bytes, buffers))[4:]
    tagged = frame[:-1] + b"\x01\x07\x04\xff\xff\xff\xff"  # one field, number 7, of four bytes
    assert fields(decoded(9, tagged))[3] == [("t", [])]
