"""`python -m bench`: measure rows and write the table. `--help` names the options."""

from __future__ import annotations

import shlex
import signal
import sys
from functools import partial
from pathlib import Path

import click
from rich.table import Table
from tests.support.kafka.apache_kafka import ensure_java

from . import load, report, spark
from .acl_rows import ACL_ROWS
from .broker_rows import BROKER_ROWS
from .catch_up_rows import CATCH_UP_ROWS
from .cleaning_rows import CLEANING_ROWS
from .client_rows import CLIENT_ROWS
from .cluster_rows import CLUSTER_ROWS
from .console_row import CONSOLE_ROW
from .coordinator_rows import COORDINATOR_ROWS
from .curve_rows import CURVE_ROWS
from .failover_rows import FAILOVER_ROWS
from .group_rows import GROUP_ROWS
from .ingest_rows import INGEST_ROWS
from .login_rows import LOGIN_ROWS
from .metadata_rows import METADATA_ROWS
from .opening_rows import OPENING_ROWS
from .queue_rows import QUEUE_ROWS
from .quota_row import QUOTA_ROW
from .recorder_rows import RECORDER_ROWS
from .recovery_rows import RECOVERY_ROWS
from .rows import Row
from .run import Bench, Pace, RowSamples, console
from .scrape_row import SCRAPE_ROW
from .soak_row import SOAK_ROWS
from .systems import SYSTEMS, compile_nilometer
from .table_row import TABLE_ROWS
from .tier_rows import TIER_ROWS
from .tls_rows import TLS_ROWS
from .transaction_rows import TRANSACTION_ROWS

SECTIONS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    ("One broker", (*BROKER_ROWS, SCRAPE_ROW, CONSOLE_ROW, *CURVE_ROWS[:1])),
    ("Other clients, one broker", (*CLIENT_ROWS, *CATCH_UP_ROWS, *SOAK_ROWS)),
    ("Three brokers", (*CLUSTER_ROWS, *CURVE_ROWS[1:])),
    ("The loss of a leader, three brokers", FAILOVER_ROWS),
    ("The cluster's metadata, three brokers", METADATA_ROWS[:1]),
    ("The cluster's metadata, beside ZooKeeper", METADATA_ROWS[1:]),
    ("Groups and many clients, three brokers", (*GROUP_ROWS, *QUEUE_ROWS)),
    ("Security, one broker", (*TLS_ROWS, *LOGIN_ROWS, *ACL_ROWS, QUOTA_ROW)),
    ("Transactions", TRANSACTION_ROWS),
    ("Compaction, starting with much", (*CLEANING_ROWS, *RECOVERY_ROWS, *OPENING_ROWS, *COORDINATOR_ROWS)),
    ("Tiered topics", TIER_ROWS[:2]),
    ("Tiered topics, a folder beside the S3 protocol", TIER_ROWS[2:]),
    ("The flight recorder", RECORDER_ROWS),
    ("Lines of files into a topic", INGEST_ROWS),
    ("Reading topics into Spark", (*spark.SPARK_ROWS, *TABLE_ROWS)),
)
ALL_ROWS = tuple(row for _, rows in SECTIONS for row in rows)


def _chosen(keys: tuple[str, ...]) -> list[Row]:
    """The rows whose keys begin as asked; without a wish, all that need not be asked for."""
    if not keys:
        return [row for row in ALL_ROWS if not row.on_request]
    found = [row for row in ALL_ROWS if row.key.startswith(keys)]
    if not found:
        raise click.UsageError(f"no such row; there are: {', '.join(row.key for row in ALL_ROWS)}")
    return found


@click.command()
@click.option(
    "--row", "keys", multiple=True, metavar="KEY", help="Only rows whose key begins so; repeatable."
)
@click.option("--system", "names", multiple=True, type=click.Choice(list(SYSTEMS)), help="Only this system.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Measured rounds of each system; together they take 20 s at least.",
)
@click.option(
    "--spark-records",
    type=click.IntRange(10_000),
    default=spark.RECORDS,
    show_default=True,
    help="How many records the rows of Spark read.",
)
@click.option("--quick", is_flag=True, help="In miniature, to see that rows work; implies --dry.")
@click.option(
    "--resume", is_flag=True, help="Leave out rows that the same command has written in the last 24 hours."
)
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
@click.option(
    "--any-form",
    is_flag=True,
    help="Measure interpreted modules, or an interpreter that was built without optimisation, too.",
)
@click.option("--list", "list_rows", is_flag=True, help="Name the rows and stop.")
@click.option("--render", is_flag=True, help="Write the table from the numbers that are there, and stop.")
def main(
    keys: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int,
    spark_records: int,
    quick: bool,
    resume: bool,
    dry: bool,
    any_form: bool,
    list_rows: bool,
    render: bool,
) -> None:
    """Nilometer beside Apache Kafka: medians, ratios, bench/results/."""
    if list_rows:
        for row in ALL_ROWS:
            click.echo(f"{row.key}\t{row.title}{' (on request)' if row.on_request else ''}")
        return
    if render:
        click.echo(f"written: {report.render(SECTIONS)}")
        return
    if not (any_form or quick) and (slow := report.what_makes_slow()):
        raise click.UsageError(f"{slow} Or give --any-form: the numbers will say so.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # brokers are stopped
    ensure_java()
    load.compile_load()
    compile_nilometer()
    pace = Pace.quick() if quick else Pace.full(rounds)
    command = shlex.join(["python", "-m", "bench", *(each for each in sys.argv[1:] if each != "--resume")])
    rows = [row for row in _chosen(keys) if not (resume and report.has_result(row, command))]
    finish = partial(
        _finish, rounds=pace.rounds, spark_records=spark_records, command=None if dry or quick else command
    )
    bench = Bench(list(names or SYSTEMS), pace, finish)
    bench.run(rows)
    if in_spark := [row for row in rows if row.in_spark]:
        bench.run_spark(in_spark, spark_records)
    if bench.failed:
        raise click.ClickException(f"not measured: {', '.join(bench.failed)}")


def _finish(
    row: Row, samples: RowSamples, took_s: float, *, rounds: int, spark_records: int, command: str | None
) -> None:
    """Show the table of this row; unless ``command`` is None, write it and the raw numbers."""
    _show(row, samples, took_s)
    if command is None:
        return
    versions = {system.name: system.version() for system in SYSTEMS.values()}
    if row.in_spark:
        versions |= {
            "pyspark": spark.SparkOnNilometer.version(),
            "records read by Spark": f"{spark_records:,}",
        }
    report.write(row, samples, versions, rounds, command, took_s)
    console.print(f"written: {report.render(SECTIONS).relative_to(Path.cwd())}")


def _show(row: Row, samples: RowSamples, took_s: float) -> None:
    table = Table(f"{row.key}, {took_s:.0f} s", "Nilometer", row.beside, "ratio")
    for line in report.table_lines(row, samples, 1):
        cells = [cell.strip().replace("**", "") for cell in line.strip("|").split("|")[1:5]]
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    main()
