"""Ingest is killed while what it sent stands above the high watermark: each line is in the topic once.

The same on Apache Kafka's brokers, which are asked for the end of a log in the same way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offset_queries import LATEST_TIMESTAMP, log_end_offsets
from nilometer.runtime import Runtime
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka

LINES = 100
PARTITION = TopicPartition("t", 0)
PATIENT = {"replica.lag.time.max.ms": "60000"}
"""The follower stays in the ISR while it is stopped."""
PATIENCE_S = 60
SETUP_TIMEOUT = "socket.connection.setup.timeout.ms"
SETUP_MS = 3_000
"""A broker that is stopped accepts connections and does not answer; one that runs may be slow, too."""
DETECTION_S = 2.0
"""How long a second run is given to repeat the lines. Too short only means that it is not caught."""


class Setting(NamedTuple):
    bootstrap: str
    """The leader's address."""
    leader: int
    """On Nilometer the controller too, so that everything but the follower goes on."""
    follower: int
    follower_pid: int


@contextmanager
def nilometer(folder: Path) -> Iterator[Setting]:
    overrides = {**PATIENT, "min.insync.replicas": "1", "zookeeper.session.timeout.ms": "60000"}
    with NilometerCluster(folder, 2, overrides) as cluster:
        eventually(lambda: cluster.controller() is not None, "there is a controller")
        leader = cluster.controller() or 0
        yield Setting(cluster.brokers[leader].bootstrap, leader, 3 - leader, cluster.brokers[3 - leader].pid)


@contextmanager
def kafka(folder: Path) -> Iterator[Setting]:
    with ApacheKafka(
        folder,
        nodes=2,
        dedicated_controller=True,
        overrides={**PATIENT, "broker.session.timeout.ms": "60000"},
    ) as cluster:
        yield Setting(cluster.bootstrap.split(",")[0], 1, 2, cluster.nodes[2].pid)


async def becomes(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, f"after {PATIENCE_S} s still not so: {what}"
        await asyncio.sleep(0.05)


@contextmanager
def ingest(bootstrap: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = ["ingest", str(folder / "app.log"), "--topic", "t", "--state", str(folder / "state.json")]
    command += ["--bootstrap-server", bootstrap, "-X", f"{SETUP_TIMEOUT}={SETUP_MS}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nilometer.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(nilometer, marks=pytest.mark.quick),
        pytest.param(kafka, marks=pytest.mark.soak),
    ],
)
async def test_killed_while_a_follower_is_stopped(
    cluster: Callable[[Path], AbstractContextManager[Setting]], tmp_path: Path
) -> None:
    (tmp_path / "app.log").write_text("".join(f"line {number}\n" for number in range(LINES)))
    with cluster(tmp_path / "cluster") as setting:
        bootstrap, follower = setting.bootstrap, setting.follower_pid
        runtime, config = Runtime.system(), {"bootstrap.servers": bootstrap, SETUP_TIMEOUT: str(SETUP_MS)}
        async with Admin(runtime, config) as admin:
            replicas = (setting.leader, setting.follower)
            await admin.create_topic(NewTopic("t", assignments={0: replicas}))

            async def is_led() -> bool:
                topic = (await admin.list_topics()).get("t")
                return topic is not None and set(topic.partitions[0].in_sync_replicas) == set(replicas)

            async def log_end() -> int:
                return (await log_end_offsets(admin.client, [PARTITION], 1000 * PATIENCE_S))[PARTITION]

            async def high_watermark() -> int:
                return (await admin.list_offsets({PARTITION: LATEST_TIMESTAMP}))[PARTITION].offset

            await becomes(is_led, "both replicas are in sync")
            os.kill(follower, signal.SIGSTOP)
            try:
                with ingest(bootstrap, tmp_path) as first:

                    async def is_written() -> bool:
                        assert first.poll() is None, first.communicate()
                        return await log_end() == LINES

                    await becomes(is_written, "all lines are in the leader's log")
                    assert await high_watermark() == 0, "the log end offset is more than the high watermark"
                with ingest(bootstrap, tmp_path) as second:
                    await asyncio.sleep(DETECTION_S)
                    assert await log_end() == LINES, "lines were repeated"
                    os.kill(follower, signal.SIGCONT)
                    output, _ = await asyncio.to_thread(second.communicate, timeout=PATIENCE_S)
                    assert second.returncode == 0, output
                    assert b"0 lines" in output and b"(100 more were already in the topic)" in output
            finally:
                os.kill(follower, signal.SIGCONT)
        assert await values(config) == [b"line %d" % number for number in range(LINES)]


async def values(config: dict[str, str]) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with Consumer(Runtime.system(), config) as consumer:
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, 0)
        end = (await consumer.end_offsets([PARTITION]))[PARTITION]
        while await consumer.position(PARTITION) < end:
            found += [record.value for record in await consumer.poll(timeout_ms=10_000)]
    return found
