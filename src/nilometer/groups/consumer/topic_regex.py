"""Subscriptions by regular expression: the syntax of RE2, matched against whole topic names."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nilometer.coordinators.client_patterns import HEAVIEST, PATTERN_ERRORS, compile_pattern, matching, weight
from nilometer.wire.errors import ErrorCode, KafkaError


def check_topic_regex(regex: str, names: Iterable[str] = ()) -> None:
    """Raise KafkaError (INVALID_REGULAR_EXPRESSION) if the expression cannot be compiled, or if it would take
    too long to match ``names``."""
    try:
        if weight(compile_pattern(regex), names) > HEAVIEST:
            raise KafkaError(
                ErrorCode.invalid_regular_expression,
                f"SubscribedTopicRegex `{_shown(regex)}` takes too long to match against all topics.",
            )
    except PATTERN_ERRORS as error:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{_shown(regex)}` is not a valid regular expression: {_reason(error)}.",
        ) from None


def match_weight(regex: str, names: Collection[str]) -> int:
    """Return the weight (:func:`~nilometer.coordinators.client_patterns.weight`) of matching the names; 0 if
    the expression cannot be compiled."""
    try:
        return weight(compile_pattern(regex), names)
    except PATTERN_ERRORS:
        return 0


def matching_topics(regex: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that the expression matches as a whole; none if it cannot be compiled."""
    try:
        pattern = compile_pattern(regex)
    except PATTERN_ERRORS:
        # Another implementation may have accepted it as coordinator: it must not make this one fail.
        return frozenset()
    return frozenset(matching(pattern, names))


def _reason(error: Exception) -> str:
    argument: object = error.args[0] if error.args else error
    return argument.decode(errors="replace") if isinstance(argument, bytes) else str(argument)


def _shown(regex: str) -> str:
    shown = regex.encode(errors="backslashreplace").decode()
    return shown if len(shown) <= 100 else f"{shown[:100]}…"
