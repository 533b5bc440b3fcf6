"""A data folder of `nilometer up` that was moved or copied: its brokers serve what is in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.brokers.cluster_shell import COMMAND, TIMEOUT_S, Shell
from support.ports import HOST, free_ports

ORIGINAL, LATER = "first\nsecond\n", "after the copy\n"


@pytest.fixture
def port() -> int:
    (port,) = free_ports(1)
    return port


@pytest.fixture
def original(tmp_path: Path, port: int) -> Shell:
    """Return a stopped cluster with records."""
    shell = Shell(tmp_path / "original")
    up(shell, "--port", str(port))
    write(port, ORIGINAL)
    assert shell.run("down").returncode == 0
    return shell


def up(shell: Shell, *arguments: str) -> str:
    done = shell.run("up", "--detach", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def client(port: int, *arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [str(COMMAND), *arguments, "--bootstrap-server", f"{HOST}:{port}"],
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(port: int, lines: str) -> None:
    client(port, "produce", "orders", text=lines)


def read(port: int) -> str:
    return client(port, "consume", "orders", "--from-beginning", "--until-end")


def test_a_copy_serves_its_own_data(original: Shell, tmp_path: Path, port: int) -> None:
    copy = Shell(tmp_path / "copy")
    shutil.copytree(original.data_dir, copy.data_dir)
    up(original)
    write(port, LATER)
    process = original.data_dir / "broker-1" / "process.json"
    shutil.copy(process, copy.data_dir / "broker-1")  # as in a copy that was made while the broker ran
    assert [one["state"] for one in copy.brokers()] == ["down"], "the original's process is not the copy's"
    assert copy.run("down").stdout == "Stopped 0 brokers.\n"
    refused = broker_alone(copy)
    assert refused.returncode == 1
    assert f"has paths in {original.data_dir}" in refused.stderr
    assert original.run("down").stdout == "Stopped 1 broker.\n"

    told = up(copy)
    try:
        assert f"The cluster was in {original.data_dir} before" in told
        assert read(port) == ORIGINAL
    finally:
        copy.run("down")
    told = up(original)
    try:
        assert "before" not in told
        assert read(port) == ORIGINAL + LATER
    finally:
        original.run("down")
    assert "before" not in up(copy), "its files are corrected once"
    copy.run("down")


def test_a_moved_folder_serves_its_data(original: Shell, tmp_path: Path, port: int) -> None:
    moved = Shell(tmp_path / "moved")
    os.rename(original.data_dir, moved.data_dir)
    assert [one["reason"] for one in moved.brokers()] == ["it was stopped"]
    up(moved)
    try:
        assert read(port) == ORIGINAL
        assert not original.data_dir.exists()
    finally:
        moved.run("down")
    assert str(original.data_dir) not in (moved.data_dir / "broker-1" / "server.properties").read_text()


def test_a_folder_that_is_moved_while_it_runs(original: Shell, tmp_path: Path) -> None:
    moved = Shell(tmp_path / "moved")
    up(original)
    (broker,) = json.loads(original.run("status", "--json").stdout)["brokers"]
    os.kill(broker["pid"], signal.SIGSTOP)  # it would end soon, since its folder is gone
    try:
        os.rename(original.data_dir, moved.data_dir)
        refused = moved.run("up", "--detach")
        assert refused.returncode == 1
        assert f"was moved from {original.data_dir} while brokers 1 ran" in refused.stderr
    finally:
        os.kill(broker["pid"], signal.SIGCONT)
        assert moved.run("down").stdout in ("Stopped 1 broker.\n", "Stopped 0 brokers.\n")


def test_a_part_of_a_folder_is_refused(original: Shell, tmp_path: Path) -> None:
    part = Shell(tmp_path / "part")
    shutil.copytree(original.data_dir, part.data_dir)
    shutil.rmtree(part.data_dir / "coordination")
    before = (part.data_dir / "broker-1" / "server.properties").read_text()
    refused = part.run("up", "--detach")
    assert refused.returncode == 1
    assert f"{part.data_dir / 'coordination'} is missing. Copy the whole folder" in refused.stderr
    assert (part.data_dir / "broker-1" / "server.properties").read_text() == before


def test_a_secure_copy_uses_its_own_keys(tmp_path: Path, port: int) -> None:
    original, copy = Shell(tmp_path / "original"), Shell(tmp_path / "copy")
    up(original, "--port", str(port), "--secure")
    assert original.run("down").returncode == 0
    shutil.copytree(original.data_dir, copy.data_dir)
    shutil.rmtree(original.data_dir)
    up(copy)
    try:
        status = copy.run("status", "--json")
        assert json.loads(status.stdout)["health"] == "healthy"
    finally:
        copy.run("down")
    for path in copy.data_dir.rglob("*.properties"):
        assert str(original.data_dir) not in path.read_text(), path


def broker_alone(shell: Shell) -> subprocess.CompletedProcess[str]:
    settings = shell.data_dir / "broker-1" / "server.properties"
    return subprocess.run(
        [sys.executable, "-m", "nilometer.cli", "broker", "--config", str(settings)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
