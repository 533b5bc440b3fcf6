"""A distribution of durations in bounded memory: quantiles of the last minutes, and a histogram since the
start.

A value (a whole number of microseconds) is counted in one of about a thousand buckets: below 64 each value
has its own, above that there are 32 for each power of two. So a quantile is at most 1/32 above the true one.

The quantiles are those of the present window and the one before, that is, of the last one to two minutes.
When a window ends, its counts are added to the counts since the start. Bounds of the histogram are powers of
two, which are also bounds of buckets: its counts are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

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
