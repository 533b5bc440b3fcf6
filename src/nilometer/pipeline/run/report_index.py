"""The page that links the reports of several pipelines. Pure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from nilometer.pipeline.formats.tally import Tally
from nilometer.pipeline.run.run_record import RunRecord
from nilometer.pipeline.run.run_report import whole_page


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    page: str
    """The report's place, relative to the index."""
    record: RunRecord | None
    tally: Tally | None


def index_page(entries: Sequence[Entry]) -> str:
    heads = ("pipeline", "topics", "state", "last run", "lines", "recognised", "of no format")
    rows = "".join(_row(one) for one in entries)
    head = "".join(f"<th>{name}</th>" for name in heads)
    return whole_page("Pipelines", f"<h1>Pipelines</h1><table><tr>{head}</tr>{rows}</table>")


def _row(entry: Entry) -> str:
    record, tally = entry.record, entry.tally
    link = f'<td><a href="{html.escape(entry.page)}">{html.escape(entry.name)}</a></td>'
    texts = ["", "", ""]
    if record is not None:
        texts = [", ".join(record.topics), record.state, record.began[:19].replace("T", " ")]
    numbers = ["", "", ""]
    if tally is not None:
        lost = f"{tally.unrecognised:,} ({tally.unrecognised_share:.1%})"
        numbers = [f"{tally.lines:,}", f"{tally.recognised:,}", lost]
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
    return f"<tr>{link}{cells}" + "".join(f'<td class="number">{one}</td>' for one in numbers) + "</tr>"
