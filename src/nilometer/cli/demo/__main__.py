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

import shutil
import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from nilometer.cli import commands
from nilometer.cli.demo.check import compare, counting, numbers_of
from nilometer.cli.demo.cluster import brokers, drop_old_topics, ingest_while_leader_dies
from nilometer.cli.demo.demo_run import Demo, DemoFailed
from nilometer.cli.demo.input_files import log_files, stable
from nilometer.cli.demo.spark_job import SparkStart, run_pipeline
from nilometer.cli.pipelines.pipeline_results import print_tables
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark.java import ensure_java


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
    return compare(demo, ours, wanted)


def clear_old_runs(demo: Demo) -> None:
    runs = demo.data_dir / "runs"
    earlier = sorted(runs.iterdir()) if runs.is_dir() else []
    for old in earlier[:-1]:
        shutil.rmtree(old)
    demo.run_dir.mkdir(parents=True)


if __name__ == "__main__":
    main()
