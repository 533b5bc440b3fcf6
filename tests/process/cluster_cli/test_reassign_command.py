"""`nilometer reassign` on real brokers: moves planned, begun, followed, held back, called off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from nilometer.client.admin.reassignments import list_reassignments
from nilometer.client.network.cluster_metadata import TopicPartition
from support.brokers.nilometer_cluster import NilometerCluster
from support.command_line import Nilometer
from support.eventually import eventually
from support.kafka.apache_kafka import run_tool

RECORD = bytes(1000)
SIDES = ("leader", "follower")


def produce(cluster: NilometerCluster, topic: str, partition: int, count: int) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 4000, "log_level": 0}
    producer = Producer(settings)
    for _ in range(count):
        producer.produce(topic, RECORD, partition=partition)
    assert producer.flush(20) == 0


def replicas(cluster: NilometerCluster, topic: str, partition: int = 0) -> tuple[int, ...]:
    known = cluster.partition(topic, partition)
    assert known is not None
    return known.replicas


def wait_replicas(cluster: NilometerCluster, topic: str, wanted: tuple[int, ...], partition: int = 0) -> None:
    eventually(lambda: replicas(cluster, topic, partition) == wanted, f"{topic} on {wanted}")


def wait_throttled(nilometer: Nilometer, topic: str, leader: str, follower: str) -> None:
    def throttled() -> tuple[str, str]:
        (described,) = nilometer("topic", "describe", topic, "--json").document["topics"]
        sides = [described["configs"][f"{side}.replication.throttled.replicas"] for side in SIDES]
        return sides[0]["value"], sides[1]["value"]

    eventually(lambda: throttled() == (leader, follower), f"{topic} throttled as {leader} and {follower}")


def file_of(folder: Path, **topics: list[int]) -> str:
    partitions = [{"topic": topic, "partition": 0, "replicas": ids} for topic, ids in topics.items()]
    path = folder / "reassignment.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def test_from_a_plan_to_a_cluster_that_looks_like_it(
    cluster: NilometerCluster, nilometer: Nilometer, tmp_path: Path
) -> None:
    """K-5: partitions move onto a broker that had none of them."""
    cluster.create_topic("spread", assignments=dict.fromkeys(range(3), (1, 2)))
    produce(cluster, "spread", 0, 20)
    plan, back = str(tmp_path / "plan.json"), str(tmp_path / "back.json")
    answer = nilometer("reassign", "plan", "--topic", "spread", "--output", plan, "--rollback", back)
    assert answer.code == 0
    assert "2 replicas are copied" in answer.err
    planned = {one["partition"]: one["replicas"] for one in json.loads(Path(plan).read_text())["partitions"]}
    assert sum(3 in ids for ids in planned.values()) == 2
    way_back = Path(back).read_text()
    for again in (["execute", plan], ["plan", "--topic", "spread", "--replication-factor", "1"]):
        kept = nilometer("reassign", *again, "--rollback", back)
        assert kept.code == 1 and f"{back} exists" in kept.err and "Nothing was moved" in kept.err
    assert Path(back).read_text() == way_back
    assert nilometer("reassign", "status").out.strip() == "No partition is being moved."
    begun = nilometer("reassign", "execute", plan, "--json")
    assert begun.code == 0
    assert {one["partition"] for one in begun.document["partitions"]} == set(planned)
    assert all(one["error"] is None for one in begun.document["partitions"])
    done = nilometer("reassign", "status", plan, "--wait", "--json")
    assert done.code == 0
    assert {one["state"] for one in done.document["moves"]} == {"complete"}
    for partition, ids in planned.items():
        wait_replicas(cluster, "spread", tuple(ids), partition)
    assert nilometer("reassign", "plan", "--topic", "spread").err.strip() == "No replica has to move."
    assert nilometer("reassign", "execute", back).code == 0
    assert nilometer("reassign", "status", back, "--wait").code == 0
    wait_replicas(cluster, "spread", (1, 2))


def test_throttled_replicas_wait_and_go_on_without_the_throttle(
    cluster: NilometerCluster, nilometer: Nilometer, tmp_path: Path
) -> None:
    cluster.create_topic("heavy", assignments={0: (1,)})
    produce(cluster, "heavy", 0, 1500)
    move = file_of(tmp_path, heavy=[2])
    begun = nilometer("reassign", "execute", move, "--throttle", "1000")
    assert begun.code == 0
    assert "heavy-0 moves 1 -> 2." in begun.out
    wait_throttled(nilometer, "heavy", "0:1", "0:2")

    def copied() -> int:
        (state,) = nilometer("reassign", "status", "--json").document["moves"]
        assert state["total_offsets"] == 1500
        return state["copied_offsets"]

    eventually(lambda: copied() > 0, "the first bytes have passed")
    assert copied() < 1500  # at this rate all of it takes 25 minutes
    under_way = nilometer("reassign", "status", move)
    assert under_way.code == 1
    assert "moving" in under_way.out
    wait_replicas(cluster, "heavy", (2, 1))
    assert nilometer("reassign", "execute", move, "--throttle", "100000000").code == 0
    done = nilometer("reassign", "status", move, "--wait")
    assert done.code == 0
    assert "Removed the throttle." in done.err
    wait_replicas(cluster, "heavy", (2,))
    wait_throttled(nilometer, "heavy", "", "")
    (row,) = nilometer("replicas", "--topic", "heavy", "--json").document["replicas"]
    assert (row["broker_id"], row["role"], row["high_watermark"]) == (2, "leader", 1500)


def test_a_move_is_called_off(cluster: NilometerCluster, nilometer: Nilometer, tmp_path: Path) -> None:
    cluster.create_topic("undone", assignments={0: (3, 1)})
    produce(cluster, "undone", 0, 1500)
    move = file_of(tmp_path, undone=[2, 1])
    assert nilometer("reassign", "execute", move, "--throttle", "1000").code == 0
    assert TopicPartition("undone", 0) in cluster.operate(list_reassignments)
    answer = nilometer("reassign", "cancel", move)
    assert answer.code == 0
    assert "undone-0 keeps its replicas." in answer.out
    assert cluster.operate(list_reassignments) == {}
    eventually(lambda: sorted(replicas(cluster, "undone")) == [1, 3], "undone on 1 and 3 again")
    status = nilometer("reassign", "status", move, "--json")
    assert status.code == 1
    assert [one["state"] for one in status.document["moves"]] == ["different"]
    assert "No partition is being moved." in nilometer("reassign", "cancel", "--all").out
    cluster.wait_full_isr("undone")


@pytest.mark.java
def test_files_and_throttles_are_those_of_kafkas_own_tool(
    cluster: NilometerCluster, nilometer: Nilometer, tmp_path: Path
) -> None:
    cluster.create_topic("shared", assignments={0: (1, 2), 1: (1, 2)})
    plan = str(tmp_path / "plan.json")
    assert nilometer("reassign", "plan", "--topic", "shared", "--output", plan).code == 0
    begun = run_tool(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", plan),
        *("--execute", "--throttle", "100000000"),
    )
    assert "Successfully started partition reassignment" in begun
    done = nilometer("reassign", "status", plan, "--wait")
    assert done.code == 0
    assert "Removed the throttle." in done.err
    (back,) = [line for line in begun.splitlines() if line.startswith("{")]
    (tmp_path / "back.json").write_text(back)
    assert "log_dirs" in back
    assert nilometer("reassign", "execute", str(tmp_path / "back.json")).code == 0
    assert nilometer("reassign", "status", str(tmp_path / "back.json"), "--wait").code == 0
    wait_replicas(cluster, "shared", (1, 2))


def test_what_cannot_be_done_is_refused(
    cluster: NilometerCluster, nilometer: Nilometer, tmp_path: Path
) -> None:
    cluster.create_topic("fixed", assignments={0: (1, 2)})
    absent = nilometer("reassign", "execute", file_of(tmp_path, fixed=[1, 9]))
    assert absent.code == 1
    assert "fixed-0" in absent.err
    assert nilometer("reassign", "execute", file_of(tmp_path, nowhere=[1])).code == 1
    (tmp_path / "bad.json").write_text('{"version":1,"partitions":[{"topic":"fixed"}]}')
    bad = nilometer("reassign", "execute", str(tmp_path / "bad.json"))
    assert (bad.code, bad.out) == (1, "")
    assert "bad.json" in bad.err
    too_few = nilometer("reassign", "plan", "--topic", "fixed", "--brokers", "3")
    assert (too_few.code, too_few.out) == (1, "")
    assert "2 replicas do not fit on 1 brokers" in too_few.err
    assert nilometer("reassign", "plan", "--topic", "fixed", "--brokers", "7").code == 1
    assert nilometer("reassign", "plan", "--topic", "fixed", "--brokers", "x").code == 2
    assert nilometer("reassign", "cancel").code == 2
    assert replicas(cluster, "fixed") == (1, 2)
