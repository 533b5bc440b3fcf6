"""The commands of the page about moving from Kafka, run in their order, with Apache Kafka and MirrorMaker 2.

Addresses are replaced, and MirrorMaker looks for new offsets of groups every second, not every minute.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

from nilometer.config import parse_properties
from support.applications.application import WAIT_S, Application
from support.brokers.nilometer_broker import READY_TIMEOUT_S
from support.documentation.code_blocks import DOCS
from support.documentation.shell_samples import blocks
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka, java_command
from support.ports import HOST, free_ports

pytestmark = [pytest.mark.java, pytest.mark.application, pytest.mark.long]

TOPIC, GROUP, COUNT, READ = "orders", "billing", 20, 8
QUICKLY = """
emit.checkpoints.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
refresh.topics.interval.seconds = 2
refresh.groups.interval.seconds = 2
plugin.discovery = service_load
"""


def fill(bootstrap: str) -> None:
    """Write records, and commit a group's offset in the middle of them."""
    writer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(COUNT):
        writer.produce(TOPIC, b"%d" % number)
    assert writer.flush(WAIT_S) == 0
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        offset = confluent_kafka.TopicPartition(TOPIC, 0, READ)
        eventually(lambda: commit(reader, offset), f"{GROUP} has a coordinator", WAIT_S)
    finally:
        reader.close()


def commit(reader: confluent_kafka.Consumer, offset: confluent_kafka.TopicPartition) -> bool:
    try:
        reader.commit(offsets=[offset], asynchronous=False)
    except confluent_kafka.KafkaException as refused:
        assert refused.args[0].retriable() or "oordinator" in str(refused), refused
        return False
    return True


class Page:
    """The blocks of the page, with the addresses of this test, run in a folder of their own."""

    def __init__(self, folder: Path, kafka: str, nilometer: str) -> None:
        self._folder = folder
        self._addresses = {"kafka1:9092": kafka, "broker1:9092": nilometer}
        programs = Path(sys.executable).parent
        self._path = f"{folder}{os.pathsep}{programs}{os.pathsep}{os.environ['PATH']}"
        script = folder / "connect-mirror-maker.sh"
        java = shlex.join(java_command("org.apache.kafka.connect.mirror.MirrorMaker"))
        script.write_text(f'#!/bin/sh\nexec {java} "$@"\n')
        script.chmod(0o755)

    def block(self, beginning: str) -> str:
        (found,) = [
            one for one in blocks(DOCS / "how-to" / "move-from-kafka.md") if one.startswith(beginning)
        ]
        for name, address in self._addresses.items():
            found = found.replace(name, address)
        return found

    def start(self, command: str) -> Application:
        words = ["env", "-C", str(self._folder), f"PATH={self._path}", *shlex.split(command)]
        return Application(words, self._folder / f"{words[4]}.out")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command),
            cwd=self._folder,
            env={**os.environ, "PATH": self._path},
            capture_output=True,
            text=True,
            timeout=READY_TIMEOUT_S,
            check=False,
        )


def test_topics_and_groups_move_as_the_page_says(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with ApacheKafka(tmp_path / "kafka") as kafka:
        fill(kafka.bootstrap)
        page = Page(tmp_path, kafka.bootstrap, f"{HOST}:{port}")

        # Step 2: the file of Kafka, with the keys changed that the page names.
        of_kafka = kafka.brokers[0].directory / "server.properties"
        settings = parse_properties(of_kafka.read_text(), str(of_kafka))
        settings |= {
            "log.dirs": str(tmp_path / "empty"),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "nilometer.coordination": "local",
        }
        (tmp_path / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        broker = page.start(page.block("nilometer broker"))
        with broker:
            broker.wait_until(lambda: "Ready: serving clients" in broker.output, "the broker is ready")
            (tmp_path / "mm2.properties").write_text(page.block("clusters =") + QUICKLY)
            mirror = page.start(page.block("connect-mirror-maker.sh"))
            with mirror:
                compare = page.block("nilometer topic list").splitlines()
                listed, offsets, group, status = compare

                def is_copied() -> bool:
                    return str(COUNT) in page.run(offsets).stdout.split() and GROUP in page.run(group).stdout

                mirror.wait_until(is_copied, "the records and the group are copied")
                assert TOPIC in page.run(listed).stdout.split()
                found = page.run(f"{group} --json")
                assert found.returncode == 0, found.stderr
                assert 0 < committed_of(found.stdout) <= READ, found.stdout
                mirror.wait_until(lambda: page.run(status).returncode == 0, "the cluster is healthy")
        assert "Traceback" not in broker.output


def committed_of(document: str) -> int:
    (group,) = json.loads(document)["groups"]
    return next(one["committed"] for one in group["offsets"] if one["topic"] == TOPIC)
