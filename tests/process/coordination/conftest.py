from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.coordination.cluster import ZOOKEEPER_SESSION_MS, Cluster, Zygote
from support.coordination.quorum_cluster import QuorumCluster
from support.coordination.virtual_cluster import VirtualCluster
from support.coordination.zookeeper_server import ZooKeeperEnsemble, running_ensemble

_numbers = itertools.count()


@pytest.fixture(scope="package")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def local(zygote: Zygote, tmp_path: Path) -> Cluster:
    return Cluster(zygote, "local", f"local:{tmp_path}/store", 1000)


@pytest.fixture(scope="package")
def zookeeper_server() -> Iterator[ZooKeeperEnsemble]:
    with running_ensemble(1) as ensemble:
        yield ensemble


@pytest.fixture
def zookeeper(zygote: Zygote, zookeeper_server: ZooKeeperEnsemble) -> Cluster:
    """Each test in a chroot of its own."""
    chroot = f"nilometer-{next(_numbers)}"
    return Cluster(
        zygote, "zookeeper", f"zookeeper://{zookeeper_server.hosts}/{chroot}", ZOOKEEPER_SESSION_MS
    )


@pytest.fixture(scope="package")
def three_servers() -> Iterator[ZooKeeperEnsemble]:
    with running_ensemble(3) as ensemble:
        yield ensemble


@pytest.fixture
def zookeeper_of_three(zygote: Zygote, three_servers: ZooKeeperEnsemble) -> Iterator[Cluster]:
    """One of three servers is killed just before, the leader every other time: two go on."""
    number = next(_numbers)
    leader = three_servers.leader()
    (victim, *_) = [leader] if number % 2 else three_servers.followers()
    victim.kill()
    for server in three_servers.servers:
        if server is not victim:
            server.wait_ready()
    yield Cluster(
        zygote, "zookeeper", f"zookeeper://{three_servers.hosts}/nilometer-{number}", ZOOKEEPER_SESSION_MS
    )
    three_servers.heal()


@pytest.fixture
def virtual_zookeeper(request: pytest.FixtureRequest) -> VirtualCluster:
    """Of a seed that the test's name makes: a test takes the same course whichever others run before it."""
    return VirtualCluster(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def virtual_quorum(request: pytest.FixtureRequest) -> QuorumCluster:
    return QuorumCluster(zlib.crc32(request.node.name.encode()))


@pytest.fixture(
    params=[
        "local",
        "zookeeper",
        "virtual_zookeeper",
        "virtual_quorum",
        pytest.param("zookeeper_of_three", marks=pytest.mark.soak),
    ]
)
def cluster(request: pytest.FixtureRequest) -> Cluster | VirtualCluster | QuorumCluster:
    """One cluster per kind of store, and one on the ensemble of the simulation: the conformance suite."""
    return request.getfixturevalue(request.param)
