"""Apache Kafka's tool reads the log and the snapshots of a replica of the metadata quorum."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path

import pytest

from nilometer.identifiers import uuid_to_text
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica, Turn
from nilometer.raft.recovery import METADATA_LOG, format_folder
from nilometer.raft.voters import VoterKey
from nilometer.runtime.network import SocketNetwork
from nilometer.runtime.runtime import Runtime, SeededEntropy
from nilometer.runtime.system_disk import SystemDisk
from support.kafka.apache_kafka import run_tool
from support.step_clock import StepClock

DIRECTORY = uuid_to_text(uuid.UUID(int=7 << 64))
VOTER = VoterEntry(VoterKey(1, DIRECTORY), (Endpoint("CONTROLLER", "localhost", 9093),))
NO_OP = b"\x01\x14\x00\x00"
"""A record of Kafka's own: frame version 1, type 20 (NoOpRecord), version 0, no tagged fields."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quorum of one that was elected, has appended, and has made a snapshot of its first records."""
    folder = tmp_path_factory.mktemp("ours") / str(METADATA_LOG)
    disk, clock = SystemDisk(), StepClock()
    format_folder(disk, str(folder), [VOTER], wall_ms=1_760_000_000_000)
    runtime = Runtime(clock, disk, SocketNetwork(), SeededEntropy(random.Random(7)))
    replica = DurableReplica.open(runtime, str(folder), VOTER.key)
    clock.us = 10_000_000
    _finish(replica.on_time())
    for _ in range(2):
        assert replica.append([NO_OP, NO_OP]) is not None
    plan = replica.flush_plan()
    plan.run()
    _finish(replica.on_flushed(plan))
    made = replica.begin_snapshot(5, [NO_OP, NO_OP])
    assert made is not None
    made.run()
    _finish(replica.on_snapshot_made(made))
    replica.close()
    return folder


def _finish(turn: Turn[None]) -> None:
    if turn.work is not None:
        turn.work()


def _dump(path: Path) -> list[str]:
    printed = run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", str(path)
    )
    assert "rror" not in printed and "isvalid: false" not in printed, printed
    return [line for line in printed.splitlines() if line.startswith(("baseOffset:", "| offset:"))]


def _payloads(lines: list[str], name: str) -> list[dict[str, object]]:
    return [json.loads(line.split(f"{name} ", 1)[1]) for line in lines if f" {name} " in line]


def test_kafkas_tool_reads_the_log(folder: Path) -> None:
    lines = _dump(folder / "00000000000000000000.log")
    batches = [line for line in lines if line.startswith("baseOffset:")]
    assert len(batches) == 3 and all("isvalid: true" in line for line in batches)
    [change] = _payloads(lines, "LeaderChange:")
    assert change == {
        "version": 0,
        "leaderId": 1,
        "voters": [{"voterId": 1}],
        "grantingVoters": [{"voterId": 1}],
    }
    assert _payloads(lines, "KRaftVersion") == [{"version": 0, "kRaftVersion": 1}]
    [voters] = _payloads(lines, "KRaftVoters")
    assert voters == {
        "version": 0,
        "voters": [
            {
                "voterId": 1,
                "voterDirectoryId": DIRECTORY,
                "endpoints": [{"name": "CONTROLLER", "host": "localhost", "port": 9093}],
                "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1},
            }
        ],
    }
    assert sum('"type":"NO_OP_RECORD"' in line for line in lines) == 4


@pytest.mark.parametrize(
    ("name", "records"),
    [("00000000000000000000-0000000000.checkpoint", 0), ("00000000000000000005-0000000001.checkpoint", 2)],
)
def test_kafkas_tool_reads_the_snapshots(folder: Path, name: str, records: int) -> None:
    lines = _dump(folder / name)
    assert len(_payloads(lines, "SnapshotHeader")) == len(_payloads(lines, "SnapshotFooter")) == 1
    assert len(_payloads(lines, "KRaftVoters")) == 1
    assert sum('"type":"NO_OP_RECORD"' in line for line in lines) == records
