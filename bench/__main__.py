"""`python -m bench`: run rows side by side and write the table. `--help` names the options."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from tests.support.kafka.apache_kafka import ensure_java

from . import load, report
from .cleaning_rows import CLEANING_ROWS
from .cluster_rows import CLUSTER_ROWS, CLUSTER_WARM_UP
from .clusters import CLUSTERS
from .coordinator_rows import COORDINATOR_ROWS
from .group_rows import GROUP_ROWS
from .opening_rows import OPENING_ROWS
from .recovery_rows import RECOVERY_ROWS
from .rows import BROKER_ROWS, WARM_UP, Numbers, Row
from .spark import RECORDS, SPARK_ROWS, SPARK_WARM_UP, SparkOnNilometer
from .systems import SYSTEMS, System, compile_nilometer, remove
from .transaction_rows import TRANSACTION_ROWS

ROWS = (*BROKER_ROWS, *CLUSTER_ROWS[:1], *GROUP_ROWS, *CLUSTER_ROWS[1:], *SPARK_ROWS)
"""In the order of a round: its first row starts a cluster, which ends up with thousands of partitions."""
OWN_ROWS = (*TRANSACTION_ROWS, *CLEANING_ROWS, *RECOVERY_ROWS, *OPENING_ROWS, *COORDINATOR_ROWS)
"""Each on brokers of its own."""
ALL_ROWS = (*ROWS, *OWN_ROWS)
Build = Callable[[Path], System]
SCRATCH = Path(".nilometer") / "bench"
console = Console()


def _stages(name: str, spark_records: int) -> list[tuple[Callable[[Row], bool], Row, Build]]:
    """Which rows run on what of one system, and what goes before them."""
    stages: list[tuple[Callable[[Row], bool], Row, Build]] = [
        (lambda row: not row.in_spark and row.brokers == 1, WARM_UP, SYSTEMS[name]),
        (lambda row: not row.in_spark and row.brokers == 3, CLUSTER_WARM_UP, CLUSTERS[name]),
    ]
    if name == "nilometer":
        stages.append(
            (lambda row: row.in_spark, SPARK_WARM_UP, partial(SparkOnNilometer, records=spark_records))
        )
    return stages


def _round(name: str, rows: list[Row], samples: report.Samples, spark_records: int) -> None:
    """One system through all rows, on empty folders that are removed behind it."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for is_of_stage, warm_up, build in _stages(name, spark_records):
        chosen = [row for row in rows if is_of_stage(row)]
        if chosen:
            folder = Path(tempfile.mkdtemp(dir=SCRATCH))
            _play(build(folder), folder, chosen, warm_up, samples)


def _play(system: System, folder: Path, rows: list[Row], warm_up: Row, samples: report.Samples) -> None:
    started = False
    warm = False
    try:
        for row in rows:
            if not row.launches and not started:
                system.launch()
                system.wait_ready()
            started = True
            if not warm and row.is_under_load:
                warm_up.measure(system)
                warm = True
            _note(row, system, row.measure(system), samples)
    finally:
        system.stop()
        remove(folder)


def _note(row: Row, system: System, numbers: Numbers, samples: report.Samples) -> None:
    """Show what was measured, and add it to the samples."""
    console.print(f"  {row.title}:")
    titles = {column.key: f"{column.title}, {column.unit}" for column in row.columns}
    of_system = samples.setdefault(row.key, {}).setdefault(system.name, {})
    for key, found in numbers.items():
        each = found if isinstance(found, list) else [found]
        of_system.setdefault(key, []).extend(each)
        console.print(f"    {titles.get(key, key)}: {', '.join(f'{one:,.4g}' for one in each)}")


def _play_own(row: Row, name: str, samples: report.Samples, quick: bool) -> None:
    """One row on brokers of its own, on an empty folder that is removed behind it."""
    assert row.settings is not None
    SCRATCH.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=SCRATCH)).resolve()
    system = (SYSTEMS if row.brokers == 1 else CLUSTERS)[name](folder, row.settings)
    console.print(f"[bold]{system.name}")
    try:
        measure = row.quick if quick and row.quick is not None else row.measure
        _note(row, system, measure(system), samples)
    finally:
        system.stop()
        remove(folder)


def _chosen(keys: tuple[str, ...]) -> list[Row]:
    """The rows whose keys begin as asked; a consumer's row brings the producer's that fills its topic."""
    if not keys:
        return list(ALL_ROWS)
    wanted = {row.key for row in ALL_ROWS if row.key.startswith(keys)}
    if not wanted:
        raise click.UsageError(f"no such row; there are: {', '.join(row.key for row in ALL_ROWS)}")
    wanted |= {key.replace("consume-", "produce-") for key in wanted if key.startswith("consume-")}
    return [row for row in ALL_ROWS if row.key in wanted]


@click.command()
@click.option(
    "--row", "keys", multiple=True, metavar="KEY", help="Only rows whose key begins so; repeatable."
)
@click.option("--system", "names", multiple=True, type=click.Choice(list(SYSTEMS)), help="Only this system.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option(
    "--spark-records",
    type=click.IntRange(10_000),
    default=RECORDS,
    show_default=True,
    help="How many records the rows of Spark read.",
)
@click.option("--quick", is_flag=True, help="In miniature, to see that rows work; implies --dry.")
@click.option("--resume", is_flag=True, help="Leave out rows that the same command has written today.")
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
@click.option("--list", "list_rows", is_flag=True, help="Name the rows and stop.")
def main(
    keys: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int,
    spark_records: int,
    quick: bool,
    resume: bool,
    dry: bool,
    list_rows: bool,
) -> None:
    """Nilometer beside Apache Kafka: medians, ratios, bench/results/."""
    if list_rows:
        for row in ALL_ROWS:
            click.echo(f"{row.key}\t{row.title}")
        return
    ensure_java()
    load.compile_load()
    compile_nilometer()
    command = shlex.join(["python", "-m", "bench", *(each for each in sys.argv[1:] if each != "--resume")])
    rows = [row for row in _chosen(keys) if not (resume and report.has_result(row, command))]
    systems = list(names or SYSTEMS)
    dry = dry or quick
    if shared := [row for row in rows if row.settings is None]:
        samples = _run_shared(shared, systems, rounds, spark_records, quick)
        _finish(shared, samples, rounds, spark_records, None if dry else command)
    for row in rows:
        if row.settings is not None:
            samples = _run_own(row, systems, rounds, quick)
            _finish([row], samples, rounds, spark_records, None if dry else command)


def _run_shared(
    rows: list[Row], systems: list[str], rounds: int, spark_records: int, quick: bool
) -> report.Samples:
    """The rows that share a broker, in rounds over the systems."""
    if quick:
        raise click.UsageError(f"only rows with brokers of their own can be quick, not {rows[0].key}")
    if all(row.in_spark for row in rows):
        systems = ["nilometer"]  # its broker serves all sources
    samples: report.Samples = {}
    for number in range(rounds):
        for name in systems if number % 2 == 0 else reversed(systems):
            console.print(f"[bold]round {number + 1} of {rounds}: {SYSTEMS[name].name}")
            _round(name, [row for row in rows if number == 0 or not row.once], samples, spark_records)
    return samples


def _run_own(row: Row, systems: list[str], rounds: int, quick: bool) -> report.Samples:
    samples: report.Samples = {}
    for number in range(rounds):
        for name in systems if number % 2 == 0 else reversed(systems):
            _play_own(row, name, samples, quick)
    return samples


def _finish(
    rows: list[Row], samples: report.Samples, rounds: int, spark_records: int, command: str | None
) -> None:
    """Show the table of these rows; unless ``command`` is None, write it and the raw numbers."""
    _show(rows, samples)
    if command is None:
        return
    versions = {system.name: system.version() for system in SYSTEMS.values()}
    if any(row.in_spark for row in rows):
        versions |= {"pyspark": SparkOnNilometer.version(), "records read by Spark": f"{spark_records:,}"}
    report.write(samples, rows, versions, rounds, command)
    console.print(f"written: {report.render(ALL_ROWS).relative_to(Path.cwd())}")


def _show(rows: list[Row], samples: report.Samples) -> None:
    table = Table("row", "", "Nilometer", "Apache Kafka", "ratio")
    for row in rows:
        for line in report.table_lines(row, samples.get(row.key, {}), 1):
            cells = [cell.strip().replace("**", "") for cell in line.strip("|").split("|")[:5]]
            table.add_row(*(cell.partition(" (")[0] for cell in cells))
    console.print(table)


if __name__ == "__main__":
    main()
