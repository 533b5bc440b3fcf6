"""Internal topics: made when they are first needed, as big as the cluster allows, and grown with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.served_apis import APIS
from support.brokers.two_brokers import batch, produce_fields
from support.eventually import eventually
from support.groups.group_requests import commit_fields, fetch_fields
from support.wire.wire_peer import WirePeer, make

TOPIC = "__consumer_offsets"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    with NilometerBroker(tmp_path_factory.mktemp("internal") / "data") as broker:
        yield broker
    assert "Traceback" not in broker.output


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    overrides = {"offsets.topic.num.partitions": "2"}
    with NilometerCluster(tmp_path_factory.mktemp("two"), brokers=2, overrides=overrides) as cluster:
        yield cluster


def find(bootstrap: str, *keys: str, version: int = 6) -> list[tuple[str, ErrorCode, int]]:
    with WirePeer(bootstrap) as peer:
        found = peer.ask(ApiKey.FIND_COORDINATOR, version, key_type=0, coordinator_keys=keys)
        return [(one.key, one.error_code, one.node_id) for one in found.coordinators]


def topic_of(peer: WirePeer, name: str, *, create: bool = False) -> Any:
    asked = make(ApiKey.METADATA, 12, "MetadataRequestTopic", name=name)
    return peer.ask(ApiKey.METADATA, 12, topics=(asked,), allow_auto_topic_creation=create).topics[0]


def settings_of(peer: WirePeer, name: str) -> dict[str, str]:
    key = ApiKey.DESCRIBE_CONFIGS
    resource = make(
        key, 4, "DescribeConfigsResource", resource_type=2, resource_name=name, configuration_keys=None
    )
    (result,) = peer.ask(key, 4, resources=(resource,), include_synonyms=False).results
    return {config.name: config.value for config in result.configs}


def test_the_first_question_about_a_group_makes_the_topic(broker: NilometerBroker) -> None:
    assert find(broker.bootstrap, "a", "b") == [("a", ErrorCode.none, 1), ("b", ErrorCode.none, 1)]
    with WirePeer(broker.bootstrap) as peer:
        topic = topic_of(peer, TOPIC)
        assert topic.is_internal
        assert len(topic.partitions) == 50
        assert {(one.leader_id, tuple(one.replica_nodes)) for one in topic.partitions} == {(1, (1,))}
        settings = settings_of(peer, TOPIC)
        assert settings["cleanup.policy"] == "compact"
        assert settings["compression.type"] == "producer"
        assert settings["segment.bytes"] == "104857600"


def test_there_is_no_coordinator_of_other_things(broker: NilometerBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        found = peer.ask(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=("a",))
        assert [one.error_code for one in found.coordinators] == [ErrorCode.invalid_request]


def test_the_first_request_for_a_transactional_id_creates_its_topic(broker: NilometerBroker) -> None:
    name = "__transaction_state"
    with WirePeer(broker.bootstrap) as peer:
        assert topic_of(peer, name).error_code is ErrorCode.unknown_topic_or_partition
        found = peer.ask(ApiKey.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=("a",))
        assert [(one.error_code, one.node_id) for one in found.coordinators] == [(ErrorCode.none, 1)]
        topic = topic_of(peer, name)
        assert (topic.is_internal, len(topic.partitions)) == (True, 50)
        settings = settings_of(peer, name)
        assert settings["cleanup.policy"] == "compact"
        assert settings["compression.type"] == "uncompressed"
        assert settings["min.insync.replicas"] == "2"
        assert settings["unclean.leader.election.enable"] == "false"


def test_clients_do_not_write_to_it(broker: NilometerBroker) -> None:
    find(broker.bootstrap, "a")
    records = {0: batch(b"v")}
    with WirePeer(broker.bootstrap) as peer:
        answer = peer.ask(ApiKey.PRODUCE, 9, **produce_fields(9, TOPIC, records))
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.invalid_topic_exception
        partition = make(ApiKey.DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=-1)
        topic = make(ApiKey.DELETE_RECORDS, 2, "DeleteRecordsTopic", name=TOPIC, partitions=(partition,))
        deleted = peer.ask(ApiKey.DELETE_RECORDS, 2, topics=(topic,), timeout_ms=1000)
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.invalid_topic_exception


def test_edge_44_it_has_as_many_replicas_as_there_are_brokers_and_grows_with_them(tmp_path: Path) -> None:
    cluster = NilometerCluster(
        tmp_path, overrides={"offsets.topic.num.partitions": "6", "offsets.topic.replication.factor": "3"}
    )
    try:
        cluster.start(1)
        assert find(cluster.brokers[1].bootstrap, "a") == [("a", ErrorCode.none, 1)]
        assert len(cluster.metadata_of(1, [TOPIC]).topics[TOPIC].partitions[0].replicas) == 1
        cluster.start(2, 3)
        eventually(
            lambda: all(
                len(one.replicas) == 3 for one in cluster.metadata_of(2, [TOPIC]).topics[TOPIC].partitions
            ),
            "three replicas of each partition",
        )
        cluster.wait_full_isr(TOPIC)
        assert {find(cluster.brokers[one].bootstrap, "a")[0][1] for one in (1, 2, 3)} == {ErrorCode.none}
    finally:
        cluster.close()


def test_any_broker_makes_topics_that_are_asked_for(two: NilometerCluster) -> None:
    """Also one that is not the controller, which has to send the wish on."""
    eventually(lambda: two.controller() is not None, "a controller")
    for broker_id in two.running:
        name = f"asked-of-{broker_id}"
        with WirePeer(two.brokers[broker_id].bootstrap) as peer:
            topic = topic_of(peer, name, create=True)
            assert (topic.error_code, len(topic.partitions)) == (ErrorCode.none, 1)
    other = next(one for one in two.running if one != two.controller())
    ((_, error, node),) = find(two.brokers[other].bootstrap, "a")
    assert error == ErrorCode.none
    assert node in two.running


def test_commits_in_flight_on_one_connection_are_taken_up_in_order(two: NilometerCluster) -> None:
    """Each waits for the followers; what stands behind them on the connection sees all of them."""
    assert APIS[ApiKey.OFFSET_COMMIT].pipelined
    two.create_topic("read", 1)

    def coordinator() -> int:
        (found,) = find(two.brokers[1].bootstrap, "group")
        return -1 if found[1] else found[2]

    eventually(lambda: coordinator() > 0, "the group has a coordinator")
    with WirePeer(two.brokers[coordinator()].bootstrap) as peer:

        def is_loaded() -> bool:
            answer = peer.ask(ApiKey.OFFSET_COMMIT, 7, **commit_fields(7, "group", "read", {0: 0}))
            return answer.topics[0].partitions[0].error_code == ErrorCode.none

        eventually(is_loaded, "commits are taken")
        for offset in range(1, 101):
            peer.tell(ApiKey.OFFSET_COMMIT, 7, **commit_fields(7, "group", "read", {0: offset}))
        peer.tell(ApiKey.OFFSET_FETCH, 7, **fetch_fields(7, {"group": {"read": (0,)}}))
        for _ in range(100):
            answer = peer.hear(ApiKey.OFFSET_COMMIT, 7)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.none
        (topic,) = peer.hear(ApiKey.OFFSET_FETCH, 7).topics
        assert topic.partitions[0].committed_offset == 100
