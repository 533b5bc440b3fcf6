"""A level that one broker is asked to change is followed by all, and is kept, whatever the store is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.coordination import zookeeper_server
from support.coordination.zookeeper_server import ZooKeeperServer
from support.eventually import eventually
from support.ports import free_ports
from support.wire.wire_peer import WirePeer, make

WAIT_S = 60.0


@pytest.fixture(params=["local", "zookeeper"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NilometerCluster]:
    if request.param == "local":
        with NilometerCluster(tmp_path / "cluster", brokers=2) as running:
            yield running
        return
    if not zookeeper_server.is_installed() and not os.environ.get("CI"):
        pytest.skip("needs ZooKeeper")
    server = ZooKeeperServer(tmp_path / "zookeeper", 1, free_ports(1)[0], {})
    server.start()
    try:
        server.wait_ready()
        store = f"zookeeper://{server.host}:{server.port}"
        with NilometerCluster(tmp_path / "cluster", brokers=2, coordination=store) as running:
            yield running
    finally:
        server.kill()


def transaction_version(bootstrap: str) -> int:
    with WirePeer(bootstrap) as peer:
        answer = peer.ask(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    return levels.get("transaction.version", 0)


def test_every_broker_follows_a_level_and_it_outlasts_them(cluster: NilometerCluster) -> None:
    brokers = list(cluster.brokers.values())
    for asked, level in zip(brokers, (1, 0), strict=True):
        update = make(
            ApiKey.UPDATE_FEATURES,
            2,
            "FeatureUpdateKey",
            feature="transaction.version",
            max_version_level=level,
            upgrade_type=2,
        )
        with WirePeer(asked.bootstrap) as peer:
            answer = peer.ask(ApiKey.UPDATE_FEATURES, 2, feature_updates=(update,), timeout_ms=30_000)
        assert answer.error_code is ErrorCode.none, answer
        assert transaction_version(asked.bootstrap) == level, "who was asked has folded it"
        eventually(
            lambda level=level: {transaction_version(each.bootstrap) for each in brokers} == {level},
            f"all brokers are at level {level}",
            WAIT_S,
        )
    cluster.kill(*cluster.brokers)
    cluster.start()
    assert {transaction_version(each.bootstrap) for each in brokers} == {0}
