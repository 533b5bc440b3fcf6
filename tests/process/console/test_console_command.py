"""`nilometer console` and `nilometer up --console`: what they print, refuse, and leave behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from nilometer.cli.main import run
from nilometer.local.local_cluster import LocalCluster
from support.brokers.cluster_shell import COMMAND
from support.console.console_process import console
from support.eventually import eventually
from support.ports import free_ports


def document(url: str) -> dict[str, object]:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_cluster_with_its_console_ends_by_one_signal(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [str(COMMAND), "up", "--port", str(port), "--console", "0", "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"bootstrap.servers=127.0.0.1:{port}\n"
        match = re.fullmatch(r"Console: (http://127\.0\.0\.1:\d+/)\n", process.stdout.readline())
        assert match is not None
        url = match[1]
        eventually(lambda: document(url)["grade"] == "healthy", "the console sees a healthy cluster", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert [one.state for one in LocalCluster(tmp_path / "data").brokers()] == ["down"]


def test_a_console_without_a_cluster_says_so() -> None:
    with console("--bootstrap-server", "127.0.0.1:1") as url:
        found = document(f"{url}/")
        assert found["grade"] == "unavailable"
        with pytest.raises(HTTPError, match="503"):
            document(f"{url}/topics")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["console", "--host", "0.0.0.0"], "it has no login yet"),
        (["console", "--host", "192.0.2.1"], "it has no login yet"),
        (["console", "--port", "70000"], "is not in the range"),
        (["up", "--detach", "--console", "0"], "run `nilometer console` instead"),
    ],
)
def test_what_it_refuses(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert error in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with console("--bootstrap-server", "127.0.0.1:1") as url:
        port = url.rpartition(":")[2]
        assert run(["console", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
