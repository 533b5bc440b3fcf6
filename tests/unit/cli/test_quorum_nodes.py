"""Which store a command changes whose options name one in two ways."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from nilometer.cli.metadata import quorum_nodes


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The settings of a quorum's node whose metadata log is in broker-1/logs."""
    logs = tmp_path / "broker-1" / "logs"
    logs.mkdir(parents=True)
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "log.dirs": str(logs),
    }
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def test_the_directory_of_the_node_itself_may_be_named_too(node: Path) -> None:
    folder = node.parent
    logs = folder / "broker-1" / "logs"
    for data_dir in (None, logs, folder):
        assert [one.node_id for one in quorum_nodes(data_dir, None, node)] == [1]
    assert [one.node_id for one in quorum_nodes(None, f"quorum:{logs}", node)] == [1]


def test_another_store_is_refused_whether_the_node_is_an_option_or_of_the_environment(node: Path) -> None:
    folder = node.parent
    others = [(folder / "other", None), (None, f"local:{folder}"), (None, f"quorum:{folder}")]
    for data_dir, coordination in (*others, (folder, f"quorum:{folder / 'broker-1' / 'logs'}")):
        with pytest.raises(click.UsageError, match="or NILOMETER_COORDINATION_CONFIG, is of a node"):
            quorum_nodes(data_dir, coordination, node)
