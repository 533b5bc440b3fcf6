"""`nilometer ingest` beside rsyslog (imfile, omkafka): the same lines, the same rotations, what arrives.

    python -m bench.ingest_rotations --seconds 30 --rotate-every 0.7 --kills 3

Three files are written and rotated in three ways while each program follows them into a topic of its own on
one Nilometer broker; with ``--kills`` the program is killed and started again, so often. What was written is
compared with what the topic holds. rsyslog is optional: `apt-get install rsyslog rsyslog-kafka`.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from tests.support.brokers.nilometer_broker import NilometerBroker
from tests.support.ingest.rotated_logs import NAMES, RotatedLogs
from tests.support.ingest.soak import lines_in_topic

from .systems import create_topic

SCRATCH = Path(".nilometer") / "bench"
RESULT = Path(__file__).parent / "results" / "ingest-rotations.json"
WRITE_EVERY_S = 0.02
BEGIN_S = 5.0
"""Each is given so long to see the files first; and twice as long without a new line is the end."""

Command = Callable[[Path, list[Path], str, str], list[str]]
"""(folder of its own, files, bootstrap server, topic) -> what is run"""


def ingest_command(own: Path, files: list[Path], bootstrap: str, topic: str) -> list[str]:
    return [
        *(sys.executable, "-m", "nilometer.cli", "ingest", *map(str, files), "--follow"),
        *("--topic", topic, "--state", str(own / "state.json"), "--bootstrap-server", bootstrap),
    ]


def rsyslog_command(
    own: Path, files: list[Path], bootstrap: str, topic: str, mode: str, persist_every: int = 1
) -> list[str]:
    """As its documentation advises where nothing may be lost: acks=all, retries, its state written often.

    ``persist_every``: the lines after which the state of a file is written.
    """
    inputs = "\n".join(
        f'input(type="imfile" File="{file}" Tag="t" ruleset="out" reopenOnTruncate="on" '
        f'persistStateInterval="{persist_every}" persistStateAfterSubmission="on")'
        for file in files
    )
    polling = ' pollingInterval="1"' if mode == "polling" else ""
    (own / "rsyslog.conf").write_text(
        f"""global(workDirectory="{own}" maxMessageSize="64k")
module(load="imfile" mode="{mode}"{polling})
module(load="omkafka")
template(name="line" type="string" string="%msg%")
ruleset(name="out" queue.type="direct") {{
  action(type="omkafka" broker=["{bootstrap}"] topic="{topic}" template="line" partitions.auto="on"
         confParam=["acks=all", "enable.idempotence=true"]
         resubmitOnFailure="on" keepFailedMessages="on" failedMsgFile="{own}/failed"
         action.resumeRetryCount="-1")
}}
{inputs}
"""
    )
    return ["rsyslogd", "-n", "-f", str(own / "rsyslog.conf"), "-i", str(own / "pid")]


PROGRAMS: dict[str, Command] = {
    "nilometer ingest": ingest_command,
    "rsyslog inotify": partial(rsyslog_command, mode="inotify"),
    "rsyslog polling": partial(rsyslog_command, mode="polling"),
}


class Shipper:
    def __init__(self, command: list[str], own: Path) -> None:
        self._command, self._own = command, own
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._own / "output").open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait()
        (self._own / "pid").unlink(missing_ok=True)


def measure(
    name: str,
    broker: NilometerBroker,
    folder: Path,
    seconds: float,
    rotate_every: float,
    kills: int,
    seed: int,
) -> dict[str, float]:
    own = folder / name.replace(" ", "-")
    own.mkdir()
    topic = own.name
    create_topic(broker, topic, 3)  # type: ignore[arg-type]
    logs = RotatedLogs(own / "logs", random.Random(seed))
    shipper = Shipper(PROGRAMS[name](own, logs.paths, broker.bootstrap, topic), own)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shipper.start()
    try:
        time.sleep(BEGIN_S)
        _play(logs, shipper, random.Random(seed), seconds, rotate_every, kills)
        found = _settled(broker.bootstrap, topic)
    finally:
        shipper.end(signal.SIGTERM)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "written": len(logs.written),
        "rotations": sum(logs.rotations.values()),
        "kills": kills,
        "lost": sum(1 for line in logs.written if not found[line]),
        "repeated": sum(times - 1 for times in found.values()),
        "foreign": len(found.keys() - set(logs.written)),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
    }


def _play(
    logs: RotatedLogs, shipper: Shipper, chance: random.Random, seconds: float, every: float, kills: int
) -> None:
    turns = round(seconds / every)
    kill_at = set(chance.sample(range(1, turns), kills)) if kills else set[int]()
    for turn in range(turns):
        for _ in range(round(every / WRITE_EVERY_S)):
            logs.write(chance.randint(1, 10))
            time.sleep(WRITE_EVERY_S)
        logs.rotate(chance.choice(NAMES))
        if turn in kill_at:
            shipper.end(signal.SIGKILL)
            shipper.start()
    logs.write(1)


def _settled(bootstrap: str, topic: str) -> Counter[bytes]:
    """What the topic holds once nothing has come for a while."""
    found: Counter[bytes] = Counter()
    while True:
        time.sleep(2 * BEGIN_S)
        again = asyncio.run(lines_in_topic(bootstrap, topic))
        if again == found:
            return found
        found = again


@click.command()
@click.option("--seconds", default=30.0, show_default=True)
@click.option("--rotate-every", default=0.7, show_default=True, help="Seconds between two rotations.")
@click.option("--kills", default=0, show_default=True, help="How often the program is killed meanwhile.")
@click.option("--seed", default=1, show_default=True)
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
def main(seconds: float, rotate_every: float, kills: int, seed: int, dry: bool) -> None:
    """Each program's lines: written, lost, repeated."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=SCRATCH)).resolve()
    results: dict[str, dict[str, float]] = {}
    try:
        with NilometerBroker(folder / "broker") as broker:
            for name in PROGRAMS:
                if name.startswith("rsyslog") and shutil.which("rsyslogd") is None:
                    click.echo(f"{name} is left out: apt-get install rsyslog rsyslog-kafka")
                    continue
                results[name] = measure(name, broker, folder, seconds, rotate_every, kills, seed)
                click.echo(f"{name}: {results[name]}")
    finally:
        shutil.rmtree(folder)
    if not dry:
        command = f"python -m bench.ingest_rotations --seconds {seconds:g} --rotate-every {rotate_every:g}"
        command += f" --kills {kills} --seed {seed}"
        known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        known[command] = results
        RESULT.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
