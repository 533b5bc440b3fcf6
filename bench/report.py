"""Medians, ratios, and the table they are read in. Knows nothing of brokers."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import load
from .rows import Column, Row

RESULTS = Path(__file__).with_name("results")
Samples = dict[str, dict[str, dict[str, list[float]]]]
"""row key → system name → column key → one number a round"""


def machine() -> dict[str, str]:
    """What the numbers depend on; nothing that names a host or a folder."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "memory": f"{memory_kb / 1024**2:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "java": java.splitlines()[1].strip() if len(java.splitlines()) > 1 else java.strip(),
        "librdkafka": load.librdkafka_version(),
    }


def write(samples: Samples, rows: list[Row], versions: dict[str, str], rounds: int, command: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    facts = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "rounds": rounds,
        "machine": machine(),
        "versions": versions,
    }
    for row in rows:
        result = {**facts, "row": row.title, "samples": samples.get(row.key, {})}
        (RESULTS / f"{row.key}.json").write_text(json.dumps(result, indent=1) + "\n")


def has_result(row: Row, command: str) -> bool:
    """Whether ``command`` has measured the row today."""
    path = RESULTS / f"{row.key}.json"
    if not path.exists():
        return False
    stored = json.loads(path.read_text())
    return stored["command"] == command and stored["date"] == datetime.now(UTC).date().isoformat()


def render(all_rows: tuple[Row, ...]) -> Path:
    """The table, from the result file of each row that has one: rows of different runs name their own run."""
    stored = {
        row.key: json.loads((RESULTS / f"{row.key}.json").read_text())
        for row in all_rows
        if (RESULTS / f"{row.key}.json").exists()
    }
    runs: list[dict[str, Any]] = []
    text = list(_HEAD)
    for section, head, table_head in (
        ("one broker", _ONE_BROKER, _TABLE_HEAD),
        ("three brokers", _THREE_BROKERS, _TABLE_HEAD),
        ("own brokers", _OWN_BROKERS, _TABLE_HEAD),
        ("spark", _SPARK, _SPARK_TABLE_HEAD),
    ):
        lines: list[str] = []
        for row in all_rows:
            if row.key in stored and _section(row) == section:
                facts = {
                    key: value for key, value in stored[row.key].items() if key not in ("row", "samples")
                }
                if facts not in runs:
                    runs.append(facts)
                lines += table_lines(row, stored[row.key]["samples"], runs.index(facts) + 1)
        if lines:
            text += [*head, *table_head, *lines, ""]
    page = RESULTS / "README.md"
    page.write_text("\n".join([*text, *_run_lines(runs), ""]))
    return page


def _section(row: Row) -> str:
    if row.in_spark:
        return "spark"
    if row.settings is not None:
        return "own brokers"
    return "one broker" if row.brokers == 1 else "three brokers"


_HEAD = [
    "# Nilometer beside Apache Kafka",
    "",
    "Same client, same machine, one system at a time, in turns, no compression. Each number is the median of",
    "the rounds (lowest … highest). The ratio says how many times better Nilometer is: above 1 it is ahead.",
    "Raw numbers: the `.json` files beside this page. Of the simulation: [simulation.md](simulation.md).",
    "",
]
_ONE_BROKER = ["## One broker", "", "One process, one partition.", ""]
_THREE_BROKERS = [
    "## Three brokers",
    "",
    "Three processes on this one machine, of Apache Kafka each broker and controller both; three replicas,",
    "acks=all, `min.insync.replicas=2`. Rows with a single number were measured once.",
    "",
]
_OWN_BROKERS = [
    "## Transactions, compaction, starting with much",
    "",
    "Each row on brokers of its own, one where it does not say three. Each system is warmed up in the row's",
    "own shape until three rounds in a row are within 10 % (for a bounded time; these rounds are among the",
    "raw numbers, `warm_up_…`). The settings that are not as shipped are in the head of the row's module.",
    "Starts are measured as they are: a process that starts is never warm.",
    "",
]
_SPARK = [
    "## Reading topics into Spark",
    "",
    "One broker of Nilometer with four partitions, records in batches of up to 1 MB; one Spark session on",
    "all cores; the sources in turns. `nilometer-log` reads the broker's folder; where a schema names the",
    "columns that a query needs, only these are made. The time of a micro-batch is Spark's own",
    "`triggerExecution`.",
    "",
]
_SPARK_TABLE_HEAD = [
    "| | | Nilometer | Spark's `kafka` connector | ratio | run |",
    "|---|---|---|---|---|---|",
]
_TABLE_HEAD = ["| | | Nilometer | Apache Kafka | ratio | run |", "|---|---|---|---|---|---|"]


def table_lines(row: Row, samples: dict[str, dict[str, list[float]]], run: int) -> list[str]:
    ours, theirs = samples.get("Nilometer", {}), samples.get("Apache Kafka", {})
    lines: list[str] = []
    for column in row.columns:
        if column.key == row.base:
            continue
        title = "" if lines else row.title
        mine, other = ours.get(column.key), ours.get(row.base) if row.base else theirs.get(column.key)
        cells = [_cell(column, mine), _cell(column, other)]
        lines.append(
            f"| {title} | {column.title} | {cells[0]} | {cells[1]} | {_ratio(column, mine, other)} | {run} |"
        )
    return lines


def _cell(column: Column, numbers: list[float] | None) -> str:
    if not numbers:
        return "–"
    median, low, high = (
        f"{number:,.{column.digits}f}" for number in (statistics.median(numbers), min(numbers), max(numbers))
    )
    unit = "" if column.unit == column.title else f" {column.unit}"
    spread = f" ({low} … {high})" if len(numbers) > 1 else ""
    return f"**{median}**{unit}{spread}"


def _ratio(column: Column, ours: list[float] | None, theirs: list[float] | None) -> str:
    if not ours or not theirs:
        return "–"
    mine, other = statistics.median(ours), statistics.median(theirs)
    better, worse = (mine, other) if column.more_is_better else (other, mine)
    return f"{better / worse:.2f}" if worse else "–"


def _run_lines(runs: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for number, facts in enumerate(runs, 1):
        machine_facts = ", ".join(f"{key} {value}" for key, value in facts["machine"].items())
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        lines += [
            f"**Run {number}** ({facts['date']}, {facts['rounds']} rounds): `{facts['command']}`.",
            f"{versions}; {machine_facts}.",
            "",
        ]
    return lines
