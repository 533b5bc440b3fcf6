"""The network fails under load: brokers cut from each other and from their store, both ways or one way only.

With a shared folder as the store, a cut leaves every session alive: no new controller is elected. A leader
without its followers commits nothing, and a follower cut off leaves the ISR as long as its leader reaches the
controller. With ZooKeeper, who is cut off from it loses its session, and has to stop before others lead.

Every broker, the store and the clients have a network namespace each; needs root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.brokers.nilometer_broker import Place
from support.chaos.network import ChaosNetwork, is_available
from support.chaos.run import ChaosRun, seed_from_environment
from support.coordination import zookeeper_server
from support.coordination.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer
from support.ports import free_ports

SEED = seed_from_environment(7)
BROKERS = (1, 2, 3)
STORE, CLIENTS = "store", "clients"


def node(broker_id: int) -> str:
    return f"broker{broker_id}"


@pytest.fixture
def network() -> Iterator[ChaosNetwork]:
    """The test itself is where the clients are."""
    if not is_available():
        pytest.skip("network namespaces need root and iproute2")
    nodes = [*map(node, BROKERS), STORE, CLIENTS]
    with ChaosNetwork(nodes) as network, network.entered(CLIENTS):
        yield network


def _places(network: ChaosNetwork) -> dict[int, Place]:
    return {
        one: Place(network.address(node(one)), lambda one=one: network.entered(node(one))) for one in BROKERS
    }


def test_links_cut_between_brokers(network: ChaosNetwork, tmp_path: Path) -> None:
    run = ChaosRun(
        "links_cut_between_brokers", tmp_path, SEED, outside_faults=[network], places=_places(network)
    )
    with run:
        controller = run.controller()
        one, other = run.chance.sample([broker for broker in BROKERS if broker != controller], 2)
        run.record(f"cuts {one} and {other} apart, {controller} is controller")
        network.cut_both(node(one), node(other))
        run.wait_load()
        run.heal()
        run.record(f"what {one} sends to {other} is lost")
        network.cut(node(one), node(other))
        run.wait_load()
        run.heal()
        leader = run.leader(0)
        run.record(f"cuts {leader} off from all brokers, but not from clients")
        network.isolate(node(leader), *(node(broker) for broker in BROKERS if broker != leader))
        run.pass_time(run.chance.uniform(2.0, 4.0))
        run.heal()


@pytest.fixture
def zookeeper(network: ChaosNetwork, tmp_path: Path) -> Iterator[ZooKeeperServer]:
    if not zookeeper_server.is_installed():
        pytest.skip("ZooKeeper is not installed")
    server = ZooKeeperServer(tmp_path / "zookeeper", 1, free_ports(1)[0], {}, network.address(STORE))
    with network.entered(STORE):
        server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()


@pytest.mark.long
def test_leader_cut_from_zookeeper(network: ChaosNetwork, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """It stops serving before its session is over; clients find the next leader while they reach the old."""
    run = ChaosRun(
        "leader_cut_from_zookeeper",
        tmp_path,
        SEED,
        outside_faults=[network],
        places=_places(network),
        coordination=f"zookeeper://{zookeeper.host}:{zookeeper.port}",
    )
    with run:
        leader = run.leader(0)
        run.record(f"cuts leader {leader} off from the store")
        network.isolate(node(leader), STORE)
        run.wait_replaced(leader)
        run.wait_load()
        run.heal()
        leader = run.controller()
        run.record(f"cuts controller {leader} off from all but the clients")
        network.isolate(node(leader), STORE, *(node(broker) for broker in BROKERS if broker != leader))
        run.wait_replaced(leader)
        run.wait_load()


STORES = ("store1", "store2", "store3")


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[tuple[ChaosNetwork, ZooKeeperEnsemble]]:
    """Three servers with a network namespace each. One that is cut off answers reads for 10 s."""
    if not is_available():
        pytest.skip("network namespaces need root and iproute2")
    if not zookeeper_server.is_installed():
        pytest.skip("ZooKeeper is not installed")
    nodes = [*map(node, BROKERS), *STORES, CLIENTS]
    with ChaosNetwork(nodes) as network, network.entered(CLIENTS):
        places = [Place(network.address(one), lambda one=one: network.entered(one)) for one in STORES]
        ensemble = ZooKeeperEnsemble(tmp_path / "zookeeper", 3, places=places, sync_limit=50)
        try:
            ensemble.start()
            yield network, ensemble
        finally:
            ensemble.stop()


def test_leader_on_a_zookeeper_server_that_is_cut_off(
    ensemble: tuple[ChaosNetwork, ZooKeeperEnsemble], tmp_path: Path
) -> None:
    """It reaches that server alone, which reaches no other: the others lead while it still answers reads."""
    network, servers = ensemble
    run = ChaosRun(
        "leader_on_a_zookeeper_server_that_is_cut_off",
        tmp_path,
        SEED,
        outside_faults=[network, servers],
        places=_places(network),
        watch_leaders=True,
        coordination=f"zookeeper://{servers.hosts}/chaos",
    )
    with run:
        follower = servers.servers.index(servers.followers()[0])
        others = [one for number, one in enumerate(STORES) if number != follower]
        leader = run.leader(0)
        run.record(f"broker {leader} reaches {STORES[follower]} alone")
        network.isolate(node(leader), *others)
        run.wait_load()
        run.record(f"{STORES[follower]} is cut off from {others}")
        network.isolate(STORES[follower], *others)
        run.wait_replaced(leader)
        run.pass_time(3.0)
