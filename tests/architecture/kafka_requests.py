"""The classes of Apache Kafka that a request executes.

They are counted as `architecture.modules_of_requests` counts the modules of a broker: ``PYTHONPATH=tests
python -m architecture.kafka_requests`` prints them, in a minute or two.

A node of Apache Kafka runs with a debugger, which notes each class that runs from when the client sends a
request until it has the response. A class inside another one is counted with it. Left out is what is left out
there: the network and its threads, the format of messages, utilities, the log.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from architecture.modules_of_requests import PARTITION, send_all
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.runtime.runtime import Runtime
from nilometer.simulation.workload.transactions import make_client
from nilometer.wire.errors import KafkaError
from support.kafka.apache_kafka import JAVA_PROJECT, JVM_SMALL, READY_TIMEOUT_S, ApacheKafka
from support.ports import HOST, free_ports

BELOW = (
    "kafka.network.",
    "org.apache.kafka.clients.",
    "org.apache.kafka.common.",
    "org.apache.kafka.metadata.",
    "org.apache.kafka.network.",
    "org.apache.kafka.raft.",
    "org.apache.kafka.server.network.",
    "org.apache.kafka.server.util.",
    "org.apache.kafka.storage.internals.log.",
    "kafka.log.",
    "kafka.utils.",
)


def main() -> None:
    [debugger] = free_ports(1)
    jvm = (*JVM_SMALL, f"-agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address={HOST}:{debugger}")
    overrides = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    program = ["java", "--add-modules", "jdk.jdi", str(JAVA_PROJECT / "ExecutedClasses.java"), str(debugger)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ApacheKafka(folder, overrides=overrides, jvm=jvm) as kafka,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            found = asyncio.run(_play(kafka.bootstrap, process.stdin, process.stdout))
        finally:
            process.stdin.close()
    for name, each in found.items():
        classes = sorted(set[str].intersection(*each))
        sys.stdout.write(f"{name}: {len(classes)}: {', '.join(classes)}\n")


async def _play(bootstrap: str, commands: IO[str], lines: IO[str]) -> dict[str, list[set[str]]]:
    def ask(command: str) -> str:
        commands.write(command + "\n")
        commands.flush()
        return lines.readline()

    @contextmanager
    def noted() -> Iterator[set[str]]:
        classes = set[str]()
        ask("begin")
        try:
            yield classes
        finally:
            names = (re.split(r"[$]", each)[0] for each in ask("end").split())
            classes.update(each for each in names if not each.startswith(BELOW))

    assert lines.readline() == "attached\n"
    found: dict[str, list[set[str]]] = {}
    runtime = Runtime.system()
    async with Admin(runtime, {"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topic(NewTopic(PARTITION.topic, 1, 1))
    async with make_client(runtime, bootstrap, "measure") as client:
        for name, kind in (("g", CoordinatorType.GROUP), ("id", CoordinatorType.TRANSACTION)):
            await _found(Coordinator(client, name, kind))
        await send_all(client, found, noted)
    return found


async def _found(coordinator: Coordinator) -> None:
    """Wait until the coordinator's topic is created."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            await coordinator.find()
            return
        except KafkaError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(1)


if __name__ == "__main__":
    main()
