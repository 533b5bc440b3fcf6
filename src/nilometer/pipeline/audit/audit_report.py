"""Formats an audit's result: rows for a table on the screen, JSON for programs, an HTML page."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.pipeline.audit.audit import AuditResult
from nilometer.pipeline.audit.segment_check import Finding
from nilometer.storage.names import TopicPartition

PARTITION_COLUMNS = (
    "partition",
    "replicas",
    "segments",
    "batches",
    "records",
    "bytes",
    "start",
    "high watermark",
    "end",
    "wrong",
)
_PARTITION, _BATCHES, _BYTES, _WRONG = (
    PARTITION_COLUMNS.index(name) for name in ("partition", "batches", "bytes", "wrong")
)
FINDING_COLUMNS = ("kind", "partition", "replica", "where", "offset", "what")


def partition_rows(result: AuditResult) -> list[tuple[Any, ...]]:
    """Return one row per partition, in the order of PARTITION_COLUMNS; counts are sums of its replicas."""
    groups: dict[TopicPartition, list[Any]] = defaultdict(list)
    for one in result.replicas:
        groups[one.replica.part].append(one)
    wrong: dict[TopicPartition, int] = defaultdict(int)
    for one in result.wrong:
        wrong[TopicPartition(one.topic, one.partition)] += 1
    rows: list[tuple[Any, ...]] = []
    for part, members in sorted(groups.items()):
        watermarks = [one.high_watermark for one in members if one.high_watermark is not None]
        rows.append(
            (
                str(part),
                len(members),
                sum(one.segments for one in members),
                sum(one.batches for one in members),
                sum(one.records for one in members),
                sum(one.bytes for one in members),
                _span(one.log_start for one in members),
                _span(watermarks),
                _span(one.end_offset for one in members),
                wrong[part],
            )
        )
    return rows


def folded_rows(result: AuditResult) -> list[tuple[Any, ...]]:
    """Return ``partition_rows`` with one row for all empty partitions of each internal topic.

    A topic such as ``__consumer_offsets`` has fifty partitions, most of them empty.
    """
    rows: list[tuple[Any, ...]] = []
    empty: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in partition_rows(result):
        topic = row[_PARTITION].rpartition("-")[0]
        if topic in INTERNAL_TOPICS and row[_BATCHES] == 0 and row[_WRONG] == 0:
            empty[topic].append(row)
        else:
            rows.append(row)
    return [*rows, *(_folded(topic, some) for topic, some in sorted(empty.items()))]


def _folded(topic: str, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    if len(rows) == 1:
        return rows[0]
    sums = (sum(row[column] for row in rows) for column in range(_PARTITION + 1, _BYTES + 1))
    return (f"{topic}: {len(rows)} empty", *sums, "", "", "", 0)


def finding_rows(findings: Iterable[Finding]) -> list[tuple[Any, ...]]:
    return [
        (
            str(one.kind),
            f"{one.topic}-{one.partition}",
            one.replica,
            one.place,
            "" if one.offset is None else one.offset,
            one.what,
        )
        for one in findings
    ]


def summary(result: AuditResult) -> str:
    wrong = len(result.wrong)
    outcome = "no errors found" if not wrong else f"{wrong} error{'s' if wrong > 1 else ''} found"
    return (
        f"{len(result.replicas)} replicas, {result.bytes / 1e6:,.1f} MB in {result.seconds:.1f} s "
        f"({result.bytes / 1e9 / max(result.seconds, 1e-9):.2f} GB/s), "
        f"{len(result.committed)} committed offsets: {outcome}"
    )


def write_report(result: AuditResult, path: Path) -> None:
    """Write the report to ``path``: as JSON if its suffix is ``.json``, else as HTML."""
    text = to_json(result) if path.suffix == ".json" else to_html(result)
    path.write_text(text, encoding="utf-8")


def to_json(result: AuditResult) -> str:
    value = {
        "places": list(result.places),
        "summary": summary(result),
        "wrong": len(result.wrong),
        "findings": [one.to_json() for one in result.findings],
        "partitions": [dict(zip(PARTITION_COLUMNS, row, strict=True)) for row in partition_rows(result)],
    }
    return json.dumps(value, indent=1) + "\n"


def to_html(result: AuditResult) -> str:
    return "\n".join(
        [
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Nilometer audit</title>",
            f"<style>{_STYLE}</style>",
            "<h1>Audit</h1>",
            f"<p class='{'wrong' if result.wrong else 'right'}'>{html.escape(summary(result))}</p>",
            f"<p>{html.escape(', '.join(result.places))}</p>",
            "<h2>Found</h2>" if result.findings else "",
            _table(FINDING_COLUMNS, finding_rows(result.findings)) if result.findings else "",
            "<h2>Partitions</h2>",
            _table(PARTITION_COLUMNS, partition_rows(result)),
            "</html>",
            "",
        ]
    )


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;color:#222}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top;"
    "overflow-wrap:anywhere}td.n{text-align:right;white-space:nowrap}"
    ".wrong{color:#b00020;font-weight:600}.right{color:#0a6b2d;font-weight:600}"
)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return (
        f"<td class='n'>{value:,}</td>" if isinstance(value, int) else f"<td>{html.escape(str(value))}</td>"
    )


def _span(values: Iterable[int]) -> str:
    """Return one number if all values are equal, else the lowest and the highest."""
    known = sorted(set(values))
    if not known:
        return "unknown"
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} … {known[-1]:,}"
