"""Filters as bounds: they leave out nothing that a filter would let pass."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from nilometer.pipeline.source.positions import OffsetRange, bounds_of, narrowed

COMPARED = {
    EqualTo: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
    In: lambda left, right: left in right,
}
numbers = st.integers(-2, 12)
filters = st.lists(
    st.builds(
        lambda kind, column, value, values: kind((column,), values if kind is In else value),
        st.sampled_from(list(COMPARED)),
        st.sampled_from(["partition", "offset"]),
        numbers,
        st.lists(numbers, min_size=1, max_size=3),
    ),
    max_size=4,
)


def passes(one, offset, partition):
    value = offset if one.attribute == ("offset",) else partition
    return COMPARED[type(one)](value, one.value)


@given(filters)
def test_what_passes_every_filter_is_still_read(given):
    ranges = [OffsetRange("t", "", partition, 1, 9) for partition in range(4)]
    left = {
        (one.partition, offset)
        for one in narrowed(ranges, bounds_of(given))
        for offset in range(one.start, one.end)
    }
    for one in ranges:
        for offset in range(one.start, one.end):
            if all(passes(part, offset, one.partition) for part in given):
                assert (one.partition, offset) in left


def test_bounds_are_as_tight_as_the_filters():
    ranges = [OffsetRange(topic, "", number, 0, 100) for topic in ("a", "b") for number in range(3)]
    given = [
        EqualTo(("topic",), "b"),
        In(("partition",), [1, 2]),
        GreaterThan(("offset",), 10),
        LessThanOrEqual(("offset",), 20),
        IsNotNull(("offset",)),
        Not(EqualTo(("offset",), 15)),
    ]
    assert narrowed(ranges, bounds_of(given)) == [
        OffsetRange("b", "", 1, 11, 21),
        OffsetRange("b", "", 2, 11, 21),
    ]


@pytest.mark.parametrize(
    ("one", "since"),
    [
        (GreaterThanOrEqual(("timestamp",), datetime(2024, 1, 1, tzinfo=UTC)), 1_704_067_200_000),
        (GreaterThan(("timestamp",), datetime(2024, 1, 1, 0, 0, 0, 999, tzinfo=UTC)), 1_704_067_200_000),
        (GreaterThanOrEqual(("timestamp",), datetime(1970, 1, 1, tzinfo=UTC)), 0),
        (GreaterThanOrEqual(("timestamp",), datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)), None),
        (LessThan(("timestamp",), datetime(2024, 1, 1, tzinfo=UTC)), None),
        (GreaterThan(("timestamp",), "2024"), None),
    ],
)
def test_a_time_bounds_from_below_only(one, since):
    assert bounds_of([one]).since_ms == since


def test_of_several_times_the_latest_bounds():
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (1970, 2024, 1950)]
    bounds = bounds_of([GreaterThan(("timestamp",), time) for time in times])
    assert bounds.since_ms == 1_704_067_200_000
