"""The rows of the cluster's metadata: what a change costs, with a quorum of three brokers.

The quorum is held against that of Apache Kafka's three nodes, which are brokers and controllers, too; and
against Nilometer's own brokers with one ZooKeeper server, all else being equal. Session time-outs are the
defaults of both (9 s). All of them write a change to the disk before it is acknowledged.

A setting of a topic is changed one after another, and by many connections of which each has one change under
way; topics of three replicas are created one after another. All systems have made `WARM_UP` changes before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import cast

from confluent_kafka import KafkaException
from tests.support.brokers.nilometer_cluster import NilometerCluster
from tests.support.brokers.quorum_brokers import QuorumBrokers
from tests.support.coordination import zookeeper_server
from tests.support.coordination.zookeeper_server import ZooKeeperServer
from tests.support.ports import free_ports
from tests.support.wire.new_topics import new_topic
from tests.support.wire.wire_peer import WirePeer, make

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from . import load, plays
from .cluster_rows import until_created
from .clusters import BROKERS, Cluster, KafkaThree, NilometerThree, wait_members
from .rows import Column, Numbers, Row
from .systems import Settings, System, cpu_seconds

CONNECTIONS = 32
WARM_UP, CHANGES, TOPICS = 6_000, 6_000, 300
WARM_UP_TOPICS = 50
FAILOVERS = 3
TOPIC_CONFIGS = 2
SET = 0
TIMEOUT_MS = 30_000
SESSION = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
JVM_OF_ZOOKEEPER = ("-Xmx512m",)


class QuorumThree(NilometerThree):
    def _prepared(self, folder: Path, settings: dict[str, str]) -> NilometerCluster:
        return QuorumBrokers(folder, BROKERS, {**settings, **SESSION})


class ZooKeeperThree(NilometerThree):
    """With one server."""

    name = "Nilometer with ZooKeeper"

    def _prepared(self, folder: Path, settings: dict[str, str]) -> NilometerCluster:
        port = free_ports(1)[0]
        self._server = ZooKeeperServer(folder / "zookeeper", 1, port, {}, jvm=JVM_OF_ZOOKEEPER)
        self._is_started = False
        return NilometerCluster(
            folder, BROKERS, settings, coordination=f"zookeeper://{self._server.host}:{port}"
        )

    def launch(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._server.start()
            self._server.wait_ready()
        super().launch()

    def stop(self) -> None:
        super().stop()
        if self._is_started:
            self._server.kill()
            self._is_started = False


def _quorums() -> dict[str, Callable[[Path, Settings | None], System]]:
    return {"nilometer": QuorumThree, "kafka": KafkaThree}


def _stores() -> dict[str, Callable[[Path, Settings | None], System]]:
    if not zookeeper_server.is_installed():
        return {"nilometer": QuorumThree}
    return {"nilometer": QuorumThree, "kafka": ZooKeeperThree}


def _change(peer: WirePeer, topic: str, number: int) -> None:
    """Send a change of a setting; :func:`_changed` waits for its response."""
    key, version = ApiKey.INCREMENTAL_ALTER_CONFIGS, 1
    config = make(
        key,
        version,
        "AlterableConfig",
        name="retention.ms",
        config_operation=SET,
        value=str(10**9 + number),
    )
    resource = make(
        key,
        version,
        "AlterConfigsResource",
        resource_type=TOPIC_CONFIGS,
        resource_name=topic,
        configs=(config,),
    )
    peer.tell(key, version, resources=(resource,), validate_only=False)


def _changed(peer: WirePeer) -> None:
    (outcome,) = peer.hear(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1).responses
    if outcome.error_code is not ErrorCode.none:
        raise RuntimeError(f"a setting was not changed: {outcome}")


def _create(peer: WirePeer, name: str) -> None:
    topic = new_topic(name, 1, replication_factor=BROKERS)
    (created,) = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=TIMEOUT_MS).topics
    if created.error_code is not ErrorCode.none:
        raise RuntimeError(f"a topic was not created: {created}")


def _controllers_address(system: Cluster) -> str:
    """The address of the broker that Metadata names as the controller, which clients send changes to."""
    with WirePeer(system.bootstrap.split(",")[0]) as peer:
        known = peer.ask(ApiKey.METADATA, 9, topics=())
    node = next(one for one in known.brokers if one.node_id == known.controller_id)
    return f"{node.host}:{node.port}"


def _in_ms(work: Callable[[int], None], count: int) -> tuple[float, float]:
    """Return p50 and p99 of so many calls, one after another."""
    found: list[float] = []
    for number in range(count):
        began = time.monotonic()
        work(number)
        found.append(1_000 * (time.monotonic() - began))
    hundredths = quantiles(found, n=100)
    return hundredths[49], hundredths[98]


def _measure(
    system: System,
    warm_up: int = WARM_UP,
    changes: int = CHANGES,
    topics: int = TOPICS,
    failovers: int = FAILOVERS,
) -> Numbers:
    cluster = cast(Cluster, system)
    began = time.monotonic()
    system.launch()
    topic = _first_topic(system, began)
    load.run("first", system.bootstrap, topic)
    formed_s = time.monotonic() - began
    system.wait_ready()
    with WirePeer(_controllers_address(cluster)) as peer:

        def change(number: int) -> None:
            _change(peer, topic, number)
            _changed(peer)

        _changes_per_s(cluster, topic, warm_up)
        _in_ms(change, warm_up // 10)
        per_s, cpu_ms = _changes_per_s(cluster, topic, changes)
        change_p50, change_p99 = _in_ms(change, changes // 10)
        for number in range(WARM_UP_TOPICS):
            _create(peer, f"before-{number}")
        create_p50, create_p99 = _in_ms(lambda number: _create(peer, f"topic-{number}"), topics)
    failover_s: list[float] = []
    for _ in range(failovers):
        controller = cluster.controller()
        killed_at = time.monotonic()
        cluster.kill(controller)
        failover_s.append(until_created(cluster, killed_at))
        cluster.start(controller)
        wait_members(cluster, BROKERS)
    for broker in range(1, BROKERS + 1):
        cluster.kill(broker)
    began = time.monotonic()
    system.launch()
    waiting = load.start("first", system.bootstrap, topic)
    again_s = load.finish(waiting)["acknowledged_at"] - began
    system.wait_ready()
    return {
        "changes_per_s": per_s,
        "cpu_ms": cpu_ms,
        "change_p50_ms": change_p50,
        "change_p99_ms": change_p99,
        "create_p50_ms": create_p50,
        "create_p99_ms": create_p99,
        "failover_s": failover_s,
        "formed_s": formed_s,
        "again_s": again_s,
    }


def _first_topic(system: System, began: float) -> str:
    """Create a topic in a cluster that is being formed, as soon as it can be."""
    while True:
        try:
            return plays.fresh_topic(system, "metadata", 1, BROKERS)
        except KafkaException:  # no controller yet, or too few brokers for three replicas
            if time.monotonic() > began + TIMEOUT_MS / 1_000:
                raise
            time.sleep(0.02)


def _changes_per_s(cluster: Cluster, topic: str, count: int) -> tuple[float, float]:
    """Return the changes per second, and the brokers' CPU of one in ms. Each connection has one under way."""
    address = _controllers_address(cluster)
    peers = [WirePeer(address) for _ in range(CONNECTIONS)]
    system = cast(System, cluster)
    try:
        cpu, began = cpu_seconds(system), time.monotonic()
        for number, peer in enumerate(peers):
            _change(peer, topic, number)
        for number in range(count):
            peer = peers[number % CONNECTIONS]
            _changed(peer)
            _change(peer, topic, number)
        for peer in peers:
            _changed(peer)
        took_s = time.monotonic() - began
        done = count + CONNECTIONS
        return done / took_s, 1_000 * (cpu_seconds(system) - cpu) / done
    finally:
        for peer in peers:
            peer.close()


_COLUMNS = (
    Column(
        "changes_per_s", f"changes of a setting per second, {CONNECTIONS} connections", "", True, digits=0
    ),
    Column("cpu_ms", "CPU of all brokers per change", "ms", more_is_better=False, digits=2),
    Column("change_p50_ms", "one after another, p50", "ms", more_is_better=False, digits=2),
    Column("change_p99_ms", "p99", "ms", more_is_better=False, digits=2),
    Column("create_p50_ms", "topics created one after another, p50", "ms", more_is_better=False, digits=2),
    Column("create_p99_ms", "p99 of them", "ms", more_is_better=False, digits=2),
    Column("failover_s", "kill -9 of the controller to the next topic", "s", more_is_better=False, digits=2),
    Column("formed_s", "from nothing to the first acknowledged record", "s", more_is_better=False, digits=2),
    Column("again_s", "all killed, to the next one", "s", more_is_better=False, digits=2),
)


def _row(key: str, title: str, systems: Callable[[], dict[str, Callable[..., System]]], beside: str) -> Row:
    return Row(
        key,
        title,
        _COLUMNS,
        measure=_measure,
        quick=partial(_measure, warm_up=100, changes=100, topics=5, failovers=1),
        brokers=BROKERS,
        systems=systems,
        beside=beside,
    )


METADATA_ROWS: tuple[Row, ...] = (
    _row("metadata-quorum", "metadata in a quorum of the three brokers", _quorums, KafkaThree.name),
    _row(
        "metadata-stores",
        "three brokers, metadata in a quorum or at one ZooKeeper server",
        _stores,
        ZooKeeperThree.name,
    ),
)
