"""Quantiles and histograms of durations, compared with those of the sorted values."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from nilometer.metrics import (
    HISTOGRAM_EXPONENTS,
    QUANTILES,
    VALUE_MAX,
    WINDOW_US,
    Distribution,
    bounds_of,
    bucket_of,
)

VALUES = st.integers(0, 1 << 40)


@given(VALUES)
def test_a_bucket_is_narrow_and_contains_its_values(value: int) -> None:
    low, end = bounds_of(bucket_of(value))
    counted = min(value, VALUE_MAX)
    assert low <= counted < end
    assert end - low <= max(1, low // 32)


@given(VALUES)
def test_buckets_follow_one_another_without_a_gap(value: int) -> None:
    bucket = bucket_of(value)
    assert bounds_of(bucket)[1] == bounds_of(bucket + 1)[0]


@given(st.lists(VALUES, min_size=1, max_size=300))
def test_quantiles_are_those_of_the_sorted_values(values: list[int]) -> None:
    distribution = Distribution()
    for value in values:
        distribution.observe(value, 1)
    ordered = sorted(min(value, VALUE_MAX) for value in values)
    for quantile, found in zip(QUANTILES, distribution.reading(1).quantiles_us, strict=True):
        exact = ordered[math.ceil(quantile * len(ordered)) - 1]
        assert exact <= found <= exact + exact / 32


@given(st.lists(VALUES, max_size=300))
def test_the_histogram_counts_exactly(values: list[int]) -> None:
    distribution = Distribution()
    for moment, value in enumerate(values):
        distribution.observe(value, moment * WINDOW_US // 7)  # the counts of several windows are added
    reading = distribution.reading(len(values) * WINDOW_US // 7)
    for exponent, count in zip(HISTOGRAM_EXPONENTS, reading.at_most, strict=True):
        assert count == sum(value < 1 << exponent for value in values)
    assert (reading.total, reading.sum_us) == (len(values), sum(values))


def test_quantiles_forget_what_is_older_than_two_windows() -> None:
    distribution = Distribution()
    distribution.observe(1_000_000, 0)
    distribution.observe(10, WINDOW_US)
    assert distribution.reading(WINDOW_US + 1).quantiles_us[-1] >= 1_000_000
    distribution.observe(10, 2 * WINDOW_US)
    assert distribution.reading(2 * WINDOW_US).quantiles_us[-1] == 10
    assert distribution.reading(2 * WINDOW_US).at_most[-1] == 3, "the histogram forgets nothing"


def test_without_observations_for_two_windows_there_are_no_quantiles() -> None:
    distribution = Distribution()
    distribution.observe(10, 0)
    reading = distribution.reading(2 * WINDOW_US)
    assert all(math.isnan(value) for value in reading.quantiles_us)
    assert reading.total == 1


def test_memory_is_bounded_whatever_is_observed() -> None:
    distribution, chance = Distribution(), random.Random(1)
    for _ in range(50_000):
        distribution.observe(int(math.exp(chance.uniform(0, 40))), 1)
    distribution.observe(-5, 1)
    assert len(distribution.current) <= bucket_of(VALUE_MAX) + 1 <= 1024
