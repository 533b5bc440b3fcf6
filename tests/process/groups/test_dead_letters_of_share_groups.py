"""Dead letters of share groups in a real cluster (KIP-1191): which records have them, what is in them, and
what happens where they cannot be written.

The records are at broker 1. Their letters are there too, or at broker 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from urllib.parse import urlsplit

import confluent_kafka
import pytest

from nilometer.client.admin.admin import ConfigChange, NewTopic, ResourceType
from nilometer.cluster.features import SHARE_VERSION
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.metrics.scrape import Scrape
from support.share.share_member import (
    ACCEPT,
    REJECT,
    RELEASE,
    ShareMember,
    acquired,
    part_of,
    topic_named,
)
from support.wire.wire_peer import WirePeer, make

NONE = ErrorCode.none
TOPIC_NAME, COPY = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
ENABLE = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
Letter = tuple[bytes | None, bytes | None, dict[str, bytes | None]]
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    overrides = {
        "offsets.topic.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.share.record.lock.duration.ms": "1000",
        "group.share.min.record.lock.duration.ms": "1000",
        "metrics.listener": "127.0.0.1:0",
    }
    with NilometerCluster(tmp_path_factory.mktemp("dead-letters"), overrides=overrides) as cluster:
        yield cluster
        assert "Traceback" not in cluster.output()


class Queue:
    """A topic with one partition at broker 1, a share group with one member, and the topic of its letters."""

    def __init__(self, cluster: NilometerCluster, *, letters_at: int = 2, **settings: str) -> None:
        number = next(_numbers)
        self.cluster, self.leader = cluster, 1
        self.jobs, self.group, self.grave = f"jobs-{number}", f"workers-{number}", f"dlq.of-{number}"
        self.create(self.jobs, 1)
        if letters_at:
            self.create(self.grave, letters_at, {ENABLE: "true"})
        wanted = {TOPIC_NAME: self.grave, "share.auto.offset.reset": "earliest"}
        self.configure(
            ResourceType.GROUP, self.group, wanted | {_key(name): settings[name] for name in settings}
        )
        self.member = self.join("one")

    def create(self, name: str, leader: int, configs: Mapping[str, str] | None = None) -> None:
        others = [one for one in (1, 2, 3) if one != leader]
        topic = NewTopic(name, configs=configs or {}, assignments={0: [leader, *others]})
        self.cluster.operate(lambda admin: admin.create_topics([topic]))
        self.cluster.wait_leader(name)

    def configure(self, kind: ResourceType, name: str, settings: Mapping[str, str]) -> None:
        changes = [ConfigChange(key, value) for key, value in settings.items()]
        self.cluster.operate(lambda admin: admin.incremental_alter_configs(kind, name, changes))

        def is_known_everywhere() -> bool:
            asked = make(
                ApiKey.DESCRIBE_CONFIGS, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name
            )
            for broker_id in self.cluster.running:
                with WirePeer(self.cluster.brokers[broker_id].bootstrap) as peer:
                    (told,) = peer.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=(asked,)).results
                    if not settings.items() <= {one.name: one.value for one in told.configs}.items():
                        return False
            return True

        if kind is not ResourceType.BROKER:
            eventually(is_known_everywhere, f"each broker knows the settings of {name}")

    def join(self, member_id: str) -> ShareMember:
        with WirePeer(self.cluster.brokers[self.leader].bootstrap) as peer:

            def coordinator() -> int:
                asked = peer.ask(ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=(self.group,))
                (found,) = asked.coordinators
                return found.node_id if found.error_code is NONE else -1

            eventually(lambda: coordinator() > 0, "the group has a coordinator")
            there = self.cluster.brokers[coordinator()].bootstrap
        here = self.cluster.brokers[self.leader].bootstrap
        member = ShareMember(topic_named(here, self.jobs), self.group, member_id, here, there)
        member.join()
        return member

    def put(
        self, *values: bytes, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        for value in values:
            producer.produce(self.jobs, value, key, headers=list((headers or {}).items()))
        assert producer.flush(60) == 0

    def fetch(self, records: int = 100) -> list[tuple[int, int, int]]:
        """Return (first offset, last offset, delivery count) of what the member has got at last."""
        found: list[tuple[int, int, int]] = []

        def has_any() -> bool:
            found.extend(acquired(self.member.fetch(wait_ms=500, records=records)))
            return bool(found)

        eventually(has_any, "records are delivered")
        return found

    def acknowledge(self, first: int, last: int, kind: int) -> None:
        assert part_of(self.member.acknowledge((first, last, kind))).error_code is NONE

    def letters(self, expected: int, topic: str | None = None) -> list[Letter]:
        """Return the letters: key, value and headers; wait until there are so many."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": "reader", "log_level": 0}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic or self.grave, 0, 0)])
        found: list[Letter] = []

        def are_all_there() -> bool:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                headers = [(name, text) for name, text in message.headers() or ()]
                assert len(headers) == len(dict(headers)), headers
                found.append((message.key(), message.value(), dict(headers)))
            return len(found) >= expected

        try:
            eventually(are_all_there, f"{expected} letters are there")
        finally:
            consumer.close()
        return found

    def lag(self) -> int:
        """How many records are neither accepted nor archived."""
        key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
        asked = make(key, 1, "DescribeShareGroupOffsetsRequestGroup", group_id=self.group, topics=None)
        with WirePeer(self.cluster.brokers[self.leader].bootstrap) as peer:
            (coordinator,) = peer.ask(
                ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=(self.group,)
            ).coordinators
        with WirePeer(self.cluster.brokers[coordinator.node_id].bootstrap) as peer:
            (told,) = peer.ask(key, 1, groups=(asked,)).groups
        return sum(part.lag for topic in told.topics for part in topic.partitions)

    def is_done(self) -> bool:
        return self.lag() == 0

    def says(self, offset: int, deliveries: int, message: bytes) -> dict[str, bytes]:
        """Return the headers of a letter."""
        return {
            "__dlq.errors.topic": self.jobs.encode(),
            "__dlq.errors.partition": b"0",
            "__dlq.errors.offset": b"%d" % offset,
            "__dlq.errors.group": self.group.encode(),
            "__dlq.errors.delivery.count": b"%d" % deliveries,
            "__dlq.errors.message": message,
        }


def _key(name: str) -> str:
    return name.replace("_", ".")


REJECTED = b"Offset rejected by client."
EXCEEDED = b"Offset delivery count exceeded the threshold."


@pytest.mark.quick
@pytest.mark.parametrize("letters_at", [1, 2])
def test_what_is_rejected_has_a_letter_that_says_where_it_is(
    cluster: NilometerCluster, letters_at: int
) -> None:
    queue = Queue(cluster, letters_at=letters_at)
    queue.put(b"a", b"b", b"c", b"d", key=b"k")
    assert queue.fetch() == [(0, 3, 1)]
    queue.acknowledge(0, 0, ACCEPT)
    queue.acknowledge(1, 2, REJECT)
    queue.acknowledge(3, 3, RELEASE)
    assert queue.letters(2) == [
        (None, None, queue.says(1, 1, REJECTED)),
        (None, None, queue.says(2, 1, REJECTED)),
    ]
    assert queue.fetch() == [(3, 3, 2)]
    queue.acknowledge(3, 3, ACCEPT)
    eventually(queue.is_done, "what is rejected is archived")
    url = urlsplit(cluster.brokers[1].metrics_url or "")
    metrics, of_group = Scrape(url.port or 0), {"group": queue.group}
    assert metrics("nilometer_share_records_dead_total", reason="rejected", **of_group) == 2
    assert metrics("kafka_server_sharegroupmetrics_deadletterqueuerecordcount_count", **of_group) == 2
    assert metrics("nilometer_share_records_acquired_total", **of_group) == 5
    assert metrics("nilometer_share_records_redelivered_total", **of_group) == 1
    assert metrics("nilometer_share_partition_lag", topic=queue.jobs, partition="0", **of_group) == 0


def test_a_letter_has_the_record_if_the_group_wants_it(cluster: NilometerCluster) -> None:
    queue = Queue(cluster, errors_deadletterqueue_copy_record_enable="true")
    queue.put(b"a", b"b", key=b"k", headers={"kind": b"x", "__dlq.errors.topic": b"before"})
    queue.put(b"c")
    assert queue.fetch()[0][0] == 0
    queue.acknowledge(1, 2, REJECT)
    assert queue.letters(2) == [
        (b"k", b"b", {"kind": b"x", **queue.says(1, 1, REJECTED)}),
        (None, b"c", queue.says(2, 1, REJECTED)),
    ]


def test_a_record_that_no_member_survives_has_a_letter_after_the_last_delivery(
    cluster: NilometerCluster,
) -> None:
    queue = Queue(cluster, share_delivery_count_limit="2")
    queue.put(b"poison")
    assert queue.fetch() == [(0, 0, 1)]
    queue.member.peer.close()  # it dies
    queue.member = queue.join("two")
    assert queue.fetch() == [(0, 0, 2)]  # and this one hangs
    assert queue.letters(1) == [(None, None, queue.says(0, 2, EXCEEDED))]
    eventually(queue.is_done, "it is archived")


def test_what_cannot_be_written_is_archived_and_logged(cluster: NilometerCluster) -> None:
    queue = Queue(cluster, letters_at=0)
    queue.put(b"a", b"b")
    queue.fetch()
    queue.acknowledge(0, 0, REJECT)
    queue.acknowledge(1, 1, ACCEPT)
    eventually(queue.is_done, "it is archived all the same")
    why = f"topic {queue.grave} does not exist, and {AUTO_CREATE} is false"
    eventually(lambda: why in cluster.output(), "the reason is logged")
    closed = Queue(cluster)
    closed.configure(ResourceType.TOPIC, closed.grave, {ENABLE: "false"})
    closed.put(b"a")
    closed.fetch()
    closed.acknowledge(0, 0, REJECT)
    eventually(closed.is_done, "the topic's owner has not opened it")
    eventually(lambda: f"{closed.grave} does not have {ENABLE}=true" in cluster.output(), "it is logged")
    closed.configure(ResourceType.TOPIC, closed.grave, {ENABLE: "true"})
    closed.put(b"b")
    closed.fetch()
    closed.acknowledge(1, 1, REJECT)
    assert closed.letters(1) == [(None, None, closed.says(1, 1, REJECTED))]


def test_the_topic_is_created_if_brokers_may(cluster: NilometerCluster) -> None:
    queue = Queue(cluster, letters_at=0)
    queue.configure(ResourceType.BROKER, "", {AUTO_CREATE: "true"})
    other = Queue(cluster, letters_at=0, errors_deadletterqueue_topic_name="letters")
    for one in (queue, other):
        one.put(b"a")
        one.fetch()
        one.acknowledge(0, 0, REJECT)
    assert queue.letters(1) == [(None, None, queue.says(0, 1, REJECTED))]
    assert cluster.topic_setting(queue.grave, ENABLE) == "true"
    eventually(lambda: f"does not begin with {PREFIX} (dlq.)" in cluster.output(), "a name has a prefix")
    other.configure(ResourceType.BROKER, "", {PREFIX: ""})
    other.put(b"b")
    other.fetch()
    other.acknowledge(1, 1, REJECT)
    assert other.letters(1, "letters") == [(None, None, other.says(1, 1, REJECTED))]
    other.configure(ResourceType.BROKER, "", {PREFIX: "dlq.", AUTO_CREATE: "false"})


def test_many_letters_are_written_in_several_batches(cluster: NilometerCluster) -> None:
    queue = Queue(cluster, errors_deadletterqueue_copy_record_enable="true")
    queue.configure(ResourceType.TOPIC, queue.grave, {"max.message.bytes": "20000"})
    queue.put(b"x" * 30_000, *(b"%d" % number + b"y" * 1_000 for number in range(100)))
    seen = 0
    while seen < 101:
        for first, last, _ in queue.fetch():
            queue.acknowledge(first, last, REJECT)
            seen += last - first + 1
    letters = queue.letters(101)
    assert [letter[2]["__dlq.errors.offset"] for letter in letters] == [b"%d" % at for at in range(101)]
    assert letters[0][1] is None, "what is too large is not copied"
    assert [letter[1] for letter in letters[1:]] == [b"%d" % at + b"y" * 1_000 for at in range(100)]


def test_a_new_leader_writes_the_letters_of_a_lost_one(cluster: NilometerCluster) -> None:
    queue = Queue(cluster, letters_at=0)
    topic = NewTopic(queue.grave, configs={ENABLE: "true"}, assignments={0: [3]})
    cluster.operate(lambda admin: admin.create_topics([topic]))
    cluster.wait_leader(queue.grave)
    queue.put(b"a", b"b")
    queue.fetch()
    cluster.kill(3)
    eventually(lambda: cluster.leader_of(queue.grave) is None, "the letters' topic has no leader")
    queue.acknowledge(0, 1, REJECT)
    cluster.kill(1)
    cluster.start(3)
    eventually(lambda: cluster.leader_of(queue.jobs) not in (None, 1), "the records have a new leader")
    queue.leader = cluster.leader_of(queue.jobs) or 0
    queue.member = queue.join("two")
    assert acquired(queue.member.fetch()) == []
    letters = queue.letters(2)
    assert [letter[2] for letter in letters[:2]] == [queue.says(0, 1, REJECTED), queue.says(1, 1, REJECTED)]
    eventually(queue.is_done, "they are archived")
    cluster.start(1)
    cluster.wait_full_isr(queue.jobs)


def test_at_an_earlier_level_of_the_feature_there_are_no_letters(cluster: NilometerCluster) -> None:
    queue = Queue(cluster)
    set_level(cluster, 1)
    queue.put(b"a")
    queue.fetch()
    queue.acknowledge(0, 0, REJECT)
    eventually(queue.is_done, "it is archived")
    set_level(cluster, 2)
    queue.put(b"b")
    queue.fetch()
    queue.acknowledge(1, 1, REJECT)
    assert queue.letters(1) == [(None, None, queue.says(1, 1, REJECTED))], "the first has none"


def set_level(cluster: NilometerCluster, level: int) -> None:
    """Set the level of share.version, and wait until each broker has it."""
    update = make(
        ApiKey.UPDATE_FEATURES,
        2,
        "FeatureUpdateKey",
        feature=SHARE_VERSION,
        max_version_level=level,
        upgrade_type=1 if level == 2 else 2,
    )
    with WirePeer(cluster.bootstrap.split(",")[0]) as peer:
        told = peer.ask(ApiKey.UPDATE_FEATURES, 2, feature_updates=(update,), timeout_ms=30_000)
        assert told.error_code is NONE, told

    def is_everywhere() -> bool:
        for broker in cluster.brokers.values():
            with WirePeer(broker.bootstrap) as peer:
                asked = {"client_software_name": "test", "client_software_version": "1"}
                told = peer.ask(ApiKey.API_VERSIONS, 3, **asked)
                levels = {one.name: one.max_version_level for one in told.finalized_features}
                if levels[SHARE_VERSION] != level:
                    return False
        return True

    eventually(is_everywhere, f"each broker has {SHARE_VERSION} {level}")
