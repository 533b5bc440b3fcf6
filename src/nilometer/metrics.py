"""Metrics as values: families, distributions, and Prometheus' text format. Pure: time is an argument."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

# A distribution of durations in bounded memory: quantiles of the last minutes, and a histogram since the
# start.
#
# A value (a whole number of microseconds) is counted in one of about a thousand buckets: below 64 each value
# has its own, above that there are 32 for each power of two. So a quantile is at most 1/32 above the true
# one.
#
# The quantiles are those of the present window and the one before, that is, of the last one to two minutes.
# When a window ends, its counts are added to the counts since the start. Bounds of the histogram are powers
# of two, which are also bounds of buckets: its counts are exact.

WINDOW_US = 60_000_000
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Those of Kafka's histograms."""
VALUE_MAX = (1 << 36) - 1
"""Larger values (above 19 hours) are counted as this one."""
_SUB_BUCKET_BITS = 5
_OWN_BUCKETS = 1 << _SUB_BUCKET_BITS + 1
"""Each value below has its own bucket."""
HISTOGRAM_EXPONENTS = range(6, 25)
"""The histogram's bounds are 2 to the power of these, in microseconds: 64 microseconds to 16.8 seconds."""


class DistributionReading(NamedTuple):
    total: int
    """How many values were observed since the start."""
    sum_us: int
    """Their sum."""
    quantiles_us: tuple[float, ...]
    """The values at :data:`QUANTILES` in the last one to two windows; NaN if there was none."""
    at_most: tuple[int, ...]
    """How many of all values were below each bound of the histogram (:data:`HISTOGRAM_EXPONENTS`)."""


class Distribution:
    """Counts of observed durations; :meth:`observe` is called for each request, so it does little."""

    __slots__ = ("_before", "_older", "_window_end_us", "_window_us", "count", "current", "sum_us")

    def __init__(self, window_us: int = WINDOW_US) -> None:
        self.count = 0
        self.sum_us = 0
        self.current: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._window_us = window_us
        self._window_end_us = 0

    def observe(self, value_us: int, now_us: int) -> None:
        """Count a duration that ended at ``now_us`` of a monotonic clock."""
        if now_us >= self._window_end_us:
            self._turn(now_us)
        bucket = bucket_of(value_us)
        self.current[bucket] = self.current.get(bucket, 0) + 1
        self.count += 1
        self.sum_us += value_us

    def reading(self, now_us: int) -> DistributionReading:
        if now_us >= self._window_end_us:
            self._turn(now_us)
        recent = _sum(self._before, self.current)
        return DistributionReading(
            self.count, self.sum_us, _quantiles(recent), _at_most(_sum(self._older, recent))
        )

    def _turn(self, now_us: int) -> None:
        """End the present window; also the one before, if nothing was observed or read for a whole window."""
        self._older = _sum(self._older, self._before)
        self._before, self.current = self.current, {}
        if now_us >= self._window_end_us + self._window_us:
            self._older = _sum(self._older, self._before)
            self._before = {}
        self._window_end_us = now_us + self._window_us


def bucket_of(value: int) -> int:
    """Return the number of the bucket of ``value``; a negative value (a clock that jumped) counts as 0."""
    if value < _OWN_BUCKETS:
        return value if value > 0 else 0
    if value > VALUE_MAX:
        value = VALUE_MAX
    shift = value.bit_length() - _SUB_BUCKET_BITS - 1
    return (shift << _SUB_BUCKET_BITS) + (value >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return the lowest value of a bucket, and the lowest value of the next one."""
    shift = max(0, (bucket >> _SUB_BUCKET_BITS) - 1)
    low = (bucket - (shift << _SUB_BUCKET_BITS)) << shift
    return low, low + (1 << shift)


def _sum(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    total = dict(one)
    for bucket, count in other.items():
        total[bucket] = total.get(bucket, 0) + count
    return total


def _quantiles(counts: Mapping[int, int]) -> tuple[float, ...]:
    """Return the highest value of the bucket in which each quantile lies."""
    total = sum(counts.values())
    if not total:
        return (math.nan,) * len(QUANTILES)
    found: list[float] = []
    buckets = sorted(counts)
    position, seen = 0, counts[buckets[0]]
    for quantile in QUANTILES:
        rank = math.ceil(quantile * total)
        while seen < rank:
            position += 1
            seen += counts[buckets[position]]
        found.append(float(bounds_of(buckets[position])[1] - 1))
    return tuple(found)


def _at_most(counts: Mapping[int, int]) -> tuple[int, ...]:
    ends = sorted((bounds_of(bucket)[1], count) for bucket, count in counts.items())
    found: list[int] = []
    position = seen = 0
    for exponent in HISTOGRAM_EXPONENTS:
        while position < len(ends) and ends[position][0] <= 1 << exponent:
            seen += ends[position][1]
            position += 1
        found.append(seen)
    return tuple(found)


# Families of metrics: name, type, help and labels; their text for Prometheus (version 0.0.4); and the
# registry of one process, which knows where their values come from.

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
