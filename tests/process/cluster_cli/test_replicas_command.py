"""`nilometer replicas` on three real brokers: what each says, and what is left when one is killed."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Producer

from nilometer.wire.api_keys import NilometerApiKey
from support.brokers.nilometer_cluster import NilometerCluster
from support.command_line import Nilometer
from support.eventually import eventually
from support.ports import HOST

RECORDS = 50
JUNK = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"topics":7}',
    b'{"partitions":[-1]}',
    b'{"unknown":' + b"[" * 50_000,
    b"\xff" * 99,
)


def produce(cluster: NilometerCluster, topic: str, count: int = RECORDS, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, partition=0)
    assert producer.flush(20) == 0


def rows_of(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["broker_id"]: row for row in document["replicas"]}


def wait_high_watermark(nilometer: Nilometer, topic: str, offset: int) -> None:
    """Until the followers have learnt it: that takes a fetch more than the records did."""
    eventually(
        lambda: (
            {
                row["high_watermark"]
                for row in nilometer("replicas", "--topic", topic, "--json").document["replicas"]
            }
            == {offset}
        ),
        f"every replica of {topic} knows the high watermark {offset}",
    )


def test_every_replica_is_described_by_its_broker(cluster: NilometerCluster, nilometer: Nilometer) -> None:
    cluster.create_topic("described", assignments={0: (1, 2, 3)})
    produce(cluster, "described")
    cluster.wait_settled()
    wait_high_watermark(nilometer, "described", RECORDS)
    answer = nilometer("replicas", "--topic", "described", "--json")
    assert answer.code == 0
    assert answer.document["complete"]
    rows = rows_of(answer.document)
    assert {broker: row["role"] for broker, row in rows.items()} == {
        1: "leader",
        2: "follower",
        3: "follower",
    }
    for row in rows.values():
        assert (row["log_start_offset"], row["log_end_offset"], row["leader_epoch"]) == (0, RECORDS, 0)
        assert row["epoch_chain"] == [[0, 0]]
        assert row["in_sync"]
        assert row["isr"] == [1, 2, 3]
        assert row["size_bytes"] > RECORDS
    leader = rows[1]["as_leader"]
    assert leader["isr"] == leader["maximal_isr"] == [1, 2, 3]
    assert leader["hold"]["reason"] == "not-held"
    assert {one["broker_id"]: one["log_end_offset"] for one in leader["followers"]} == {
        2: RECORDS,
        3: RECORDS,
    }
    assert rows[2]["caught_up_age_ms"] == 0
    assert rows[2]["remote_log_end_offset"] == RECORDS
    brokers = answer.document["brokers"]
    assert [one["broker_id"] for one in brokers] == [1, 2, 3]
    assert len({one["metadata_number"] for one in brokers}) == 1
    assert len({one["broker_epoch"] for one in brokers}) == 3


def test_the_table_shows_the_same(cluster: NilometerCluster, nilometer: Nilometer) -> None:
    cluster.create_topic("drawn", assignments={0: (2, 3, 1), 1: (3, 1, 2)})
    produce(cluster, "drawn", 7)
    answer = nilometer("replicas", "--topic", "drawn", "--partition", "0", "--broker", "2")
    assert answer.code == 0
    (row,) = [line for line in answer.lines if "drawn" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")[:9]] == [
        "drawn", "0", "2", "leader", "0", "0", "7", "7", "yes"
    ]  # fmt: skip
    assert [cell.strip() for cell in row.strip("│").split("│")[10:12]] == ["3:7 1:7", "0:0"]


def test_what_does_not_exist_is_said(nilometer: Nilometer) -> None:
    answer = nilometer("replicas", "--topic", "nowhere")
    assert (answer.code, answer.out) == (1, "")
    assert "no topic nowhere" in answer.err
    assert nilometer("replicas", "--broker", "9").code == 1
    assert nilometer("replicas", "--timeout", "never").code == 2


def test_no_broker_there(nilometer: Nilometer) -> None:
    answer = nilometer("replicas", "--bootstrap-server", "127.0.0.1:1", bootstrap=False)
    assert answer.code == 1
    assert "NETWORK_EXCEPTION" in answer.err


def test_killed_broker_is_shown_and_rejoins_even_when_idle(
    cluster: NilometerCluster, nilometer: Nilometer
) -> None:
    """KIP-903, and E-23: under min.insync.replicas the reason is told."""
    cluster.create_topic("mourned", assignments={0: (1, 2, 3)}, configs={"min.insync.replicas": "3"})
    produce(cluster, "mourned", 5)
    wait_high_watermark(nilometer, "mourned", 5)
    cluster.kill(1)
    leader = cluster.wait_leader("mourned", other_than=1)
    produce(cluster, "mourned", 3, acks="1")
    answer = nilometer("replicas", "--topic", "mourned", "--json")
    assert answer.code == 1
    assert not answer.document["complete"]
    rows = rows_of(answer.document)
    assert rows[1]["reachable"] is False
    assert rows[1]["failure"]
    assert rows[1]["in_sync"] is False
    assert "log_end_offset" not in rows[1]
    assert rows[leader]["leader_epoch"] == 1
    assert rows[leader]["epoch_chain"] == [[0, 0], [1, 5]]
    assert (rows[leader]["log_end_offset"], rows[leader]["high_watermark"]) == (8, 5)
    assert rows[leader]["as_leader"]["hold"]["reason"] == "under-min-isr"
    table = nilometer("replicas", "--topic", "mourned")
    assert table.code == 1
    assert "unreachable" in table.out
    assert "held: under min ISR (2 of 3)" in table.out
    cluster.start(1)
    cluster.wait_full_isr("mourned")
    after = rows_of(nilometer("replicas", "--topic", "mourned", "--json").document)
    assert [after[broker]["log_end_offset"] for broker in (1, 2, 3)] == [8, 8, 8]


def test_watching_survives_deaths_of_brokers(cluster: NilometerCluster) -> None:
    """Seen from outside: complete, not complete while one is dead, complete again."""
    cluster.create_topic("watched", assignments={0: (2, 3, 1)})
    command = [
        sys.executable,
        "-m",
        "nilometer.cli",
        "replicas",
        "--topic",
        "watched",
        "--watch",
        "--json",
    ]
    options = ["--interval", "0.1", "--timeout", "1", "--bootstrap-server", cluster.bootstrap]
    watching = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    try:
        looks = (json.loads(line) for line in watching.stdout)
        assert next(look for look in looks if look["complete"])
        cluster.kill(3)
        seen = next(look for look in looks if not look["complete"])
        assert rows_of(seen)[3]["reachable"] is False
        assert rows_of(seen)[3]["failure"]
        cluster.start(3)
        assert rows_of(next(look for look in looks if look["complete"]))[3]["role"] == "follower"
        watching.terminate()
        assert watching.wait(10) == 0
    finally:
        watching.kill()
        watching.wait()
    cluster.wait_full_isr("watched")


def test_watching_as_often_as_wanted(cluster: NilometerCluster, nilometer: Nilometer) -> None:
    cluster.create_topic("glanced", assignments={0: (1, 2, 3)})
    answer = nilometer("replicas", "--topic", "glanced", "--watch", "--times", "3", "--interval", "0.05")
    assert answer.code == 0
    assert sum("glanced" in line and "leader" in line for line in answer.lines) == 3


@pytest.mark.parametrize("body", JUNK, ids=range(len(JUNK)))
def test_junk_closes_its_connection_and_nothing_else(
    cluster: NilometerCluster, nilometer: Nilometer, body: bytes
) -> None:
    frame = struct.pack(">hhih", NilometerApiKey.DESCRIBE_REPLICAS, 0, 1, -1) + body
    with socket.create_connection((HOST, cluster.brokers[1].port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        assert connection.recv(100) == b""
    assert cluster.brokers[1].alive()
    assert "Traceback" not in cluster.brokers[1].output
    assert nilometer("replicas", "--broker", "1").code == 0
