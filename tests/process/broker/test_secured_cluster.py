"""Brokers that connect to each other by TLS and SASL, and a rolling change to it on a live cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from nilometer.security.jaas import PLAIN_MODULE
from support.authority import Authority
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.ports import HOST, free_ports

BROKERS = (1, 2)


class Settings:
    """The settings of brokers with the listeners PLAINTEXT and INTERNAL."""

    def __init__(self, folder: Path, protocol: str) -> None:
        self.authority = Authority(folder / "authority")
        self.protocol = protocol
        ports = free_ports(2 * len(BROKERS))
        self.plain = dict(zip(BROKERS, ports[: len(BROKERS)], strict=True))
        self.internal = dict(zip(BROKERS, ports[len(BROKERS) :], strict=True))

    def of(self, broker_id: int, between: str = "INTERNAL", password: str = "secret") -> dict[str, str]:
        plain, internal = self.plain[broker_id], self.internal[broker_id]
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{plain},INTERNAL://{HOST}:{internal}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,INTERNAL:{self.protocol}",
            "inter.broker.listener.name": between,
            "ssl.keystore.location": str(self.authority.issue(f"broker-{broker_id}", f"/CN=b{broker_id}")),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.client.auth": "required",
        }
        if self.protocol.startswith("SASL"):
            settings["sasl.enabled.mechanisms"] = settings["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
            settings["listener.name.internal.plain.sasl.jaas.config"] = (
                f'{PLAIN_MODULE} required username="brokers" password="{password}" user_brokers="secret";'
            )
        return settings


def make_cluster(folder: Path, own: dict[int, dict[str, str]], settings: Settings) -> NilometerCluster:
    cluster = NilometerCluster(folder / "cluster", len(BROKERS), own_overrides=own)
    for broker_id, broker in cluster.brokers.items():
        broker.port = settings.plain[broker_id]
    return cluster


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_brokers_replicate_and_forward_over_each_protocol(tmp_path: Path, protocol: str) -> None:
    settings = Settings(tmp_path, protocol)
    own = {broker_id: settings.of(broker_id) for broker_id in BROKERS}
    with make_cluster(tmp_path, own, settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2), 1: (2, 1)})
        cluster.wait_full_isr("replicated")


def test_a_broker_with_a_wrong_password_does_not_replicate(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "SASL_PLAINTEXT")
    own = {1: settings.of(1), 2: settings.of(2, password="wrong")}
    with make_cluster(tmp_path, own, settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2)})
        leader = cluster.brokers[1]
        eventually(lambda: "Authentication failed: " in leader.output, "the leader refuses it", 60)
        assert "wrong" not in leader.output + cluster.brokers[2].output


def test_a_cluster_changes_to_tls_and_sasl_one_broker_at_a_time(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "SASL_SSL")
    own = {broker_id: settings.of(broker_id, between="PLAINTEXT") for broker_id in BROKERS}
    with make_cluster(tmp_path, own, settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2), 1: (2, 1)})
        cluster.wait_full_isr("replicated")
        for broker_id in BROKERS:
            cluster.stop(broker_id)
            cluster.brokers[broker_id]._settings["inter.broker.listener.name"] = "INTERNAL"
            cluster.start(broker_id)
            cluster.wait_full_isr("replicated")
