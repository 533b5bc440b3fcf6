"""A distributed worker of Kafka Connect with its file connectors, while brokers and the worker are killed.

The source connector runs with exactly once: each line of its file is in the topic once, in order. A sink
delivers at least once, as Connect's sinks do: what it writes again after a kill is left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from support.applications.application import WAIT_S
from support.applications.committed_reader import committed_records
from support.applications.kafka_connect import TEXT, TOPICS, ConnectWorker
from support.brokers.nilometer_cluster import NilometerCluster

pytestmark = [pytest.mark.java, pytest.mark.application]

LINES = 200
CONNECTORS = "org.apache.kafka.connect.file"
PROTOCOLS = ("classic", "consumer")
"""Of the sinks' consumer groups: the old one, and that of KIP-848."""


class GrowingFile:
    """The source's file, and what was written to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []

    def grow(self) -> None:
        new = [f"line {len(self.lines) + number}" for number in range(LINES)]
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in new)
        self.lines += new


def source_of(path: Path, topic: str) -> dict[str, str]:
    return {
        "connector.class": f"{CONNECTORS}.FileStreamSourceConnector",
        "exactly.once.support": "required",
        "file": str(path),
        "topic": topic,
        **TEXT,
    }


def sink_of(topic: str, path: Path, protocol: str) -> dict[str, str]:
    return {
        "connector.class": f"{CONNECTORS}.FileStreamSinkConnector",
        "topics": topic,
        "file": str(path),
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.group.protocol": protocol,
        **TEXT,
    }


def delivered(path: Path) -> list[str]:
    """Each line of the sink's file where it came first."""
    return list(dict.fromkeys(path.read_text().splitlines())) if path.exists() else []


def group_types(cluster: NilometerCluster) -> dict[str, str]:
    """The protocol of each sink's group."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    listed = admin.list_consumer_groups().result(WAIT_S)
    return {one.group_id: one.type.name for one in listed.valid if one.group_id.startswith("connect-sink")}


@pytest.mark.long
def test_file_to_topic_to_file_while_the_coordinator_and_the_worker_are_killed(
    cluster: NilometerCluster, tmp_path: Path
) -> None:
    cluster.create_topic("lines")
    source = GrowingFile(tmp_path / "in.txt")
    sinks = {protocol: tmp_path / f"out-{protocol}.txt" for protocol in PROTOCOLS}
    source.grow()
    with ConnectWorker(tmp_path, cluster.bootstrap) as worker:

        def is_delivered() -> bool:
            return all(delivered(path) == source.lines for path in sinks.values())

        worker.run_connector("source", source_of(source.path, "lines"))
        for protocol, path in sinks.items():
            worker.run_connector(f"sink-{protocol}", sink_of("lines", path, protocol))
        worker.application.wait_until(is_delivered, "the sinks have written what the source read")

        cluster.kill(cluster.wait_leader("__transaction_state", timeout_s=WAIT_S))
        source.grow()
        worker.application.wait_until(is_delivered, "all goes on with the next coordinator")

        worker.application.kill()
        cluster.start()
        source.grow()
        worker.application.start()
        worker.application.wait_until(is_delivered, "the next worker goes on where the first one was")
    assert group_types(cluster) == {"connect-sink-classic": "CLASSIC", "connect-sink-consumer": "CONSUMER"}
    in_topic = [message.value().decode() for message in committed_records(cluster.bootstrap, "lines")]
    assert in_topic == source.lines
    assert {cluster.topic_setting(topic, "cleanup.policy") for topic in TOPICS} == {"compact"}
