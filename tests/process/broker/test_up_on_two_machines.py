"""`nilometer up` for each of two machines, one rack each: no partition has two replicas on one of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from support.brokers.cluster_shell import COMMAND, TIMEOUT_S, Shell
from support.eventually import eventually
from support.ports import HOST, neighbouring_ports

PARTITIONS = 12
FIRST_IDS = {"east": 1, "west": 11}
BROKERS = 2


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Shell]]:
    shells = {rack: Shell(tmp_path / rack) for rack in FIRST_IDS}
    yield shells
    for shell in shells.values():
        if shell.data_dir.exists():
            shell.run("down")
        assert not shell.processes()


def test_replicas_are_spread_over_the_machines(machines: dict[str, Shell], tmp_path: Path) -> None:
    store = f"local:{tmp_path / 'coordination'}"
    servers: dict[str, str] = {}
    for rack, shell in machines.items():
        up = _up(shell, rack, store)
        assert up.returncode == 0, up.stderr
        servers[rack] = up.stdout.strip().partition("=")[2]
    admin = AdminClient({"bootstrap.servers": servers["east"]})
    expected = {first + number for first in FIRST_IDS.values() for number in range(BROKERS)}
    eventually(lambda: set(admin.list_topics(timeout=10).brokers) == expected, "all brokers are registered")
    created = subprocess.run(
        [
            *(str(COMMAND), "topic", "create", "spread", "--partitions", str(PARTITIONS)),
            *("--replication-factor", "2", "--bootstrap-server", servers["west"]),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert created.returncode == 0, created.stderr
    eventually(lambda: len(_replicas(admin)) == PARTITIONS, "the topic is known")
    for replicas in _replicas(admin):
        assert {one >= FIRST_IDS["west"] for one in replicas} == {False, True}, _replicas(admin)

    again = machines["west"].run("up", "--first-id", "21", "--detach")
    assert again.returncode == 2 and "have ids from 11" in again.stderr


def _up(shell: Shell, rack: str, store: str) -> subprocess.CompletedProcess[str]:
    where = ("--port", str(neighbouring_ports(BROKERS)), "--coordination", store)
    ids = ("--brokers", str(BROKERS), "--first-id", str(FIRST_IDS[rack]))
    up = shell.run("up", *ids, "--rack", rack, *where, "--detach")
    configured = (shell.data_dir / f"broker-{FIRST_IDS[rack]}" / "server.properties").read_text()
    assert f"broker.rack={rack}\n" in configured and "default.replication.factor=3\n" in configured
    assert HOST in configured
    return up


def _replicas(admin: AdminClient) -> list[list[int]]:
    partitions = admin.list_topics("spread", timeout=10).topics["spread"].partitions
    return [one.replicas for one in partitions.values()]
