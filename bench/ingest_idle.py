"""What `nilometer ingest --follow` costs while many files lie in a folder and nothing, or little, is written.

    python -m bench.ingest_idle --files 10000 --seconds 60

The share of one core (user and system time of the process), first with no line written, then with a line a
second in one of the files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import click
from tests.support.brokers.nilometer_broker import NilometerBroker

from .ingest_rotations import SCRATCH, ingest_command
from .systems import create_topic

RESULT = Path(__file__).parent / "results" / "ingest-idle.json"
TOPIC = "lines"
LINES = 5
"""In each file."""
READ_S = 900.0
"""All files have to be read once within it."""
POLL_S = 2.0
SETTLE_S = 30.0
"""Files that have just been read are looked at more often; this is longer than that."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def write_files(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        (folder / f"app-{number:05}.log").write_text(f"line of file {number}\n" * LINES)


def lines_counted(state: Path) -> int:
    if not state.exists():
        return 0
    return sum(source["lines"] for source in json.loads(state.read_text())["sources"])


def wait_read(state: Path, lines: int) -> None:
    end = time.monotonic() + READ_S
    while (counted := lines_counted(state)) != lines:
        if time.monotonic() > end:
            raise click.ClickException(f"{counted} of {lines} lines were read in {READ_S:.0f} s")
        time.sleep(POLL_S)


def share(pid: int, seconds: float, log: Path | None) -> float:
    """Per cent of a core; ``log``: where a line is written each second."""
    before, begun = cpu_seconds(pid), time.monotonic()
    end = begun + seconds
    while (left := end - time.monotonic()) > 0:
        if log is not None:
            with log.open("a") as file:
                file.write("one more line\n")
        time.sleep(min(left, 1.0))
    return round(100 * (cpu_seconds(pid) - before) / (time.monotonic() - begun), 2)


def measure(folder: Path, files: int, seconds: float) -> dict[str, float]:
    logs = folder / "logs"
    write_files(logs, files)
    with NilometerBroker(folder / "broker") as broker:
        create_topic(broker, TOPIC, 3)  # type: ignore[arg-type]
        begun = time.monotonic()
        process = subprocess.Popen(ingest_command(folder, [logs], broker.bootstrap, TOPIC))
        try:
            wait_read(folder / "state.json", LINES * files)
            read_s = time.monotonic() - begun
            time.sleep(SETTLE_S)
            idle = share(process.pid, seconds, None)
            written = share(process.pid, seconds, logs / "app-00000.log")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    return {"files": files, "read_s": round(read_s, 1), "idle_percent": idle, "one_written_percent": written}


@click.command()
@click.option("--files", default=10_000, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="How long each of the two is measured.")
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
def main(files: int, seconds: float, dry: bool) -> None:
    """The share of a core that ingest takes while it waits."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=SCRATCH)).resolve()
    try:
        found = measure(folder, files, seconds)
    finally:
        shutil.rmtree(folder)
    click.echo(json.dumps(found))
    if not dry:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
