"""``nilometer storage format``: nodes begin with the voters that they are formatted with, as Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nilometer.cli.main import run
from nilometer.raft.quorum_state import FOLDER
from support.brokers.nilometer_broker import NilometerBroker
from support.command_line import Outcome
from support.eventually import eventually
from support.ports import HOST, free_ports

TIMEOUT_S = 60.0
CLUSTER = "5L6g3nShT-eMCtK--X86sw"


class Nodes:
    """Nodes with their own files of settings, as of a user of Kafka."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], count: int) -> None:
        self._folder = folder
        self._capsys = capsys
        ports = free_ports(2 * count)
        self.plain = dict(zip(range(1, count + 1), ports[:count], strict=True))
        self.controller = dict(zip(range(1, count + 1), ports[count:], strict=True))

    def settings(self, node_id: int, overrides: Mapping[str, str]) -> dict[str, str]:
        servers = [f"{HOST}:{port}" for port in self.controller.values()]
        return {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "controller.quorum.bootstrap.servers": ",".join(servers),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{self.plain[node_id]},"
            f"CONTROLLER://{HOST}:{self.controller[node_id]}",
            "log.dirs": f"{self.directory(node_id)},{self._folder / f'more-{node_id}'}",
            **overrides,
        }

    def directory(self, node_id: int) -> Path:
        return self._folder / f"node-{node_id}"

    def format(
        self, node_id: int, *words: str, cluster_id: str = CLUSTER, overrides: Mapping[str, str] | None = None
    ) -> Outcome:
        path = self._folder / f"{node_id}.properties"
        settings = self.settings(node_id, overrides or {})
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return self.command("storage", "format", "--config", str(path), "--cluster-id", cluster_id, *words)

    def command(self, *words: str) -> Outcome:
        code = run([*words])
        printed = self._capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    def broker(self, node_id: int) -> NilometerBroker:
        return NilometerBroker(
            self.directory(node_id), self.settings(node_id, {}), self.plain[node_id], node_id
        )

    def quorum(self, node_id: int) -> dict[str, list[int]]:
        found = self.command(
            "cluster", "quorum", "describe", "--json", "--bootstrap-server", f"{HOST}:{self.plain[node_id]}"
        )
        document = found.document if found.code == 0 else {}
        return {key: [one["id"] for one in document.get(key, [])] for key in ("voters", "observers")}


def test_nodes_that_are_formatted_with_the_same_voters_are_their_quorum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, capsys, 4)
    ids = {node_id: nodes.command("storage", "random-uuid").out.strip() for node_id in (1, 2, 3)}
    assert len(set(ids.values())) == 3
    voters = ",".join(f"{one}@{HOST}:{nodes.controller[one]}:{ids[one]}" for one in ids)
    for node_id in ids:
        formatted = nodes.format(node_id, "--initial-controllers", voters, "--json")
        assert formatted.code == 0, formatted.err
        assert formatted.document["formatted"][str(nodes.directory(node_id))] == ids[node_id]
        assert len(formatted.document["formatted"]) == 2
    assert nodes.format(4, "--no-initial-controllers").code == 0
    # Two of three are a majority: they do not ask whether the third one is blank.
    two = [nodes.broker(1), nodes.broker(2)]
    late = [nodes.broker(3), nodes.broker(4)]
    try:
        for broker in two:
            broker.launch()
        for broker in two:
            broker.wait_ready()
        assert nodes.quorum(1)["voters"] == [1, 2, 3]
        for broker in late:
            broker.start()
        both = {"voters": [1, 2, 3], "observers": [4]}
        eventually(lambda: nodes.quorum(1) == both, "the others are found", TIMEOUT_S)
        assert f"cluster.id={CLUSTER}" in (nodes.directory(4) / "meta.properties").read_text()
    finally:
        for broker in (*two, *late):
            broker.kill()


def test_a_node_alone_and_one_that_only_joins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = Nodes(tmp_path, capsys, 1)
    assert nodes.format(1, "--no-initial-controllers").code == 0
    waiting = nodes.broker(1)
    waiting.launch()
    try:
        said = "The metadata quorum has no leader yet"
        eventually(lambda: said in waiting.output, "it forms no quorum", TIMEOUT_S)
        assert "is formed" not in waiting.output
    finally:
        waiting.kill()
    alone = Nodes(tmp_path / "alone", capsys, 1)
    (tmp_path / "alone").mkdir()
    assert alone.format(1, "--standalone").code == 0
    with alone.broker(1) as broker:
        assert alone.quorum(1) == {"voters": [1], "observers": []}
        assert "is formed" not in broker.output, "it was, by the format"


def test_users_are_added_to_formatted_nodes_before_they_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NILOMETER_USER_PASSWORD", "open-sesame-7731")
    nodes = Nodes(tmp_path, capsys, 1)
    settings = tmp_path / "1.properties"
    settings.write_text("".join(f"{key}={value}\n" for key, value in nodes.settings(1, {}).items()))
    add = ("user", "add", "ann", "--offline", "--coordination-config", str(settings))
    refused = nodes.command(*add)
    assert refused.code == 1
    assert "is not formatted: run `nilometer storage format`" in refused.err
    for other in (("--coordination", f"local:{tmp_path / 'other'}"), ("--data-dir", str(tmp_path))):
        twice = nodes.command(*add, *other)
        assert (twice.code, "give neither --coordination nor --data-dir with it" in twice.err) == (2, True)
    assert [one.name for one in tmp_path.iterdir()] == [settings.name]
    assert nodes.format(1, "--standalone").code == 0
    added = nodes.command(*add)
    assert added.code == 0, added.err
    with nodes.broker(1) as broker:
        listed = nodes.command("user", "list", "--json", "--bootstrap-server", broker.bootstrap)
        assert "ann" in listed.out, listed.err
        running = nodes.command(*add)
        assert running.code == 1
        assert "a broker runs: " in running.err
        assert "Use --bootstrap-server" in running.err
    directory = nodes.command("user", "add", "bob", "--offline", "--coordination", f"quorum:{tmp_path}")
    assert directory.code == 2
    assert "give the server.properties of one as --coordination-config" in directory.err


def test_what_is_formatted_or_contradicts_itself_is_refused_and_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(tmp_path, capsys, 1)

    def refused(why: str, *words: str, cluster_id: str = CLUSTER, **overrides: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        found = nodes.format(
            1,
            *words,
            cluster_id=cluster_id,
            overrides={key.replace("_", "."): text for key, text in overrides.items()},
        )
        assert found.code in (1, 2) and why in found.err, found
        assert [one for one in sorted(tmp_path.rglob("*")) if one.suffix != ".properties"] == [
            one for one in before if one.suffix != ".properties"
        ]

    static = {"controller_quorum_bootstrap_servers": "", "controller_quorum_voters": f"1@{HOST}:1"}
    voter = f"1@{HOST}:{nodes.controller[1]}:AAAAAAAAAAAAAAAAAAAAAQ"
    refused("you must specify one of the following")
    refused("give one of --standalone", "--standalone", "--no-initial-controllers")
    refused("give one of --standalone", "--standalone", "--initial-controllers", voter)
    refused("you cannot specify controller.quorum.voters", "--standalone", **static)
    refused("you can only use --standalone on a controller", "--standalone", process_roles="broker")
    refused("process.roles has no controller", "--initial-controllers", voter, process_roles="broker")
    refused("more than once", "--initial-controllers", f"{voter},{voter}")
    refused("is not ID@HOST:PORT:DIRECTORY_ID", "--initial-controllers", f"1@{HOST}:1")
    refused("is not ID@HOST:PORT:DIRECTORY_ID", "--initial-controllers", f"1@{HOST}:1:x")
    refused("no voters are given", "--initial-controllers", ",")
    for odd in ("a b", "prod@eu", "prod/eu", ".", "..", "", "\u00e9", "a" * 256, "a\n"):
        refused("is no cluster id", "--standalone", cluster_id=odd)
    refused("is not of a node of a metadata quorum", "--standalone", nilometer_coordination="local")
    (tmp_path / "file").write_text("x")
    refused("is not a directory", "--standalone", log_dirs=str(tmp_path / "file"))
    kafka = tmp_path / "kafka"
    (kafka / FOLDER).mkdir(parents=True)
    (kafka / FOLDER / "quorum-state").write_text("{}")
    refused("perhaps one of Apache Kafka", "--standalone", log_dirs=str(kafka))
    logs = tmp_path / "logs"
    (logs / "orders-0").mkdir(parents=True)
    refused("has logs, and no meta.properties", "--standalone", log_dirs=str(logs))

    assert nodes.format(1, "--standalone").code == 0
    refused("is already formatted. Use --ignore-formatted", "--standalone")
    refused("belongs to cluster", "--standalone", "--ignore-formatted", cluster_id="another")
    again = nodes.format(1, "--standalone", "--ignore-formatted")
    assert (again.code, again.out) == (0, "All of the log directories are already formatted.\n")
    third = f"{nodes.directory(1)},{tmp_path / 'third'}"
    more = nodes.format(1, "--standalone", "--ignore-formatted", "--json", overrides={"log.dirs": third})
    assert list(more.document["formatted"]) == [str(tmp_path / "third")]
