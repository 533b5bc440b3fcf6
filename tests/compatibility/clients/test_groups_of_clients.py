"""Groups of clients of every make, mixed, while the broker that coordinates them is killed.

What must hold whatever happens: every acknowledged record is read by some member, what was read and committed
before the coordinator died is not read again, and in the end each partition has exactly one member.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.groups.group_members import GroupMember, kinds_of_members
from support.groups.group_requests import fetch_fields
from support.kafka.java_driver import JavaDriver
from support.wire.wire_peer import WirePeer

pytestmark = pytest.mark.java

PARTITIONS = 8
WAIT_S = 120.0
CLASSIC = ("librdkafka", "aiokafka", "kafka-python", "java", "ours")
NEXT_GENERATION = ("librdkafka-848", "java-848", "ours-848")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    overrides = {
        "offsets.topic.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "500",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.session.timeout.ms": "30000",
        "group.consumer.min.session.timeout.ms": "6000",
    }
    with NilometerCluster(tmp_path_factory.mktemp("groups"), overrides=overrides) as cluster:
        yield cluster
        assert "Traceback" not in cluster.output()


class Writer:
    """Writes numbered values to a topic, as fast as told, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, prefix: str, pause_s: float = 0.005) -> None:
        self._topic, self._prefix, self._pause_s = topic, prefix, pause_s
        self.acknowledged: list[str] = []
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self._pause_s):
            value = f"{self._prefix}{number}"
            self._producer.produce(
                self._topic, value.encode(), key=value.encode(), on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(message.value().decode())

    def stop(self) -> list[str]:
        """What was acknowledged."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(30) == 0
        return self.acknowledged


@contextmanager
def group_of(
    cluster: NilometerCluster, java: JavaDriver, group: str, topic: str, kinds: tuple[str, ...]
) -> Iterator[dict[str, GroupMember]]:
    make = kinds_of_members(java)
    members = {kind: make[kind](cluster.bootstrap, group, topic) for kind in kinds}
    try:
        yield members
    finally:
        for member in members.values():
            member.leave()
    assert {kind: member.failure for kind, member in members.items() if member.failure} == {}


def read_by(members: dict[str, GroupMember]) -> Counter[str]:
    return Counter(value for member in members.values() for value in member.seen())


def wait_read(members: dict[str, GroupMember], values: list[str]) -> None:
    def all_read() -> bool:
        return not set(values) - read_by(members).keys()

    eventually(all_read, f"{len(values)} values are read", WAIT_S)


def wait_shared_out(members: dict[str, GroupMember]) -> None:
    """Every member has some of the partitions, and together they have each once."""

    def is_shared_out() -> bool:
        shares = [member.assigned for member in members.values()]
        return sum(shares) == PARTITIONS and min(shares) >= PARTITIONS // len(members)

    eventually(is_shared_out, "each partition has one member", WAIT_S)


def coordinator_of(cluster: NilometerCluster, group: str) -> int:
    found: list[int] = []

    def is_found() -> bool:
        with WirePeer(cluster.brokers[cluster.running[0]].bootstrap) as peer:
            answer = peer.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group,))
        (one,) = answer.coordinators
        if one.error_code == ErrorCode.none and one.node_id in cluster.running:
            found.append(one.node_id)
        return bool(found)

    eventually(is_found, f"the coordinator of {group}")
    return found[-1]


def committed(cluster: NilometerCluster, group: str, topic: str) -> int:
    """How many records of the topic are committed, over all partitions."""
    wanted = {group: {topic: tuple(range(PARTITIONS))}}
    with WirePeer(cluster.brokers[coordinator_of(cluster, group)].bootstrap) as peer:
        answer = peer.ask(ApiKey.OFFSET_FETCH, 7, **fetch_fields(7, wanted, stable=True))
    if answer.error_code != ErrorCode.none:
        return -1
    return sum(max(0, one.committed_offset) for one in answer.topics[0].partitions)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param((*CLASSIC, *NEXT_GENERATION), id="both-protocols"),
        pytest.param(CLASSIC, id="classic", marks=pytest.mark.soak),
    ],
)
def test_a_mixed_group_outlives_its_coordinator(
    cluster: NilometerCluster, java: JavaDriver, kinds: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    group = topic = f"mixed-{request.node.callspec.id}"
    if len(cluster.running) < 3:
        cluster.start()
    cluster.create_topic(topic, PARTITIONS)
    before = Writer(cluster.bootstrap, topic, "before-")
    with group_of(cluster, java, group, topic, kinds) as members:
        wait_shared_out(members)
        first = before.stop()
        wait_read(members, first)
        eventually(lambda: committed(cluster, group, topic) == len(first), "all is committed", WAIT_S)
        known = read_by(members)

        meanwhile = Writer(cluster.bootstrap, topic, "meanwhile-")
        eventually(lambda: len(meanwhile.acknowledged) > 100, "records are being written")
        cluster.kill(coordinator_of(cluster, group))
        reached = len(meanwhile.acknowledged)
        eventually(lambda: len(meanwhile.acknowledged) > reached + 500, "writing goes on", WAIT_S)
        second = meanwhile.stop()
        wait_read(members, second)
        cluster.start()

        after = Writer(cluster.bootstrap, topic, "after-")
        eventually(lambda: len(after.acknowledged) > 100, "records are being written")
        third = after.stop()
        wait_read(members, third)
        wait_shared_out(members)
        eventually(
            lambda: committed(cluster, group, topic) == len(first) + len(second) + len(third),
            "all is committed",
            WAIT_S,
        )
        read = read_by(members)
    again = [value for value in first if read[value] > known[value]]
    assert not again, f"{len(again)} records were read again that had been committed"


@pytest.mark.soak
@pytest.mark.parametrize("kind", [*CLASSIC, *NEXT_GENERATION])
def test_members_come_and_go(cluster: NilometerCluster, java: JavaDriver, kind: str) -> None:
    """One is there, another comes and takes a share, the first goes and the other has all."""
    group = topic = f"come-and-go-{kind}"
    if len(cluster.running) < 3:
        cluster.start()
    cluster.create_topic(topic, PARTITIONS)
    other_kind = "librdkafka-848" if kind in NEXT_GENERATION else "librdkafka"
    with group_of(cluster, java, group, topic, (kind,)) as first:
        wait_shared_out(first)
        writer = Writer(cluster.bootstrap, topic, "value-")
        second = {"second": kinds_of_members(java)[other_kind](cluster.bootstrap, group, topic)}
        both = {**first, **second}
        wait_shared_out(both)
        eventually(lambda: len(writer.acknowledged) > 100, "records are being written")
    # The first has left.
    try:
        eventually(lambda: second["second"].assigned == PARTITIONS, "the other has all", WAIT_S)
        wait_read(both, writer.stop())
    finally:
        second["second"].leave()
    assert second["second"].failure is None
