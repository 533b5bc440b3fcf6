"""``nilometer status`` of a cluster whose brokers are paused, killed and restarted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nilometer.cli.main import run
from nilometer.client.admin.admin import NewTopic
from nilometer.client.admin.reassignments import alter_reassignments
from nilometer.client.network.cluster_metadata import TopicPartition
from support.brokers.nilometer_cluster import NilometerCluster
from support.command_line import Outcome
from support.eventually import eventually
from support.ports import HOST, free_ports

HEALTHY, DEGRADED, UNAVAILABLE = 0, 1, 3
PLACE = TopicPartition("clicks", 0)
WAIT_S = 60.0

Status = Callable[..., Outcome]


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Status:
    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(["status", *arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command


@pytest.fixture
def three(tmp_path: Path) -> Iterator[NilometerCluster]:
    with NilometerCluster(tmp_path, 3, {"zookeeper.session.timeout.ms": "3000"}) as running:
        yield running


def create(cluster: NilometerCluster, replicas: tuple[int, ...]) -> None:
    cluster.operate(lambda admin: admin.create_topic(NewTopic(PLACE.topic, assignments={0: replicas})))


def test_from_healthy_to_nothing_that_responds(three: NilometerCluster, status: Status) -> None:
    where = ("--bootstrap-server", three.bootstrap, "--timeout", "1")
    create(three, (1, 2, 3))
    eventually(lambda: status(*where).code == HEALTHY, "all is in sync", WAIT_S)
    found = status(*where, "--json").document
    assert (found["health"], found["problems"], found["partitions"]["count"]) == ("healthy", [], 1)
    assert [(one["id"], one["state"]) for one in found["brokers"]] == [(n, "running") for n in (1, 2, 3)]

    three.pause(3)
    hung = status(*where, "--json")
    assert hung.code != HEALTHY
    assert hung.document["brokers"][2]["state"] == "unreachable", hung.out

    three.kill(3)
    eventually(
        lambda: bool(status(*where, "--json").document["partitions"]["under_replicated"]),
        "the killed replica leaves the ISR",
        WAIT_S,
    )
    assert status(*where).code == DEGRADED, "two of three serve everything"
    found = status(*where, "--json").document
    (under,) = found["partitions"]["under_replicated"]
    assert (under["topic"], under["partition"], under["isr"]) == ("clicks", 0, [1, 2])
    assert not found["partitions"]["under_min_isr"]
    text = status(*where).out
    assert "Broker 3 is unreachable: its session" in text
    assert "clicks-0 (ISR 1,2 of 1,2,3)" in text

    three.kill(1)
    eventually(
        lambda: bool(status(*where, "--json").document["partitions"]["under_min_isr"]),
        "one replica of three is too few for acks=all",
        WAIT_S,
    )
    assert status(*where).code == UNAVAILABLE

    three.kill(2)
    gone = status(*where)
    assert gone.code == UNAVAILABLE
    assert "No broker responds" in gone.out

    three.start()
    eventually(lambda: status(*where).code == HEALTHY, "it recovers", WAIT_S)


def test_reassignments_are_listed(three: NilometerCluster, status: Status) -> None:
    where = ("--bootstrap-server", three.bootstrap, "--timeout", "1")
    create(three, (1, 2))
    eventually(lambda: status(*where).code == HEALTHY, "it is in sync", WAIT_S)
    three.kill(3)
    eventually(lambda: status(*where).code == DEGRADED, "broker 3 is gone", WAIT_S)
    three.operate(lambda admin: alter_reassignments(admin, {PLACE: (1, 2, 3)}))
    found = status(*where, "--json").document
    (move,) = found["reassignments"]
    assert (move["topic"], move["adding"], move["removing"]) == ("clicks", [3], [])
    assert not found["partitions"]["under_replicated"], "a replica that is being added does not count"


def test_watch_prints_a_line_for_each_check(three: NilometerCluster, status: Status) -> None:
    where = ("--bootstrap-server", three.bootstrap)
    watched = status(*where, "--watch", "--times", "2", "--interval", "0.1", "--json")
    first, second = (json.loads(line) for line in watched.lines)
    assert first.keys() == second.keys()
    assert watched.code in (HEALTHY, DEGRADED)


def test_a_server_that_is_not_there(status: Status) -> None:
    (port,) = free_ports(1)
    found = status("--bootstrap-server", f"{HOST}:{port}", "--json")
    assert found.code == UNAVAILABLE
    assert str(port) in found.document["unknown"][0]


def test_a_folder_and_servers_are_wrong_use(status: Status, tmp_path: Path) -> None:
    found = status("--bootstrap-server", "127.0.0.1:1", "--data-dir", str(tmp_path))
    assert found.code == 2
    assert "either" in found.err
