"""Subscriptions by regular expression: what is valid, what matches, and that nothing hangs."""

from __future__ import annotations

import pytest

from nilometer.groups.topics import check_topic_regex, matching_topics
from nilometer.wire.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("regex", ["orders", "orders-.*", "(a|b)+", "[[:alpha:]]+\\d?", ".*", "(?i)Orders"])
def test_valid_expressions_pass(regex: str) -> None:
    check_topic_regex(regex)


@pytest.mark.parametrize(
    "regex",
    [
        "(",
        "[",
        "a{2,1}",
        "*",
        "(?=ahead)",
        "(?<!behind)",
        "(a)\\1",
        "(a{1,1000}){1,1000}",
        "a" * 100_000,
        "lone surrogate \udc80",
    ],
)
def test_what_re2_does_not_take_is_an_invalid_regular_expression(regex: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_topic_regex(regex)
    assert refused.value.code is ErrorCode.invalid_regular_expression
    assert len(refused.value.message) < 400
    refused.value.message.encode()
    assert matching_topics(regex, ["a", "orders"]) == frozenset()


def test_the_whole_name_has_to_match() -> None:
    names = ["orders", "orders-eu", "my-orders", "Orders"]
    assert matching_topics("orders", names) == {"orders"}
    assert matching_topics("orders.*", names) == {"orders", "orders-eu"}
    assert matching_topics("orders|my-orders", names) == {"orders", "my-orders"}


@pytest.mark.parametrize("regex", ["(a+)+$", "(a|a)*b", "(.*a){20}b", "((a*)*)*b"])
def test_what_makes_backtracking_explode_is_matched_at_once(regex: str) -> None:
    """A backtracking matcher would need longer than the universe has been there for."""
    assert matching_topics(regex, ["a" * 248 + "!"]) == frozenset()
