"""Writes what was measured: raw numbers, one page of tables, one picture for each curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .curve import Curve, Point

RESULTS = Path(__file__).parents[1] / "results" / "growth"
COLORS = ("#0b6e99", "#b5552b", "#4b7f52", "#7a5195", "#8c8c8c", "#b08900", "#444444")
_HEAD = """# How the cost grows

Nilometer alone, each point on a new cluster. All brokers and the clients share the cores of one machine: read
the shape of a curve, not its height. `python -m bench.growth` measures them again (about half an hour);
`--curve KEY` some of them. What follows for a machine: [sizing](../../../docs/how-to/sizing.md).
"""


def write(curve: Curve, points: Sequence[tuple[int, Point]], facts: dict[str, Any]) -> None:
    """The raw numbers and the picture of one curve; the page has all curves that were ever measured."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {**facts, "points": [{curve.of: size, **point} for size, point in points]}
    (RESULTS / f"{curve.key}.json").write_text(json.dumps(document, indent=1) + "\n")
    _draw(curve, points)


def render(curves: Sequence[Curve]) -> Path:
    sections = [_section(curve) for curve in curves if (RESULTS / f"{curve.key}.json").exists()]
    page = RESULTS / "README.md"
    page.write_text("\n".join([_HEAD, *sections]))
    return page


def _section(curve: Curve) -> str:
    document = json.loads((RESULTS / f"{curve.key}.json").read_text())
    head = "| " + " | ".join([curve.of, *(_title(each.title, each.unit) for each in curve.measures)]) + " |"
    lines = [head, "|---" * (1 + len(curve.measures)) + "|"]
    for point in document["points"]:
        cells = [f"{point[curve.of]:,}"]
        cells += [f"{point[each.key]:,.{each.digits}f}" for each in curve.measures]
        lines.append("| " + " | ".join(cells) + " |")
    facts = [document["command"], document["measured_at"][:10], document["machine"], document["revision"]]
    where = "`{}`, {}, {}, revision {}.".format(*facts)
    return "\n".join(
        [f"## {curve.title}", "", *lines, "", f"![{curve.title}]({curve.key}.svg)", "", where, ""]
    )


def _title(title: str, unit: str) -> str:
    return f"{title}, {unit}" if unit else title


def _draw(curve: Curve, points: Sequence[tuple[int, Point]]) -> None:
    """Each measure in its own small field: their units differ."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update({"svg.hashsalt": "nilometer", "svg.fonttype": "none"})
    count = len(curve.measures)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure, fields = pyplot.subplots(rows, columns, figsize=(4 * columns, 2.8 * rows), squeeze=False)
    for number, measure in enumerate(curve.measures):
        axes = fields[number // columns][number % columns]
        axes.plot(
            [size for size, _ in points],
            [point[measure.key] for _, point in points],
            marker="o",
            ms=3,
            color=COLORS[number],
        )
        axes.set_title(_title(measure.title, measure.unit), fontsize=8)
        axes.set_xlabel(curve.of, fontsize=8)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    for number in range(count, rows * columns):
        fields[number // columns][number % columns].set_axis_off()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{curve.key}.svg", metadata={"Date": None})
    pyplot.close(figure)
