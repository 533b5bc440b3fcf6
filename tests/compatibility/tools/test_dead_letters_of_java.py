"""Kafka's own tools with dead letters: `kafka-configs.sh` sets a share group up, the console share consumer
rejects what it reads, the console consumer prints the letters.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.kafka.apache_kafka import java_command, run_tool
from support.process_end import end_process

pytestmark = pytest.mark.java

CONFIGS, TOPICS = "org.apache.kafka.tools.ConfigCommand", "org.apache.kafka.tools.TopicCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
ENABLE = "errors.deadletterqueue.group.enable"
WAIT_S = 180.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {"share.coordinator.state.topic.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    with NilometerBroker(tmp_path_factory.mktemp("java-letters") / "data", settings) as running:
        yield running
    assert "Traceback" not in running.output


def test_what_javas_share_consumer_rejects_has_a_letter(broker: NilometerBroker, tmp_path: Path) -> None:
    where = ("--bootstrap-server", broker.bootstrap)
    features = run_tool(FEATURES, *where, "describe")
    (shares,) = [line.split() for line in features.splitlines() if "share.version" in line]
    assert shares[2:8] == [
        "SupportedMinVersion:",
        "0",
        "SupportedMaxVersion:",
        "2",
        "FinalizedVersionLevel:",
        "2",
    ]
    run_tool(TOPICS, *where, "--create", "--topic", "jobs")
    run_tool(TOPICS, *where, "--create", "--topic", "dlq.jobs", "--config", f"{ENABLE}=true")
    settings = (
        "share.auto.offset.reset=earliest,errors.deadletterqueue.topic.name=dlq.jobs,"
        "errors.deadletterqueue.copy.record.enable=true"
    )
    of_group = ("--entity-type", "groups", "--entity-name", "workers")
    assert "Completed" in run_tool(CONFIGS, *where, "--alter", *of_group, "--add-config", settings)
    described = run_tool(CONFIGS, *where, "--describe", *of_group)
    assert "errors.deadletterqueue.topic.name=dlq.jobs" in described
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(3):
        producer.produce("jobs", b"job %d" % number)
    assert producer.flush(60) == 0
    printed = tmp_path / "printed.txt"
    command = java_command(SHARE_CONSUMER, *where, "--topic", "jobs", "--group", "workers", "--reject")
    with printed.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: printed.read_text().count("job ") == 3, "each job is read", timeout_s=WAIT_S)
            letters = run_tool(
                CONSUMER,
                *(*where, "--topic", "dlq.jobs", "--from-beginning", "--max-messages", "3"),
                *("--formatter-property", "print.headers=true", "--timeout-ms", "120000"),
                timeout_s=WAIT_S,
            )
        finally:
            end_process(process, signal.SIGTERM, WAIT_S, lambda: SHARE_CONSUMER)
    found = sorted(line for line in letters.splitlines() if line.startswith("__dlq.errors.topic:jobs"))
    assert [line.rsplit("\t", 1)[1] for line in found] == ["job 0", "job 1", "job 2"]
    assert "__dlq.errors.offset:0,__dlq.errors.group:workers,__dlq.errors.delivery.count:1" in found[0]
