"""Throttled replication: who is held back, for how long, and by which settings."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.broker.replicas.replication_quota import UNLIMITED, ReplicationQuota, ReplicationQuotas
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.entries import Entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    ConfigChanged,
    ConfigResourceType,
    ControllerElected,
    Record,
    TopicCreated,
    TopicDeleted,
)
from nilometer.identifiers import BrokerId, ControllerEpoch, EntryNumber, Incarnation, TopicId

TOPIC = ConfigResourceType.TOPIC
BROKER = ConfigResourceType.BROKER
LEADER_RATE = "leader.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"


class ManualClock:
    now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def quota(rate: int) -> tuple[ReplicationQuota, ManualClock]:
    clock = ManualClock()
    made = ReplicationQuota(clock)
    made.set_throttled("t", frozenset({0}))
    made.set_rate(rate)
    return made, clock


def test_a_second_of_the_rate_passes_at_once_and_an_overdraft_is_paid_back() -> None:
    made, clock = quota(1_000)
    assert made.wait_ms() == 0
    made.record(999)
    assert made.wait_ms() == 0
    made.record(5_001)
    assert made.wait_ms() == 5_001
    clock.now_ms += 5_000
    assert made.wait_ms() == 1
    clock.now_ms += 1
    assert made.wait_ms() == 0


def test_what_is_not_used_is_not_saved_up() -> None:
    made, clock = quota(1_000)
    clock.now_ms += 3_600_000
    made.record(1_000)
    assert made.wait_ms() > 0


def test_over_time_the_rate_holds_whatever_the_size_of_an_answer() -> None:
    made, clock = quota(10_000)
    sent, begun = 0, clock.now_ms
    while clock.now_ms < begun + 60_000:
        wait_ms = made.wait_ms()
        if wait_ms:
            clock.now_ms += wait_ms
        else:
            made.record(7_777)
            sent += 7_777
    assert 60 * 10_000 <= sent <= 61 * 10_000 + 7_777


def test_a_rate_of_nothing_lets_nothing_pass() -> None:
    made, clock = quota(0)
    for _ in range(3):
        assert made.wait_ms() > 0
        clock.now_ms += 100_000


def test_only_named_partitions_under_a_rate_are_throttled() -> None:
    made, _ = quota(5)
    assert made.throttles("t", 0)
    assert not made.throttles("t", 1)
    assert not made.throttles("u", 0)
    made.set_rate(UNLIMITED)
    assert not made.throttles("t", 0)


class Cluster:
    """The fold, told entry by entry to the quotas of broker 1."""

    def __init__(self, **static: str) -> None:
        self.image = ClusterImage()
        self.quotas = ReplicationQuotas(
            BrokerConfig({"node.id": "1", **{name.replace("_", "."): text for name, text in static.items()}}),
            ManualClock(),
        )
        self.fold(
            ControllerElected(
                controller_id=BrokerId(1), incarnation=Incarnation("a"), controller_epoch=ControllerEpoch(1)
            )
        )
        self.topic_id = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
        self.fold(TopicCreated(name="t", topic_id=self.topic_id))

    def fold(self, *records: Record) -> None:
        number = EntryNumber(self.image.number + 1)
        entry = Entry(
            controller_id=BrokerId(1),
            controller_incarnation=Incarnation("a"),
            controller_epoch=ControllerEpoch(1),
            records=records,
        )
        self.quotas.on_delta(self.image.apply_entry(number, entry), self.image)

    def configure(self, kind: ConfigResourceType, name: str, settings: Mapping[str, str | None]) -> None:
        self.fold(
            *(
                ConfigChanged(resource_type=kind, resource_name=name, key=key, value=value)
                for key, value in settings.items()
            )
        )


def test_settings_of_topics_and_brokers_are_followed() -> None:
    cluster = Cluster()
    cluster.configure(TOPIC, "t", {LEADER_REPLICAS: "0:1,1:2,2:1", FOLLOWER_REPLICAS: "3:1"})
    assert not cluster.quotas.leader.throttles("t", 0), "no rate is set yet"
    cluster.configure(BROKER, "", {LEADER_RATE: "7"})
    assert cluster.quotas.leader.bytes_per_second == 7
    cluster.configure(BROKER, "1", {LEADER_RATE: "9"})
    assert cluster.quotas.leader.bytes_per_second == 9
    cluster.configure(BROKER, "2", {LEADER_RATE: "11"})
    assert cluster.quotas.leader.bytes_per_second == 9
    assert [cluster.quotas.leader.throttles("t", number) for number in range(4)] == [True, False, True, False]
    assert cluster.quotas.follower.bytes_per_second == UNLIMITED
    cluster.configure(BROKER, "1", {LEADER_RATE: None})
    assert cluster.quotas.leader.bytes_per_second == 7
    cluster.configure(TOPIC, "t", {LEADER_REPLICAS: "*"})
    assert cluster.quotas.leader.throttles("t", 99)
    cluster.configure(TOPIC, "t", {LEADER_REPLICAS: None})
    assert not cluster.quotas.leader.throttles("t", 0)


def test_a_topic_created_again_is_not_throttled_by_the_settings_of_the_earlier_one() -> None:
    cluster = Cluster(leader_replication_throttled_rate="100")
    assert cluster.quotas.leader.bytes_per_second == 100
    cluster.configure(TOPIC, "t", {LEADER_REPLICAS: "*"})
    assert cluster.quotas.leader.throttles("t", 0)
    cluster.fold(TopicDeleted(topic_id=cluster.topic_id))
    assert not cluster.quotas.leader.throttles("t", 0)


def test_a_reload_reads_everything_again() -> None:
    cluster = Cluster()
    cluster.configure(TOPIC, "t", {LEADER_REPLICAS: "0:1"})
    cluster.configure(BROKER, "1", {LEADER_RATE: "5"})
    fresh = ReplicationQuotas(BrokerConfig({"node.id": "1"}), ManualClock())
    fresh.on_reload(cluster.image)
    assert fresh.leader.throttles("t", 0)
    fresh.on_reload(ClusterImage())
    assert not fresh.leader.throttles("t", 0)
