"""Metadata does not name a leader that has just died."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.identifiers import NO_LEADER
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
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
