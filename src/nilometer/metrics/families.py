"""Families of metrics: name, type, help and labels; their text for Prometheus (version 0.0.4); and the
registry of one process, which knows where their values come from.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from nilometer.metrics.distribution import HISTOGRAM_EXPONENTS, QUANTILES, DistributionReading

# A family: one metric's name, type, help and labels. Its series differ only in the values of the labels.
#
# A family has at most ``series_max`` series in one scrape (:class:`Registry`), so that no client can make a
# scrape large with names of its choice.

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED_LABELS = frozenset({"le", "quantile"})
SERIES_MAX = 1000
"""The default of :attr:`Family.series_max`."""


class Kind(enum.StrEnum):
    """A family's type, in the word of Prometheus' text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """Quantiles over the last minutes, with the sum and count since the start."""
    HISTOGRAM = "histogram"
    """Counts since the start, by upper bound."""
    UNTYPED = "untyped"
    """A gauge whose name, given by another exporter, ends like a part of a summary (``_count``, ``_sum``)."""


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    series_max: int = SERIES_MAX

    def __post_init__(self) -> None:
        """Raise ValueError for a name or a label that Prometheus' conventions do not allow."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a metric")
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: the names of counters, and only they, end with _total")
        if not self.help.strip():
            raise ValueError(f"{self.name} has no help")
        for label in self.labels:
            if not _NAME.fullmatch(label) or label in _RESERVED_LABELS:
                raise ValueError(f"{self.name}: {label!r} is no name of a label")


# Prometheus' text format (version 0.0.4): the header of a family, and the lines of one series.

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


# The families of one process, and where their values come from at a scrape.
#
# Most values are *collected*: a function reads them from the owners of the state when a scrape asks for them,
# so that they cost nothing otherwise. A collecting function is a generator: it yields :class:`Measured`
# families, and :data:`PAUSE` where much work without text lies between two of them. So the reader of
# :meth:`Registry.text` can let other work run after any part.
#
# Invariants: a name belongs to one family; a family that was declared is measured at most once in a scrape,
# and with at most ``series_max`` series. How many series were left out is a metric itself.

Series: TypeAlias = tuple[Sequence[str], Value]
"""The values of the labels, and the value."""


class Pause(enum.Enum):
    """The type of :data:`PAUSE`."""

    PAUSE = "pause"


PAUSE: Final = Pause.PAUSE
"""Yielded in place of a family: other work may run now."""


class Measured(NamedTuple):
    """A family and its series, in this scrape."""

    family: Family
    series: Iterable[Series | Literal[Pause.PAUSE]]


Collect: TypeAlias = Callable[[], Iterator[Measured | Literal[Pause.PAUSE]]]

SERIES_OMITTED = Family(
    "nilometer_metrics_series_omitted",
    Kind.GAUGE,
    "How many series of a metric this scrape left out, because the metric had more than its maximum.",
    ("metric",),
)


class Registry:
    def __init__(self) -> None:
        self.families: dict[str, Family] = {SERIES_OMITTED.name: SERIES_OMITTED}
        """All families declared, by name."""
        self._collectors: list[Collect] = []

    def add(self, families: Iterable[Family], collect: Collect) -> None:
        """Declare ``families``, whose values ``collect`` yields. Raises ValueError if a name is taken."""
        for family in families:
            if family.name in self.families:
                raise ValueError(f"there are two metrics {family.name}")
            self.families[family.name] = family
        self._collectors.append(collect)

    def text(self) -> Iterator[str]:
        """Yield the text of a scrape in parts of a few lines; a part may be empty.

        Raises ValueError for a family that was not declared, or is measured twice.
        """
        seen: set[str] = set()
        omitted: dict[str, int] = {}
        for collect in self._collectors:
            for measured in collect():
                if measured is PAUSE:
                    yield ""
                    continue
                self._check(measured.family, seen)
                yield from _family_text(measured, omitted)
        left_out = [((name,), count) for name, count in omitted.items()]
        yield from _family_text(Measured(SERIES_OMITTED, left_out), {})

    def _check(self, family: Family, seen: set[str]) -> None:
        if self.families.get(family.name) is not family:
            raise ValueError(f"the metric {family.name} was not declared")
        if family.name in seen:
            raise ValueError(f"the metric {family.name} was measured twice")
        seen.add(family.name)


def _family_text(measured: Measured, omitted: dict[str, int]) -> Iterator[str]:
    family, count = measured.family, 0
    for series in measured.series:
        if series is PAUSE:
            yield ""
            continue
        count += 1
        if count > family.series_max:
            omitted[family.name] = count - family.series_max
            yield ""
            continue
        text = series_text(family, *series)
        yield header(family) + text if count == 1 else text
