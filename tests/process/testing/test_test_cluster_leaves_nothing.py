"""Nothing of a test cluster is left behind: no process and no file, however the test process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.testing import Cluster, ClusterError
from support.eventually import eventually

MARK = "NILOMETER_TEST_MARK"
TIMEOUT_S = 60.0

RUNNING = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a run under nohup ignores it
from nilometer.testing import Cluster
cluster = Cluster(brokers=2)
cluster.start()
cluster.pause(2)
print("ready", flush=True)
import time
time.sleep(600)
"""
STARTING = """
import threading
from nilometer.testing import Cluster
cluster = Cluster(brokers=2)
threading.Thread(target=cluster.start).start()
while cluster._folder is None:
    pass
print("ready", flush=True)
import time
time.sleep(600)
"""
FORKED = """
import os, time
from nilometer.testing import Cluster
cluster = Cluster()
cluster.start()
if os.fork() == 0:  # has every descriptor of its parent, and ends once the folder is removed
    print("ready", flush=True)
    while os.listdir(os.environ["TMPDIR"]):
        time.sleep(0.05)
    os._exit(0)
time.sleep(600)
"""
EXITING = """
import os
from nilometer.testing import Cluster
cluster = Cluster()
cluster.start()
print("ready", flush=True)
"""


class Traces:
    """What a marked process, and the processes that it started, have left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark, "TMPDIR": str(folder)}

    def processes(self) -> list[int]:
        wanted = f"{MARK}={self.mark}".encode()
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # the process has ended, or belongs to another user
                continue
        return found

    def are_none(self) -> bool:
        return not self.processes() and not list(self.folder.iterdir())

    def start(self, script: str) -> subprocess.Popen[bytes]:
        """Start a script, and return when it has printed its line."""
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended since it was found."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    found = Traces(tmp_path)
    yield found
    for pid in found.processes():  # of a test that failed
        send(pid, signal.SIGKILL)


@pytest.mark.parametrize("script", [RUNNING, STARTING], ids=["running", "starting"])
def test_after_a_kill_of_the_test_process(traces: Traces, script: str):
    process = traces.start(script)
    assert len(traces.processes()) >= 2
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    eventually(traces.are_none, "no process and no file is left", TIMEOUT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_after_a_signal_to_all_processes(traces: Traces, number: signal.Signals):
    process = traces.start(RUNNING)
    for pid in traces.processes():
        send(pid, number)
    process.communicate(timeout=TIMEOUT_S)
    eventually(traces.are_none, "no process and no file is left", TIMEOUT_S)


def test_after_a_kill_of_a_test_process_that_has_forked(traces: Traces):
    with traces.start(FORKED) as process:
        process.kill()
        eventually(traces.are_none, "no process and no file is left", TIMEOUT_S)


def test_after_the_end_of_a_process_that_did_not_close_the_cluster(traces: Traces):
    process = traces.start(EXITING)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    eventually(traces.are_none, "no process and no file is left", TIMEOUT_S)


def test_after_an_error_in_the_block(traces: Traces, monkeypatch: pytest.MonkeyPatch):
    for key, value in traces.environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("tempfile.tempdir", str(traces.folder))
    with pytest.raises(KeyError), Cluster():
        raise KeyError
    assert_only_this_process(traces)
    with pytest.raises(ClusterError):
        Cluster(settings={"num.partitions": "none"}).start()
    assert_only_this_process(traces)


def test_after_a_kill_of_the_launcher(traces: Traces, monkeypatch: pytest.MonkeyPatch):
    for key, value in traces.environment.items():
        monkeypatch.setenv(key, value)
    with Cluster() as cluster:
        launcher = cluster._launcher
        assert launcher is not None
        launcher._process.kill()
        with pytest.raises(ClusterError, match="process that owns the brokers"):
            cluster.kill(1)
        eventually(lambda: not traces.processes(), "no process is left", TIMEOUT_S)
    assert not list(traces.folder.iterdir())


def assert_only_this_process(traces: Traces) -> None:
    """The mark was put into this process's environment after its start, so /proc does not show it here."""
    assert traces.processes() == []
    assert not list(traces.folder.iterdir())
