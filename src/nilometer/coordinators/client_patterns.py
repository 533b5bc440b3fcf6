"""Regular expressions that clients send, in the syntax of RE2.

RE2 matches in time linear in the text, whatever the expression, and compiles within a memory limit: an
expression that would need more is rejected like one that does not parse. So none can block a coordinator.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

PROGRAM_BYTES_MAX: Final = 1 << 20
"""The memory limit of one compiled expression. The longest topic name as an expression takes 1 % of it."""

_RE2: Final = cast(Any, re2)
PATTERN_ERRORS: Final = cast(tuple[type[Exception], ...], (_RE2.error, UnicodeEncodeError))
"""What :func:`compile_pattern` raises if an expression cannot be compiled."""


class Pattern(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> Pattern:
    options = _RE2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = PROGRAM_BYTES_MAX
    return cast(Pattern, _RE2.compile(text, options))
