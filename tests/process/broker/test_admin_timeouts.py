"""``timeout_ms`` of requests to the controller: an answer within it, and nothing decided after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer, make

TOPIC = "kept"
TIMEOUT_MS = 300
ANSWER_WITHIN_S = 8.0
"""Far above the requests' time-out, and below every other time-out that could end them."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    # A controller that is stopped stays controller for longer than any test here takes.
    overrides = {"zookeeper.session.timeout.ms": "60000"}
    with NilometerCluster(tmp_path_factory.mktemp("timeouts"), 2, overrides) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


def controller_and_other(cluster: NilometerCluster) -> tuple[int, int]:
    eventually(lambda: cluster.controller() is not None, "a controller that both know")
    controller = cluster.controller()
    assert controller is not None
    return controller, 3 - controller


def create(peer: WirePeer, name: str, timeout_ms: int) -> ErrorCode:
    (topic,) = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(new_topic(name),), timeout_ms=timeout_ms).topics
    return topic.error_code


def delete(peer: WirePeer) -> ErrorCode:
    asked = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=TOPIC, topic_id=None)
    (topic,) = peer.ask(ApiKey.DELETE_TOPICS, 6, topics=(asked,), timeout_ms=TIMEOUT_MS).responses
    return topic.error_code


def add_partitions(peer: WirePeer) -> ErrorCode:
    asked = make(ApiKey.CREATE_PARTITIONS, 3, "CreatePartitionsTopic", name=TOPIC, count=2, assignments=None)
    answer = peer.ask(
        ApiKey.CREATE_PARTITIONS, 3, topics=(asked,), timeout_ms=TIMEOUT_MS, validate_only=False
    )
    return answer.results[0].error_code


def reassign(peer: WirePeer) -> ErrorCode:
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    partition = make(key, 0, "ReassignablePartition", partition_index=0, replicas=(1,))
    topic = make(key, 0, "ReassignableTopic", name=TOPIC, partitions=(partition,))
    return peer.ask(key, 0, topics=(topic,), timeout_ms=TIMEOUT_MS).error_code


def elect(peer: WirePeer) -> ErrorCode:
    asked = make(ApiKey.ELECT_LEADERS, 2, "TopicPartitions", topic=TOPIC, partitions=(0,))
    answer = peer.ask(
        ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=(asked,), timeout_ms=TIMEOUT_MS
    )
    return answer.error_code


def test_a_controller_that_hangs_costs_no_more_than_the_time_out(cluster: NilometerCluster) -> None:
    controller, other = controller_and_other(cluster)
    cluster.pause(controller)
    try:
        for ask in (lambda peer: create(peer, "hung", TIMEOUT_MS), delete, add_partitions, reassign, elect):
            with WirePeer(cluster.brokers[other].bootstrap, timeout_s=ANSWER_WITHIN_S) as peer:
                assert ask(peer) is ErrorCode.request_timed_out
    finally:
        cluster.resume(controller)
    with WirePeer(cluster.brokers[other].bootstrap) as peer:
        assert create(peer, "later", 15_000) is ErrorCode.none


def test_what_comes_up_for_decision_too_late_is_not_decided(cluster: NilometerCluster) -> None:
    controller, _ = controller_and_other(cluster)
    with WirePeer(cluster.brokers[controller].bootstrap) as peer:
        assert create(peer, "too-late", 0) is ErrorCode.request_timed_out
        assert create(peer, "in-time", 15_000) is ErrorCode.none  # decisions are made in the order asked
    names = cluster.metadata_of(controller).topics
    assert "in-time" in names
    assert "too-late" not in names
