"""Recognises times in lines of unknown formats. Pure."""

from __future__ import annotations

import re
from datetime import UTC
from typing import Final, NamedTuple

from nilometer.pipeline.formats.times import compile_times


class TimeShape(NamedTuple):
    pattern: str
    """In the syntax that RE2 and Python's ``re`` share."""
    time_format: str


SHAPES: Final = (
    TimeShape(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ] ?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
        r"(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?",
        "iso8601",
    ),
    TimeShape(r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,9}", "%Y/%m/%d %H:%M:%S.%f"),
    TimeShape(r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%Y/%m/%d %H:%M:%S"),
    TimeShape(r"[0-9]{4}\.[0-9]{2}\.[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%Y.%m.%d %H:%M:%S"),
    TimeShape(
        r"[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4}", "%d/%b/%Y:%H:%M:%S %z"
    ),
    TimeShape(r"[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2}", "%d/%b/%Y:%H:%M:%S"),
    TimeShape(
        r"[0-9]{2}-[A-Z][a-z]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,9}", "%d-%b-%Y %H:%M:%S.%f"
    ),
    TimeShape(r"[0-9]{2}-[A-Z][a-z]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%d-%b-%Y %H:%M:%S"),
    TimeShape(r"[0-9]{2}\.[0-9]{2}\.[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%d.%m.%Y %H:%M:%S"),
    TimeShape(
        r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4}",
        "%a %b %e %H:%M:%S %Y",
    ),
    TimeShape(r"[A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%b %e %H:%M:%S"),
    TimeShape(r"[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%y/%m/%d %H:%M:%S"),
    TimeShape(r"[0-9]{6} [0-9]{6}\b", "%y%m%d %H%M%S"),
    TimeShape(r"1[0-9]{9}(?:\.[0-9]{1,9})?\b", "epoch_s"),
    TimeShape(r"1[0-9]{12}\b", "epoch_ms"),
    TimeShape(r"1[0-9]{15}\b", "epoch_us"),
)
"""More special shapes first. A time that could be day/month or month/day is none: it is ambiguous."""

_COMPILED: Final = [(re.compile(one.pattern), one, compile_times([one.time_format], UTC)) for one in SHAPES]


def time_at(text: str, at: int) -> tuple[TimeShape, int] | None:
    """Return the shape of the time at position ``at`` and the position after it; None if there is no time."""
    for pattern, shape, read in _COMPILED:
        found = pattern.match(text, at)
        if found is not None and read(found.group(), 0) is not None:
            return shape, found.end()
    return None


def time_format_of(values: list[str]) -> str | None:
    """Return the time format that all ``values`` have, or None."""
    for _, shape, read in _COMPILED:
        if values and all(read(value, 0) is not None for value in values):
            return shape.time_format
    return None
