"""``make demo`` as a user runs it: real lines in, numbers out, checked; nothing left running."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from nilometer.local.local_cluster import LocalCluster
from support.coordination.zookeeper_server import running_ensemble
from support.eventually import eventually

pytestmark = pytest.mark.spark

DEMO = [sys.executable, "-m", "nilometer.cli.demo"]
LINES = [
    *[
        b'::1 - - [01/Jan/2024:00:%02d:00 +0000] "GET /%d HTTP/1.1" 200 5' % (n % 60, n % 7)
        for n in range(300)
    ],
    b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET /missing HTTP/1.1" 404 5',
    b"",
    b"no format at all",
]


def running_brokers(folder: Path, name: str = "demo") -> list[int]:
    cluster = LocalCluster(folder / ".nilometer" / name)
    return [one.id for one in cluster.brokers() if one.state == "running"]


@pytest.mark.long
def test_the_demo_verifies_its_numbers_and_leaves_nothing_running(tmp_path):
    logs = input_folder(tmp_path)
    done = run_demo(tmp_path, str(logs))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Verified: {2 * len(LINES):,} lines" in done.stdout
    assert running_brokers(tmp_path) == []


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_demo_on_a_closed_cluster(tmp_path):
    """By the one command of docs/security.md: TLS, users, ACLs, and ACLs in ZooKeeper."""
    logs = input_folder(tmp_path)
    with running_ensemble(1) as ensemble:
        done = run_demo(tmp_path, "--secure", "--zookeeper", f"{ensemble.hosts}/demo", str(logs))
        assert done.returncode == 0, done.stdout + done.stderr
        stranger: Any = KazooClient(ensemble.hosts)
        stranger.start()
        try:
            with pytest.raises(NoAuthError):
                stranger.get("/demo/secret")
        finally:
            stranger.stop()
            stranger.close()
    assert f"Verified: {2 * len(LINES):,} lines" in done.stdout
    assert running_brokers(tmp_path, "secure-demo") == []
    check_secrets(tmp_path / ".nilometer" / "secure-demo", done.stdout + done.stderr)


def check_secrets(data: Path, printed: str) -> None:
    """No password is printed, or in a file that others could read, or in any file but those for it."""
    private = sorted((data / "security").glob("*.properties"))
    passwords = {
        found
        for path in private
        for found in re.findall(r'(?:password="|zookeeper\.password=)([^";\n]+)', path.read_text())
    }
    assert len(passwords) == 4, "of admin, demo, the brokers, and at ZooKeeper"
    allowed = {*private, *data.glob("broker-*/server.properties")}
    assert data.stat().st_mode & 0o077 == 0
    for path in data.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        found = [password for password in passwords if password.encode() in content]
        assert not found or path in allowed, path
        assert not found or path.stat().st_mode & 0o077 == 0, path
    assert not any(password in printed for password in passwords)


def input_folder(tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    (logs / "old").mkdir(parents=True)
    (logs / "access.log").write_bytes(b"\n".join(LINES))  # the last line has no newline
    (logs / "old" / "access.log.1.gz").write_bytes(gzip.compress(b"\r\n".join(LINES) + b"\r\n"))
    (logs / ".hidden").write_bytes(b"not to be read\n")
    (logs / "binary").write_bytes(b"\0\1\2\n")
    return logs


def test_an_interrupted_demo_stops_its_brokers(tmp_path):
    (tmp_path / "access.log").write_bytes(b"\n".join(LINES))
    demo = subprocess.Popen([*DEMO, "access.log"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        eventually(lambda: running_brokers(tmp_path) == [1, 2, 3], "the demo's brokers run", timeout_s=60)
        os.kill(demo.pid, signal.SIGINT)
        demo.communicate(timeout=60)
    finally:
        demo.kill()
    assert demo.returncode == 130
    assert running_brokers(tmp_path) == []


def test_a_demo_without_input_says_how_to_name_one(tmp_path):
    done = run_demo(tmp_path, str(tmp_path))
    assert done.returncode == 1
    assert "make demo INPUT=path" in " ".join(done.stdout.split())
