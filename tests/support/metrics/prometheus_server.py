"""Debian's Prometheus on a loopback port, with its data in a folder; and promtool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..eventually import eventually
from ..ports import HOST, free_ports
from .scrape import page

START_TIMEOUT_S = 120.0


def is_installed() -> bool:
    """Whether both programs are there; under CI they must be."""
    return bool(shutil.which("prometheus") and shutil.which("promtool")) or bool(os.environ.get("CI"))


def findings_of_promtool(metrics: str) -> str:
    """Return what ``promtool check metrics`` finds wrong with the text of a scrape; nothing if it passes."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=metrics,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = (checked.stdout + checked.stderr).strip()
    return said or (f"exit code {checked.returncode}" if checked.returncode else "")


class PrometheusServer:
    """``jobs``: the ports that each job scrapes, every three seconds: a scrape may take long."""

    def __init__(self, folder: Path, jobs: Mapping[str, Sequence[int]]) -> None:
        self._folder = folder
        self._jobs = jobs
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrometheusServer:
        self._folder.mkdir(parents=True)
        config = self._folder / "prometheus.yml"
        config.write_text(json.dumps(self._config()))  # YAML includes JSON
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={HOST}:{self.port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        eventually(self._is_ready, "Prometheus is ready", START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _config(self) -> dict[str, Any]:
        jobs = [
            {
                "job_name": name,
                "static_configs": [{"targets": [f"{HOST}:{port}" for port in ports]}],
            }
            for name, ports in self._jobs.items()
        ]
        return {"global": {"scrape_interval": "3s", "scrape_timeout": "3s"}, "scrape_configs": jobs}

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"Prometheus has ended:\n{(self._folder / 'output').read_text()}")
        try:
            return page(self.port, "/-/ready").status == 200
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query: ``metric`` (the labels) and ``value`` (time and text)."""
        found = page(self.port, f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        answer = json.loads(found.text)
        assert answer["status"] == "success", f"{expression}: {answer}"
        return answer["data"]["result"]

    def value(self, expression: str) -> float | None:
        """Return the value of a query with one series; None if there is none."""
        found = self.query(expression)
        assert len(found) <= 1, f"{expression} has {len(found)} series"
        return float(found[0]["value"][1]) if found else None
