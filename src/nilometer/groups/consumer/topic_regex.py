"""Subscriptions by regular expression: the syntax of RE2, matched against whole topic names.

RE2 matches in time linear in the name, whatever the expression, and compiles within a memory limit: an
expression that would need more is rejected like one that does not parse. So none can block a coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

from nilometer.wire.errors import ErrorCode, KafkaError

PROGRAM_BYTES_MAX: Final = 1 << 20
"""The memory limit of one compiled expression. The longest topic name as an expression takes 1 % of it."""

_RE2: Final = cast(Any, re2)
_REFUSALS: Final = cast(tuple[type[Exception], ...], (_RE2.error, UnicodeEncodeError))


class _Pattern(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


def check_topic_regex(regex: str) -> None:
    """Raise KafkaError (INVALID_REGULAR_EXPRESSION) if the expression cannot be compiled."""
    try:
        _compiled(regex)
    except _REFUSALS as error:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{_shown(regex)}` is not a valid regular expression: {_reason(error)}.",
        ) from None


def matching_topics(regex: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that the expression matches as a whole; none if it cannot be compiled."""
    try:
        pattern = _compiled(regex)
    except _REFUSALS:
        # Another implementation may have accepted it as coordinator: it must not make this one fail.
        return frozenset()
    return frozenset(name for name in names if pattern.fullmatch(name) is not None)


@lru_cache(maxsize=256)
def _compiled(regex: str) -> _Pattern:
    options = _RE2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = PROGRAM_BYTES_MAX
    return cast(_Pattern, _RE2.compile(regex, options))


def _reason(error: Exception) -> str:
    argument: object = error.args[0] if error.args else error
    return argument.decode(errors="replace") if isinstance(argument, bytes) else str(argument)


def _shown(regex: str) -> str:
    shown = regex.encode(errors="backslashreplace").decode()
    return shown if len(shown) <= 100 else f"{shown[:100]}…"
