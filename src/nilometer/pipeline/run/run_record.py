"""Records a pipeline's runs in a folder per pipeline, for other processes to read.

Layout: ``<home>/<name>/run.json`` is the newest run, replaced as a whole with every batch; ``progress.jsonl``
has one line per batch of every run, for plots. Tables and checkpoint are in the same folder unless
``--output`` names another one, which ``run.json`` contains.

A process is identified by its pid *and* its start time, so that a reused pid is never mistaken for a run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.tally import Tally, tallied

HOME = ".nilometer/pipelines"
RUNNING, FINISHED, STOPPED, FAILED, DIED = "running", "finished", "stopped", "failed", "died"
STOP_TIMEOUT_S = 120.0
_POLL_S = 0.05


@dataclass(slots=True)
class RunRecord:
    """One run of one pipeline."""

    name: str
    topics: list[str]
    output: str
    pid: int
    process_started: str
    began: str
    state: str = RUNNING
    problem: str | None = None
    progress: dict[str, Any] = field(default_factory=dict[str, Any])
    pipeline: str = ""
    """The pipeline's name in `pipeline list`, or its file; empty if it is the run's name."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """The settings that were given, before their conversion."""

    @property
    def is_alive(self) -> bool:
        return self.state == RUNNING and _process_started(self.pid) == self.process_started


class RunFolder:
    """The folder ``<home>/<name>`` of one pipeline."""

    def __init__(self, home: str | Path, name: str) -> None:
        self.path = Path(home, name).absolute()
        self.name = name

    @property
    def progress_path(self) -> Path:
        return self.path / "progress.jsonl"

    def begin(
        self,
        topics: list[str],
        output: str,
        *,
        pipeline: str = "",
        settings: dict[str, Any] | None = None,
    ) -> RunRecord:
        """Record that this process runs the pipeline. Raises PipelineError if another one does."""
        running = self.read()
        if running is not None and running.state == RUNNING and running.pid != os.getpid():
            raise PipelineError(
                f"{self.name} is already running (process {running.pid}): stop it with "
                f"`nilometer pipeline stop {self.name}`, or run a second one in another folder with --home"
            )
        began = datetime.now(UTC).isoformat(timespec="seconds")
        started = _process_started(os.getpid()) or ""
        record = RunRecord(self.name, topics, output, os.getpid(), started, began)
        record.pipeline, record.settings = pipeline, settings or {}
        self.path.mkdir(parents=True, exist_ok=True)
        self._write(record)
        return record

    def on_progress(self, record: RunRecord, progress: dict[str, Any]) -> None:
        record.progress = {**progress, "tally": None}  # the counts are in the lines of the batches
        with self.progress_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"began": record.began, "output": record.output, **progress}) + "\n")
        self._write(record)

    def end(self, record: RunRecord, state: str, error: str | None = None) -> None:
        record.state, record.problem = state, error
        self._write(record)

    def read(self) -> RunRecord | None:
        """Return the newest run, or None; its state is DIED if its process ended without recording that."""
        try:
            record = RunRecord(**json.loads((self.path / "run.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        if record.state == RUNNING and not record.is_alive:
            record.state = DIED
        return record

    def progress(self) -> list[dict[str, Any]]:
        """Return the progress of the batches of all runs, in order, without an incomplete line."""
        if not self.progress_path.exists():
            return []
        lines = self.progress_path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line.endswith("}")]

    def batches(self, output: str) -> list[dict[str, Any]]:
        """Return the newest progress of each batch whose tables are in ``output``, in order."""
        newest: dict[int, dict[str, Any]] = {}
        for one in self.progress():
            if one.get("output", output) == output:
                if one["batch_id"] == 0:  # the folder was removed, and begins again
                    newest.clear()
                newest[one["batch_id"]] = one
        return list(newest.values())

    def tally(self, output: str) -> Tally | None:
        """Return the lines of all batches whose tables are in ``output``; None if none was counted.

        A batch that was run again is counted once.
        """
        counted = [one["tally"] for one in self.batches(output) if one.get("tally")]
        return tallied(counted) if counted else None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> RunRecord:
        """Have the run stop after its present batch, wait for it and return its record.

        Raises PipelineError if it is not running, or does not stop within ``timeout_s``.
        """
        record = self.read()
        if record is None or not record.is_alive:
            raise PipelineError(f"{self.name} is not running")
        os.kill(record.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while _process_started(record.pid) == record.process_started:
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"{self.name} (process {record.pid}) has not stopped within {timeout_s:.0f} s: it "
                    "will stop at the end of its batch"
                )
            time.sleep(_POLL_S)
        return self.read() or record

    def _write(self, record: RunRecord) -> None:
        temporary = self.path / "run.json.tmp"
        temporary.write_text(json.dumps(asdict(record)), encoding="utf-8")
        temporary.replace(self.path / "run.json")


def runs(home: str | Path) -> Iterator[RunRecord]:
    """Yield the newest run of every pipeline that was run with this ``home``."""
    for path in sorted(Path(home).glob("*/run.json")):
        record = RunFolder(home, path.parent.name).read()
        if record is not None:
            yield record


def _process_started(pid: int) -> str | None:
    """Return the start time of process ``pid``, which a reuse of the pid changes; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        pass
    # Systems without /proc.
    listing = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listing.stdout.strip() or None
