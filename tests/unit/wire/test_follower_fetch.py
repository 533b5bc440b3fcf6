"""What a follower writes and reads by hand is what the general writer and reader have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from nilometer.wire import fetch, messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.body_reader import BodyReader, end
from nilometer.wire.errors import ErrorCode, MalformedMessage, MalformedResponse
from nilometer.wire.fetch import (
    FOLLOWER_VERSION_MAX,
    FOLLOWER_VERSION_MIN,
    AbortedTransaction,
    EpochEndOffset,
    FetchBody,
    FetchedPartition,
    FetchedTopic,
    LeaderAnswer,
    decode_fetch_body,
    decode_leader_answer,
    encode_fetch_response,
    encode_follower_fetch,
    encode_wanted,
)
from nilometer.wire.primitives import LeaderIdAndEpoch, NodeEndpoint

VERSIONS = range(FOLLOWER_VERSION_MIN, FOLLOWER_VERSION_MAX + 1)
FIRST, SECOND = UUID(int=7), UUID(int=1 << 100)
AFTER_CORRELATION_ID = 4
ENDPOINTS = (NodeEndpoint(2, "localhost", 9092),)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_what_the_general_writer_makes(version: int) -> None:
    codec = messages.api(ApiKey.FETCH, version)

    def partition(index: int) -> Any:
        return codec.make_request(
            "FetchPartition",
            partition=index,
            current_leader_epoch=5,
            fetch_offset=1 << 40,
            last_fetched_epoch=-1,
            log_start_offset=3,
            partition_max_bytes=1 << 20,
        )

    expected = codec.request(
        replica_state=codec.make_request("ReplicaState", replica_id=300, replica_epoch=1 << 33),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        isolation_level=0,
        session_id=77,
        session_epoch=3,
        topics=(
            codec.make_request("FetchTopic", topic_id=FIRST, partitions=(partition(0), partition(200))),
            codec.make_request("FetchTopic", topic_id=SECOND, partitions=(partition(1),)),
        ),
        forgotten_topics_data=(codec.make_request("ForgottenTopic", topic_id=SECOND, partitions=(4, 5)),),
    )
    wanted = {
        FIRST.bytes: [encode_wanted(index, 5, 1 << 40, -1, 3, 1 << 20) for index in (0, 200)],
        SECOND.bytes: [encode_wanted(1, 5, 1 << 40, -1, 3, 1 << 20)],
    }
    body = encode_follower_fetch(300, 1 << 33, (500, 1, 1 << 24), (77, 3), wanted, {SECOND.bytes: [4, 5]})
    assert body == codec.write_request(expected)


def answer_of(version: int) -> bytes:
    topics = [
        FetchedTopic(
            FIRST,
            [
                FetchedPartition(0, 0, 10, 9, 1, (b"a" * 5000,)),
                FetchedPartition(1, 0, 11, 9, 1, (), (AbortedTransaction(5, 6), AbortedTransaction(7, 8))),
                FetchedPartition(2, 0, 12, 9, 1, diverging_epoch=EpochEndOffset(3, 44)),
            ],
        ),
        FetchedTopic(SECOND, [FetchedPartition(0, 6, current_leader=LeaderIdAndEpoch(2, 9))]),
    ]
    return b"".join(encode_fetch_response(version, -5, 11, 0, 77, topics, ENDPOINTS))[4:]


def decoded(frame: bytes) -> LeaderAnswer:
    return decode_leader_answer(memoryview(frame), AFTER_CORRELATION_ID)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_read_as_the_general_reader_reads_it(version: int) -> None:
    frame = answer_of(version)
    _, general = messages.decode_response(ApiKey.FETCH, version, frame)
    answer = decoded(frame)
    assert (answer.error, answer.session_id) == (general.error_code, general.session_id)
    assert [(*found[:5], found.records, found.diverging) for found in answer.partitions] == [
        (
            topic.topic_id.bytes,
            part.partition_index,
            part.error_code,
            part.high_watermark,
            part.log_start_offset,
            part.records or b"",
            (part.diverging_epoch.epoch, part.diverging_epoch.end_offset),
        )
        for topic in general.responses
        for part in topic.partitions
    ]
    assert answer.partitions[2].diverging == (3, 44)
    assert answer.partitions[3].error is ErrorCode.not_leader_or_follower


def test_an_error_for_the_whole_fetch() -> None:
    frame = b"".join(encode_fetch_response(17, 1, 0, ErrorCode.fetch_session_id_not_found, 0, ()))[4:]
    assert decoded(frame) == LeaderAnswer(ErrorCode.fetch_session_id_not_found, 0, [])


def test_records_outlive_the_frame() -> None:
    frame = bytearray(answer_of(17))
    answer = decode_leader_answer(memoryview(frame), AFTER_CORRELATION_ID)
    frame[:] = bytes(len(frame))
    assert answer.partitions[0].records == b"a" * 5000


def test_an_answer_cut_short_anywhere_is_refused() -> None:
    frame = answer_of(17)
    for size in [*range(AFTER_CORRELATION_ID, 100), *range(len(frame) - 200, len(frame))]:
        with pytest.raises(MalformedResponse):
            decoded(frame[:size])


def test_mutated_answers_are_read_or_refused() -> None:
    chance = random.Random(17)
    frame = b"".join(
        encode_fetch_response(
            17, 1, 0, 0, 77, [FetchedTopic(FIRST, [FetchedPartition(0, 0, 10, 9, 1, (b"a" * 70,))])]
        )
    )[4:]
    refused = 0
    for _ in range(2000):
        mutated = bytearray(frame)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(AFTER_CORRELATION_ID, len(frame))] = chance.choice([0, 255, 127, 128, 1])
        try:
            decoded(bytes(mutated))
        except MalformedResponse:
            refused += 1
    assert refused > 100


def usual_request() -> bytes:
    """As a follower sends it after each append, behind a flexible header's tags."""
    wanted = {FIRST.bytes: [encode_wanted(2, 5, 1 << 40, 4, 3, 1 << 20)]}
    return b"\x00" + encode_follower_fetch(300, 1 << 33, (500, 1, 1 << 24), (77, 3), wanted, {})


def usual_answer(size: int) -> bytes:
    partition = FetchedPartition(2, 0, 10, 9, 1, (b"a" * size,) if size else ())
    return b"".join(encode_fetch_response(17, 1, 0, 0, 77, [FetchedTopic(FIRST, [partition])]))[4:]


def mutations(frame: bytes, start: int, chance: random.Random) -> Iterator[bytes]:
    yield frame
    for _ in range(3000):
        mutated = bytearray(frame)
        for _ in range(chance.randint(1, 3)):
            mutated[chance.randrange(start, len(frame))] = chance.choice([0, 255, 127, 128, 1, 2, 3])
        yield bytes(mutated)


def usual_request_of_client() -> bytes:
    """The same of a client: no tagged field says which replica it is."""
    return usual_request()[:-16] + b"\x00"


@pytest.mark.parametrize(
    ("request_of", "read"),
    [(usual_request, fetch._usual_body), (usual_request_of_client, fetch._usual_body_of_client)],
)
def test_the_usual_request_is_read_at_once_as_it_is_read_field_by_field(
    request_of: Callable[[], bytes], read: Callable[[memoryview, int], FetchBody | None]
) -> None:
    chance = random.Random(5)
    at_once = 0
    for frame in mutations(request_of(), 0, chance):
        found = read(memoryview(frame), 0)
        if found is not None:
            at_once += 1
            reader = BodyReader(memoryview(frame), 0, flexible=True)
            assert found == end(fetch._body(reader, 18)), frame.hex()
            assert found == decode_fetch_body(18, memoryview(frame), 0)
    assert at_once > 1000
    usual = decode_fetch_body(18, memoryview(usual_request()), 0)
    assert usual == FetchBody(
        300, 1 << 33, 500, 1, 1 << 24, 0, 77, 3, [(FIRST.bytes, [(2, 5, 1 << 40, 4, 3, 1 << 20)])], [], ""
    )
    of_client = decode_fetch_body(15, memoryview(usual_request_of_client()), 0)
    assert of_client == usual._replace(replica_id=-1, replica_epoch=-1)


@pytest.mark.parametrize("size", [0, 70, 200, 5000])
def test_the_usual_answer_is_read_at_once_as_it_is_read_field_by_field(size: int) -> None:
    chance = random.Random(size)
    at_once = 0
    for frame in mutations(usual_answer(size), AFTER_CORRELATION_ID, chance):
        try:
            found = fetch._usual_answer(memoryview(frame), AFTER_CORRELATION_ID)
        except (ValueError, MalformedMessage):
            continue
        if found is not None:
            at_once += 1
            reader = BodyReader(memoryview(frame), AFTER_CORRELATION_ID, flexible=True)
            assert found == fetch._answer(reader), frame.hex()
    assert at_once > 300
    usual = decoded(usual_answer(size)).partitions
    assert [(one.partition, one.high_watermark, one.records) for one in usual] == [(2, 10, b"a" * size)]
