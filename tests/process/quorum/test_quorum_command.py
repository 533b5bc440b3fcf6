"""`nilometer cluster quorum` on brokers with a metadata quorum."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from nilometer.cli.main import run
from support.brokers.quorum_brokers import QuorumBrokers
from support.brokers.quorum_clients import described, has_voters
from support.command_line import Outcome
from support.eventually import eventually
from support.ports import HOST

TIMEOUT_S = 60.0


def test_voters_are_described_added_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with QuorumBrokers(tmp_path / "cluster", overrides={"metrics.listener": "0"}) as cluster:

        def quorum(*words: str) -> Outcome:
            code = run(["cluster", "quorum", *words, "--bootstrap-server", cluster.bootstrap])
            printed = capsys.readouterr()
            return Outcome(code, printed.out, printed.err)

        joiner = cluster.add_controller()
        address = f"{HOST}:{cluster.joiners[joiner]}"
        unknown = quorum("add", "9", address)
        assert unknown.code == 1
        assert "no node 9 observes the quorum" in unknown.err
        assert quorum("add", "x", address).code == 2
        assert "is not of the form HOST:PORT" in quorum("add", "4", "here").err
        added = quorum("add", str(joiner), address)
        assert added.code == 0, added.err
        assert f"Node {joiner} is a voter, with the directory id {cluster.directory_id(joiner)}" in added.out
        assert "remove it first" in quorum("add", str(joiner), address).err
        shown = quorum("describe")
        assert shown.code == 0
        assert f"CONTROLLER://{address}" in shown.out
        document = quorum("describe", "--json").document
        assert [one["id"] for one in document["voters"]] == [1, 2, 3, joiner]
        assert all(one["directory_id"] for one in document["voters"])
        assert document["leader"] in cluster.controllers
        leader = document["leader"]
        health = status(cluster, capsys)
        assert health.code == 0, health.out
        assert f"Metadata quorum: node {leader} leads in epoch {document['epoch']}; voters 1" in health.out
        page = metrics_of(cluster, leader)
        assert page['current_state{current_state="leader"}'] == 1
        assert (page["current_leader"], page["current_epoch"]) == (leader, document["epoch"])
        assert (page["number_of_voters"], page["number_unknown_voter_connections"]) == (4, 0)
        assert page["log_end_offset"] >= page["high_watermark"] > 0
        assert page["append_records_rate"] > 0
        assert page["commit_latency_max"] >= page["commit_latency_avg"] >= 0
        others = [one for one in (1, 2, 3) if one != leader]
        assert metrics_of(cluster, others[0])['current_state{current_state="follower"}'] == 1
        assert f"This node leads the metadata quorum in epoch {document['epoch']}: " in cluster.output()
        cluster.kill(others[0])
        cluster.kill(joiner)
        eventually(lambda: described(cluster, others[1]) is None, "two of four are no majority", TIMEOUT_S)
        without = quorum("describe", "--json")
        assert without.code == 1
        reason = without.document["reason"]
        assert "a majority is 3 of its 4 voters" in reason
        assert all(str(one) in reason.partition("reach")[2] for one in (others[0], joiner))
        problems = status(cluster, capsys, "--json").document["problems"]
        assert any(one.startswith("The metadata quorum has no leader in epoch ") for one in problems), (
            problems
        )
        cluster.start(others[0])
        eventually(lambda: has_voters(cluster, others[1], {1, 2, 3, joiner}), "a leader", TIMEOUT_S)
        asked = quorum("remove", str(joiner))
        assert asked.code == 2
        assert f"node {joiner}, a voter of the metadata quorum" in asked.err
        refused = quorum("remove", "1", "--yes", "--directory-id", "AAAAAAAAAAAAAAAAAAAAAQ")
        assert "is no voter" in refused.err
        removed = quorum("remove", str(joiner), "--yes", "--json").document
        assert (removed["id"], removed["directory_id"]) == (joiner, cluster.directory_id(joiner))
        assert has_voters(cluster, 1, {1, 2, 3})


def metrics_of(cluster: QuorumBrokers, broker_id: int) -> dict[str, float]:
    """Return the metrics of the quorum on a broker's page, by name and labels."""
    url = cluster.brokers[broker_id].metrics_url
    assert url is not None
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()
    prefix = "kafka_server_raftmetrics_"
    found = (line.removeprefix(prefix).rpartition(" ") for line in lines if line.startswith(prefix))
    return {name: float(value) for name, _, value in found}


def status(cluster: QuorumBrokers, capsys: pytest.CaptureFixture[str], *words: str) -> Outcome:
    code = run(["status", *words, "--bootstrap-server", cluster.bootstrap])
    printed = capsys.readouterr()
    return Outcome(code, printed.out, printed.err)
