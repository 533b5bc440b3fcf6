"""Runs the `nilometer` command as a subprocess, on one data folder of `nilometer up`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..ports import HOST
from ..wire.wire_peer import WirePeer

TIMEOUT_S = 90
COMMAND = Path(sys.executable).with_name("nilometer")


class Shell:
    """The `nilometer` command with ``--data-dir``."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _command(self, verb: str, *arguments: str) -> list[str]:
        return [str(COMMAND), verb, "--data-dir", str(self.data_dir), *arguments]

    def brokers(self) -> list[dict[str, Any]]:
        return json.loads(self.run("status", "--json").stdout)["brokers"]

    def pids(self) -> list[int | None]:
        return [broker["pid"] for broker in self.brokers()]

    def processes(self) -> list[int]:
        """Return the pids of all broker processes on this folder, recorded in it or not."""
        folder = os.fsencode(self.data_dir)
        found: list[int] = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended since
                if folder in (line := (entry / "cmdline").read_bytes()) and b"nilometer.broker" in line:
                    found.append(int(entry.name))
        return found


def answers(port: int) -> bool:
    with WirePeer(f"{HOST}:{port}") as peer:
        return peer.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none
