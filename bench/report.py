"""Medians, ratios, and the table they are read in. Knows nothing of brokers."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nilometer import compiled

from . import load
from .rows import CLIENT_LIMIT, Column, Row
from .steady import is_steady

RESULTS = Path(__file__).with_name("results")
METHOD, OLD_METHOD = 2, 1
"""Of how numbers are measured. By the old one Kafka was cold, and rounds took a second or two."""
_FACTS = ("command", "rounds", "revision", "machine", "versions")
RESUMED_H = 24
RowSamples = dict[str, dict[str, list[float]]]
"""system name → column key → numbers"""
Sections = Sequence[tuple[str, Sequence[Row]]]
OURS = "Nilometer"


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
        "python": f"{platform.python_version()}{'' if is_optimised() else ', built without optimisation'}",
        "modules": compiled.form(),
        "java": java.splitlines()[1].strip() if len(java.splitlines()) > 1 else java.strip(),
        "librdkafka": load.librdkafka_version(),
    }


def is_optimised() -> bool:
    """Whether this interpreter was built with profile-guided optimisation: 5 to 15 % faster.

    The builds of Debian's packages are, but their configuration does not say so.
    """
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "--enable-optimizations" in arguments or Path(sys.executable).resolve().parent == Path("/usr/bin")


def what_makes_slow() -> str | None:
    """Return what makes this Nilometer slower than an installed one, and what to do; None if nothing."""
    if compiled.form() != "compiled":
        return "The modules are interpreted: make compiled, then set NILOMETER_COMPILED=1."
    if not is_optimised():
        return "This Python was built without optimisation: rm -r .venv; make bench PYTHON=/usr/bin/python3."
    return None


def revision() -> str:
    """The commit that is measured, and whether the sources differ from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    if not commit:
        return "unknown"
    return (
        f"{commit}, changed"
        if _git("status", "--porcelain", "--", "src", "bench/*.py", "bench/native")
        else commit
    )


def _git(*arguments: str) -> str:
    git = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=RESULTS.parents[1]
    )
    return git.stdout.strip()


def write(
    row: Row, samples: RowSamples, versions: dict[str, str], rounds: int, command: str, took_s: float
) -> None:
    """The raw numbers of a row, and a picture of those that have one."""
    RESULTS.mkdir(exist_ok=True)
    result = {
        "command": command,
        "measured_at": datetime.now(UTC).isoformat(timespec="minutes"),
        "took_s": round(took_s),
        "method": METHOD,
        "revision": revision(),
        "rounds": rounds,
        "machine": machine(),
        "versions": versions,
        "row": row.title,
        "samples": samples,
    }
    _path(row).write_text(json.dumps(result, indent=1) + "\n")
    if row.draw is not None:
        row.draw(samples, RESULTS / row.key)


def _path(row: Row) -> Path:
    return RESULTS / f"{row.key}.json"


def _stored(row: Row, method: int = METHOD) -> dict[str, Any] | None:
    if not _path(row).exists():
        return None
    found = json.loads(_path(row).read_text())
    return found if found.get("method", 1) == method else None


def has_result(row: Row, command: str) -> bool:
    """Whether ``command`` has measured the row in the last 24 hours."""
    stored = _stored(row)
    if stored is None or stored["command"] != command:
        return False
    measured_at = datetime.fromisoformat(stored["measured_at"])
    return datetime.now(UTC) - measured_at.astimezone(UTC) < timedelta(hours=RESUMED_H)


def render(sections: Sections) -> Path:
    """The table, from the result file of each row that has one: rows of different runs name their own run."""
    runs: list[dict[str, Any]] = []
    text = list(_HEAD)
    for title, rows in sections:
        if lines := _section_lines(rows, METHOD, runs):
            head = _TABLE_HEADS.get(title, _TABLE_HEAD)
            text += [f"## {title}", "", *_SECTION_HEADS.get(title, []), *head, *lines, ""]
    every = [row for _, rows in sections for row in rows]
    text += [f"![{row.title}]({row.key}.svg)\n" for row in every if _has_picture(row)]
    text += _missing(every)
    if lines := _section_lines(every, OLD_METHOD, runs):
        text += [*_OLD_HEAD, *_TABLE_HEAD, *lines, ""]
    page = RESULTS / "README.md"
    page.write_text("\n".join([*text, "## Runs", "", *_took(every), *_run_lines(runs)]))
    return page


def _section_lines(rows: Sequence[Row], method: int, runs: list[dict[str, Any]]) -> list[str]:
    """The lines of the rows measured so; adds their runs to ``runs``."""
    lines: list[str] = []
    for row in rows:
        if (stored := _stored(row, method)) is None:
            continue
        facts = {key: stored.get(key, "unknown") for key in _FACTS}
        if facts not in runs:
            runs.append(facts)
        lines += table_lines(row, stored["samples"], runs.index(facts) + 1)
    return lines


def _missing(rows: Sequence[Row]) -> list[str]:
    missing = [row for row in rows if _stored(row) is None]
    if not missing:
        return []
    return [f"Not measured yet: {', '.join(f'`{row.key}`' for row in missing)}.", ""]


def _took(rows: Sequence[Row]) -> list[str]:
    took = [stored["took_s"] for row in rows if (stored := _stored(row)) is not None and stored["took_s"]]
    return [f"{len(took)} rows took {sum(took) / 60:.0f} minutes.", ""] if took else []


def _has_picture(row: Row) -> bool:
    return row.draw is not None and _path(row).with_suffix(".svg").exists() and _stored(row) is not None


_HEAD = [
    "# Nilometer beside Apache Kafka",
    "",
    "Same clients, same machine, same settings of the clients. In each row both systems are warmed up in the",
    "row's own shape until three rounds in a row are within 10 % (for 45 s at most; a row says where a",
    "system was not steady by then), then measured in turns, for 20 s each at least. One is under load at a",
    "time. Each number is the median of the rounds (lowest … highest). The ratio says how many times better",
    "Nilometer is: above 1 it is ahead. Rows with single numbers were measured once. A process that starts",
    "is never warm: its start is measured as it is.",
    "",
    f"**At its limit** marks a client with a thread that is busy for {CLIENT_LIMIT:.0f} % of the time: such",
    "a row measures the client. Times at a constant rate count from when a record was due, so that a stall",
    "counts for all records that waited. How to measure this, what differs between the systems as shipped,",
    "and what the files beside this page hold: [docs/benchmark.md](../../docs/benchmark.md). Of the",
    "simulation: [simulation.md](simulation.md).",
    "",
]
_OLD_HEAD = [
    "## Not comparable: by the older method, Apache Kafka on a cold virtual machine",
    "",
    "These rows are still to be measured as described above. Rounds were short and Kafka's compilers had not",
    "done their work, so the rows under load favour Nilometer: warmed up for a minute, Kafka's three brokers",
    "take several times as many records.",
    "",
]
_SECTION_HEADS = {
    "Security, one broker": [
        "What protection costs. The same keys, TLS 1.3 with the same cipher, the same users; Apache Kafka",
        "with its StandardAuthorizer.",
        "",
    ],
    "One broker": ["One process, one partition.", ""],
    "Three brokers": [
        "Three processes on this one machine, of Apache Kafka each broker and controller both; three",
        "replicas, acks=all, `min.insync.replicas=2`.",
        "",
    ],
    "The cluster's metadata, beside ZooKeeper": [
        "The same three brokers of Nilometer, whose metadata are in a quorum of their own, or at one",
        "ZooKeeper server (its session time-out is 6 s).",
        "",
    ],
    "Tiered topics": [
        "The remote storage of both is a folder of the same disk. Apache Kafka ships no RemoteStorageManager",
        "but one for its tests: it has `FolderStorage` (`tests/java`), which copies files as that one does.",
        "Segments of 4 MB, a partition of which only the newest segment stays on the broker's disk.",
        "",
    ],
    "Tiered topics, a folder beside the S3 protocol": [
        "The same broker of Nilometer, whose remote storage is a folder, or that folder behind a server of",
        "the S3 protocol (versitygw) on the same cores.",
        "",
    ],
    "The flight recorder": [
        "The same broker of Nilometer, without and with `nilometer.recorder=on`.",
        "",
    ],
    "Lines of files into a topic": [
        "Both programs send to three brokers of Nilometer. rsyslog reads with imfile and sends with omkafka.",
        "The time runs from the start of the program until the topic has every line.",
        "",
    ],
    "Reading topics into Spark": [
        "One broker of Nilometer with four partitions, records in batches of up to 1 MB; one Spark session",
        "on all cores; the sources in turns. `nilometer-log` reads the broker's folder; where a schema names",
        "the columns that a query needs, only these are made. The time of a micro-batch is Spark's own",
        "`triggerExecution`.",
        "",
    ],
}
_TABLE_HEADS = {
    "Reading topics into Spark": [
        "| | | Nilometer | Spark's `kafka` connector | ratio | run |",
        "|---|---|---|---|---|---|",
    ],
    "The cluster's metadata, beside ZooKeeper": [
        "| | | in a quorum | at ZooKeeper | ratio | run |",
        "|---|---|---|---|---|---|",
    ],
    "Tiered topics, a folder beside the S3 protocol": [
        "| | | from a folder | by the S3 protocol | ratio | run |",
        "|---|---|---|---|---|---|",
    ],
    "The flight recorder": [
        "| | | not recorded | recorded | ratio | run |",
        "|---|---|---|---|---|---|",
    ],
    "Lines of files into a topic": [
        "| | | `nilometer ingest` | rsyslog | ratio | run |",
        "|---|---|---|---|---|---|",
    ],
}
_TABLE_HEAD = ["| | | Nilometer | Apache Kafka | ratio | run |", "|---|---|---|---|---|---|"]


def table_lines(row: Row, samples: RowSamples, run: int) -> list[str]:
    ours, theirs = samples.get(OURS, {}), samples.get(row.beside, {})
    lines: list[str] = []
    for column in row.columns:
        if column.key == row.base:
            continue
        title = "" if lines else f"{row.title}{_unsteady(samples)}"
        mine, other = ours.get(column.key), ours.get(row.base) if row.base else theirs.get(column.key)
        if mine is None and other is None:
            continue  # a client that ran for too short a time to be watched
        cells = [_cell(column, mine), _cell(column, other)]
        lines.append(
            f"| {title} | {column.title} | {cells[0]} | {cells[1]} | {_ratio(column, mine, other)} | {run} |"
        )
    return lines


def _unsteady(samples: RowSamples) -> str:
    """Which systems were not steady at the end of the warm-up."""
    found = [
        f"{system} after {len(numbers['warm_up'])} rounds"
        for system, numbers in samples.items()
        if "warm_up" in numbers and not is_steady(numbers["warm_up"])
    ]
    return f" (not steady: {', '.join(found)})" if found else ""


def _cell(column: Column, numbers: list[float] | None) -> str:
    if not numbers:
        return "–"
    median, low, high = (
        f"{number:,.{column.digits}f}" for number in (statistics.median(numbers), min(numbers), max(numbers))
    )
    unit = "" if column.unit == column.title else f" {column.unit}"
    spread = f" ({low} … {high})" if len(numbers) > 1 else ""
    is_at_limit = column.limit is not None and statistics.median(numbers) >= column.limit
    return f"**{median}**{unit}{spread}{', **at its limit**' if is_at_limit else ''}"


def _ratio(column: Column, ours: list[float] | None, theirs: list[float] | None) -> str:
    if not ours or not theirs or not column.is_compared:
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
            f"**Run {number}** ({facts['rounds']} rounds, revision {facts['revision']}):",
            f"`{facts['command']}`.",
            f"{versions}; {machine_facts}.",
            "",
        ]
    return lines
