"""Durations in ISO 8601, up to the longest that a request can have."""

from __future__ import annotations

import pytest

from nilometer.config import DURATION_MAX_MS, parse_duration_ms
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import api, decode_request, encode_request


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("P1DT2H30M", 95_400_000),
        ("pt0.5s", 500),
        ("PT0.0001S", 0),
        ("P0D", 0),
        ("P999999999D", DURATION_MAX_MS),
    ],
)
def test_a_duration_is_a_number_of_milliseconds(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1h", "-PT1S", "P-1D", "PT1.S", "P1D2H", "P1Y"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as PT12H"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["P1000000000D", "P999999999DT1S", f"P{'9' * 400}D", f"PT{'9' * 5000}H"])
def test_a_duration_that_no_request_can_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is longer than P999999999D"):
        parse_duration_ms(text)


def test_a_request_can_have_the_longest_duration() -> None:
    request = api(ApiKey.RENEW_DELEGATION_TOKEN, 2).request(hmac=b"x", renew_period_ms=DURATION_MAX_MS)
    _, decoded = decode_request(encode_request(1, "test", request)[4:])
    assert decoded.renew_period.total_seconds() > 86_400 * 100_000, "as long as the reader can say"
