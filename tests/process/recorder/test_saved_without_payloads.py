"""`nilometer recorder save --without-payloads`: no key and no value of a record is in the file, and what the
brokers decided is as it was."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import nilometer
from nilometer.cli.recorder import recorder
from nilometer.simulation.recorded_cluster import recordings_in
from nilometer.testing import Cluster

PLAIN, PACKED, COMPACTED = "plain", "packed", "compacted"
MARKS = (b"a-key-of-", b"a-value-of-", b"a-header-of-", b"a-name-of-")
RECORDS = 300


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(recorder, [str(one) for one in arguments])


def contents(path: Path) -> bytes:
    return b"".join(frame for recording in recordings_in(path) for frame in recording.frames())


async def write(servers: str, times: int) -> None:
    async with nilometer.connect(servers) as kafka:
        for number in range(RECORDS):
            for topic in (PLAIN, COMPACTED):
                await kafka.send(
                    topic,
                    f"a-value-of-{topic}-{number}-{times}",
                    key=f"a-key-of-{number % 20}",
                    headers={"a-name-of-it": b"a-header-of-it"},
                )
        async with kafka.transaction("writer") as transaction:
            await transaction.send(PLAIN, "a-value-of-a-transaction", key="a-key-of-it")
    async with nilometer.connect(servers, settings={"compression.type": "gzip"}) as kafka:
        for number in range(RECORDS):
            await kafka.send(PACKED, f"a-value-of-{number}", key="a-key-of-one")
    async with nilometer.connect(servers) as kafka:
        for topic in (PLAIN, PACKED, COMPACTED):
            async for _ in kafka.consume(topic, group=f"readers-{times}", until_end=True):
                pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings of brokers that wrote, were killed, and recovered, cleaned and copied their logs."""
    folder = tmp_path_factory.mktemp("recorded")
    settings = {
        "nilometer.recorder": "on",
        "nilometer.recorder.dir": str(folder),
        "log.cleaner.backoff.ms": "200",
        "log.retention.check.interval.ms": "300",
    }
    with Cluster(brokers=3, settings=settings) as cluster:
        for topic in (PLAIN, PACKED, COMPACTED):
            cluster.create_topic(topic, partitions=1, configs=CONFIGS.get(topic, {}))
        asyncio.run(write(cluster.bootstrap_servers, 1))
        killed = cluster.leader(PLAIN)
        cluster.kill(killed)
        cluster.restart(killed)
        asyncio.run(write(cluster.bootstrap_servers, 2))
        for broker in cluster.broker_ids:
            cluster.stop(broker)
    return folder


CONFIGS: dict[str, dict[str, str]] = {
    COMPACTED: {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"},
    PLAIN: {"segment.ms": "1000"},
}


def changes(path: Path) -> list[Any]:
    topics = [argument for topic in (PLAIN, PACKED, COMPACTED) for argument in ("--changes", f"{topic}-0")]
    replayed = run("replay", path, *topics, "--json")
    assert replayed.exit_code == 0, replayed.output
    return json.loads(replayed.stdout)["changes"]


def test_decisions_are_as_recorded_and_no_record_is_there(folder: Path, tmp_path: Path) -> None:
    raw = b"".join(contents(path) for path in folder.glob("*.recording"))
    assert all(mark in raw for mark in MARKS)
    out = tmp_path / "out.zip"
    saved = run("save", folder, "--output", out, "--without-payloads")
    assert saved.exit_code == 0, saved.output
    assert "without payloads, secrets, replayed" in saved.stdout
    found = contents(out)
    assert [mark for mark in MARKS if mark in found] == []
    assert changes(out) == changes(folder)
    said = run("replay", out, "--quiet").stdout
    assert "Records' keys and values have stand-ins" in said
