"""Apache Kafka and Nilometer side by side, each started once for all tests that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from support.apache_kafka import ApacheKafka
from support.cluster_shell import Shell
from support.coordinator_moves import OFFSETS_TOPIC, TOPIC
from support.nilometer_broker import NilometerBroker
from support.nilometer_cluster import NilometerCluster
from support.two_brokers import Side
from support.wire_peer import WirePeer

HASTY_GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}
AT_ONCE = {"group.consumer.assignor.offload.enable": "false"}
"""Nilometer never assigns behind a request's back."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    apache = ApacheKafka(tmp_path_factory.mktemp("kafka"), overrides={**HASTY_GROUPS, **AT_ONCE})
    try:
        apache.start()
        side = Side("Apache Kafka", apache.bootstrap)
        yield side
        side.hang_up()
    finally:
        apache.kill()  # its data is not used any more: stopping in order takes seconds


@pytest.fixture(scope="session")
def nilometer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with NilometerBroker(tmp_path_factory.mktemp("beside-kafka") / "data", HASTY_GROUPS) as broker:
        side = Side("Nilometer", broker.bootstrap)
        yield side
        side.hang_up()
    assert "Traceback" not in broker.output


@pytest.fixture
def sides(kafka: Side, nilometer: Side) -> tuple[Side, Side]:
    return kafka, nilometer


@pytest.fixture(scope="session")
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


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "cluster")
    yield shell
    if shell.data_dir.exists():
        shell.run("down")
        assert [broker["state"] for broker in shell.brokers()] == ["down"] * len(shell.brokers())
    assert not shell.processes(), "none runs that the folder does not know of"
