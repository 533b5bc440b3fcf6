"""Subscriptions by regular expression: what is valid, what matches, and that nothing hangs."""

from __future__ import annotations

import pytest

from nilometer.groups.topics import check_topic_regex, matching_topics
from nilometer.wire.errors import ErrorCode, KafkaError

LARGE = [
    "|".join(f"orders-of-customer-{number:04}.*" for number in range(1_000)),
    "|".join(f"(?:log-[0-9]{{4}}-{number})" for number in range(1_000)),
    "a?" * 1_000,
    "[a-z]{1,1000}",
    r"\pL" * 16,
    r"(\w+-){1,50}\d{4}",
]
"""They take little to compile: one that repeats optionally took 2 s, thousands of classes 250 MB."""


@pytest.mark.parametrize("regex", LARGE, ids=lambda regex: regex[:20])
def test_large_expressions_pass_that_are_compiled_at_once(regex: str) -> None:
    check_topic_regex(regex)


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
        "[a-z]{1,1000}" * 30,
        "a?" * 10_000,
        "((a?){1000})" * 10,
        "(?i)" + "k" * 10_000,
        r"\pL" * 17,
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
