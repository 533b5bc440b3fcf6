"""Durations in ISO 8601, as Kafka's settings and tools take them: ``P1DT2H30M``."""

from __future__ import annotations

import re

_UNITS = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000))
_FORM = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


DURATION_MAX_MS = 999_999_999 * 86_400_000
"""The longest duration that a request can have: 999,999,999 days."""


def parse_duration_ms(text: str) -> int:
    """Return a duration ``PnDTnHnMn.nS`` in milliseconds, at most ``DURATION_MAX_MS``; a day is 24 hours.

    Raises ValueError.
    """
    found = _FORM.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration such as PT12H or P1DT2H30M (ISO 8601)")
    parts = [float(found[unit] or 0) * factor for unit, factor in _UNITS]
    if sum(parts) > DURATION_MAX_MS:
        raise ValueError(f"{text!r} is longer than P999999999D")
    return sum(map(round, parts))
