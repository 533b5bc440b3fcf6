"""``make demo`` as a user runs it: real lines in, numbers out, checked; nothing left running."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.local.local_cluster import LocalCluster
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


def running_brokers(folder: Path) -> list[int]:
    return [
        one.id for one in LocalCluster(folder / ".nilometer" / "demo").brokers() if one.state == "running"
    ]


@pytest.mark.long
def test_the_demo_verifies_its_numbers_and_leaves_nothing_running(tmp_path):
    logs = tmp_path / "logs"
    (logs / "old").mkdir(parents=True)
    (logs / "access.log").write_bytes(b"\n".join(LINES))  # the last line has no newline
    (logs / "old" / "access.log.1.gz").write_bytes(gzip.compress(b"\r\n".join(LINES) + b"\r\n"))
    (logs / ".hidden").write_bytes(b"not to be read\n")
    (logs / "binary").write_bytes(b"\0\1\2\n")
    done = subprocess.run([*DEMO, str(logs)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    total = 2 * len(LINES)
    assert f"Verified: {total:,} lines" in done.stdout
    assert running_brokers(tmp_path) == []


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
    done = subprocess.run([*DEMO, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "make demo INPUT=path" in " ".join(done.stdout.split())
