"""A small chart of a number over the last minutes, as the points of a line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 240, 40
"""Of the chart, in the units of its points."""


class Sample(msgspec.Struct, frozen=True):
    at_ms: int
    """Of a monotonic clock."""
    value: float


class Chart(msgspec.Struct, frozen=True):
    label: str
    is_bytes: bool
    lines: tuple[str, ...]
    """The points of each line, as in SVG's ``points``; a gap in the samples begins a new line."""
    largest: float
    newest: float
    minutes: int
    """How far back the chart goes."""


def chart(
    label: str, samples: Sequence[Sample], *, span_ms: int, gap_ms: int, is_bytes: bool = False
) -> Chart | None:
    """Return the chart of the samples in ``span_ms`` before the newest; None of less than two.

    The axis begins at zero. Samples that are further apart than ``gap_ms`` are not joined.
    """
    if len(samples) < 2:
        return None
    end = samples[-1].at_ms
    shown = [one for one in samples if one.at_ms >= end - span_ms]
    largest = max(one.value for one in shown)
    lines: list[list[str]] = []
    before: Sample | None = None
    for one in shown:
        if before is None or one.at_ms - before.at_ms > gap_ms:
            lines.append([])
        x = WIDTH * (1 - (end - one.at_ms) / span_ms)
        y = HEIGHT - (HEIGHT * one.value / largest if largest else 0)
        lines[-1].append(f"{x:.1f},{y:.1f}")
        before = one
    drawn = tuple(" ".join(line) for line in lines if len(line) > 1)
    return Chart(label, is_bytes, drawn, largest, samples[-1].value, span_ms // 60_000)
