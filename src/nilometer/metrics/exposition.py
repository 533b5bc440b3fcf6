"""Prometheus' text format (version 0.0.4): the header of a family, and the lines of one series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nilometer.metrics.distribution import HISTOGRAM_EXPONENTS, QUANTILES, DistributionReading
from nilometer.metrics.families import Family, Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Value = int | float | DistributionReading
"""A number; for summaries (in milliseconds) and histograms (in seconds) the reading of a distribution."""

_QUANTILE_TEXTS = tuple(
    f"{quantile:.3f}" if quantile == 0.999 else f"{quantile:.2f}" for quantile in QUANTILES
)


def header(family: Family) -> str:
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {family.kind}\n"


def series_text(family: Family, labels: Sequence[str], value: Value) -> str:
    """Return the lines of one series of ``family``, with a value for each of its labels."""
    pairs = ",".join(f'{name}="{escaped(text)}"' for name, text in zip(family.labels, labels, strict=True))
    if isinstance(value, DistributionReading):
        lines = _summary(family.name, pairs, value)
        if family.kind is Kind.HISTOGRAM:
            lines = _histogram(family.name, pairs, value)
        return "".join(lines)
    return f"{family.name}{_in_braces(pairs)} {number_text(value)}\n"


def _summary(name: str, pairs: str, reading: DistributionReading) -> Iterator[str]:
    for quantile, value_us in zip(_QUANTILE_TEXTS, reading.quantiles_us, strict=True):
        yield f"{name}{_with_pair(pairs, 'quantile', quantile)} {number_text(value_us / 1000)}\n"
    yield f"{name}_sum{_in_braces(pairs)} {number_text(reading.sum_us / 1000)}\n"
    yield f"{name}_count{_in_braces(pairs)} {reading.total}\n"


def _histogram(name: str, pairs: str, reading: DistributionReading) -> Iterator[str]:
    for exponent, count in zip(HISTOGRAM_EXPONENTS, reading.at_most, strict=True):
        bound = number_text((1 << exponent) / 1_000_000)
        yield f"{name}_bucket{_with_pair(pairs, 'le', bound)} {count}\n"
    yield f"{name}_bucket{_with_pair(pairs, 'le', '+Inf')} {reading.total}\n"
    yield f"{name}_sum{_in_braces(pairs)} {number_text(reading.sum_us / 1_000_000)}\n"
    yield f"{name}_count{_in_braces(pairs)} {reading.total}\n"


def _in_braces(pairs: str) -> str:
    return f"{{{pairs}}}" if pairs else ""


def _with_pair(pairs: str, name: str, value: str) -> str:
    return f'{{{pairs}{"," if pairs else ""}{name}="{value}"}}'


def escaped(text: str) -> str:
    """Return a label's value with the three signs escaped that would end it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number_text(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
