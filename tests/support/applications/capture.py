"""``nilometer pipeline capture`` as a process, with the jars that `make java` has fetched."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from nilometer.pipeline.capture.databases import CONNECTOR, CONNECTORS
from nilometer.pipeline.changes.change_events import Change, LeftOut, decode_change

from ..eventually import eventually
from ..kafka.apache_kafka import CONNECT_JARS, ensure_java
from .application import WAIT_S
from .committed_reader import committed_records
from .kafka_connect import PLUGINS

NILOMETER = (sys.executable, "-m", "nilometer.cli")
COMMAND = (*NILOMETER, "pipeline", "capture")


@cache
def capture_jars(coordinate: str) -> Path:
    """Return a folder with the jars of Kafka Connect and of a connector, each once."""
    ensure_java()
    _, name, version = coordinate.split(":")
    assert (PLUGINS / name / f"{name}-{version}.jar").exists(), f"tests/java/pom.xml has not {coordinate}"
    folder = Path(tempfile.mkdtemp(prefix="nilometer-jars-"))
    found: dict[str, Path] = {}
    for jar in [*CONNECT_JARS.glob("*.jar"), *(PLUGINS / name).glob("*.jar")]:
        found.setdefault(_artifact(jar), jar)
    for jar in found.values():
        (folder / jar.name).symlink_to(jar)
    return folder


def _artifact(jar: Path) -> str:
    """Return the name of the jar without its version."""
    parts = jar.stem.split("-")
    version = next((number for number, part in enumerate(parts) if part[:1].isdigit()), len(parts))
    return "-".join(parts[:version])


class CaptureCommand:
    """`CaptureCommand(folder, bootstrap, dsn, "public.t", "topic")`; run it to its end, or start and kill."""

    def __init__(self, folder: Path, bootstrap: str, dsn: str, table: str, topic: str, *more: str) -> None:
        coordinate = CONNECTORS["mariadb"][0] if dsn.startswith("mariadb:") else CONNECTOR
        self._arguments = [
            "--dsn", dsn, "--table", table, "--topic", topic, "--bootstrap-server", bootstrap,
            "--jars", str(capture_jars(coordinate)), *more,
        ]  # fmt: skip
        self._folder = folder
        self._output = folder / "capture.out"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, *more: str, code: int = 0) -> str:
        """Run it with ``more`` options to its end, and return what it printed. Raises AssertionError."""
        done = subprocess.run(
            [*COMMAND, *self._arguments, *more],
            cwd=self._folder, capture_output=True, text=True, check=False, timeout=WAIT_S,
        )  # fmt: skip
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}{self._log()}"
        return done.stdout + done.stderr

    def now(self) -> str:
        return self.run("--available-now")

    def start(self) -> CaptureCommand:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*COMMAND, *self._arguments], cwd=self._folder, stdout=output, stderr=output
            )
        return self

    def wait_running(self) -> None:
        eventually(lambda: self._says("Capturing "), "the capture runs", WAIT_S)

    def said(self) -> str:
        return self._output.read_text()

    def wait_end(self) -> tuple[int, str]:
        """Wait until it ends by itself; return the exit code and the output."""
        assert self._process is not None
        return self._process.wait(WAIT_S), self._output.read_text()

    def _says(self, text: str) -> bool:
        said = self._output.read_text()
        assert self._process is not None
        assert self._process.poll() is None, f"{said}{self._log()}"
        return text in said

    def _log(self) -> str:
        """Return the end of the log, after its warnings and errors."""
        said = ""
        for one in self._folder.glob(".nilometer/capture/*.log"):
            text = one.read_text()
            serious = [line for line in text.splitlines() if re.search(r" (WARN|ERROR) |Exception", line)]
            said += "\n".join(serious[-100:]) + "\n…\n" + text[-8_000:]
        return said

    def kill_worker(self) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        for child in children.split():
            os.kill(int(child), signal.SIGKILL)

    def kill(self) -> None:
        """Kill it as with kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> CaptureCommand:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def captured_changes(bootstrap: str, topic: str, partitions: int = 1) -> list[Change]:
    """Return the changes of a topic; those of one row are in order."""
    found: list[Change] = []
    for one in committed_records(bootstrap, topic, partitions=partitions):
        headers = [{"key": key, "value": value} for key, value in one.headers() or ()]
        with suppress(LeftOut):
            found.append(decode_change(one.key(), one.value(), headers, 0))
    return found


def listed(dsn: str) -> list[dict[str, Any]]:
    """Return what the command prints with ``--list``."""
    command: Sequence[str] = [*COMMAND, "--dsn", dsn, "--list", "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
