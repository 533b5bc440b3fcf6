"""`nilometer metadata`: the log of a live cluster from outside, and of stores of every age."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from nilometer.coordination.factory import make_store, open_reader
from nilometer.runtime import Runtime
from support.brokers.nilometer_cluster import NilometerCluster
from support.command_line import Nilometer
from support.coordination.zookeeper_server import is_installed, running_ensemble


def _next_record(lines: IO[str], kind: str) -> dict[str, object]:
    for line in lines:
        for record in json.loads(line)["records"]:
            if record["type"] == kind:
                return record
    raise AssertionError(f"the dump ended without {kind}")


def test_a_live_clusters_log_is_told_record_by_record(
    cluster: NilometerCluster, nilometer: Nilometer
) -> None:
    cluster.create_topic("told", assignments={0: (3, 1)}, configs={"retention.ms": "5000"})
    answer = nilometer("metadata", "dump", "--coordination", cluster.coordination, bootstrap=False)
    assert answer.code == 0
    assert "TakeOffice" in answer.lines[0]  # codespell:ignore
    assert not [line for line in answer.lines if " void " in line]
    (created,) = [line for line in answer.lines if "TopicCreated name=told " in line]
    assert created.split()[1:5] == ["controller", created.split()[2], "epoch", created.split()[4]]
    (partition,) = [line for line in answer.lines if "PartitionCreated topic=told " in line]
    assert "partition=0 replicas=[3,1]" in partition
    (config,) = [line for line in answer.lines if "resource_name=told key=retention.ms" in line]
    assert config.endswith("value=5000")
    number = int(created.split()[0])
    later = nilometer(
        "metadata",
        "dump",
        "--data-dir",
        str(cluster.folder),
        "--from",
        str(number),
        "--json",
        bootstrap=False,
    )
    entries = [json.loads(line) for line in later.lines]
    assert [entry["number"] for entry in entries] == list(range(number, number + len(entries)))
    assert all(entry["accepted"] for entry in entries)


def test_the_image_is_what_brokers_hold(cluster: NilometerCluster, nilometer: Nilometer) -> None:
    cluster.create_topic("imaged", assignments={0: (1, 2), 1: (2, 3)})
    cluster.wait_settled()
    folder = str(cluster.folder)
    answer = nilometer("metadata", "image", "--data-dir", folder, bootstrap=False)
    assert answer.code == 0
    (topic,) = [topic for topic in answer.document["topics"] if topic["name"] == "imaged"]
    assert [part["replicas"] for part in topic["partitions"]] == [[1, 2], [2, 3]]
    assert [broker["id"] for broker in answer.document["brokers"]] == [1, 2, 3]
    known = nilometer("replicas", "--topic", "imaged", "--json").document["brokers"]
    assert {one["metadata_number"] for one in known} == {answer.document["number"]}
    early = nilometer("metadata", "image", "--data-dir", folder, "--at", "0", bootstrap=False)
    assert (early.document["number"], early.document["topics"]) == (0, [])
    assert nilometer("metadata", "image", "--data-dir", folder, "--at", "99999", bootstrap=False).code == 1


def test_following_shows_what_is_added(cluster: NilometerCluster) -> None:
    command = [sys.executable, "-m", "nilometer.cli", "metadata", "dump", "--follow", "--json"]
    following = subprocess.Popen(
        [*command, "--coordination", cluster.coordination], stdout=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    try:
        assert _next_record(following.stdout, "TakeOffice")["controller_epoch"] == 1  # codespell:ignore
        cluster.create_topic("followed", assignments={0: (1,)})
        while _next_record(following.stdout, "TopicCreated")["name"] != "followed":
            pass
        following.terminate()
        assert following.wait(10) == 0
    finally:
        following.kill()
        following.wait()


def test_what_a_snapshot_stands_for_is_told_as_such(
    cluster: NilometerCluster, nilometer: Nilometer, tmp_path: Path
) -> None:
    """A store with the entries of the cluster, of which a snapshot retires all but the last."""
    cluster.wait_settled()
    folder = f"local:{tmp_path / 'coordination'}"
    entries = nilometer("metadata", "dump", "--coordination", cluster.coordination, bootstrap=False)
    image = nilometer("metadata", "image", "--coordination", cluster.coordination, bootstrap=False)
    last = int(entries.lines[-1].split()[0])
    at = nilometer(
        "metadata", "image", "--coordination", cluster.coordination, "--at", str(last - 1), bootstrap=False
    )
    asyncio.run(_copy_store(cluster.coordination, folder, last, at.out.encode()))
    retired = nilometer("metadata", "dump", "--coordination", folder, bootstrap=False)
    assert retired.lines[0].startswith(f"snapshot  replaces all entries below {last}: 3 brokers, ")
    assert retired.lines[1:] == [line for line in entries.lines if int(line.split()[0]) == last]
    again = nilometer("metadata", "image", "--coordination", folder, bootstrap=False)
    assert again.document == image.document


async def _copy_store(source: str, target: str, last: int, snapshot: bytes) -> None:
    runtime = Runtime.system()
    reader = await open_reader(source, runtime)
    store = make_store(target, runtime, local_folder="")
    await store.open()
    try:
        await store.register(1, b"{}")
        for entry in await reader.read(0, last + 1):
            assert await store.append(entry.number, entry.data)
        assert await store.write_snapshot(last, snapshot)
    finally:
        await store.close()
        await reader.close()


@pytest.mark.skipif(not is_installed(), reason="needs Debian's zookeeper")
def test_zookeeper_is_read_the_same_way(cluster: NilometerCluster, nilometer: Nilometer) -> None:
    """An ensemble that holds no store is left without one; a copy of the cluster's log reads like it."""
    cluster.wait_settled()
    with running_ensemble() as ensemble:
        place = f"zookeeper://{ensemble.hosts}/copied"
        for _ in range(2):
            absent = nilometer("metadata", "image", "--coordination", place, bootstrap=False)
            assert absent.code == 1
            assert "no coordination store" in absent.err
        local = nilometer("metadata", "image", "--coordination", cluster.coordination, bootstrap=False)
        last = local.document["number"]
        at = nilometer(
            "metadata",
            "image",
            "--coordination",
            cluster.coordination,
            "--at",
            str(last - 1),
            bootstrap=False,
        )
        asyncio.run(_copy_store(cluster.coordination, place, last, at.out.encode()))
        copied = nilometer("metadata", "image", "--coordination", place, bootstrap=False)
        assert copied.document == local.document
        assert (
            "snapshot  replaces"
            in nilometer("metadata", "dump", "--coordination", place, bootstrap=False).lines[0]
        )


def test_looking_creates_nothing(nilometer: Nilometer, tmp_path: Path) -> None:
    for arguments in (["--data-dir", str(tmp_path)], ["--coordination", f"local:{tmp_path / 'none'}"]):
        answer = nilometer("metadata", "dump", *arguments, bootstrap=False)
        assert (answer.code, answer.out) == (1, "")
        assert "no coordination store" in answer.err
    assert os.listdir(tmp_path) == []
    assert nilometer("metadata", "dump", "--coordination", "paper:7", bootstrap=False).code == 1
