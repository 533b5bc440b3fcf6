"""`nilometer elect-leaders`: back to the preferred replica, and by any where asked for."""

from __future__ import annotations

from confluent_kafka import Producer

from support.brokers.nilometer_cluster import NilometerCluster
from support.command_line import Nilometer
from support.eventually import eventually


def test_leadership_returns_to_the_preferred_replica(cluster: NilometerCluster, nilometer: Nilometer) -> None:
    cluster.create_topic("preferred", assignments={0: (2, 1), 1: (1, 3)})
    assert cluster.stop(2) == 0
    assert cluster.wait_leader("preferred", 0, other_than=2) == 1
    cluster.start(2)
    cluster.wait_full_isr("preferred")
    answer = nilometer("elect-leaders", "--topic", "preferred")
    assert answer.code == 0
    assert "preferred-0 has a new leader." in answer.out
    assert "1 of 2 partitions needed no election." in answer.out
    eventually(lambda: cluster.leader_of("preferred", 0) == 2, "2 leads again")
    again = nilometer("elect-leaders", "--preferred", "--topic", "preferred", "--partition", "0", "--json")
    assert again.code == 0
    assert again.document["partitions"] == [
        {"topic": "preferred", "partition": 0, "elected": False, "error": None}
    ]
    assert nilometer("elect-leaders", "--all").code == 0


def test_an_unclean_election_is_done_and_counted(cluster: NilometerCluster, nilometer: Nilometer) -> None:
    cluster.create_topic("torn", assignments={0: (2, 3)}, configs={"min.insync.replicas": "1"})
    cluster.stop(3)
    eventually(lambda: _isr(cluster) == (2,), "3 is out of the ISR")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    producer.produce("torn", b"lost", partition=0)
    assert producer.flush(20) == 0
    cluster.stop(2)
    cluster.start(3)
    assert cluster.leader_of("torn") is None
    refused = nilometer("elect-leaders", "--topic", "torn")
    assert refused.code == 1
    assert "torn-0" in refused.err
    unsaid = nilometer("elect-leaders", "--unclean", "--topic", "torn")
    assert unsaid.code == 2 and "records of torn-0 can be lost" in unsaid.err and "--yes" in unsaid.err
    assert cluster.leader_of("torn") is None
    assert nilometer("elect-leaders", "--unclean", "--topic", "torn", "--yes").code == 0
    assert cluster.wait_leader("torn") == 3
    cluster.start(2)
    cluster.wait_full_isr("torn")
    document = nilometer("replicas", "--topic", "torn", "--json").document
    assert {row["log_end_offset"] for row in document["replicas"]} == {0}
    assert {one["unclean_elections"] for one in document["brokers"]} == {1}


def test_wrong_use_is_refused(nilometer: Nilometer) -> None:
    assert nilometer("elect-leaders").code == 2
    assert nilometer("elect-leaders", "--all", "--topic", "t").code == 2
    assert nilometer("elect-leaders", "--all", "--partition", "0").code == 2
    assert nilometer("elect-leaders", "--topic", "nowhere").code == 1


def _isr(cluster: NilometerCluster) -> tuple[int, ...]:
    known = cluster.partition("torn")
    return () if known is None else known.in_sync_replicas
