"""``make demo``: the main job from end to end on real log lines, and a check that its numbers are right.

Three brokers up, lines in, the leader killed with SIGKILL while they flow, the ``logs`` pipeline over the
topic, tables out, and the totals beside a count of the same files that shares no code with any of it: so a
line that was lost or repeated on the way would show. Whatever happens, the brokers are stopped at the end.
The exit code is 0 only if every number agreed.

Each run has a topic and tables of its own, named by the time it began, so that running again on the same
folder counts nothing twice; what the runs before the last one left behind, topics and tables, is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from nilometer.cli.log_census import Census, take_census
from nilometer.cli.pipeline_commands import print_position, print_tables, progress_line, tables_of
from nilometer.pipeline import runner
from nilometer.pipeline.catalogue import SHIPPED
from nilometer.pipeline.errors import PipelineProblem
from nilometer.pipeline.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATA_DIR = Path(".nilometer/demo")
USUAL_LOGS = (
    "/var/log/dpkg.log",
    "/var/log/apt/history.log",
    "/var/log/alternatives.log",
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/auth.log",
    "/var/log/nginx/access.log",
    "/var/log/apache2/access.log",
    "/var/log/httpd/access_log",
    "/var/log/system.log",
    "/var/log/install.log",
)
USUAL_BYTES_MAX = 64 * 1024 * 1024
"""Of the usual logs no more than this is taken: a demo that nobody gave an input should be short."""
STILL_WRITTEN_SECONDS = 3_600
SNIFF_BYTES = 1_024
TOPIC_PREFIX = "demo-"
BROKERS = 3
PORTS = range(15_000, 32_000)


class DemoFailed(Exception):
    """What went wrong, in words for the person at the terminal."""


@dataclass(slots=True)
class Demo:
    """One run: where things are, and what has been started."""

    console: Console
    began: datetime = field(default_factory=datetime.now)
    bootstrap: str = ""

    @property
    def topic(self) -> str:
        return f"{TOPIC_PREFIX}{self.began:%Y%m%d-%H%M%S}"

    @property
    def run_dir(self) -> Path:
        return DATA_DIR / "runs" / self.topic

    def say(self, what: str) -> None:
        self.console.print(
            f"[bold]{(datetime.now() - self.began).total_seconds():5.1f} s[/bold]  {what}", highlight=False
        )

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A long step: shown while it runs, with what it does and for how long."""
        self.say(what)
        with self.console.status(what):
            yield


@click.command()
@click.argument("source", required=False, type=click.Path(exists=True, path_type=Path))
def main(source: Path | None) -> None:
    """Ingest log lines, count them with Spark, and check the counts. SOURCE: a file or folder of logs."""
    demo = Demo(Console())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        agreed = run(demo, source)
    except (DemoFailed, PipelineProblem) as problem:
        demo.console.print(f"[red]The demo failed:[/red] {problem}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        demo.console.print("[red]Interrupted.[/red]")
        sys.exit(130)
    sys.exit(0 if agreed else 1)


def run(demo: Demo, source: Path | None) -> bool:
    """Whether the pipeline's numbers are those of the independent count."""
    ensure_java(demo.say)
    _clear_old_runs(demo)
    files = _stable(demo, _log_files(source))
    size = sum(path.stat().st_size for path in files)
    demo.say(f"Input: {len(files)} file{'s' * (len(files) > 1)}, {size / 1e6:.1f} MB")
    spark = _SparkStart(demo.run_dir / "spark.log")
    try:
        with _brokers(demo):
            with demo.step(f"Ingesting into topic {demo.topic} ..."):
                lines = _ingest_through_a_death(demo, files)
                demo.say(f"Ingested {lines:,} lines, each acknowledged by all in-sync replicas")
                _drop_old_topics(demo)
            with demo.step("Starting Spark ..."):
                session = spark.wait()
            census = _counting(files)
            tables = _run_pipeline(demo, session)
            with demo.step("Counting the same files in plain Python ..."):
                found, wanted = _found(session, demo.run_dir / "tables"), census()
    finally:
        spark.stop()
    print_tables(demo.console, tables)
    return _compare(demo, found, wanted)


# --- input


def _log_files(source: Path | None) -> list[Path]:
    if source is None:
        files = [path for path in map(Path, USUAL_LOGS) if _is_readable_text(path)]
        files = _up_to(files, USUAL_BYTES_MAX) or _any_logs()
    elif source.is_dir():
        files = [
            path
            for path in sorted(source.rglob("*"))
            if not _is_hidden(path, source) and _is_readable_text(path)
        ]
    else:
        files = [source]
    if not files:
        raise DemoFailed(
            f"no readable log file in {source or '/var/log'}. Name a file or a folder: make demo INPUT=path"
        )
    return [path.resolve() for path in files]


def _any_logs() -> list[Path]:
    """Some text file of this machine's logs, where none of the usual ones is there."""
    found = [path for path in sorted(Path("/var/log").glob("**/*")) if _is_readable_text(path)]
    return _up_to([path for path in found if path.suffix != ".gz"], USUAL_BYTES_MAX)


def _up_to(files: Sequence[Path], bytes_max: int) -> list[Path]:
    taken: list[Path] = []
    for path in files:
        bytes_max -= path.stat().st_size
        if bytes_max >= 0:
            taken.append(path)
    return taken


def _is_hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _is_readable_text(path: Path) -> bool:
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            return path.suffix == ".gz" or b"\0" not in file.read(SNIFF_BYTES)
    except OSError:
        return False


def _stable(demo: Demo, files: list[Path]) -> list[Path]:
    """The files, but copies of those still being written: both counts must see the same lines."""
    stable: list[Path] = []
    for number, path in enumerate(files):
        if time.time() - path.stat().st_mtime < STILL_WRITTEN_SECONDS:
            copy = demo.run_dir / "input" / str(number) / path.name
            copy.parent.mkdir(parents=True)
            stable.append(Path(shutil.copy2(path, copy)))
        else:
            stable.append(path)
    return stable


# --- the steps


def _clear_old_runs(demo: Demo) -> None:
    runs = DATA_DIR / "runs"
    earlier = sorted(runs.iterdir()) if runs.is_dir() else []
    for old in earlier[:-1]:
        shutil.rmtree(old)
    demo.run_dir.mkdir(parents=True)


@contextmanager
def _brokers(demo: Demo) -> Iterator[None]:
    """Three brokers with their data in the demo's folder, stopped at the end whatever happens."""
    with demo.step(f"Starting {BROKERS} brokers on {DATA_DIR} ..."):
        try:
            demo.bootstrap = _up()
        except BaseException:
            _nilometer("down", "--data-dir", str(DATA_DIR))
            raise
    try:
        demo.say(f"Brokers ready: bootstrap.servers={demo.bootstrap}")
        watch = f"nilometer replicas --watch --bootstrap-server {demo.bootstrap}"
        demo.say(f"To see LEO, HW and ISR move meanwhile, in another terminal: {watch}")
        yield
    finally:
        _nilometer("down", "--data-dir", str(DATA_DIR))
        demo.say("Brokers stopped")


def _up(*ports: str) -> str:
    """Start those brokers that are down; the bootstrap servers."""
    base = ports or ("--port", str(_free_ports(BROKERS)))
    said = _nilometer("up", "--brokers", str(BROKERS), "--data-dir", str(DATA_DIR), "--detach", *base)
    return said.rpartition("bootstrap.servers=")[2].split()[0]


def _free_ports(count: int) -> int:
    """The first of ``count`` free ports in a row, below those that outgoing connections are given."""
    for number in range(PORTS.stop - PORTS.start):
        base = PORTS.start + (os.getpid() * 101 + number) % (PORTS.stop - PORTS.start)
        if all(_is_free(base + offset) for offset in range(count)):
            return base
    raise DemoFailed(f"no {count} free ports in a row between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _nilometer(*arguments: str) -> str:
    """The ``nilometer`` command, as a user would give it; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "nilometer.cli.main", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DemoFailed(f"nilometer {' '.join(arguments[:2])}: {reason}")
    return done.stdout


def _ingest_through_a_death(demo: Demo, files: Sequence[Path]) -> int:
    """Ingest; kill the leader of the topic's first partition on the way, and start it again.

    Returns how many lines the topic holds then.
    """
    at = ("--bootstrap-server", demo.bootstrap)
    _nilometer("topic", "create", demo.topic, "--partitions", "2", "--replication-factor", str(BROKERS), *at)
    leader = _leaders(demo)[0][0]
    pid = _pid_of(leader)
    command = [sys.executable, "-m", "nilometer.cli.main", "ingest", *map(str, files), "--topic", demo.topic]
    command += ["--state", str(demo.run_dir / "ingest-state.json"), *at]
    ingest = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not (written := _bytes_written(demo, leader)) and ingest.poll() is None:
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        when = "while lines flowed" if ingest.poll() is None else "just after the last line"
        demo.say(f"Killed broker {leader}, a leader, with SIGKILL {when} ({written:,} bytes were in its log)")
        _, said = ingest.communicate()
    except BaseException:
        ingest.kill()
        ingest.wait()
        raise
    if ingest.returncode:
        raise DemoFailed(f"nilometer ingest: {said.strip() or f'exit code {ingest.returncode}'}")
    _up("--port", demo.bootstrap.split(",")[0].rpartition(":")[2])
    demo.say(f"Broker {leader} is back, and follows the new leader")
    return sum(high_watermark for _, high_watermark in _leaders(demo))


def _bytes_written(demo: Demo, broker_id: int) -> int:
    """What a broker's log of the topic's first partition holds."""
    segments = (DATA_DIR / f"broker-{broker_id}" / "logs" / f"{demo.topic}-0").glob("*.log")
    return sum(segment.stat().st_size for segment in segments)


def _leaders(demo: Demo) -> list[tuple[int, int]]:
    """(broker, high watermark) of the leader of each partition of the demo's topic."""
    said = json.loads(
        _nilometer("replicas", "--topic", demo.topic, "--json", "--bootstrap-server", demo.bootstrap)
    )
    return [
        (replica["broker_id"], replica["high_watermark"])
        for replica in said["replicas"]
        if replica["role"] == "leader"
    ]


def _pid_of(broker_id: int) -> int:
    brokers = json.loads(_nilometer("status", "--json", "--data-dir", str(DATA_DIR)))["brokers"]
    return next(one["pid"] for one in brokers if one["id"] == broker_id)


def _drop_old_topics(demo: Demo) -> None:
    """Of the runs whose tables are gone."""
    at = ("--bootstrap-server", demo.bootstrap)
    listed = json.loads(_nilometer("topic", "list", "--json", *at))["topics"]
    kept = {path.name for path in demo.run_dir.parent.iterdir()}
    old = [one["name"] for one in listed if one["name"].startswith(TOPIC_PREFIX) and one["name"] not in kept]
    if old:
        _nilometer("topic", "delete", *old, *at)


class _SparkStart:
    """Spark coming up in the background while the broker starts and lines go in."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._session: SparkSession | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        from nilometer.pipeline.spark_session import build_session

        try:
            session = build_session("demo", master="local[2]", quick=True, log_file=self._log_file)
            session.range(1).count()  # what the first job of a session is slow with
            self._session = session
        except BaseException as problem:
            self._problem = problem

    def wait(self) -> SparkSession:
        self._thread.join()
        if self._session is None:
            raise DemoFailed(
                f"Spark did not start: {self._problem} (more in {self._log_file})"
            ) from self._problem
        return self._session

    def stop(self) -> None:
        self._thread.join()
        if self._session is not None:
            self._session.stop()


def _run_pipeline(demo: Demo, session: SparkSession) -> dict[str, list[dict[str, object]]]:
    job = runner.Job(demo.topic, os.fspath(demo.run_dir / "tables"), demo.bootstrap, available_now=True)
    logs = SHIPPED["logs"].load()
    with demo.step("Running the logs pipeline on Spark ..."):
        last = runner.run(session, logs, job, on_progress=lambda progress: demo.say(progress_line(progress)))
    if last is None:
        raise DemoFailed(f"the pipeline found no record in topic {demo.topic}")
    print_position(demo.console, last)
    return tables_of(logs.results(session, job.output))


# --- the check


def _counting(files: Sequence[Path]):
    """A count of the files in another thread's time; call the result to have it."""
    result: list[Census] = []
    thread = threading.Thread(target=lambda: result.append(take_census(files)), daemon=True)
    thread.start()

    def wait() -> Census:
        thread.join()
        if not result:
            raise DemoFailed("the files could not be counted in plain Python")
        return result[0]

    return wait


def _found(session: SparkSession, tables: Path) -> Census:
    """The pipeline's numbers: rows of the lines table, and the sums of the counts table."""
    census = Census(lines=session.read.parquet(f"{tables}/lines").count())
    rows = (
        session.read.parquet(f"{tables}/counts").where("by = 'label'").groupBy("format", "label").sum("lines")
    )
    for format_name, label, lines in rows.collect():
        census.by_format[format_name] += lines
        census.by_label[format_name, label] += lines
    return census


def _compare(demo: Demo, found: Census, wanted: Census) -> bool:
    table = Table(title="Pipeline beside an independent count of the input", title_justify="left")
    for column in ("what", "pipeline", "plain count", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    agreed = True

    def row(what: str, ours: int, theirs: int) -> None:
        nonlocal agreed
        agreed = agreed and ours == theirs
        table.add_row(what, f"{ours:,}", f"{theirs:,}", "equal" if ours == theirs else "[red]DIFFERENT[/red]")

    row("lines in all", found.lines, wanted.lines)
    row("lines counted", sum(found.by_format.values()), wanted.lines)
    for name in sorted(found.by_format.keys() | wanted.by_format.keys()):
        row(f"format {name}", found.by_format[name], wanted.by_format[name])
    for key in sorted(found.by_label.keys() | wanted.by_label.keys()):
        row(f"{key[0]} {key[1] or '(none)'}", found.by_label[key], wanted.by_label[key])
    demo.console.print(table)
    if agreed:
        demo.say(
            f"[green]Verified:[/green] {found.lines:,} lines, every count equal to that of the input files: "
            "nothing was lost or repeated through the death of a leader"
        )
    else:
        demo.say("[red]NOT verified:[/red] the pipeline's numbers differ from those of the input files")
    return agreed


if __name__ == "__main__":
    main()
