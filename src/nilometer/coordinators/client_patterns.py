"""Regular expressions that clients send, in the syntax of RE2.

RE2 matches in time linear in the text, whatever the expression, and compiles within a memory limit: an
expression that would need more is rejected like one that does not parse. Linear is not cheap: with an
expression made for it a character takes up to 10 µs. The *weight* of a match says how long it may take; heavy
ones run on other threads, since RE2 releases the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

PROGRAM_BYTES_MAX: Final = 1 << 20
"""The memory limit of one compiled expression. The longest topic name as an expression takes 1 % of it."""

_RE2: Final = cast(Any, re2)
PATTERN_ERRORS: Final = cast(tuple[type[Exception], ...], (_RE2.error, UnicodeEncodeError))
"""What :func:`compile_pattern` raises if an expression cannot be compiled."""


LIGHT: Final = 2_000_000
"""The weight of a match that takes at most some 10 ms."""
HEAVIEST: Final = 2_000_000_000
"""The weight above which a match is refused: it could take more than ten seconds."""


class Pattern(Protocol):
    programsize: int
    """The number of instructions of the compiled expression."""

    def fullmatch(self, text: str) -> object | None: ...


def weight(pattern: Pattern, texts: Iterable[str]) -> int:
    """Return the weight of matching ``pattern`` against all of ``texts``: instructions times characters."""
    return pattern.programsize * sum(len(text) + 1 for text in texts)


def matching(pattern: Pattern, texts: Iterable[str]) -> list[str]:
    """Return the texts that ``pattern`` matches as a whole."""
    return [text for text in texts if pattern.fullmatch(text) is not None]


@lru_cache(maxsize=64)
def compile_pattern(text: str) -> Pattern:
    options = _RE2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = PROGRAM_BYTES_MAX
    return cast(Pattern, _RE2.compile(text, options))
