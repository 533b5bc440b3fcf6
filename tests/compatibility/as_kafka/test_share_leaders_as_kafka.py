"""What a member of a share group is answered when the leader of its partition moves, and when a broker has as
many share sessions as it may have: two brokers of Nilometer beside two of Apache Kafka.

An acknowledgement that comes to another broker than the leader gets UNKNOWN_TOPIC_OR_PARTITION from Apache
Kafka, and here NOT_LEADER_OR_FOLLOWER with the leader: after both the member asks for the metadata.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.two_brokers import KEEP_OLD_RECORDS, Plain, Side, differences
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka
from support.share.share_member import ACCEPT, REJECT, RELEASE, ShareMember
from support.wire.new_topics import new_topic
from support.wire.wire_peer import make

pytestmark = pytest.mark.java

K = ApiKey
SESSIONS_MAX = 3
SETTINGS = {
    "group.share.max.share.sessions": str(SESSIONS_MAX),
    "group.share.max.size": str(SESSIONS_MAX),  # Apache Kafka takes no more members than sessions
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "min.insync.replicas": "1",
    "auto.leader.rebalance.enable": "false",
    **KEEP_OLD_RECORDS,
}
GROUP_CONFIGS = 32
MEMBERS = [f"q83vASNFZ4mrze8BI0Vn{letter}Q" for letter in "abcdef"]  # Apache Kafka takes UUIDs alone
WAIT_S = 120.0
LONG_MS, SHORT_MS = 20_000, 300


class Brokers(NamedTuple):
    """The brokers 1 and 2 of a cluster."""

    one: Side
    two: Side

    def move(self, topic: str, *replicas: int) -> None:
        """Let the first of ``replicas``, which are those that there are, lead the topic's partition."""
        self._wait_full(topic)
        key = K.ALTER_PARTITION_REASSIGNMENTS
        part = make(key, 0, "ReassignablePartition", partition_index=0, replicas=replicas)
        asked = make(key, 0, "ReassignableTopic", name=topic, partitions=(part,))
        assert self.one.message(key, 0, topics=(asked,), timeout_ms=20_000).error_code is ErrorCode.none
        elected = make(K.ELECT_LEADERS, 2, "TopicPartitions", topic=topic, partitions=(0,))
        self.one.message(K.ELECT_LEADERS, 2, election_type=0, topic_partitions=(elected,), timeout_ms=20_000)
        self.wait_leader(topic, replicas[0])

    def wait_leader(self, topic: str, leader: int) -> None:
        """Wait until both brokers know it, and it serves the partition."""
        for side in self:
            eventually(lambda side=side: side.leaders(topic) == [leader], f"{side} knows the leader", WAIT_S)
        for node, side in enumerate(self, start=1):
            wanted = ErrorCode.none if node == leader else ErrorCode.not_leader_or_follower
            eventually(
                lambda side=side, wanted=wanted: latest(side, topic) is wanted,
                f"{side} has its place",
                WAIT_S,
            )

    def _wait_full(self, topic: str) -> None:
        asked = make(K.METADATA, 12, "MetadataRequestTopic", name=topic)

        def is_full() -> bool:
            (found,) = self.one.message(K.METADATA, 12, topics=(asked,)).topics
            return all(len(part.isr_nodes) == 2 for part in found.partitions)

        eventually(is_full, "both replicas are in sync", WAIT_S)


def latest(side: Side, topic: str) -> ErrorCode:
    part = make(
        K.LIST_OFFSETS, 7, "ListOffsetsPartition", partition_index=0, timestamp=-1, current_leader_epoch=-1
    )
    asked = make(K.LIST_OFFSETS, 7, "ListOffsetsTopic", name=topic, partitions=(part,))
    answer = side.message(K.LIST_OFFSETS, 7, replica_id=-1, topics=(asked,), timeout_ms=10_000)
    return answer.topics[0].partitions[0].error_code


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Brokers, Brokers]]:
    apache = ApacheKafka(tmp_path_factory.mktemp("two-of-kafka"), nodes=2, overrides=SETTINGS)
    with NilometerCluster(tmp_path_factory.mktemp("two"), brokers=2, overrides=SETTINGS) as cluster:
        try:
            apache.start()
            yield brokers_of("Apache Kafka", apache.bootstrap), brokers_of("Nilometer", cluster.bootstrap)
        finally:
            apache.kill()  # its data is not used any more
        assert "Traceback" not in cluster.output()


def brokers_of(name: str, bootstrap: str) -> Brokers:
    one, two = (Side(f"{name} {node}", each) for node, each in enumerate(bootstrap.split(","), start=1))
    return Brokers(one, two)


def prepare(brokers: Brokers, topic: str) -> None:
    """Create the topic, led by broker 1, with six records in two batches; its group has the same name."""
    assigned = make(K.CREATE_TOPICS, 7, "CreatableReplicaAssignment", partition_index=0, broker_ids=(1, 2))
    asked = new_topic(topic, -1, replication_factor=-1, assignments=(assigned,))
    (made,) = brokers.one.message(K.CREATE_TOPICS, 7, topics=(asked,), timeout_ms=20_000).topics
    assert made.error_code is ErrorCode.none, made
    brokers.wait_leader(topic, 1)
    brokers.one.append(topic, b"0", b"1", b"2")
    brokers.one.append(topic, b"3", b"4", b"5")
    key = K.INCREMENTAL_ALTER_CONFIGS
    change = make(
        key, 1, "AlterableConfig", name="share.auto.offset.reset", config_operation=0, value="earliest"
    )
    resource = make(
        key, 1, "AlterConfigsResource", resource_type=GROUP_CONFIGS, resource_name=topic, configs=(change,)
    )
    (answer,) = brokers.one.message(key, 1, resources=(resource,), validate_only=False).responses
    assert answer.error_code is ErrorCode.none, answer


def coordinator(brokers: Brokers, group: str) -> Side:
    found: list[int] = []

    def is_known() -> bool:
        (told,) = brokers.one.message(
            K.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=(group,)
        ).coordinators
        found.append(told.node_id)
        return told.error_code is ErrorCode.none

    eventually(is_known, "the group has a coordinator", WAIT_S)
    return brokers[found[-1] - 1]


def member(brokers: Brokers, side: Side, topic: str, name: str) -> ShareMember:
    """A member that fetches from ``side``."""
    where = coordinator(brokers, topic).bootstrap
    return ShareMember((topic, side.topic_ids[topic]), topic, name, side.bootstrap, where)


def not_led_here(answer: Plain) -> Plain:
    """Take what differs out of an answer to acknowledgements."""
    part = answer["responses"][0]["partitions"][0]
    if "acknowledge_error_code" in part:
        assert part.pop("acknowledge_error_code") in (
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.not_leader_or_follower,
        )
        part.pop("acknowledge_error_message")
        return answer
    assert part["error_code"] in ("unknown_topic_or_partition", "not_leader_or_follower")
    return answer["error_code"]


def test_a_moved_leader(sides: tuple[Brokers, Brokers]) -> None:
    def scenario(brokers: Brokers) -> Plain:
        topic = "share-moved"
        prepare(brokers, topic)
        one, two = brokers
        old, new = member(brokers, one, topic, MEMBERS[0]), member(brokers, two, topic, MEMBERS[0])
        old.join()
        told: dict[str, Plain] = {
            "acquires": one.plain(old.fetch(wait_ms=LONG_MS)),
            "ends some": one.plain(old.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, REJECT))),
            "of the follower": two.plain(new.fetch(wait_ms=SHORT_MS)),
        }
        brokers.move(topic, 2, 1)
        told |= {
            "acknowledges to the old leader": not_led_here(one.plain(old.acknowledge((3, 3, ACCEPT)))),
            "fetches from the old leader": one.plain(old.fetch(wait_ms=SHORT_MS)),
            "both at once": not_led_here(one.plain(old.fetch((4, 4, ACCEPT), wait_ms=SHORT_MS))),
            "acknowledges to the new one what the old one gave": two.plain(new.acknowledge((3, 3, ACCEPT))),
            "fetches from the new leader": two.plain(new.fetch(wait_ms=LONG_MS)),
            "ends the rest": two.plain(new.acknowledge((1, 1, ACCEPT), (3, 4, ACCEPT), (5, 5, RELEASE))),
        }
        brokers.move(topic, 1, 2)
        told |= {
            "fetches from the first one again": one.plain(old.fetch(wait_ms=LONG_MS)),
            "acknowledges to it": one.plain(old.acknowledge((5, 5, ACCEPT))),
            "begins again": one.plain(old.fetch(epoch=0, wait_ms=SHORT_MS)),
            "acknowledges to the second": not_led_here(two.plain(new.acknowledge((5, 5, ACCEPT)))),
        }
        return told

    found = differences(*map(scenario, sides))
    assert not found, "\n".join(found)


def test_a_limit_of_sessions(sides: tuple[Brokers, Brokers]) -> None:
    def scenario(brokers: Brokers) -> Plain:
        topic, side = "share-limited", brokers.one
        prepare(brokers, topic)
        members = [member(brokers, side, topic, name) for name in MEMBERS[: SESSIONS_MAX + 1]]
        members[0].join()
        told: list[Plain] = [side.plain(each.fetch(records=1, wait_ms=SHORT_MS)) for each in members[:-1]]
        last = members[-1]
        began = time.monotonic()
        told.append(side.plain(last.fetch(wait_ms=SHORT_MS)))
        told.append(time.monotonic() - began >= SHORT_MS / 1000)
        told.append(side.plain(members[0].fetch(epoch=0, wait_ms=0)))
        told.append(side.plain(last.fetch(wait_ms=0)))
        told.append(side.plain(members[0].acknowledge(epoch=-1)))
        told.append(side.plain(last.fetch(wait_ms=LONG_MS)))
        members[1].close()  # its session ends with it

        def is_let_in() -> bool:
            return members[0].fetch(epoch=0, wait_ms=SHORT_MS).error_code is ErrorCode.none

        eventually(is_let_in, "the session of a closed connection ends", WAIT_S)
        for each in (members[0], *members[2:]):
            each.close()
        return told

    found = differences(*map(scenario, sides))
    assert not found, "\n".join(found)
