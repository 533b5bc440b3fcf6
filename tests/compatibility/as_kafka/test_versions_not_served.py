"""Versions and APIs that are not served: the right error where there is a form for it, else the end."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.served_apis import APIS
from support.brokers.two_brokers import Side, batch
from support.wire.wire_peer import WirePeer, make

UNSUPPORTED = int(ErrorCode.unsupported_version)
CORRELATION_ID = 77


def frame(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">hhih", key, version, CORRELATION_ID, 4) + b"test" + body


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def in_topics(partition: bytes, *names: str) -> bytes:
    """Each topic with one partition."""
    count = struct.pack(">i", 1)
    return struct.pack(">i", len(names)) + b"".join(string(name) + count + partition for name in names)


def answer(nilometer: Side, request: bytes) -> bytes:
    """What follows the correlation id."""
    with WirePeer(nilometer.bootstrap) as peer:
        peer.tell_bytes(request)
        told = peer.receive()
        assert told[:4] == struct.pack(">i", CORRELATION_ID)
        question = frame(ApiKey.API_VERSIONS, 0, b"")
        peer.tell_bytes(question)
        assert peer.receive()[4:6] == b"\0\0", "the connection stays open"
    return told[4:]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce(nilometer: Side, version: int) -> None:
    """With whatever was in it: topics and partitions are named in the refusal."""
    records = batch(b"x")
    sent = struct.pack(">ii", 3, len(records)) + records
    told = answer(
        nilometer, frame(ApiKey.PRODUCE, version, struct.pack(">hi", -1, 1000) + in_topics(sent, "a", "b"))
    )
    refused = struct.pack(">ihq", 3, UNSUPPORTED, -1) + (b"\xff" * 8 if version == 2 else b"")
    assert told == in_topics(refused, "a", "b") + (bytes(4) if version else b"")


def test_old_produce_that_wants_no_answer(nilometer: Side) -> None:
    with WirePeer(nilometer.bootstrap) as peer:
        peer.tell_bytes(frame(ApiKey.PRODUCE, 1, struct.pack(">hi", 0, 1000) + struct.pack(">i", 0)))
        assert peer.is_ended()


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_fetch(nilometer: Side, version: int) -> None:
    limits = struct.pack(">iii", -1, 1000, 1) + (struct.pack(">i", 1000) if version == 3 else b"")
    asked = struct.pack(">iqi", 5, 0, 1000)
    told = answer(nilometer, frame(ApiKey.FETCH, version, limits + in_topics(asked, "a", "b")))
    refused = struct.pack(">ihqi", 5, UNSUPPORTED, -1, 0)
    assert told == (bytes(4) if version else b"") + in_topics(refused, "a", "b")


def test_old_list_offsets(nilometer: Side) -> None:
    body = struct.pack(">i", -1) + in_topics(struct.pack(">iqi", 2, -1, 1), "a")
    told = answer(nilometer, frame(ApiKey.LIST_OFFSETS, 0, body))
    assert told == in_topics(struct.pack(">ihi", 2, UNSUPPORTED, 0), "a")


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("cut", [0, 5, 9, 20])
def test_an_old_produce_that_is_cut_short_ends_the_connection(
    nilometer: Side, version: int, cut: int
) -> None:
    body = struct.pack(">hi", -1, 1000) + in_topics(struct.pack(">ii", 0, 100) + b"x" * 10, "a")
    with WirePeer(nilometer.bootstrap) as peer:
        peer.tell_bytes(frame(ApiKey.PRODUCE, version, body[:cut]))
        assert peer.is_ended()


@pytest.mark.parametrize(
    "beyond", [lambda low, high: high + 1, lambda low, high: 32767, lambda low, high: -1]
)
@pytest.mark.parametrize("key", [key for key in APIS if key != ApiKey.API_VERSIONS])
def test_a_version_without_a_form_ends_the_connection(
    nilometer: Side, key: int, beyond: Callable[[int, int], int]
) -> None:
    version = beyond(*APIS[key].versions)
    with WirePeer(nilometer.bootstrap) as peer:
        peer.tell_bytes(struct.pack(">hhih", key, version, 1, -1))
        assert peer.is_ended()


@pytest.mark.parametrize("key", [-1, 999, 32767, int(ApiKey.FETCH_SNAPSHOT), int(ApiKey.VOTE)])
def test_an_unknown_api_ends_the_connection(nilometer: Side, key: int) -> None:
    with WirePeer(nilometer.bootstrap) as peer:
        peer.tell_bytes(struct.pack(">hhih", key, 0, 1, -1))
        assert peer.is_ended()


def test_produce_0_is_advertised_and_nothing_else_that_is_refused(nilometer: Side) -> None:
    """librdkafka before 2.11 sends gzip and snappy uncompressed without it (KAFKA-18659)."""
    told = nilometer.ask(ApiKey.API_VERSIONS, 0)
    ranges = {one["api_key"]: (one["min_version"], one["max_version"]) for one in told["api_keys"]}
    assert ranges.pop(ApiKey.PRODUCE) == (0, APIS[ApiKey.PRODUCE].versions[1])
    to_clients = {key: spec for key, spec in APIS.items() if not spec.between_brokers and not spec.hidden}
    assert ranges == {key: spec.versions for key, spec in to_clients.items() if key != ApiKey.PRODUCE}


def test_what_brokers_say_of_themselves_is_not_taken_from_clients(nilometer: Side) -> None:
    refused = ErrorCode.cluster_authorization_failed.name
    beat = nilometer.ask(
        ApiKey.BROKER_HEARTBEAT,
        0,
        broker_id=1,
        broker_epoch=1,
        current_metadata_offset=0,
        want_shut_down=True,
    )
    assert beat["error_code"] == refused
    shrunk = nilometer.ask(ApiKey.ALTER_PARTITION, 3, broker_id=1, broker_epoch=1, topics=())
    assert shrunk["error_code"] == refused
    ids = nilometer.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=1)
    assert ids["error_code"] == refused
    gone = nilometer.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=1)
    assert gone["error_code"] == ErrorCode.invalid_request.name
    unknown = nilometer.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=9)
    assert unknown["error_code"] == ErrorCode.broker_id_not_registered.name
    assert nilometer.leaders(nilometer.create("still-led")) == [1]


@pytest.mark.parametrize("version", range(APIS[ApiKey.FIND_COORDINATOR].versions[1] + 1))
def test_find_coordinator_answers_every_key(nilometer: Side, version: int) -> None:
    """Whether or not there is one, in the form of the version, and with no address that leads nowhere."""
    if version < 4:
        told = [nilometer.ask(ApiKey.FIND_COORDINATOR, version, key="group", key_type=0)]
    else:
        answered = nilometer.ask(
            ApiKey.FIND_COORDINATOR, version, key_type=0, coordinator_keys=("group", "other")
        )
        told = answered["coordinators"]
        assert sorted(one["key"] for one in told) == ["group", "other"]
    for one in told:
        assert (one["error_code"], one["node_id"]) in (("none", 1), ("coordinator_not_available", -1))


def test_an_empty_transactional_id_is_refused(nilometer: Side) -> None:
    told = nilometer.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id="", transaction_timeout_ms=1000)
    assert told["error_code"] == ErrorCode.invalid_request.name


def test_an_answer_names_what_was_asked_for(nilometer: Side) -> None:
    """Correlation ids come back as they were, whatever they are."""
    with WirePeer(nilometer.bootstrap) as peer:
        for correlation_id in (0, 1, -1, 2**31 - 1, -(2**31)):
            peer.tell_bytes(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, correlation_id, -1))
            assert peer.receive()[:4] == struct.pack(">i", correlation_id)


def test_many_requests_at_once_are_answered_in_order(nilometer: Side) -> None:
    name = nilometer.create("pipelined")
    with WirePeer(nilometer.bootstrap) as peer:
        topic = make(ApiKey.METADATA, 9, "MetadataRequestTopic", name=name)
        for number in range(300):
            if number % 3:
                peer.tell(ApiKey.METADATA, 9, topics=(topic,))
            else:
                peer.tell(ApiKey.LIST_OFFSETS, 1, replica_id=-1, topics=())
        order = [struct.unpack(">i", peer.receive()[:4])[0] for _ in range(300)]
    assert order == list(range(1, 301))
