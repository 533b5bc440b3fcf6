"""One cluster for all tests of this folder that kill coordinators of groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.wire.api_keys import ApiKey
from support.brokers.nilometer_cluster import NilometerCluster
from support.groups.coordinator_moves import OFFSETS_TOPIC, TOPIC
from support.wire.wire_peer import WirePeer


@pytest.fixture(scope="package")
def _groups_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    overrides = {
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
    }
    with NilometerCluster(tmp_path_factory.mktemp("moves"), overrides=overrides) as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        with WirePeer(cluster.brokers[1].bootstrap) as peer:
            peer.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=("any",))
        yield cluster
        assert "Traceback" not in cluster.output()


@pytest.fixture
def groups_cluster(_groups_cluster: NilometerCluster) -> NilometerCluster:
    """Three brokers, all up, whose log of groups is one partition with all its replicas in sync."""
    if len(_groups_cluster.running) < len(_groups_cluster.brokers):
        _groups_cluster.start()
    _groups_cluster.wait_full_isr(OFFSETS_TOPIC)
    return _groups_cluster
