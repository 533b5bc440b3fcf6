"""Quotas of clients on a running broker: responses say how long to wait; connections are not read meanwhile.

Whether a client has to wait depends on what it sends at once, not on how fast the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from nilometer.cli.main import run
from nilometer.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.quota_requests import alter, throttle_ms
from support.brokers.two_brokers import Side, batch, produce_fields
from support.command_line import Nilometer, Outcome
from support.eventually import eventually
from support.ports import HOST, free_ports
from support.wire.new_topics import new_topic
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

LIMITED_ADDRESS, OTHER_ADDRESS, FEW_CONNECTIONS = "127.0.0.2", "127.0.0.3", "127.0.0.4"
TOPIC = "quotas"
KIB = 1024


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {"max.connections.per.ip.overrides": f"{FEW_CONNECTIONS}:2"}
    with NilometerBroker(tmp_path_factory.mktemp("quotas") / "data", settings) as running:
        side = Side("Nilometer", running.bootstrap)
        side.create(TOPIC)
        side.hang_up()
        yield running


def produce(peer: WirePeer, size: int) -> int:
    """Produce one batch of about ``size`` bytes; return the throttle time (ms)."""
    response = peer.ask(ApiKey.PRODUCE, 9, **produce_fields(9, TOPIC, {0: batch(b"x" * size)}))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.none
    return throttle_ms(response)


def fetch(
    peer: WirePeer, session_id: int = 0, session_epoch: int = -1, topic: str = TOPIC, wait_ms: int = 0
) -> Any:
    key, version = ApiKey.FETCH, 12
    partition = make(key, version, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    wanted = make(key, version, "FetchTopic", topic=topic, partitions=(partition,))
    return peer.ask(
        key,
        version,
        max_wait=timedelta(milliseconds=wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=(wanted,),
    )


def records_in(response: Any) -> int:
    return sum(len(part.records or b"") for topic in response.responses for part in topic.partitions)


def test_a_producer_above_its_rate_waits_and_its_neighbour_does_not(broker: NilometerBroker) -> None:
    alter(broker.bootstrap, {CLIENT_ID: "slow"}, **{PRODUCER_BYTE_RATE: 10 * KIB})
    began = time.monotonic()
    with WirePeer(broker.bootstrap, "slow") as slow, WirePeer(broker.bootstrap, "fast") as fast:
        told_ms = produce(slow, 115 * KIB)  # 11.5 seconds of its rate; ten are counted
        assert told_ms >= 1_400
        assert produce(fast, 115 * KIB) == 0
        assert slow.ask(ApiKey.API_VERSIONS, 3, client_software_name="a", client_software_version="1")
        assert time.monotonic() - began >= told_ms / 1000


def test_a_librdkafka_producer_is_held_to_its_rate(broker: NilometerBroker) -> None:
    """Each of its requests alone is above the rate over all windows, so the second waits for the first."""
    alter(broker.bootstrap, {CLIENT_ID: "librdkafka"}, **{PRODUCER_BYTE_RATE: 10 * KIB})
    told_s: list[float] = []
    failed: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "librdkafka",
            "batch.num.messages": 1,
            "throttle_cb": lambda event: told_s.append(event.throttle_time),
        }
    )
    began = time.monotonic()
    for _ in range(2):
        producer.produce(TOPIC, b"x" * 105 * KIB, on_delivery=delivered)
    assert producer.flush(120) == 0
    took_s = time.monotonic() - began
    eventually(lambda: producer.poll(0.1) == 0 and bool(told_s), "librdkafka reports the throttle time")
    assert not failed
    assert 0.45 <= min(told_s) <= took_s


def test_a_consumer_above_its_rate_gets_no_records_and_loses_none(broker: NilometerBroker) -> None:
    with WirePeer(broker.bootstrap, "writer") as writer:
        produce(writer, 100 * KIB)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(WirePeer(broker.bootstrap, "reader")) for _ in range(3))
        opened = fetch(first, session_epoch=0)
        assert opened.session_id and records_in(opened) >= 100 * KIB and throttle_ms(opened) == 0
        alter(broker.bootstrap, {CLIENT_ID: "reader"}, **{CONSUMER_BYTE_RATE: 5 * KIB})
        above = fetch(first, opened.session_id, 1)
        assert throttle_ms(above) > 0 and records_in(above) == 0
        assert above.session_id == opened.session_id
        new = fetch(second, session_epoch=0)
        assert throttle_ms(new) > 0 and new.session_id == 0 and not new.responses
        alter(broker.bootstrap, {CLIENT_ID: "reader"}, **{CONSUMER_BYTE_RATE: None})
        again = fetch(third, opened.session_id, 2)
        assert throttle_ms(again) == 0 and records_in(again) >= 100 * KIB


def test_the_time_of_any_request_is_limited(broker: NilometerBroker) -> None:
    alter(broker.bootstrap, {CLIENT_ID: "busy"}, **{REQUEST_PERCENTAGE: 1e-6})
    requests: tuple[tuple[ApiKey, int, dict[str, object]], ...] = (
        (ApiKey.METADATA, 12, {"topics": None}),
        (ApiKey.API_VERSIONS, 1, {}),
        (ApiKey.LIST_GROUPS, 4, {"states_filter": ()}),
        (ApiKey.CREATE_TOPICS, 7, {"topics": (), "timeout_ms": 10_000}),
        (ApiKey.OFFSET_DELETE, 0, {"group_id": "none", "topics": ()}),
        (ApiKey.PRODUCE, 9, produce_fields(9, TOPIC, {0: batch(b"x")})),
    )
    for key, version, fields in requests:
        with WirePeer(broker.bootstrap, "busy") as peer:
            assert 0 < throttle_ms(peer.ask(key, version, **fields)) <= 1_000, key
    with WirePeer(broker.bootstrap, "busy") as peer:
        assert 0 < throttle_ms(fetch(peer)) <= 1_000
    with WirePeer(broker.bootstrap, "busy") as peer:
        refused = fetch(peer, session_id=12345, session_epoch=7)
        assert refused.error_code == ErrorCode.fetch_session_id_not_found
        assert 0 < throttle_ms(refused) <= 1_000
    with WirePeer(broker.bootstrap, "idle") as peer:
        assert throttle_ms(peer.ask(ApiKey.METADATA, 12, topics=None)) == 0


def test_a_fetch_that_has_waited_counts(broker: NilometerBroker) -> None:
    side = Side("Nilometer", broker.bootstrap)
    side.create("empty")
    side.hang_up()
    alter(broker.bootstrap, {CLIENT_ID: "waiting"}, **{REQUEST_PERCENTAGE: 1e-6})
    with WirePeer(broker.bootstrap, "waiting") as peer:
        waited = fetch(peer, topic="empty", wait_ms=50)
        assert waited.error_code == ErrorCode.none and records_in(waited) == 0
        assert 0 < throttle_ms(waited) <= 1_000


def creation(name: str, partitions: int, version: int) -> dict[str, object]:
    return {"topics": (new_topic(name, partitions, version=version),), "timeout_ms": 30_000}


def test_topics_above_the_mutation_rate_are_refused(broker: NilometerBroker) -> None:
    alter(broker.bootstrap, {USER: None, CLIENT_ID: "creator"}, **{CONTROLLER_MUTATION_RATE: 0.01})

    def ask(key: ApiKey, version: int, fields: Mapping[str, object]) -> Any:
        with WirePeer(broker.bootstrap, "creator") as peer:
            return peer.ask(key, version, **fields)

    first = ask(ApiKey.CREATE_TOPICS, 7, creation("first", 3, 7))
    assert first.topics[0].error_code == ErrorCode.none and throttle_ms(first) == 0
    second = ask(ApiKey.CREATE_TOPICS, 7, creation("second", 1, 7))
    assert second.topics[0].error_code == ErrorCode.throttling_quota_exceeded
    assert throttle_ms(second) > 100_000
    earlier = ask(ApiKey.CREATE_TOPICS, 5, creation("earlier", 1, 5))
    assert earlier.topics[0].error_code == ErrorCode.none
    assert throttle_ms(earlier) > 200_000
    grown = make(
        ApiKey.CREATE_PARTITIONS, 3, "CreatePartitionsTopic", name="first", count=4, assignments=None
    )
    fields = {"topics": (grown,), "timeout_ms": 30_000, "validate_only": False}
    assert ask(ApiKey.CREATE_PARTITIONS, 3, fields).results[0].error_code == (
        ErrorCode.throttling_quota_exceeded
    )
    gone = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name="first")
    refused = ask(ApiKey.DELETE_TOPICS, 6, {"topics": (gone,), "timeout_ms": 30_000})
    assert refused.responses[0].error_code == ErrorCode.throttling_quota_exceeded
    with WirePeer(broker.bootstrap, "other") as peer:
        other = peer.ask(ApiKey.CREATE_TOPICS, 7, **creation("other", 30, 7))
        assert other.topics[0].error_code == ErrorCode.none and throttle_ms(other) == 0


def test_the_controller_counts_what_any_broker_forwards(tmp_path: Path) -> None:
    with NilometerCluster(tmp_path, 2) as cluster:
        addresses = cluster.bootstrap.split(",")
        alter(addresses[0], {CLIENT_ID: "creator"}, **{CONTROLLER_MUTATION_RATE: 0.01})
        with WirePeer(addresses[0], "creator") as peer:
            first = peer.ask(ApiKey.CREATE_TOPICS, 7, **creation("first", 3, 7))
            assert first.topics[0].error_code == ErrorCode.none
        for address in addresses:
            with WirePeer(address, "creator") as peer:
                refused = peer.ask(ApiKey.CREATE_TOPICS, 7, **creation("second", 1, 7))
            assert refused.topics[0].error_code == ErrorCode.throttling_quota_exceeded, address
            assert throttle_ms(refused) > 100_000, address


def test_topics_that_are_created_automatically_count_on_every_broker(tmp_path: Path) -> None:
    """As in Kafka, where the controller counts them for the client. Metadata does not say so: the topic
    is not there yet."""
    with NilometerCluster(tmp_path, 2) as cluster:
        addresses = cluster.bootstrap.split(",")
        alter(addresses[0], {CLIENT_ID: "creator"}, **{CONTROLLER_MUTATION_RATE: 0.01})

        def errors(client_id: str) -> list[ErrorCode]:
            found: list[ErrorCode] = []
            for number, address in enumerate(addresses):
                with WirePeer(address, client_id) as peer:
                    name = f"{client_id}-{number}"
                    asked = (make(ApiKey.METADATA, 12, "MetadataRequestTopic", topic_id=None, name=name),)
                    fields = {"topics": asked, "allow_auto_topic_creation": True}
                    found += (topic.error_code for topic in peer.ask(ApiKey.METADATA, 12, **fields).topics)
            return found

        with WirePeer(addresses[0], "creator") as peer:
            first = peer.ask(ApiKey.CREATE_TOPICS, 7, **creation("first", 3, 7))
            assert first.topics[0].error_code == ErrorCode.none
        assert errors("creator") == [ErrorCode.unknown_topic_or_partition] * 2
        assert errors("other") == [ErrorCode.none] * 2


def is_served(peer: WirePeer) -> bool:
    try:
        return peer.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none
    except (ConnectionEnded, OSError):
        return False


def may_connect(broker: NilometerBroker, address: str) -> bool:
    with WirePeer(broker.bootstrap, source=address) as peer:
        return is_served(peer)


def test_connections_above_the_rate_of_their_address_are_closed(broker: NilometerBroker) -> None:
    alter(broker.bootstrap, {IP: LIMITED_ADDRESS}, **{CONNECTION_CREATION_RATE: 1})
    with ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(broker.bootstrap, source=LIMITED_ADDRESS)) for _ in range(40)]
        served = [is_served(peer) for peer in peers]
        assert served[0] and not all(served)
    assert may_connect(broker, OTHER_ADDRESS)
    alter(broker.bootstrap, {IP: LIMITED_ADDRESS}, **{CONNECTION_CREATION_RATE: None})
    assert may_connect(broker, LIMITED_ADDRESS)


def test_connections_above_the_rate_of_their_listener_wait_or_are_closed(tmp_path: Path) -> None:
    plain, limited = free_ports(2)
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{plain},LIMITED://{HOST}:{limited}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LIMITED:PLAINTEXT",
        "listener.name.limited.max.connection.creation.rate": "4",
        "quota.window.num": "2",
    }
    with NilometerBroker(tmp_path / "data", settings, plain) as broker, ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(f"{HOST}:{limited}")) for _ in range(80)]
        assert may_connect(broker, HOST), "another listener is not limited"
        assert all(is_served(peer) for peer in peers[:6]), "four at once, the others have waited"
        assert not is_served(peers[-1]), "one that would wait too long is closed"


def test_an_address_has_its_own_number_of_connections(broker: NilometerBroker) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            peer = stack.enter_context(WirePeer(broker.bootstrap, source=FEW_CONNECTIONS))
            assert peer.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none
        assert not may_connect(broker, FEW_CONNECTIONS)
        assert may_connect(broker, OTHER_ADDRESS)
    eventually(lambda: may_connect(broker, FEW_CONNECTIONS), "a place that is given up can be had")


@pytest.fixture
def nilometer(broker: NilometerBroker, capsys: pytest.CaptureFixture[str]) -> Nilometer:
    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(["quota", *arguments, "--bootstrap-server", broker.bootstrap])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command


def test_quotas_are_set_listed_and_removed_by_command(nilometer: Nilometer) -> None:
    values = {"producer_byte_rate": 1048576, "request_percentage": 12.5}
    both = {"entity": {"user": "carol", "client-id": None}, "quotas": values}
    given = ("producer_byte_rate=1048576", "request_percentage=12.5")
    done = nilometer("set", *given, "--user", "carol", "--default-client", "--json")
    assert (done.code, done.document) == (0, {"quotas": [both]})
    assert nilometer("list", "--user", "carol", "--json").document == {"quotas": [both]}
    assert "user carol, client-id <default>" in nilometer("list").out
    assert nilometer("list", "--user", "dave", "--json").document == {"quotas": []}
    gone = nilometer("remove", "request_percentage", "--user", "carol", "--default-client", "--json")
    assert gone.document["quotas"][0]["quotas"] == {"request_percentage": 12.5}
    missing = nilometer("remove", "request_percentage", "--user", "carol", "--default-client")
    assert missing.code == 1 and "has no request_percentage" in missing.err
    assert nilometer("remove", "--user", "carol", "--default-client").code == 0
    assert nilometer("list", "--user", "carol", "--json").document == {"quotas": []}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("set", "producer_byte_rate=1"), "say whose quota"),
        (("set", "speed=1", "--user", "carol"), "'speed' is not a quota"),
        (("set", "producer_byte_rate=fast", "--user", "carol"), "is a number"),
        (("set", "producer_byte_rate", "--user", "carol"), "is a number"),
        (("remove", "--user", "a", "--ip", "127.0.0.1"), "an address has quotas of its own"),
        (("list", "--user", "a", "--default-user"), "not both"),
    ],
)
def test_wrong_usage_is_explained(nilometer: Nilometer, arguments: tuple[str, ...], why: str) -> None:
    outcome = nilometer(*arguments)
    assert outcome.code == 2
    assert why in outcome.err


def test_a_quota_that_the_broker_refuses_is_explained(nilometer: Nilometer) -> None:
    outcome = nilometer("set", "producer_byte_rate=0", "--user", "carol")
    assert outcome.code == 1
    assert "must be greater than 0" in outcome.err
