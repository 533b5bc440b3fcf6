"""The `nilometer` command as a person runs it: a process with pipes and signals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

PATIENCE_S = 60


class CommandShell:
    """Runs commands on the cluster at ``bootstrap``, each in a process, with bytes for its input."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "NILOMETER_BOOTSTRAP_SERVER": bootstrap}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "nilometer.cli", *arguments]

    def run(self, *arguments: str, code: int = 0, input: bytes = b"") -> bytes:
        done = subprocess.run(
            self.command(*arguments),
            check=False,
            input=input,
            capture_output=True,
            timeout=PATIENCE_S,
            env=self.environment,
        )
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.run(*arguments, "--json", **options))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(*arguments), env=self.environment, **options)

    def values(self, topic: str) -> list[bytes]:
        return self.run("consume", topic, "--from-beginning", "--exit-at-end").splitlines()
