"""Metadata does not name a leader that has just died, and a repeated request sees every change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nilometer.broker.api import metadata
from nilometer.identifiers import NO_LEADER
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NilometerCluster]:
    with NilometerCluster(tmp_path) as cluster:
        yield cluster


def test_no_broker_names_a_leader_that_was_killed(cluster: NilometerCluster) -> None:
    """From the moment a client can see that the leader's process has ended."""
    cluster.create_topic("t", 1, 3)
    cluster.wait_full_isr("t")
    killed = cluster.leader_of("t")
    assert killed is not None
    others = [broker_id for broker_id in cluster.running if broker_id != killed]
    version = 9
    named = make(ApiKey.METADATA, version, "MetadataRequestTopic", name="t")
    peers = [WirePeer(cluster.brokers[other].bootstrap) for other in others]
    try:
        for peer in peers:  # its response is kept
            before = peer.ask(ApiKey.METADATA, version, topics=(named,), allow_auto_topic_creation=False)
            assert before.topics[0].partitions[0].leader_id == killed
        cluster.kill(killed)
        waiting = list(peers)
        while waiting:
            time.sleep(0.01)
            answer = waiting[0].ask(
                ApiKey.METADATA, version, topics=(named,), allow_auto_topic_creation=False
            )
            (partition,) = answer.topics[0].partitions
            assert partition.leader_id in (*others, NO_LEADER)
            if partition.leader_id != NO_LEADER:
                waiting.pop(0)
                continue
            assert partition.error_code is ErrorCode.leader_not_available
            assert killed not in {broker.node_id for broker in answer.brokers}
    finally:
        for peer in peers:
            peer.close()


def test_a_repeated_request_gets_what_one_gets_that_is_not_kept(cluster: NilometerCluster) -> None:
    cluster.create_topic("t", 1, 3)
    leader = cluster.leader_of("t")
    assert leader is not None
    other = next(broker_id for broker_id in cluster.running if broker_id != leader)
    version, once, too_often = 9, 1, metadata.CACHED_TOPICS_MAX + 1

    with WirePeer(cluster.brokers[other].bootstrap) as peer:

        def ask(names: int) -> Message:
            topics = (make(ApiKey.METADATA, version, "MetadataRequestTopic", name="t"),) * names
            return peer.ask(ApiKey.METADATA, version, topics=topics, allow_auto_topic_creation=False)

        def wait(is_so: Callable[[Message], bool], what: str) -> None:
            """A topic that is named too often is described once, by a response that is not kept."""
            eventually(lambda: is_so(repeated := ask(once)) and repeated == ask(too_often), what)

        def partitions(answer: Message) -> list[tuple[int, int]]:
            return [(each.leader_id, len(each.isr_nodes)) for each in answer.topics[0].partitions]

        wait(lambda answer: partitions(answer) == [(leader, 3)], "the topic is described")
        cluster.operate(lambda admin: admin.create_partitions({"t": 2}))
        wait(lambda answer: [isr for _, isr in partitions(answer)] == [3, 3], "two partitions are described")
        cluster.kill(leader)
        wait(lambda answer: leader not in [led for led, _ in partitions(answer)], "there are other leaders")
        wait(lambda answer: leader not in [one.node_id for one in answer.brokers], "the broker is gone")
        cluster.start(leader)
        wait(lambda answer: [isr for _, isr in partitions(answer)] == [3, 3], "all replicas are in sync")
        assert len(ask(once).brokers) == 3
        cluster.operate(lambda admin: admin.delete_topics(["t"]))
        unknown = ErrorCode.unknown_topic_or_partition
        wait(lambda answer: answer.topics[0].error_code is unknown, "the topic is gone")
