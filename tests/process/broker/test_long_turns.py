"""Legal requests that cost much: what one client sends holds the event loop for no other client.

The broker measures its turns in processor time, and the limit is far from what its slices need.
"""

from __future__ import annotations

import contextlib
import json
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nilometer.broker.api.large_requests import LARGE_BYTES
from nilometer.cli.main import run
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import REPETITIONS_KEPT
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.turns import TURN_MS_MAX, longest_turns_ms
from support.brokers.two_brokers import batch, produce_fields
from support.eventually import eventually
from support.wire.filled_requests import Case, cases
from support.wire.new_topics import new_topic
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

GROUPS = 100_000
MANY = 50_000
FILLED_BYTES = 400_000
TOPIC = "wide"
PARTITIONS = 300
CONFIGS = ApiKey.DESCRIBE_CONFIGS
WATCHED_PARTITIONS = 200
WATCHING_SESSIONS = 600
WAITING_FETCHES = 1_000
AWAITED_PARTITIONS = 64
NEVER = 2**31 - 1
SEGMENTS = 190
DAY_MS = 24 * 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    folder = tmp_path_factory.mktemp("turns")
    with NilometerBroker(folder / "data", {"metrics.listener": "127.0.0.1:0"}) as broker:
        with WirePeer(broker.bootstrap) as peer:
            created = peer.ask(
                ApiKey.CREATE_TOPICS, 7, topics=(new_topic(TOPIC, PARTITIONS),), timeout_ms=60_000
            )
            assert created.topics[0].error_code == ErrorCode.none
        yield broker
        assert "Traceback" not in broker.output
        assert " ERROR " not in broker.output


def longest_turn_ms(broker: NilometerBroker, api: str) -> float:
    """Return the broker's longest turn for requests of this API; 0 if none took a millisecond."""
    return longest_turns_ms(broker).get(api, 0.0)


def ask(broker: NilometerBroker, key: ApiKey, version: int, **fields: object) -> Any:
    with WirePeer(broker.bootstrap) as peer:
        return peer.ask(key, version, **fields)


def test_a_hundred_thousand_absent_groups_are_described(broker: NilometerBroker) -> None:
    names = tuple(f"g{number}" for number in range(GROUPS))
    response = ask(broker, ApiKey.DESCRIBE_GROUPS, 0, groups=names)
    assert tuple(group.group_id for group in response.groups) == names
    assert {group.error_code for group in response.groups} == {ErrorCode.not_coordinator}
    assert longest_turn_ms(broker, "DescribeGroups") < TURN_MS_MAX


def test_one_broker_that_is_named_two_thousand_times_is_described_twice(broker: NilometerBroker) -> None:
    resource = make(
        CONFIGS, 4, "DescribeConfigsResource", resource_type=4, resource_name="1", configuration_keys=None
    )
    response = ask(broker, CONFIGS, 4, resources=(resource,) * 2_000, include_documentation=True)
    assert len(response.results) == REPETITIONS_KEPT
    for result in response.results:
        assert result.error_code == ErrorCode.none
        assert len(result.configs) > 100
    assert longest_turn_ms(broker, "DescribeConfigs") < TURN_MS_MAX


def test_all_offsets_of_one_group_are_answered_twice(
    broker: NilometerBroker,
) -> None:
    group = make(ApiKey.OFFSET_FETCH, 8, "OffsetFetchRequestGroup", group_id="g", topics=None)
    response = ask(broker, ApiKey.OFFSET_FETCH, 8, groups=(group,) * 100, require_stable=False)
    assert len(response.groups) == REPETITIONS_KEPT


def test_one_partition_that_is_named_often_is_described_twice(broker: NilometerBroker) -> None:
    topic = make(ApiKey.DESCRIBE_PRODUCERS, 0, "TopicRequest", name=TOPIC, partition_indexes=(0,) * 50 + (1,))
    response = ask(broker, ApiKey.DESCRIBE_PRODUCERS, 0, topics=(topic,))
    assert [one.partition_index for one in response.topics[0].partitions] == [0, 0, 1]


@pytest.fixture(scope="module")
def produced(broker: NilometerBroker) -> Any:
    """A record in each partition; the response to its Produce."""
    fields = produce_fields(9, TOPIC, {index: batch(b"one") for index in range(PARTITIONS)})
    return ask(broker, ApiKey.PRODUCE, 9, **fields)


def test_a_produce_to_many_partitions_is_appended_part_by_part(produced: Any) -> None:
    (answered,) = produced.responses
    assert [one.index for one in answered.partition_responses] == list(range(PARTITIONS))
    assert {(one.error_code, one.base_offset) for one in answered.partition_responses} == {
        (ErrorCode.none, 0)
    }


@pytest.mark.usefixtures("produced")
def test_batches_that_begin_a_segment_each_are_appended_in_turns(broker: NilometerBroker) -> None:
    """In a request that is too small to be divided. Each is of a week after the last one."""
    records = dict.fromkeys(range(SEGMENTS), batch(b"later", timestamp=8 * DAY_MS))
    (answered,) = ask(broker, ApiKey.PRODUCE, 9, **produce_fields(9, TOPIC, records)).responses
    assert {(one.error_code, one.base_offset) for one in answered.partition_responses} == {
        (ErrorCode.none, 1)
    }
    assert longest_turn_ms(broker, "Produce") < TURN_MS_MAX


def test_a_produce_to_many_absent_partitions_holds_the_loop_for_no_one(broker: NilometerBroker) -> None:
    fields = produce_fields(9, "absent", dict.fromkeys(range(MANY), b""))
    (answered,) = ask(broker, ApiKey.PRODUCE, 9, **fields).responses
    assert [one.index for one in answered.partition_responses] == list(range(MANY))
    assert {one.error_code for one in answered.partition_responses} == {ErrorCode.unknown_topic_or_partition}
    assert longest_turn_ms(broker, "Produce") < TURN_MS_MAX


def test_a_name_of_megabytes_ends_its_connection(broker: NilometerBroker) -> None:
    name = "n" * 20_000_000
    for key, version, fields in (
        (ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": (name,)}),
        (ApiKey.HEARTBEAT, 4, {"group_id": name, "generation_id": 1, "member_id": "m"}),
        (ApiKey.PRODUCE, 9, produce_fields(9, name, {0: b""})),
    ):
        with pytest.raises(ConnectionEnded):
            ask(broker, key, version, **fields)
    assert longest_turn_ms(broker, "FindCoordinator") < TURN_MS_MAX
    assert longest_turn_ms(broker, "Heartbeat") < TURN_MS_MAX


def fetch_fields(topic: str, partitions: int, session_epoch: int = -1) -> dict[str, object]:
    def wanted(index: int) -> object:
        return make(
            ApiKey.FETCH,
            12,
            "FetchPartition",
            partition=index,
            current_leader_epoch=-1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1000,
        )

    topics = (
        make(ApiKey.FETCH, 12, "FetchTopic", topic=topic, partitions=tuple(map(wanted, range(partitions)))),
    )
    return {
        "max_wait_ms": 60_000,
        "min_bytes": 1_000_000_000,
        "session_epoch": session_epoch,
        "topics": topics,
    }


@pytest.mark.usefixtures("produced")
def test_a_fetch_of_many_partitions_has_the_records_of_all(broker: NilometerBroker) -> None:
    response = ask(broker, ApiKey.FETCH, 12, **fetch_fields(TOPIC, PARTITIONS))
    (answered,) = response.responses
    assert [one.partition_index for one in answered.partitions] == list(range(PARTITIONS))
    assert all(one.records for one in answered.partitions)


@pytest.mark.usefixtures("produced")
def test_a_session_of_many_partitions_is_read_in_slices(broker: NilometerBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        whole = peer.ask(ApiKey.FETCH, 12, **fetch_fields(TOPIC, PARTITIONS, session_epoch=0))
        assert whole.session_id > 0
        fields = fetch_fields(TOPIC, 0, session_epoch=1) | {"topics": (), "session_id": whole.session_id}
        more = peer.ask(ApiKey.FETCH, 12, **fields)
        assert more.error_code == ErrorCode.none
        (answered,) = more.responses
        assert {one.partition_index for one in answered.partitions} == set(range(PARTITIONS))


def test_an_append_does_not_pay_for_the_sessions_of_others(tmp_path: Path) -> None:
    """600 sessions wait for more bytes of 200 partitions than there will ever be, while records are appended
    to all of these."""
    settings = {"metrics.listener": "127.0.0.1:0"}
    with NilometerBroker(tmp_path / "data", settings) as broker, ExitStack() as stack:
        peer = stack.enter_context(WirePeer(broker.bootstrap))
        topic = new_topic(TOPIC, WATCHED_PARTITIONS)
        peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=10_000)
        opens = fetch_fields(TOPIC, WATCHED_PARTITIONS, session_epoch=0) | {"max_wait_ms": 0}
        waits = fetch_fields(TOPIC, 0, session_epoch=1) | {"topics": (), "max_wait_ms": NEVER}
        for _ in range(WATCHING_SESSIONS):
            reader = stack.enter_context(WirePeer(broker.bootstrap))
            session_id = reader.ask(ApiKey.FETCH, 12, **opens).session_id
            assert session_id > 0
            reader.tell(ApiKey.FETCH, 12, **waits, session_id=session_id)
        records = dict.fromkeys(range(WATCHED_PARTITIONS), batch(b"v"))
        for _ in range(5):
            (answered,) = peer.ask(ApiKey.PRODUCE, 9, **produce_fields(9, TOPIC, records)).responses
            assert {one.error_code for one in answered.partition_responses} == {ErrorCode.none}
        assert longest_turn_ms(broker, "Produce") < TURN_MS_MAX


def test_fetches_whose_waits_end_at_the_same_moment_are_answered_in_turns(tmp_path: Path) -> None:
    """A neighbour is served while 1,000 of them are answered."""
    with NilometerBroker(tmp_path / "data") as broker, ExitStack() as stack:
        neighbour = stack.enter_context(WirePeer(broker.bootstrap))
        topic = new_topic(TOPIC, AWAITED_PARTITIONS)
        neighbour.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=10_000)
        readers = [stack.enter_context(WirePeer(broker.bootstrap)) for _ in range(WAITING_FETCHES)]
        fields = fetch_fields(TOPIC, AWAITED_PARTITIONS)
        ends = time.monotonic() + 8
        for reader in readers:
            left_ms = int(1_000 * (ends - time.monotonic()))
            reader.tell(ApiKey.FETCH, 12, **fields | {"max_wait_ms": left_ms})
        unanswered, served = {reader.socket.fileno() for reader in readers}, 0
        answered = select.poll()  # select() takes no descriptor above 1,023
        for descriptor in unanswered:
            answered.register(descriptor, select.POLLIN)
        while unanswered:
            unanswered.difference_update(descriptor for descriptor, _ in answered.poll(0))
            neighbour.ask(ApiKey.API_VERSIONS, 0)
            served += 0 < len(unanswered) < len(readers)
        assert served >= 10


def test_a_fetch_of_many_absent_partitions_holds_the_loop_for_no_one(broker: NilometerBroker) -> None:
    response = ask(broker, ApiKey.FETCH, 12, **fetch_fields("absent", MANY, session_epoch=0))
    assert response.session_id == 0, "a client's session has a bounded number of partitions"
    (answered,) = response.responses
    assert [one.partition_index for one in answered.partitions] == list(range(MANY))
    assert {one.error_code for one in answered.partitions} == {ErrorCode.unknown_topic_or_partition}
    assert longest_turn_ms(broker, "Fetch") < TURN_MS_MAX


def test_the_response_about_a_topic_that_was_divided_names_it_once(broker: NilometerBroker) -> None:
    key, version = ApiKey.LIST_OFFSETS, 6
    partitions = tuple(
        make(
            key, version, "ListOffsetsPartition", partition_index=index, current_leader_epoch=-1, timestamp=-2
        )
        for index in range(PARTITIONS)
    )
    topic = make(key, version, "ListOffsetsTopic", name=TOPIC, partitions=partitions)
    response = ask(broker, key, version, replica_id=-1, isolation_level=0, topics=(topic,))
    (answered,) = response.topics
    assert [one.partition_index for one in answered.partitions] == list(range(PARTITIONS))
    assert {(one.error_code, one.offset) for one in answered.partitions} == {(ErrorCode.none, 0)}


def test_a_topic_that_is_created_twice_in_a_large_request_is_not_created(broker: NilometerBroker) -> None:
    names = [f"many-{number}" for number in range(100)] + ["many-0"]
    created = ask(
        broker,
        ApiKey.CREATE_TOPICS,
        7,
        topics=tuple(map(new_topic, names)),
        timeout_ms=60_000,
        validate_only=True,
    )
    errors = {one.name: one.error_code for one in created.topics}
    assert errors.pop("many-0") == ErrorCode.invalid_request
    assert set(errors.values()) == {ErrorCode.none}
    assert len(errors) == 99


@pytest.fixture(scope="module")
def coordinator(broker: NilometerBroker) -> NilometerBroker:
    """The broker, which has loaded its groups."""
    with WirePeer(broker.bootstrap) as peer:
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="g", key_type=0)  # creates the topic of the groups
        eventually(lambda: join(peer, "first", b"").error_code == ErrorCode.none, "the groups are loaded")
    return broker


def join_fields(group: str, metadata: bytes, member: str = "") -> dict[str, object]:
    protocol = make(ApiKey.JOIN_GROUP, 3, "JoinGroupRequestProtocol", name="range", metadata=metadata)
    return {
        "group_id": group,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 600_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": (protocol,),
    }


def join(peer: WirePeer, group: str, metadata: bytes) -> Any:
    return peer.ask(ApiKey.JOIN_GROUP, 3, **join_fields(group, metadata))


def test_a_large_request_that_waits_for_its_group_holds_up_no_other_one(
    coordinator: NilometerBroker,
) -> None:
    with WirePeer(coordinator.bootstrap) as first, WirePeer(coordinator.bootstrap) as second:
        joined = join(first, "waiting", b"")
        synced = first.ask(
            ApiKey.SYNC_GROUP,
            2,
            group_id="waiting",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=(),
        )
        assert synced.error_code == ErrorCode.none
        second.tell(ApiKey.JOIN_GROUP, 3, **join_fields("waiting", bytes(5_000_000)))
        names = tuple(f"g{number}" for number in range(MANY))
        response = ask(coordinator, ApiKey.DESCRIBE_GROUPS, 0, groups=names)
        assert len(response.groups) == MANY
        left = first.ask(ApiKey.LEAVE_GROUP, 2, group_id="waiting", member_id=joined.member_id)
        assert left.error_code == ErrorCode.none
        assert second.hear(ApiKey.JOIN_GROUP, 3).error_code == ErrorCode.none


def test_members_that_subscribe_to_many_absent_topics_join_in_short_turns(
    coordinator: NilometerBroker,
) -> None:
    key, version = ApiKey.CONSUMER_GROUP_HEARTBEAT, 1
    with WirePeer(coordinator.bootstrap) as peer:
        for member in range(200):
            heartbeat = peer.ask(
                key,
                version,
                group_id="absent-topics",
                member_id=f"m{member}",
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=tuple(f"absent-{member}-{number}" for number in range(400)),
                topic_partitions=(),
            )
            assert heartbeat.error_code == ErrorCode.none
    assert max(longest_turns_ms(coordinator).values(), default=0) < TURN_MS_MAX


def test_a_large_request_in_the_wrong_format_closes_its_connection_alone(broker: NilometerBroker) -> None:
    with WirePeer(broker.bootstrap) as peer, WirePeer(broker.bootstrap) as other:
        body = (
            b"\x00\x0f\x00\x00\x00\x00\x00\x01\xff\xff" + (1 << 20).to_bytes(4, "big") + b"\x00" * LARGE_BYTES
        )
        peer.socket.sendall(len(body).to_bytes(4, "big") + body)
        assert peer.is_ended()
        assert other.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none


def test_the_status_shows_the_longest_turn(
    broker: NilometerBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(broker, ApiKey.DESCRIBE_GROUPS, 0, groups=tuple(f"g{number}" for number in range(GROUPS)))
    before_us = round(longest_turn_ms(broker, "DescribeGroups") * 1000)
    assert before_us > 0
    assert run(["status", "--json", "--bootstrap-server", broker.bootstrap]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["longest_turns"]
    assert shown["broker_id"] == 1
    assert shown["cpu_us"] >= before_us
    assert shown["work"]


@pytest.mark.parametrize("case", list(cases(FILLED_BYTES)), ids=lambda case: f"{case.api.name}-{case.filled}")
def test_no_api_holds_the_loop_for_a_request_full_of_elements(broker: NilometerBroker, case: Case) -> None:
    """Each array of each API in turn, as many distinct elements as fit; some are too many for the request,
    and close its connection."""
    with WirePeer(broker.bootstrap) as peer:
        peer.socket.sendall(case.frame)
        with contextlib.suppress(ConnectionEnded):
            peer.receive()
    assert max(longest_turns_ms(broker).values(), default=0) < TURN_MS_MAX
