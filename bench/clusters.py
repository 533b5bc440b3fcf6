"""Three brokers that form one cluster, of either kind: started, killed and stopped one by one.

Apache Kafka's three processes are brokers and controllers both, as Nilometer's are; topics have three
replicas, two of which must be in sync.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient
from tests.support.brokers.nilometer_cluster import NilometerCluster
from tests.support.kafka.apache_kafka import JVM_AS_SHIPPED, ApacheKafka, kafka_version
from tests.support.wire.wire_peer import ConnectionEnded, WirePeer, make

from nilometer.wire.api_keys import ApiKey

from .systems import GROUPS_AT_ONCE, Nilometer, Settings

BROKERS = 3
SETTINGS = {
    "min.insync.replicas": "2",
    "default.replication.factor": str(BROKERS),
    "auto.create.topics.enable": "false",
    **GROUPS_AT_ONCE,
}
SHORT_TIMEOUTS = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
"""By which Apache Kafka notices a dead broker: 9 s and 2 s by default. With shorter ones a full collection of
garbage would pass for a death."""
SHUTDOWN_TIMEOUT_S = 120.0
METADATA_TOPIC = "__cluster_metadata"


class Cluster(Protocol):
    """A `System` of several brokers, ids from 1."""

    name: str
    bootstrap: str

    def launch(self) -> None: ...

    def wait_ready(self) -> None: ...

    def stop(self) -> None: ...

    def pids(self) -> list[int]:
        """Of those that run."""
        ...

    def kill(self, broker_id: int) -> None:
        """kill -9; returns when it is dead."""
        ...

    def shut_down(self, broker_id: int) -> float:
        """Stop one in order; the seconds until its process had ended."""
        ...

    def start(self, broker_id: int) -> None: ...

    def controller(self) -> int: ...

    def notice_deaths_early(self) -> None:
        """Restart with the shortest sensible time-outs by which a dead broker is noticed."""
        ...


class NilometerThree:
    name = Nilometer.name

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self._cluster = self._prepared(folder, {**SETTINGS, **(settings or {})})
        self._cluster.folder.mkdir(parents=True, exist_ok=True)
        self.bootstrap = self._cluster.bootstrap

    def _prepared(self, folder: Path, settings: dict[str, str]) -> NilometerCluster:
        return NilometerCluster(folder, BROKERS, settings)

    def launch(self) -> None:
        for broker in self._cluster.brokers.values():
            broker.launch()

    def wait_ready(self) -> None:
        for broker in self._cluster.brokers.values():
            broker.wait_ready()
        wait_members(self, BROKERS)

    def stop(self) -> None:
        for broker_id in self._cluster.running:
            self._cluster.stop(broker_id)

    def pids(self) -> list[int]:
        return [broker.pid for broker in self._cluster.brokers.values() if broker.alive()]

    def metrics_urls(self) -> list[str]:
        """The pages of the metrics of all brokers that serve them."""
        pages = (broker.metrics_url for broker in self._cluster.brokers.values())
        return [page for page in pages if page is not None]

    def kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)

    def shut_down(self, broker_id: int) -> float:
        began = time.monotonic()
        self._cluster.stop(broker_id)
        return time.monotonic() - began

    def start(self, broker_id: int) -> None:
        self._cluster.start(broker_id)

    def controller(self) -> int:
        found = self._cluster.controller()
        if found is None:
            raise RuntimeError("the brokers do not agree on a controller")
        return found

    def notice_deaths_early(self) -> None:
        """Nothing to do: the death of a process is noticed as it happens."""


class KafkaThree:
    name = "Apache Kafka"

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self._folder = folder
        self._settings = dict(settings or {})
        self._kafka = self._prepared({})
        self.bootstrap = self._kafka.bootstrap

    def _prepared(self, overrides: dict[str, str]) -> ApacheKafka:
        folder = self._folder / f"kafka-{len(overrides)}"
        settings = {**SETTINGS, **self._settings, **overrides}
        kafka = ApacheKafka(folder, nodes=BROKERS, overrides=settings, jvm=JVM_AS_SHIPPED)
        kafka.format()
        return kafka

    @staticmethod
    def version() -> str:
        return kafka_version()

    def launch(self) -> None:
        self._kafka.start(wait=False)

    def wait_ready(self) -> None:
        self._kafka.wait_ready()

    def stop(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGTERM)  # all at once: in turn, the last would wait for a quorum in vain
        self._kafka.stop()

    def pids(self) -> list[int]:
        return [node.pid for node in self._kafka.brokers if node.alive()]

    def kill(self, broker_id: int) -> None:
        self._kafka.nodes[broker_id].kill()

    def shut_down(self, broker_id: int) -> float:
        node = self._kafka.nodes[broker_id]
        began = time.monotonic()
        os.kill(node.pid, signal.SIGTERM)
        while node.alive() and time.monotonic() < began + SHUTDOWN_TIMEOUT_S:
            time.sleep(0.005)
        seconds = time.monotonic() - began
        node.stop()
        return seconds

    def start(self, broker_id: int) -> None:
        self._kafka.nodes[broker_id].start()
        self._kafka.wait_ready()

    def controller(self) -> int:
        """The leader of the controllers' quorum: what Metadata says of a controller is any broker."""
        peer = WirePeer(self.bootstrap.split(",")[0])
        try:
            partition = make(ApiKey.DESCRIBE_QUORUM, 0, "PartitionData", partition_index=0)
            topic = make(
                ApiKey.DESCRIBE_QUORUM, 0, "TopicData", topic_name=METADATA_TOPIC, partitions=(partition,)
            )
            answer = peer.ask(ApiKey.DESCRIBE_QUORUM, 0, topics=(topic,))
        finally:
            peer.close()
        return answer.topics[0].partitions[0].leader_id

    def notice_deaths_early(self) -> None:
        self._kafka.kill()
        self._kafka = self._prepared(SHORT_TIMEOUTS)
        self.bootstrap = self._kafka.bootstrap
        self._kafka.start()


CLUSTERS: dict[str, type[NilometerThree] | type[KafkaThree]] = {
    "nilometer": NilometerThree,
    "kafka": KafkaThree,
}


def admin_of(system: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})


def wait_members(system: Cluster, count: int, timeout_s: float = 60.0) -> None:
    """Until that many brokers respond, and each names as many: a broker that was killed is named, too, until
    its session has ended."""
    addresses = system.bootstrap.split(",")
    deadline = time.monotonic() + timeout_s
    while sum(_named_by(address) == count for address in addresses) != count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{system.name}: {count} brokers were waited for in vain")
        time.sleep(0.05)


def _named_by(address: str) -> int:
    """How many brokers a broker names; 0 if it does not respond."""
    try:
        with WirePeer(address, timeout_s=5) as peer:
            return len(peer.ask(ApiKey.METADATA, 9, topics=()).brokers)
    except (ConnectionEnded, OSError):
        return 0


def wait_in_sync(system: Cluster, topic: str, timeout_s: float = 180.0) -> None:
    """Until every partition of ``topic`` has a leader and all its replicas in sync."""
    admin = admin_of(system)
    deadline = time.monotonic() + timeout_s
    while True:
        known = admin.list_topics(topic, timeout=20).topics[topic].partitions.values()
        if known and all(each.leader >= 0 and len(each.isrs) == len(each.replicas) for each in known):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{system.name}: the replicas of {topic} do not get in sync")
        time.sleep(0.1)


def leader_of(system: Cluster, topic: str, partition: int = 0, timeout_s: float = 30.0) -> int:
    """As a broker says that has heard of ``topic`` already."""
    admin = admin_of(system)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        known = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if partition in known and known[partition].leader >= 0:
            return known[partition].leader
        time.sleep(0.02)
    raise RuntimeError(f"{system.name}: no leader for {topic}")
