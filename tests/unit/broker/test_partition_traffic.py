"""Records and bytes of a partition, counted over its roles, and kept when the partition departs."""

from __future__ import annotations

from nilometer.broker.replicas.traffic import BrokerTraffic, PartitionTraffic


def test_only_records_appended_as_leader_count() -> None:
    traffic = PartitionTraffic()
    assert traffic.messages_in(10) == 0, "nothing was appended yet in this role"
    traffic.on_role(leads=True, log_end_offset=10)
    assert traffic.messages_in(15) == 5
    traffic.on_role(leads=True, log_end_offset=15)  # it leads again, under a higher leader epoch
    traffic.on_role(leads=False, log_end_offset=17)
    assert traffic.messages_in(30) == 7, "what it fetched as follower does not count"
    traffic.on_role(leads=True, log_end_offset=12)  # the log was truncated meanwhile
    assert traffic.messages_in(14) == 9


def test_bytes_are_published_once() -> None:
    traffic = PartitionTraffic()
    traffic.bytes_in += 5
    traffic.bytes_in += 6
    assert (traffic.take_published(), traffic.take_published()) == (11, 0)
    traffic.bytes_in += 7
    assert (traffic.take_published(), traffic.bytes_in) == (7, 18)


def test_departed_partitions_stay_in_the_sums() -> None:
    broker = BrokerTraffic()
    for topic, count in (("a", 3), ("a", 4), ("b", 5)):
        traffic = PartitionTraffic()
        traffic.on_role(leads=True, log_end_offset=0)
        traffic.bytes_out = 10
        broker.on_departed(topic, traffic, count)
    assert {topic: one.messages_in for topic, one in broker.departed_by_topic.items()} == {"a": 7, "b": 5}
    broker.keep_topics(lambda name: name == "b")
    assert list(broker.departed_by_topic) == ["b"]
    assert (broker.departed.messages_in, broker.departed.bytes_out) == (12, 30)
