"""The rate over windows and the token bucket, against Kafka's description of them, and a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.quotas import THROTTLE_MS_MAX, TokenBucket, WindowedRate

COUNT, LENGTH_MS = 11, 1000
STEPS = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 100_000)), min_size=1, max_size=60)
"""Pairs: milliseconds since the step before, value."""


class PlainRate:
    """Kafka's ``SampledStat``, as it is described: a list of samples, of which none is ever removed."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, int, float]] = []  # began, last event, sum

    def record(self, value: float, now_ms: int) -> None:
        if self.samples and now_ms - self.samples[-1][0] < LENGTH_MS:
            began, _, total = self.samples.pop()
            self.samples.append((began, now_ms, total + value))
        else:
            self.samples.append((now_ms, now_ms, value))

    def time_ms(self, now_ms: int) -> int:
        counted = self.counted(now_ms)
        elapsed = now_ms - min((began for began, _, _ in counted), default=now_ms)
        full = elapsed // LENGTH_MS
        return max(1, elapsed if full >= COUNT - 1 else elapsed + (COUNT - 1 - full) * LENGTH_MS)

    def counted(self, now_ms: int) -> list[tuple[int, int, float]]:
        return [each for each in self.samples if now_ms - each[1] < COUNT * LENGTH_MS]

    def per_second(self, now_ms: int) -> float:
        return sum(total for _, _, total in self.counted(now_ms)) / (self.time_ms(now_ms) / 1000)


@given(STEPS)
def test_the_rate_is_that_of_the_plain_model(steps: list[tuple[int, int]]) -> None:
    rate, model, now_ms = WindowedRate(COUNT, LENGTH_MS), PlainRate(), 5_000
    for pause_ms, value in steps:
        now_ms += pause_ms
        rate.record(value, now_ms)
        model.record(value, now_ms)
        assert rate.per_second(now_ms) == pytest.approx(model.per_second(now_ms))
    assert rate.per_second(now_ms + 7_500) == pytest.approx(model.per_second(now_ms + 7_500))


@given(STEPS, st.integers(1, 50_000))
def test_a_client_is_throttled_as_long_as_it_is_above_its_limit(
    steps: list[tuple[int, int]], limit: int
) -> None:
    rate, model, now_ms = WindowedRate(COUNT, LENGTH_MS), PlainRate(), 0
    for pause_ms, value in steps:
        now_ms += pause_ms
        rate.record(value, now_ms)
        model.record(value, now_ms)
        excess = rate.per_second(now_ms) - limit
        throttle_ms = rate.throttle_ms(limit, now_ms)
        expected = max(0, excess) / limit * model.time_ms(now_ms)
        assert throttle_ms == pytest.approx(expected, abs=1)


@given(st.integers(1, 10_000), st.lists(st.integers(1, 200_000), min_size=30, max_size=60))
def test_a_client_that_waits_as_it_is_told_cannot_send_twice_its_rate(limit: int, values: list[int]) -> None:
    """It can send more than its rate: a value that is throttled until its window is dropped is forgotten."""
    rate, now_ms, sent = WindowedRate(COUNT, LENGTH_MS), 0, 0
    for value in values:
        rate.record(value, now_ms)
        sent += value
        now_ms += rate.throttle_ms(limit, now_ms)
        assert sent <= 2 * limit * (now_ms / 1000 + COUNT) + value


def test_the_first_values_are_counted_over_all_full_windows() -> None:
    rate = WindowedRate(COUNT, LENGTH_MS)
    rate.record(5_000, 0)
    assert rate.per_second(0) == 500
    assert rate.throttle_ms(500, 0) == 0
    rate.record(5_000, 0)
    assert rate.throttle_ms(500, 0) == 10_000  # twice the limit over ten seconds: ten more


def test_what_is_taken_back_does_not_count() -> None:
    rate = WindowedRate(COUNT, LENGTH_MS)
    rate.record(1_000, 0)
    rate.record(90_000, 100)
    rate.record(-90_000, 100)
    assert rate.throttle_ms(100, 100) == 0


def test_old_windows_are_dropped() -> None:
    rate = WindowedRate(COUNT, LENGTH_MS)
    rate.record(1_000_000, 0)
    assert not rate.is_idle(1.0, 10_999)
    assert rate.is_idle(1.0, 11_000)
    assert rate.per_second(11_000) == 0


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(11, 1000, 2.0, now_ms=0)
    bucket.take(22, 2.0, 0)
    assert bucket.throttle_ms(2.0, 0) == 0
    bucket.take(6, 2.0, 0)
    assert bucket.throttle_ms(2.0, 0) == 3_000
    assert bucket.throttle_ms(2.0, 3_000) == 0
    assert not bucket.is_idle(2.0, 3_000)
    assert bucket.is_idle(2.0, 14_000)


@given(STEPS, st.floats(0.1, 100))
def test_a_bucket_has_never_more_than_its_burst(steps: list[tuple[int, int]], rate: float) -> None:
    bucket, now_ms, taken = TokenBucket(COUNT, LENGTH_MS, rate, 0), 0, 0.0
    for pause_ms, tokens in steps:
        now_ms += pause_ms
        if bucket.throttle_ms(rate, now_ms) == 0:
            bucket.take(tokens, rate, now_ms)
            taken += tokens
            assert taken <= rate * (now_ms / 1000 + COUNT) + tokens + 1e-6


@pytest.mark.parametrize("limit", [1.0, 5e-324])
def test_a_throttle_time_fits_its_field(limit: float) -> None:
    rate = WindowedRate(COUNT, LENGTH_MS)
    rate.record(100 << 20, 0)
    assert rate.throttle_ms(limit, 0) == THROTTLE_MS_MAX
    bucket = TokenBucket(COUNT, LENGTH_MS, limit, 0)
    bucket.take(100 << 20, limit, 0)
    assert bucket.throttle_ms(limit, 0) == THROTTLE_MS_MAX
