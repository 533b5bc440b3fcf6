"""Writes a pipeline's results as one HTML page: its tables, plots, and the progress of its batches.

The type of a plot depends on the first column: times make lines, names make bars, and numbers make columns.
The page contains everything, so that it can be sent and kept. Imports matplotlib only when a page is drawn.

Invariant: data is always text in the page and never markup.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS_MAX = 5_000
BARS_MAX = 30
LABEL_MAX = 48
COLOURS = ("#1f6f8b", "#d9822b", "#5b8c5a", "#a23b72", "#7a6f9b", "#c2b280", "#444444")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; font-size: 1.1rem }
table { border-collapse: collapse; font-size: 14px }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd }
td { overflow-wrap: anywhere }
td.number { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto }
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


def write_report(report: Report, path: Path) -> None:
    parts = [f"<h1>{_text(report.name)}</h1><p>{_text(report.summary)}</p>"]
    for title, frame in report.charts.items():
        rows: list[tuple[Any, ...]] = [tuple(row) for row in frame.limit(POINTS_MAX).collect()]
        if rows:
            parts.append(_section(title, draw(frame.columns, rows)))
    if report.progress:
        parts.append(_section("Batches over time", draw_progress(report.progress)))
    for title, frame in report.tables.items():
        rows: list[tuple[Any, ...]] = [tuple(row) for row in frame.limit(POINTS_MAX).collect()]
        parts.append(_section(title, _table(frame.columns, rows)))
    body = "\n".join(parts)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(report.name)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def draw(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """Return a plot as SVG; its type depends on the values of the first column."""
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
        figure.autofmt_xdate()
    return _svg(figure)


def draw_progress(progress: Sequence[Mapping[str, Any]]) -> str:
    """Return a plot as SVG: lag (above) and rates (below) over time."""
    from matplotlib.figure import Figure

    at = [datetime.fromisoformat(one["at"]) for one in progress]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(at, [one["lag"] for one in progress], color=COLOURS[3], marker=".")
    above.set_ylabel("lag, records")
    below.plot(at, [one["rows"] for one in progress], color=COLOURS[0], marker=".", label="records in batch")
    below.plot(
        at, [one["rows_per_second"] for one in progress], color=COLOURS[1], marker=".", label="processed/s"
    )
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        _plain(axes)
    below.legend(frameon=False)
    figure.autofmt_xdate()
    return _svg(figure)


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
