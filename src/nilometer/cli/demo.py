"""``make demo``: ingests real log lines, processes them with Spark, and checks the results.

Starts three brokers, ingests lines, kills the leader with SIGKILL meanwhile, runs the ``logs`` pipeline on
the topic, and compares its totals with a count of the same files that shares no code with it, so that a lost
or repeated line would show. The brokers are always stopped at the end. The exit code is 0 only if all numbers
are equal.

Each run has its own topic and tables, named by its start time, so that another run in the same folder counts
nothing twice; topics and tables of runs before the last one are removed.

With ``--secure`` the brokers are those of ``nilometer up --secure``: the clients, Spark's among them, connect
by TLS and SCRAM as a user that ACLs permit nothing but this.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from rich.console import Console

from nilometer.cli import commands
from nilometer.cli.cluster_options import COMMAND_CONFIG_VARIABLE
from nilometer.cli.demo_check import TOPIC_PREFIX, Demo, DemoFailed, compare, counting, numbers_of
from nilometer.cli.pipelines.pipeline_formats_commands import is_hidden
from nilometer.cli.pipelines.pipeline_run_command import (
    print_position,
    print_tables,
    progress_line,
    tables_of,
)
from nilometer.local.local_cluster import LocalCluster
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run import runner
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# An access log of a small shop, made up: for a machine whose own logs tell of packages only.
#
# Visitors come in sessions, prices are looked up by a robot, and for some minutes the payments fail.

BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
MINUTES = 90
VISITORS = 240
PRODUCTS = tuple(f"/products/{name}" for name in ("tea", "kettle", "cup", "honey", "tray", "filter"))
FAILING = range(41, 48)
"""The minutes in which payments fail."""
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Mobile"
ROBOT = "price-robot/1.4 (+https://prices.example/robot)"


class Line(NamedTuple):
    at: datetime
    host: str
    request: str
    status: int
    size: int
    agent: str

    def __str__(self) -> str:
        at = self.at.strftime("%d/%b/%Y:%H:%M:%S %z")
        return (
            f'{self.host} - - [{at}] "{self.request} HTTP/1.1" {self.status} {self.size} "-" "{self.agent}"'
        )


def write_shop_log(path: Path) -> Path:
    """Write the log, the same one each time; return ``path``."""
    chance = random.Random(20260302)
    lines = [line for number in range(VISITORS) for line in _visit(chance, number)] + list(_robot(chance))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="ascii")
    return path


def _visit(chance: random.Random, number: int) -> Iterator[Line]:
    at = BEGIN + timedelta(seconds=chance.triangular(0, MINUTES * 60 - 900, MINUTES * 40))
    host, agent = f"192.0.2.{number % 250 + 1}", chance.choice((BROWSER, BROWSER, PHONE))

    def line(request: str, status: int = 200) -> Line:
        return Line(at, host, request, status, chance.randrange(400, 24_000), agent)

    yield line("GET /")
    for _ in range(chance.randrange(1, 9)):
        at += timedelta(seconds=chance.randrange(3, 70))
        yield line(f"GET {chance.choice(PRODUCTS)}?from=list")
        if chance.random() < 0.05:
            yield line("GET /products/teapot", 404)
    if chance.random() < 0.35:
        at += timedelta(seconds=chance.randrange(5, 40))
        yield line("POST /cart", 302)
        at += timedelta(seconds=chance.randrange(10, 90))
        fails = (at - BEGIN) // timedelta(minutes=1) in FAILING
        yield line("POST /payments", 503 if fails else 201)


def _robot(chance: random.Random) -> Iterator[Line]:
    """Look at each product every two minutes, faster than it is allowed to."""
    for minute in range(0, MINUTES, 2):
        for second, product in enumerate(PRODUCTS * 2):
            at = BEGIN + timedelta(minutes=minute, seconds=second)
            limited = second >= len(PRODUCTS) + 2
            size = 180 if limited else chance.randrange(400, 24_000)
            yield Line(at, "198.51.100.7", f"GET {product}", 429 if limited else 200, size, ROBOT)


# Chooses the demo's input files: the given ones, or logs of this machine.

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
"""The maximum total size of the machine's logs to read: a demo without given files should be short."""
STILL_WRITTEN_SECONDS = 3_600
SHOP_LOG = "shop-access.log"
NEXT = """
What to try next:
  make demo INPUT=/path/to/logs              the same with your own log files
  nilometer up --brokers 3 --console 8080    a cluster of your own, its console
  nilometer ingest FILE --topic t --follow   lines of a file, as it grows
  nilometer pipeline list                    sessions, joins, tables, alerts"""
SNIFF_BYTES = 1_024


def log_files(source: Path | None) -> list[Path]:
    if source is None:
        files = [path for path in map(Path, USUAL_LOGS) if _is_readable_text(path)]
        files = _up_to(files, USUAL_BYTES_MAX) or _any_logs()
    elif source.is_dir():
        files = [
            path
            for path in sorted(source.rglob("*"))
            if not is_hidden(path, source) and _is_readable_text(path)
        ]
    else:
        files = [source]
    if not files:
        raise DemoFailed(
            f"no readable log file in {source or '/var/log'}. Name a file or a folder: make demo INPUT=path"
        )
    return [path.resolve() for path in files]


def _any_logs() -> list[Path]:
    """Return other text files of /var/log, for a machine that has none of the usual ones."""
    found = [path for path in sorted(Path("/var/log").glob("**/*")) if _is_readable_text(path)]
    return _up_to([path for path in found if path.suffix != ".gz"], USUAL_BYTES_MAX)


def _up_to(files: Sequence[Path], bytes_max: int) -> list[Path]:
    taken: list[Path] = []
    for path in files:
        bytes_max -= path.stat().st_size
        if bytes_max >= 0:
            taken.append(path)
    return taken


def _is_readable_text(path: Path) -> bool:
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            return path.suffix == ".gz" or b"\0" not in file.read(SNIFF_BYTES)
    except OSError:
        return False


def stable(demo: Demo, files: list[Path]) -> list[Path]:
    """Return the files, each that is still being written replaced by a copy: the pipeline and the independent
    count must read the same lines."""
    stable: list[Path] = []
    for number, path in enumerate(files):
        if time.time() - path.stat().st_mtime < STILL_WRITTEN_SECONDS:
            copy = demo.run_dir / "input" / str(number) / path.name
            copy.parent.mkdir(parents=True)
            stable.append(Path(shutil.copy2(path, copy)))
        else:
            stable.append(path)
    return stable


# Starts the demo's three brokers, ingests files, kills one broker meanwhile, and always stops them.
#
# Everything is done with the ``nilometer`` command, as a user would do it.

BROKERS = 3
PORTS = range(15_000, 32_000)


@contextmanager
def brokers(demo: Demo) -> Generator[None, None, None]:
    """Run three brokers with their data in the demo's folder during the block, and always stop them."""
    with demo.step(f"Starting {BROKERS} brokers on {demo.data_dir} ..."):
        try:
            demo.bootstrap = _up(demo)
        except BaseException:
            if LocalCluster(demo.data_dir).broker_ids():
                _nilometer(demo, "down", "--data-dir", str(demo.data_dir))
            raise
    try:
        demo.print_step(f"Brokers ready: bootstrap.servers={demo.bootstrap}")
        watch = f"nilometer replicas --watch --bootstrap-server {demo.bootstrap}"
        if demo.security is not None:
            demo.print_step(f"TLS, SCRAM and ACLs; the clients' settings are in {demo.security.client_path}")
            watch += f" --command-config {demo.security.admin_path}"
        demo.print_step(f"To see LEO, HW and ISR move meanwhile, in another terminal: {watch}")
        yield
    finally:
        _nilometer(demo, "down", "--data-dir", str(demo.data_dir))
        demo.print_step("Brokers stopped")


def _up(demo: Demo, *ports: str) -> str:
    """Start the brokers that are down; return the bootstrap servers. ``ports`` are options of ``up``."""
    options = list(ports or ("--port", str(_free_ports(BROKERS))))
    if demo.secure:
        options.append("--secure")
    if demo.zookeeper is not None:
        options += ["--coordination", f"zookeeper://{demo.zookeeper}"]
    where = ("--data-dir", str(demo.data_dir))
    said = _nilometer(demo, "up", "--brokers", str(BROKERS), *where, "--detach", *options)
    return said.rpartition("bootstrap.servers=")[2].split()[0]


def _free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports, below the ports of outgoing connections."""
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


def _nilometer(demo: Demo, *arguments: str, as_admin: bool = False) -> str:
    """Run the ``nilometer`` command and return its standard output. Raises DemoFailed if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "nilometer.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(demo, as_admin=as_admin),
    )
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DemoFailed(f"nilometer {' '.join(arguments[:2])}: {reason}")
    return done.stdout


def _environment(demo: Demo, *, as_admin: bool = False) -> dict[str, str]:
    """Return the environment of commands: it names the file with the settings of clients."""
    if demo.security is None:
        return dict(os.environ)
    path = demo.security.admin_path if as_admin else demo.security.client_path
    return {**os.environ, COMMAND_CONFIG_VARIABLE: os.fspath(path)}


def ingest_while_leader_dies(demo: Demo, files: Sequence[Path]) -> int:
    """Ingest the files; meanwhile kill the leader of the topic's first partition, and start it again.

    Returns the number of records that the topic then contains.
    """
    at = ("--bootstrap-server", demo.bootstrap)
    replicas = ("--partitions", "2", "--replication-factor", str(BROKERS))
    _nilometer(demo, "topic", "create", demo.topic, *replicas, *at)
    leader = _leaders(demo)[0][0]
    pid = _pid_of(demo, leader)
    command = [sys.executable, "-m", "nilometer.cli", "ingest", *map(str, files), "--topic", demo.topic]
    command += ["--state", str(demo.run_dir / "ingest-state.json"), *at]
    ingest = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(demo)
    )
    try:
        while not (written := _bytes_written(demo, leader)) and ingest.poll() is None:
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        when = "while lines flowed" if ingest.poll() is None else "just after the last line"
        demo.print_step(
            f"Killed broker {leader}, a leader, with SIGKILL {when} ({written:,} bytes were in its log)"
        )
        _, said = ingest.communicate()
    except BaseException:
        ingest.kill()
        ingest.wait()
        raise
    if ingest.returncode:
        raise DemoFailed(f"nilometer ingest: {said.strip() or f'exit code {ingest.returncode}'}")
    _up(demo, "--port", demo.bootstrap.split(",")[0].rpartition(":")[2])
    demo.print_step(f"Broker {leader} is back, and follows the new leader")
    return sum(high_watermark for _, high_watermark in _leaders(demo))


def _bytes_written(demo: Demo, broker_id: int) -> int:
    """Return the size of a broker's log of the topic's first partition, in bytes."""
    segments = (demo.data_dir / f"broker-{broker_id}" / "logs" / f"{demo.topic}-0").glob("*.log")
    return sum(segment.stat().st_size for segment in segments)


def _leaders(demo: Demo) -> list[tuple[int, int]]:
    """Return (broker id, high watermark) of the leader of each partition of the demo's topic."""
    asked = ("replicas", "--topic", demo.topic, "--json", "--bootstrap-server", demo.bootstrap)
    said = json.loads(_nilometer(demo, *asked, as_admin=True))
    return [
        (replica["broker_id"], replica["high_watermark"])
        for replica in said["replicas"]
        if replica["role"] == "leader"
    ]


def _pid_of(demo: Demo, broker_id: int) -> int:
    asked = ("status", "--json", "--data-dir", str(demo.data_dir))
    brokers = json.loads(_nilometer(demo, *asked, as_admin=True))["brokers"]
    return next(one["pid"] for one in brokers if one["id"] == broker_id)


def drop_old_topics(demo: Demo) -> None:
    """Delete the topics of earlier runs whose tables were removed."""
    at = ("--bootstrap-server", demo.bootstrap)
    listed = json.loads(_nilometer(demo, "topic", "list", "--json", *at))["topics"]
    kept = {path.name for path in demo.run_dir.parent.iterdir()}
    old = [one["name"] for one in listed if one["name"].startswith(TOPIC_PREFIX) and one["name"] not in kept]
    if old:
        _nilometer(demo, "topic", "delete", *old, "--yes", *at)


# Starts Spark in the background, and runs the demo's pipeline on it.


class SparkStart:
    """Starts Spark in a thread, while the brokers start and lines are ingested."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        from nilometer.pipeline.spark.spark_session import build_session

        try:
            session = build_session("demo", master="local[2]", quick=True, log_file=self._log_file)
            session.range(1).count()  # the first job of a session is slow
            self._session = session
        except BaseException as error:
            self._error = error

    def wait(self) -> SparkSession:
        self._thread.join()
        if self._session is None:
            raise DemoFailed(
                f"Spark did not start: {self._error} (more in {self._log_file})"
            ) from self._error
        return self._session

    def stop(self) -> None:
        self._thread.join()
        if self._session is not None:
            self._session.stop()


def run_pipeline(demo: Demo, session: SparkSession) -> dict[str, list[dict[str, object]]]:
    job = runner.Job(
        demo.topic,
        os.fspath(demo.run_dir / "tables"),
        demo.bootstrap,
        available_now=True,
        client=demo.security.client_settings() if demo.security is not None else {},
    )
    logs = SHIPPED["logs"].load()
    with demo.step("Running the logs pipeline on Spark ..."):
        last = runner.run(
            session, logs, job, on_progress=lambda progress: demo.print_step(progress_line(progress))
        )
    if last is None:
        raise DemoFailed(f"the pipeline found no record in topic {demo.topic}")
    print_position(demo.console, last)
    return tables_of(logs.results(session, job.output))


@commands.command()
@click.argument("source", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--secure", is_flag=True, help="With TLS, users and ACLs.")
@click.option(
    "--zookeeper", metavar="HOST:PORT,…/CHROOT", help="With brokers that coordinate through ZooKeeper."
)
def main(source: Path | None, secure: bool, zookeeper: str | None) -> None:
    """Ingest log lines, count them with Spark, and check the counts. SOURCE: a file or folder of logs."""
    demo = Demo(Console(), secure=secure, zookeeper=zookeeper)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        agreed = run(demo, source)
    except (DemoFailed, PipelineError) as error:
        demo.console.print(f"[red]The demo failed:[/red] {error}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        demo.console.print("[red]Interrupted.[/red]")
        sys.exit(130)
    sys.exit(0 if agreed else 1)


def run(demo: Demo, source: Path | None) -> bool:
    """Run the demo; return whether the pipeline's numbers equal those of the independent count."""
    ensure_java(demo.print_step)
    clear_old_runs(demo)
    files = stable(demo, log_files(source))
    if source is None and not any("access" in path.name for path in files):
        files.append(write_shop_log(demo.run_dir / "input" / SHOP_LOG))
        demo.print_step(f"No access log is here: one that is made up is added ({SHOP_LOG})")
    size = sum(path.stat().st_size for path in files)
    demo.print_step(f"Input: {len(files)} file{'s' * (len(files) > 1)}, {size / 1e6:.1f} MB")
    spark = SparkStart(demo.run_dir / "spark.log")
    try:
        with brokers(demo):
            with demo.step(f"Ingesting into topic {demo.topic} ..."):
                lines = ingest_while_leader_dies(demo, files)
                demo.print_step(f"Ingested {lines:,} lines, each acknowledged by all in-sync replicas")
                drop_old_topics(demo)
            with demo.step("Starting Spark ..."):
                session = spark.wait()
            census = counting(files)
            tables = run_pipeline(demo, session)
            with demo.step("Counting the same files in plain Python ..."):
                ours, wanted = numbers_of(session, demo.run_dir / "tables"), census()
    finally:
        spark.stop()
    print_tables(demo.console, tables)
    agreed = compare(demo, ours, wanted)
    click.echo(NEXT)
    return agreed


def clear_old_runs(demo: Demo) -> None:
    runs = demo.data_dir / "runs"
    earlier = sorted(runs.iterdir()) if runs.is_dir() else []
    for old in earlier[:-1]:
        shutil.rmtree(old)
    demo.run_dir.mkdir(parents=True)


if __name__ == "__main__":
    main()
