"""Every decision that an operator would ask about is one line, on one broker, with its cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually

WAIT_S = 60.0

Line = dict[str, Any]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NilometerCluster]:
    overrides = {
        "nilometer.log.format": "json",
        "zookeeper.session.timeout.ms": "30000",
        "replica.lag.time.max.ms": "120000",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "auto.leader.rebalance.enable": "false",
    }
    with NilometerCluster(tmp_path, 3, overrides) as running:
        yield running


def lines(cluster: NilometerCluster) -> list[Line]:
    """The lines of all brokers that are about a decision."""
    written = [line for line in cluster.output().splitlines() if line.startswith("{")]
    return [one for one in map(_parsed, written) if "event" in one]


def _parsed(line: str) -> Line:
    try:
        return json.loads(line)
    except ValueError:  # its end is not written yet
        return {}


def about(cluster: NilometerCluster, event: str, **fields: object) -> list[Line]:
    return [
        one
        for one in lines(cluster)
        if one["event"] == event and all(one["fields"].get(name) == value for name, value in fields.items())
    ]


def the_line(cluster: NilometerCluster, event: str, **fields: object) -> Line:
    """The only line about it on all brokers; each states its cause."""
    eventually(lambda: bool(about(cluster, event, **fields)), f"a line about {event} {fields}", WAIT_S)
    (line,) = about(cluster, event, **fields)
    assert line["message"].endswith(f", because {line['fields']['cause']}")
    return line


def test_a_leader_dies_and_returns(cluster: NilometerCluster) -> None:
    eventually(lambda: cluster.controller() is not None, "there is a controller", WAIT_S)
    first = cluster.controller()
    assert first is not None
    second, third = (one for one in (1, 2, 3) if one != first)
    became = the_line(cluster, "controller-became", controller_epoch=1)
    assert became["broker"] == first and "the cluster is new" in became["message"]

    cluster.create_topic("clicks", assignments={0: (first, second, third), 1: (second, third, first)})
    created = the_line(cluster, "topic-created", topic="clicks")
    assert "client 'nilometer' at 127.0.0.1:" in created["message"]
    assert "(CreateTopics)" in created["message"]

    cluster.kill(first)
    cluster.wait_leader("clicks", other_than=first)
    fenced = the_line(cluster, "broker-fenced", broker=first)
    assert fenced["message"] == (f"Broker {first} is fenced, because the session of broker {first} ended")
    next_one = the_line(cluster, "controller-became", controller_epoch=2)
    assert f"it follows broker {first}, which was the controller in epoch 1" in next_one["message"]
    elected = the_line(cluster, "leader-elected", topic="clicks", partition=0)
    assert elected["message"] == (
        f"clicks-0: broker {second} is elected leader in epoch 1 (before it was {first}, in sync), "
        f"the ISR shrinks from {first},{second},{third} to {second},{third}, "
        f"because the session of broker {first} ended"
    )
    assert elected["broker"] == fenced["broker"] == next_one["broker"]
    shrunk = the_line(cluster, "isr-changed", topic="clicks", partition=1)
    assert shrunk["message"].startswith("clicks-1: the ISR shrinks from")
    assert shrunk["fields"]["isr"] == [second, third]

    cluster.start(first)
    cluster.wait_full_isr("clicks")
    for partition in (0, 1):
        grown = the_line(cluster, "isr-expanded", topic="clicks", partition=partition)
        assert grown["broker"] == second, "the leader knows why"
        assert f"because replica {first} has caught up" in grown["message"]
        assert f"clicks-{partition}: the ISR expands" in grown["message"]
    back = [one for one in about(cluster, "broker-registered", broker=first) if one["broker"] != first]
    (registered,) = back
    assert "its previous incarnation lost no records" in registered["message"], "only its process died"

    _a_group_rebalances(cluster)
    _a_transaction_is_aborted(cluster)
    cluster.operate(lambda admin: admin.delete_topics(["clicks"]))
    deleted = the_line(cluster, "topic-deleted", topic="clicks")
    assert "client 'nilometer' at 127.0.0.1:" in deleted["message"] and "(DeleteTopics)" in deleted["message"]

    stopping = next_one["broker"]
    assert cluster.stop(stopping) == 0
    resigned = the_line(cluster, "controller-resigned", controller_epoch=2)
    assert resigned["broker"] == stopping and "it stops: in an orderly way" in resigned["message"]
    the_line(cluster, "broker-shutdown", broker=stopping)
    assert "Traceback" not in cluster.output()


def _a_group_rebalances(cluster: NilometerCluster) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "readers", "client.id": "reader-1"}
    )
    try:
        consumer.subscribe(["clicks"])
        eventually(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "it joined", WAIT_S)
    finally:
        consumer.close()
    found = about(cluster, "group-rebalanced", group="readers")
    assert found, "the group rebalanced when its member joined"
    assert "client 'reader-1' at" in found[0]["message"]
    created = the_line(cluster, "topic-created", topic="__consumer_offsets")
    assert "needs the internal topic" in created["message"] or "(CreateTopics)" in created["message"]


def _a_transaction_is_aborted(cluster: NilometerCluster) -> None:
    where = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "pay\n1", "log_level": 0}
    first = confluent_kafka.Producer(where)
    first.init_transactions(WAIT_S)
    first.begin_transaction()
    first.produce("clicks", b"x")
    assert first.flush(WAIT_S) == 0
    confluent_kafka.Producer(where).init_transactions(WAIT_S)
    aborted = the_line(cluster, "transaction-aborted", transactional_id="pay\n1")
    assert "because another producer has initialized the transactional id" in aborted["message"]


def test_a_topic_that_was_created_by_itself_names_the_client(cluster: NilometerCluster) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "client.id": "typo", "log_level": 0}
    )
    producer.produce("clikcs", b"x")
    assert producer.flush(WAIT_S) == 0
    created = the_line(cluster, "topic-created", topic="clikcs")
    assert "client 'typo' at 127.0.0.1:" in created["message"]


def test_a_follower_that_lags_leaves_the_isr_with_its_lag(tmp_path: Path) -> None:
    overrides = {"nilometer.log.format": "json", "replica.lag.time.max.ms": "1000"}
    with NilometerCluster(tmp_path, 2, {**overrides, "zookeeper.session.timeout.ms": "60000"}) as cluster:
        eventually(lambda: cluster.controller() is not None, "there is a controller", WAIT_S)
        leader = cluster.controller()
        assert leader is not None
        follower = 3 - leader
        cluster.create_topic(
            "clicks", assignments={0: (leader, follower)}, configs={"min.insync.replicas": "1"}
        )
        cluster.pause(follower)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.brokers[leader].bootstrap, "log_level": 0}
        )
        producer.produce("clicks", b"x", partition=0)
        assert producer.flush(WAIT_S) == 0, "it is committed when the follower has left the ISR"
        eventually(lambda: bool(about(cluster, "isr-shrunk", topic="clicks")), "the line is there", WAIT_S)
        shrunk = about(cluster, "isr-shrunk", topic="clicks")[-1]
        assert shrunk["broker"] == leader
        change = f"clicks-0: the ISR shrinks from {leader},{follower} to {leader} (replica {follower} "
        assert shrunk["message"].startswith(change)
        assert shrunk["message"].endswith(
            f"because replica {follower} has not caught up within replica.lag.time.max.ms"
        )
        cluster.resume(follower)
