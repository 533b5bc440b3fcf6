"""``nilometer metadata dump | image`` on the log directory of a quorum's node, running or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nilometer.cli.main import run
from nilometer.client.admin.admin import NewTopic
from support.brokers.quorum_brokers import QuorumBrokers
from support.command_line import Outcome
from support.eventually import eventually

TIMEOUT_S = 60.0


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_metadata_is_read_from_the_folder_of_a_node_that_runs_or_has_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"metadata.log.max.record.bytes.between.snapshots": "2000"}
    with QuorumBrokers(tmp_path / "cluster", 1, few, voters=1) as cluster:
        names = [f"topic-{number}" for number in range(12)]
        for name in names:
            cluster.operate(lambda admin, name=name: admin.create_topic(NewTopic(name, 1, 1)))
        folder = cluster.brokers[1].data_dir

        def command(*words: str) -> Outcome:
            code = run([*words, "--data-dir", str(folder)])
            printed = capsys.readouterr()
            return Outcome(code, printed.out, printed.err)

        def topics() -> set[str]:
            shown = command("metadata", "image")
            assert shown.code == 0, shown.err
            return {topic["name"] for topic in json.loads(shown.out)["topics"]}

        eventually(lambda: set(names) <= topics(), "the newest metadata in the folder", TIMEOUT_S)
        assert list(cluster.metadata_folder(1).glob("*-*.checkpoint")), "a snapshot was written meanwhile"
        cluster.kill(1)
        before = contents(folder)
        assert set(names) <= topics()
        lines = command("metadata", "dump", "--json").out.splitlines()
        assert contents(folder) == before
        entries = [json.loads(line) for line in lines]
        numbers = [entry["number"] for entry in entries if "number" in entry]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        refused = command("rotate-secret")
        assert refused.code == 2
        assert "give the server.properties of one as --coordination-config" in refused.err
