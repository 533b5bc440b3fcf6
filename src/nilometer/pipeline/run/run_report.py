"""Writes a pipeline's results as one HTML page: figures, tables, plots, and the progress of its batches.

The type of a plot depends on the first column: times make lines, names make bars, and numbers make columns.
The page contains everything, so that it can be sent and kept. Imports matplotlib only when a page is drawn.

Invariant: data is always text in the page and never markup.
"""

from __future__ import annotations

import html
import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nilometer.pipeline.account import FATES, Accounts
from nilometer.pipeline.formats.tally import Tally, share
from nilometer.pipeline.mapped_rows import result_rows
from nilometer.pipeline.run.run_record import RunRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nilometer.pipeline.batches import Done


POINTS_MAX = 5_000
BARS_MAX = 30
LABEL_MAX = 48
FILES_MAX = 50
GAP_STEPS = 1.5
"""Two points that are further apart than this many usual steps have a gap between them."""
COLOURS = ("#1f6f8b", "#d9822b", "#5b8c5a", "#a23b72", "#7a6f9b", "#c2b280", "#444444")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; font-size: 1.1rem }
table { border-collapse: collapse; font-size: 14px }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd }
td { overflow-wrap: anywhere }
td.number { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto }
.figures { display: flex; flex-wrap: wrap; gap: 1.5rem; margin: 1rem 0 }
.figures div { border-left: 3px solid #1f6f8b; padding-left: .6rem }
.figures b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums }
.warning { background: #fbe9e7; padding: .5rem .8rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px }
"""


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    summary: str
    tables: Mapping[str, DataFrame]
    charts: Mapping[str, DataFrame]
    """Title to plot data: the first column is the x axis, the others are the y values."""
    progress: Sequence[Mapping[str, Any]]
    """The recorded progress of the batches of all runs, in order."""
    tally: Tally | None = None
    """The lines of all batches by file and format; None if the pipeline counts none."""
    topics: Sequence[str] = field(default_factory=list[str])
    done: Done | None = None
    """The last batch that is done, with the account of all runs; None if the pipeline keeps none."""


def write_report(report: Report, path: Path) -> None:
    parts = [f"<h1>{_text(report.name)}</h1><p>{_text(report.summary)}</p>", *_figures(report)]
    for title, frame in report.charts.items():
        rows: list[tuple[Any, ...]] = [tuple(row) for row in result_rows(frame.limit(POINTS_MAX))]
        if rows:
            parts.append(_section(title, draw(frame.columns, rows)))
    if len(report.progress) > 1:
        parts.append(_section("Batches over time", draw_progress(report.progress)))
    for title, frame in report.tables.items():
        rows: list[tuple[Any, ...]] = [tuple(row) for row in result_rows(frame.limit(POINTS_MAX))]
        parts.append(_section(title, _table(frame.columns, rows)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(whole_page(report.name, "\n".join(parts)), encoding="utf-8")


def whole_page(title: str, body: str) -> str:
    """Return a page with everything it needs; ``body`` is markup, ``title`` is text."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def _figures(report: Report) -> list[str]:
    """Return the headline figures, what was read, and the lines of no format."""
    figures: list[tuple[str, str]] = []
    if report.progress:
        figures.append((f"{sum(one['rows'] for one in report.progress):,}", "records read"))
    tally = report.tally
    if tally is not None:
        figures.append((f"{tally.recognised:,}", "lines recognised"))
        figures.append((f"{tally.unrecognised:,}", f"of no format ({tally.unrecognised_share:.1%})"))
    if report.done is not None:
        figures += [(f"{number:,}", what) for what, number in _totals(report.done.totals).items()]
    parts = [f"<div><b>{_text(number)}</b>{_text(what)}</div>" for number, what in figures]
    found = [f'<div class="figures">{"".join(parts)}</div>'] if parts else []
    if report.progress:
        found.append(f"<p>{_text(_read_so_far(report))}</p>")
    if report.done is not None:
        found.append(_section("Account of all runs", _account(report.done)))
    return [*found, *(_lines(tally) if tally is not None and tally.lines else [])]


def _totals(accounts: Accounts) -> dict[str, int]:
    """Return the numbers of all inputs together, without those that are 0."""
    names = {"results": "in the results"}
    found = {names.get(fate, fate): sum(one.of(fate) for one in accounts.values()) for fate in FATES}
    found["still open"] = sum(one.open for one in accounts.values())
    return {what: number for what, number in found.items() if number}


def _account(done: Done) -> str:
    """Return a table with a row per input, and one per reason."""
    rows: list[tuple[Any, ...]] = []
    for name, one in done.totals.items():
        rows.append((name or "records", "read", "", one.read))
        for fate in FATES:
            rows += [("", fate, reason, records) for reason, records in one.became.get(fate, {}).items()]
        rows.append(("", "still open", "", one.open))
    rows += [("", "note", note, number) for note, number in done.notes.items()]
    return _table(["input", "what became of them", "reason", "records"], rows)


def _read_so_far(report: Report) -> str:
    last, first = report.progress[-1], report.progress[0]
    offsets: Mapping[str, Mapping[str, int]] = last.get("end_offsets") or {}
    read = "; ".join(f"topic {topic} up to offsets {_ends(ends)}" for topic, ends in sorted(offsets.items()))
    read = read or f"topic {', '.join(report.topics)}"
    said = f"Read {read}, in {len(report.progress):,} batches from {first['at'][:19]} to {last['at'][:19]}."
    watermark = last.get("event_time_watermark")
    return said + (f" Event-time watermark: {watermark[:19]}." if watermark else "")


def _ends(ends: Mapping[str, int]) -> str:
    return ", ".join(f"{number}: {end:,}" for number, end in sorted(ends.items()))


def _lines(tally: Tally) -> list[str]:
    """Return the section about lines by file, with samples of those of no format."""
    rows: list[tuple[Any, ...]] = [
        (
            file["path"] or "(not known)",
            file["lines"],
            file["recognised"],
            file["unrecognised"],
            f"{share(file['unrecognised'], file['lines'] - file['blank']):.1%}",
            ", ".join(f"{name} {lines:,}" for name, lines in file["by_format"].items()),
        )
        for file in tally.files()[:FILES_MAX]
    ]
    table = _table(["file", "lines", "recognised", "of no format", "share", "formats"], rows)
    if not tally.unrecognised:
        return [_section("Lines by file", table)]
    samples = _text("\n".join(tally.samples()))
    said = f"{tally.unrecognised:,} lines ({tally.unrecognised_share:.1%}) are of no known format, such as:"
    return [f'<div class="warning">{_text(said)}<pre>{samples}</pre></div>', _section("Lines by file", table)]


def draw(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """Return a plot as SVG; its type depends on the values of the first column."""
    rows = with_gaps(rows)
    across = [row[0] for row in rows]
    axes, figure = _figure(height=max(2.6, 0.28 * min(len(rows), BARS_MAX)) if _are_names(across) else 3.2)
    if _are_names(across):
        labels = [_shortened(value) for value in across[:BARS_MAX]]
        axes.barh(range(len(labels)), [row[1] or 0 for row in rows[:BARS_MAX]], color=COLOURS[0])
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(columns[1])
    else:
        for number, name in enumerate(columns[1:]):
            up = [float("nan") if row[number + 1] is None else float(row[number + 1]) for row in rows]
            colour = COLOURS[number % len(COLOURS)]
            if isinstance(across[0], datetime):
                axes.plot(across, up, label=name, color=colour, marker="." if len(rows) < 100 else "")
            else:
                axes.bar(across, up, label=name, color=colour)
        axes.set_xlabel(columns[0])
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    if isinstance(across[0], datetime):
        _bound_times(axes)
        figure.autofmt_xdate()
    return _svg(figure)


def _bound_times(axes: Any) -> None:
    """Have the margins beside the first and the last time end where datetimes do, as matplotlib's do not."""
    import matplotlib.dates

    dates: Any = matplotlib.dates  # whose types are partially unknown
    bounds = dates.date2num([datetime.min, datetime.max.replace(microsecond=0)])
    axes.set_xlim(*(min(max(one, bounds[0]), bounds[1]) for one in axes.get_xlim()))


def with_gaps(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows, with an empty one where times are missing, so that no line is drawn across."""
    if len(rows) < 3 or not all(isinstance(row[0], datetime) for row in rows):
        return list(rows)
    steps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(rows)]
    usual, times = Counter(steps).most_common(1)[0]
    if times < 2 or usual <= timedelta(0):
        return list(rows)
    found: list[tuple[Any, ...]] = [rows[0]]
    for step, row in zip(steps, rows[1:], strict=True):
        if step > GAP_STEPS * usual:
            found.append((found[-1][0] + usual, *[None] * (len(row) - 1)))
        found.append(row)
    return found


def draw_progress(progress: Sequence[Mapping[str, Any]]) -> str:
    """Return a plot as SVG: lag (above), rates, and what is in no result (below) over time."""
    from matplotlib.figure import Figure

    at = [datetime.fromisoformat(one["at"]) for one in progress]
    tallies: list[Mapping[str, int]] = [one.get("tally") or {} for one in progress]
    skipped = [one.get("unrecognised", 0) for one in tallies]
    late = [_of_batch(one, "late") for one in progress]
    rejected = [_of_batch(one, "rejected") for one in progress]
    has_skipped = any(skipped) or any(late) or any(rejected)
    figure = Figure(figsize=(9, 6.0 if has_skipped else 4.2), layout="constrained")
    plots: Any = figure.subplots(3 if has_skipped else 2, 1, sharex=True)
    above, below = plots[0], plots[1]
    if has_skipped:
        plots[2].plot(at, skipped, color=COLOURS[1], marker=".", label="of no format")
        plots[2].plot(at, late, color=COLOURS[3], marker=".", label="late")
        plots[2].plot(at, rejected, color=COLOURS[4], marker=".", label="rejected")
        plots[2].legend(frameon=False)
    above.plot(at, [one["lag"] for one in progress], color=COLOURS[3], marker=".")
    above.set_ylabel("lag, records")
    below.plot(at, [one["rows"] for one in progress], color=COLOURS[0], marker=".", label="records in batch")
    below.plot(
        at, [one["rows_per_second"] for one in progress], color=COLOURS[1], marker=".", label="processed/s"
    )
    for axes in plots:
        axes.set_ylim(bottom=0)
        _plain(axes)
    below.legend(frameon=False)
    figure.autofmt_xdate()
    return _svg(figure)


def _of_batch(progress: Mapping[str, Any], fate: str) -> int:
    accounts: Mapping[str, Mapping[str, int]] = progress.get("accounts") or {}
    return sum(one[fate] for one in accounts.values())


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes: Any = figure.subplots()
    _plain(axes)
    return axes, figure


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#eeeeee")
    axes.set_axisbelow(True)


def _svg(figure: Any) -> str:
    import matplotlib as mpl

    drawn = io.StringIO()
    # The same data gives the same SVG: no date, and no random ids. A dollar sign in a label does not begin a
    # formula.
    settings: Any = {"svg.hashsalt": "nilometer", "svg.fonttype": "none", "text.parse_math": False}
    with mpl.rc_context(settings):  # pyright: ignore[reportUnknownMemberType]: it declares a plain dict
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]


def _are_names(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str) for value in values)


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LABEL_MAX else text[: LABEL_MAX - 1] + "…"


def _section(title: str, content: str) -> str:
    return f"<h2>{_text(title)}</h2>{content}"


def _table(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    lines = ["<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{'' if value is None else _text(str(value))}</td>"


def _text(text: str) -> str:
    return html.escape(text)


# The page that links the reports of several pipelines. Pure.


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
