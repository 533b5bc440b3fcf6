"""Counts, lengths and unknown tags, looked at before anything is allocated."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from nilometer.wire.building import milliseconds, milliseconds_since_epoch
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.messages import Api, ApiKey, api
from nilometer.wire.primitives import STRING_BYTES_MAX, TAGS_MAX, encode_unsigned
from nilometer.wire.survey import DURATION_MAX_MS, TIME_MAX_MS, survey

UNKNOWN = b"\x63\x03abc"
"""Tag 99 with three bytes."""


def fetch_request() -> tuple[Api, bytes]:
    """With a known tagged field at the top (cluster id, replica state) and two levels of arrays."""
    codec = api(ApiKey.FETCH, 15)
    state = codec.make_request("ReplicaState", replica_id=3, replica_epoch=9)
    partitions = tuple(codec.make_request("FetchPartition", partition=n, fetch_offset=n) for n in range(2))
    topics = (codec.make_request("FetchTopic", partitions=partitions),)
    request = codec.request(max_wait_ms=5, topics=topics, replica_state=state, rack_id="r")
    return codec, codec.write_request(request)


def unknown_tags(tags: Collection[int]) -> bytes:
    """Return a section of fields without bytes."""
    return encode_unsigned(len(tags)) + b"".join(encode_unsigned(tag) + b"\x00" for tag in tags)


def test_unknown_tags_are_cut_at_every_level() -> None:
    """Before the last partition's end, the topic's, the request's, and inside a known tagged entity."""
    codec, plain = fetch_request()
    expected = codec.read_request(plain)
    state = b"\x01\x0d" + b"\x00\x00\x00\x03" + b"\x00\x00\x00\x00\x00\x00\x00\x09" + b"\x00"
    assert plain.endswith(b"\x02r" + b"\x01" + state)
    inside = b"\x01" + bytes([0x0D + 1 + len(UNKNOWN) - 1]) + state[2:-1] + b"\x01" + UNKNOWN
    tail = b"\x02r" + b"\x02" + inside + UNKNOWN
    rest = plain[: -len(b"\x02r" + b"\x01" + state)]
    assert rest.endswith(b"\x00" + b"\x00" + b"\x01")
    tagged = rest[:-3] + b"\x01" + UNKNOWN + b"\x01" + UNKNOWN + b"\x01" + tail
    assert survey(codec.request_type, plain, 0) is None
    assert survey(codec.request_type, tagged, 0) == plain
    assert survey(codec.request_type, b"before" + tagged, 6) == plain
    assert codec.read_request(tagged) == expected
    assert expected.replica_state.replica_epoch == 9


@pytest.mark.parametrize(
    "tags",
    [b"\x01\x63\x7fabc", b"\x05\x63\x00", b"\x01\x63\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f\x63\x00"],
)
def test_tags_that_reach_beyond_the_message(tags: bytes) -> None:
    codec = api(ApiKey.API_VERSIONS, 3)
    plain = codec.write_request(codec.request(client_software_name="n", client_software_version="1"))
    assert plain.endswith(b"\x00")
    with pytest.raises(MalformedMessage):
        survey(codec.request_type, plain[:-1] + tags, 0)


def test_a_place_has_a_bounded_number_of_tags() -> None:
    """Of one request in the smallest form they took a quarter of a second for a megabyte."""
    codec, plain = fetch_request()
    tagged = plain[: -len(b"\x01\x01\x0d") - 13]
    some, more = (tagged + unknown_tags(range(0x20, 0x20 + count)) for count in (TAGS_MAX, TAGS_MAX + 1))
    assert survey(codec.request_type, some, 0) is not None
    with pytest.raises(MalformedMessage, match="33 tagged fields in one place; it may have 32"):
        survey(codec.request_type, more, 0)


@pytest.mark.parametrize("tags", [(0x20, 0x20), (0x21, 0x20), (0, 0)])
def test_tags_must_rise(tags: tuple[int, int]) -> None:
    """As in Kafka's format: a known field could come again and again."""
    codec, plain = fetch_request()
    tagged = plain[: -len(b"\x01\x01\x0d") - 13] + unknown_tags(tags)
    with pytest.raises(MalformedMessage, match=f"tagged field {tags[1]} after {tags[0]}"):
        survey(codec.request_type, tagged, 0)


def test_a_known_tag_must_fill_its_size() -> None:
    codec, plain = fetch_request()
    start = plain[: -len(b"\x01\x0d") - 13]
    for size in (12, 14):
        with pytest.raises(MalformedMessage):
            survey(codec.request_type, start + b"\x01" + bytes([size]) + plain[-13:] + b"\x00" * 4, 0)


def test_every_truncation_of_a_message_is_noticed() -> None:
    codec, plain = fetch_request()
    for length in range(len(plain)):
        with pytest.raises(MalformedMessage):
            survey(codec.request_type, plain[:length], 0)


@pytest.mark.parametrize("zero", [b"\x80\x00", b"\x80\x80\x80\x80\x00"])
def test_an_overlong_zero_is_null_and_does_not_step_back(zero: bytes) -> None:
    codec = api(ApiKey.FIND_COORDINATOR, 3)
    body = zero + b"\x00" + b"\x00"
    assert survey(codec.request_type, body, 0) is None
    with pytest.raises(MalformedMessage):
        survey(codec.request_type, body[:-1], 0)


@pytest.mark.parametrize(
    "count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x01", b"\x7f"]
)
def test_counts_beyond_what_is_left(count: bytes) -> None:
    codec = api(ApiKey.METADATA, 12)
    with pytest.raises(MalformedMessage):
        survey(codec.request_type, count + bytes(20), 0)
    codec = api(ApiKey.DELETE_GROUPS, 2)
    with pytest.raises(MalformedMessage):
        survey(codec.request_type, count + bytes(20), 0)


def test_no_time_is_read_as_the_epoch() -> None:
    """A broker's answer about an id that has not begun a transaction (state Empty)."""
    codec = api(ApiKey.DESCRIBE_TRANSACTIONS, 0)
    empty = bytes.fromhex("00000000 02 0000 05") + b"id-1" + b"\x06Empty" + bytes.fromhex("0000ea60")
    rest = bytes.fromhex("000000000000000 7 0000 01 00 00".replace(" ", ""))
    for sent, read in ((-1, 0), (0, 0), (1_700_000_000_000, 1_700_000_000)):
        response = codec.read_response(empty + sent.to_bytes(8, "big", signed=True) + rest)
        [state] = response.transaction_states
        assert (state.transactional_id, state.producer_id) == ("id-1", 7)
        assert state.transaction_start_time.timestamp() == read


LONGEST, SHORTEST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize("sent", [LONGEST, SHORTEST, DURATION_MAX_MS + 1, -DURATION_MAX_MS - 1, 5, -1])
@pytest.mark.parametrize("version", [1, 2])
def test_a_duration_is_read_as_the_nearest_that_can_be_said(sent: int, version: int) -> None:
    """Java's clients send Long.MAX_VALUE to say: as long as possible."""
    codec = api(ApiKey.RENEW_DELEGATION_TOKEN, version)
    body = codec.write_request(codec.request(hmac=b"hmac", renew_period_ms=77))
    body = body.replace((77).to_bytes(8, "big"), sent.to_bytes(8, "big", signed=True))
    read = codec.read_request(body)
    assert milliseconds(read.renew_period) == max(-DURATION_MAX_MS, min(DURATION_MAX_MS, sent))
    assert read.hmac == b"hmac"
    for length in range(len(body)):
        with pytest.raises(MalformedMessage):
            survey(codec.request_type, body[:length], 0)


@pytest.mark.parametrize("sent", [LONGEST, SHORTEST, TIME_MAX_MS + 1, TIME_MAX_MS, 5])
def test_a_time_is_read_as_the_nearest_that_can_be_said(sent: int) -> None:
    codec = api(ApiKey.RENEW_DELEGATION_TOKEN, 2)
    body = codec.write_response(codec.response(expiry_timestamp_ms=77))
    body = body.replace((77).to_bytes(8, "big"), sent.to_bytes(8, "big", signed=True))
    read = codec.read_response(body)
    assert milliseconds_since_epoch(read.expiry_timestamp) == max(0, min(TIME_MAX_MS, sent))


@pytest.mark.parametrize("excess", [0, 1])
def test_a_compact_string_has_at_most_as_many_bytes_as_a_legacy_one(excess: int) -> None:
    text = "é" * (STRING_BYTES_MAX // 2) + "e" * (1 + excess)
    for codec, request in (
        (api(ApiKey.HEARTBEAT, 4), {"group_id": text, "generation_id": 1, "member_id": "m"}),
        (api(ApiKey.FIND_COORDINATOR, 4), {"key_type": 0, "coordinator_keys": ("short", text)}),
    ):
        encoded = codec.write_request(codec.request(**request))
        if excess:
            with pytest.raises(MalformedMessage):
                codec.read_request(encoded)
        else:
            assert codec.read_request(encoded) == codec.request(**request)
