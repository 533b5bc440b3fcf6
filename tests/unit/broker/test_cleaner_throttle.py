"""``log.cleaner.io.max.bytes.per.second``: how long cleaners wait so that they stay below it. Times in ms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.broker.cleaning import BURST_MS, IDLE_LAG_MS, WAIT_MS_MAX, CleanerThrottle, rest_ms

RATE = 1_000_000
"""Bytes a second: 1,000 a millisecond."""


def test_what_exceeds_the_rate_is_waited_for() -> None:
    throttle = CleanerThrottle(RATE, 0)
    assert throttle.wait_ms(5_000, 0) == 5
    assert throttle.wait_ms(5_000, 0) == 10, "the second comes behind the first"
    assert throttle.wait_ms(5_000, 12) == 3, "time that passes counts"


def test_time_without_work_is_saved_for_a_short_burst_only() -> None:
    throttle = CleanerThrottle(RATE, 0)
    burst = BURST_MS * 1_000
    assert throttle.wait_ms(burst, 3_600_000) == 0
    assert throttle.wait_ms(1_000, 3_600_000) == 1


def test_one_wait_is_bounded_and_the_rest_of_it_is_waited_for_later() -> None:
    throttle = CleanerThrottle(RATE, 0)
    assert throttle.wait_ms(RATE * 100, 0) == WAIT_MS_MAX
    assert throttle.wait_ms(0, WAIT_MS_MAX) == 100_000 - WAIT_MS_MAX


def test_without_a_limit_nothing_is_waited_for() -> None:
    throttle = CleanerThrottle(1.7976931348623157e308, 0)
    assert throttle.wait_ms(2**40, 0) == pytest.approx(0)


@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 500)), max_size=50))
def test_cleaners_that_wait_stay_below_the_rate(work: list[tuple[int, int]]) -> None:
    """Bytes, and how long the cleaner was busy otherwise before it asked."""
    throttle, now_ms, total = CleanerThrottle(RATE, 0), 0.0, 0
    for byte_count, busy_ms in work:
        now_ms += busy_ms
        total += byte_count
        now_ms += throttle.wait_ms(byte_count, int(now_ms) + (now_ms > int(now_ms)))
        assert total <= (now_ms + BURST_MS + len(work)) * RATE / 1_000


def test_a_cleaner_rests_the_longer_the_later_the_event_loop_notices_the_end_of_its_slice() -> None:
    assert rest_ms(40, 0) == rest_ms(40, IDLE_LAG_MS) == 4
    assert rest_ms(40, IDLE_LAG_MS + 2) == 12
    assert rest_ms(40, 100) == 20


def test_a_cleaner_does_not_rest_for_a_disk_that_hung() -> None:
    assert rest_ms(15_000, 0) == rest_ms(15_000, 10_000) == 250
