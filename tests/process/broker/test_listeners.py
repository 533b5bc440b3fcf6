"""Brokers with two listeners: each client finds the addresses of the listener it is connected to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.ports import HOST, free_ports
from support.wire.wire_peer import WirePeer, make

INSIDE, OUTSIDE = "INSIDE", "OUTSIDE"


class Ports:
    """The ports of brokers 1 and 2, by listener."""

    def __init__(self) -> None:
        ports = free_ports(3)
        self.inside = {1: ports[0], 2: ports[1]}
        self.outside = {1: ports[2]}

    def settings(self, broker_id: int) -> dict[str, str]:
        listeners = [f"{INSIDE}://{HOST}:{self.inside[broker_id]}"]
        if broker_id in self.outside:
            listeners.append(f"{OUTSIDE}://{HOST}:{self.outside[broker_id]}")
        return {"listeners": ",".join(listeners)}


PORTS = Ports()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    """Only broker 1 has the listener OUTSIDE."""
    settings = {
        "listener.security.protocol.map": f"{INSIDE}:PLAINTEXT,{OUTSIDE}:PLAINTEXT",
        "inter.broker.listener.name": INSIDE,
    }
    own = {broker_id: PORTS.settings(broker_id) for broker_id in (1, 2)}
    cluster = NilometerCluster(tmp_path_factory.mktemp("listeners"), 2, settings, own_overrides=own)
    for broker_id, broker in cluster.brokers.items():
        broker.port = PORTS.inside[broker_id]
    with cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2), 1: (2, 1)})
        yield cluster


def test_brokers_replicate_over_the_listener_between_them(cluster: NilometerCluster) -> None:
    cluster.wait_full_isr("replicated")


def test_metadata_and_describe_cluster_name_the_addresses_of_the_clients_listener(
    cluster: NilometerCluster,
) -> None:
    for ports in (PORTS.inside, PORTS.outside):
        with WirePeer(f"{HOST}:{ports[1]}") as peer:
            metadata = peer.ask(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False)
            described = peer.ask(ApiKey.DESCRIBE_CLUSTER, 0)
        assert {broker.node_id: broker.port for broker in metadata.brokers} == ports
        assert {broker.broker_id: broker.port for broker in described.brokers} == ports


def test_a_leader_without_that_listener_is_no_leader_for_its_clients(cluster: NilometerCluster) -> None:
    asked = (make(ApiKey.METADATA, 12, "MetadataRequestTopic", name="replicated"),)
    with WirePeer(f"{HOST}:{PORTS.outside[1]}") as peer:
        (topic,) = peer.ask(ApiKey.METADATA, 12, topics=asked, allow_auto_topic_creation=False).topics
        found = {each.partition_index: (each.leader_id, each.error_code) for each in topic.partitions}
        assert found == {0: (1, ErrorCode.none), 1: (-1, ErrorCode.listener_not_found)}
        old = (make(ApiKey.METADATA, 5, "MetadataRequestTopic", name="replicated"),)
        (topic,) = peer.ask(ApiKey.METADATA, 5, topics=old, allow_auto_topic_creation=False).topics
        errors = {each.partition_index: each.error_code for each in topic.partitions}
        assert errors == {0: ErrorCode.none, 1: ErrorCode.leader_not_available}


def test_a_coordinator_is_found_at_the_clients_listener(cluster: NilometerCluster) -> None:
    keys = tuple(f"group-{number}" for number in range(40))
    found: dict[str, list[tuple[int, int]]] = {}
    for name, ports in ((INSIDE, PORTS.inside), (OUTSIDE, PORTS.outside)):
        with WirePeer(f"{HOST}:{ports[1]}") as peer:
            answer = peer.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
        found[name] = [(each.node_id, each.port) for each in answer.coordinators]
    assert set(found[INSIDE]) == {(1, PORTS.inside[1]), (2, PORTS.inside[2])}
    assert set(found[OUTSIDE]) == {(1, PORTS.outside[1]), (-1, -1)}
