"""Nilometer's own APIs go through the same door as Kafka's, and survive the same bytes."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec import structs

from nilometer.wire.api_keys import ApiKey, NilometerApiKey, any_api_key
from nilometer.wire.errors import MalformedRequest, MalformedResponse, UnsupportedVersion
from nilometer.wire.messages import (
    api,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    supported_versions,
)
from nilometer.wire.own_apis import (
    SLICE_ELEMENTS,
    BrokerState,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaState,
)

KEY = NilometerApiKey.DESCRIBE_REPLICAS
REQUEST = DescribeReplicasRequest(topics=("events", "水"), partitions=(0, 7))
RESPONSE = DescribeReplicasResponse(
    cluster_id="c",
    broker=BrokerState(
        broker_id=1,
        broker_epoch=4,
        controller_id=2,
        controller_epoch=3,
        metadata_number=17,
        unclean_elections=0,
    ),
    replicas=(
        ReplicaState(
            topic="events",
            topic_id="id",
            partition=0,
            broker_id=1,
            role="offline",
            leader_id=2,
            leader_epoch=5,
            partition_epoch=6,
            replicas=(1, 2),
            isr=(2,),
            in_sync=False,
            epoch_chain=((0, 0), (5, 100)),
        ),
    ),
)


def request_frame(request: object = REQUEST) -> bytes:
    return encode_request(9, "some-client", request)[4:]


def test_messages_come_back_as_they_went() -> None:
    header, request = decode_request(request_frame())
    assert (header.api_key, header.api_version, header.correlation_id) == (KEY, 0, 9)
    assert header.client_id == "some-client"
    assert request == REQUEST
    frame = encode_response(9, KEY, 0, RESPONSE)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_response(KEY, 0, frame[4:]) == (9, RESPONSE)


def test_fields_that_a_reader_does_not_know_are_passed_over() -> None:
    frame = request_frame().replace(b'{"topics"', b'{"tomorrow":{"deep":[1,{}]},"topics"')
    assert decode_request(frame)[1] == REQUEST


def test_keys_and_versions() -> None:
    assert supported_versions(KEY) == (0, 0)
    assert api(KEY, 0) is api(KEY, 0)
    assert any_api_key(KEY) is KEY
    assert any_api_key(3) is ApiKey.METADATA
    with pytest.raises(UnsupportedVersion):
        api(KEY, 1)
    with pytest.raises(ValueError):
        any_api_key(max(NilometerApiKey) + 1)
    assert not {int(key) for key in NilometerApiKey} & {int(key) for key in ApiKey}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}trailing",
        b'{"topics":"events"}',
        b'{"topics":[1]}',
        b'{"partitions":[0.5]}',
        b'{"partitions":[' + b"9" * 4000 + b"]}",
        b'{"unknown":' + b"[" * 100_000,
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
    ids=range(12),
)
def test_what_is_no_such_document_is_malformed(body: bytes) -> None:
    whole = request_frame()
    header = whole[: decode_request(whole)[0].size]
    with pytest.raises(MalformedRequest):
        decode_request(header + body)
    with pytest.raises(MalformedResponse):
        decode_response(KEY, 0, bytes(4) + body)


def test_damaged_messages_end_in_a_value_or_a_refusal() -> None:
    chance = random.Random(20)
    answer = encode_response(9, KEY, 0, RESPONSE)[4:]
    decoded = refused = 0
    for _ in range(4000):
        for whole, read in ((request_frame(), decode_request), (answer, _read_response)):
            frame = bytearray(whole)
            for _ in range(chance.choice((1, 2, 8))):
                at = chance.randrange(len(frame))
                frame[at : at + chance.choice((0, 1, 3))] = chance.randbytes(chance.choice((0, 1, 2)))
            try:
                _, message = read(bytes(frame[: chance.choice((len(frame), len(frame), 30))]))
                if isinstance(message, DescribeReplicasRequest | DescribeReplicasResponse):
                    msgspec.json.encode(message)
                    decoded += 1
            except (MalformedRequest, MalformedResponse, UnsupportedVersion):
                refused += 1
    assert decoded > 500
    assert refused > 2000


def _read_response(frame: bytes) -> tuple[int, object]:
    return decode_response(KEY, 0, frame)


@pytest.mark.parametrize("count", [0, 1, SLICE_ELEMENTS, SLICE_ELEMENTS + 1, 5 * SLICE_ELEMENTS])
def test_a_long_response_is_encoded_in_slices(count: int) -> None:
    replicas = tuple(structs.replace(RESPONSE.replicas[0], partition=index) for index in range(count))
    response = structs.replace(RESPONSE, replicas=replicas)
    slices = list(api(KEY, 0).response_slices(response))
    assert b"".join(slices) == api(KEY, 0).write_response(response)
    assert all(piece.count(b'"topic_id"') <= SLICE_ELEMENTS for piece in slices)
