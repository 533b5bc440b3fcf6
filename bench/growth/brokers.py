"""Brokers: how many entries of the metadata log a second the controller writes and all brokers fold.

Topics of 100 partitions with three replicas are created one by one, on both coordination stores, and
every broker is asked for the log's end (DescribeQuorum). All brokers share the machine's cores, so the rate
of many is that of the machine, not of a controller.
"""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.brokers.nilometer_cluster import NilometerCluster
from tests.support.coordination.zookeeper_server import running_ensemble
from tests.support.wire.wire_peer import WirePeer, make

from nilometer.wire.api_keys import ApiKey

from ..clusters import METADATA_TOPIC
from ..systems import CREATE_TIMEOUT_S
from .curve import Curve, Measure, Point, scratch_folder, some_brokers

TOPICS = 30
TOPIC_PARTITIONS = 100
REPLICAS = 3
TIMEOUT_S = 120.0
POLL_S = 0.005


def _on_folder(brokers: int) -> Point:
    with some_brokers(brokers, None, scratch_folder() / "brokers") as cluster:
        return _measure(cluster)


def _on_zookeeper(brokers: int) -> Point:
    with running_ensemble() as zookeeper:
        at = f"zookeeper://{zookeeper.hosts}/bench"
        with some_brokers(brokers, at, scratch_folder() / "brokers") as cluster:
            return _measure(cluster)


def _measure(cluster: NilometerCluster) -> Point:
    peers = [WirePeer(broker.bootstrap) for broker in cluster.brokers.values()]
    try:
        first = max(map(_end, peers))
        began = time.monotonic()
        last = 0.0
        for number in range(TOPICS):
            asked = time.monotonic()
            _create(cluster, f"topic-{number}")
            last = time.monotonic() - asked
        created = time.monotonic() - began
        goal = max(map(_end, peers))
        _wait_folded(peers, goal, began)
        folded = time.monotonic() - began
    finally:
        for peer in peers:
            peer.close()
    return {
        "entries_per_s": (goal - first) / folded,
        "partitions_per_s": TOPICS * TOPIC_PARTITIONS / created,
        "last_s": last,
        "behind_s": folded - created,
    }


def _create(cluster: NilometerCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(topic, TOPIC_PARTITIONS, REPLICAS)
    admin.create_topics([new], request_timeout=CREATE_TIMEOUT_S)[topic].result(CREATE_TIMEOUT_S)


def _end(peer: WirePeer) -> int:
    """The number of entries that this broker has folded."""
    partition = make(ApiKey.DESCRIBE_QUORUM, 0, "PartitionData", partition_index=0)
    topic = make(ApiKey.DESCRIBE_QUORUM, 0, "TopicData", topic_name=METADATA_TOPIC, partitions=(partition,))
    answer = peer.ask(ApiKey.DESCRIBE_QUORUM, 0, topics=(topic,))
    return int(answer.topics[0].partitions[0].high_watermark)


def _wait_folded(peers: list[WirePeer], goal: int, began: float) -> None:
    for peer in peers:
        while _end(peer) < goal:
            if time.monotonic() > began + TIMEOUT_S:
                raise RuntimeError(f"a broker has not folded entry {goal} after {TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)


_MEASURES = (
    Measure("entries_per_s", "entries of the metadata log, folded by all", "1/s", 0),
    Measure("partitions_per_s", "partitions created", "1/s", 0),
    Measure("last_s", "the last topic", "s", 3),
    Measure("behind_s", "all have folded it after", "s", 3),
)
_SIZES = (3, 6, 9, 12)
_TITLE = f"{TOPICS} topics of {TOPIC_PARTITIONS} partitions with three replicas are created"
BROKERS = (
    Curve("brokers-folder", f"{_TITLE}, store in a folder", "brokers", _SIZES, _MEASURES, _on_folder, (3, 4)),
    Curve(
        "brokers-zookeeper",
        f"{_TITLE}, one ZooKeeper server",
        "brokers",
        _SIZES,
        _MEASURES,
        _on_zookeeper,
        (3, 4),
    ),
)
