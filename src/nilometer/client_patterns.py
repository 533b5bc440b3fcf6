"""Regular expressions that clients send, in the syntax of RE2.

RE2 matches in time linear in the text, whatever the expression, and compiles within a memory limit: an
expression that would need more is rejected like one that does not parse. Linear is not cheap: with an
expression made for it a character takes up to 10 µs. The *weight* of a match says how long it may take; heavy
ones run on other threads, since RE2 releases the interpreter's lock.

It keeps the lock while it compiles, which takes time by the square of what an expression repeats optionally
(``[a-z]{1,1000}`` thirty times: two seconds), and memory for each class of Unicode that it names (250 MB for
thousands). So an expression that has many of those must be small, or is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

PROGRAM_BYTES_MAX: Final = 1 << 20
"""The memory limit of one compiled expression. The longest topic name as an expression takes 1 % of it."""
SMALL_PROGRAM_BYTES_MAX: Final = 1 << 16
"""That of an expression with more than ``OPTIONAL_MAX`` optional repetitions: so it takes some 10 ms."""
OPTIONAL_MAX: Final = 1_000
"""Of ``?``; a repetition ``{…}`` may stand for as many: RE2 takes no more."""
UNICODE_CLASSES_MAX: Final = 16
FOLDED_MAX: Final = 8_000
"""The characters of an expression that ignores case: each of them is a class."""

_RE2: Final = cast(Any, re2)
PATTERN_ERRORS: Final = cast(tuple[type[Exception], ...], (_RE2.error, UnicodeEncodeError))
"""What :func:`compile_pattern` raises if an expression cannot be compiled."""


LIGHT: Final = 2_000_000
"""The weight of a match that takes at most some 10 ms."""
HEAVIEST: Final = 2_000_000_000
"""The weight above which a match is refused: it could take more than ten seconds."""


USUAL_EFFORT: Final = 30
LONG_EFFORT: Final = 10_000
FEW_OPTIONAL: Final = 50


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
    """Compile an expression, within some 10 ms. Raises one of ``PATTERN_ERRORS``."""
    if text.count("\\p") + text.count("\\P") > UNICODE_CLASSES_MAX:
        raise _RE2.error(f"more than {UNICODE_CLASSES_MAX} classes of Unicode")
    if len(text) > FOLDED_MAX and _IGNORES_CASE.search(text):
        raise _RE2.error(f"more than {FOLDED_MAX} characters that ignore case")
    options = _RE2.Options()
    options.log_errors = False
    options.never_capture = True
    is_small = _optional_repetitions(text) > OPTIONAL_MAX
    options.max_mem = SMALL_PROGRAM_BYTES_MAX if is_small else PROGRAM_BYTES_MAX
    return cast(Pattern, _RE2.compile(text, options))


_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")
_REPETITION: Final = re.compile(r"\{(\d+)(,?)(\d*)\}")


def _optional_repetitions(text: str) -> int:
    """Return at most how many optional repetitions the expression has, within others too."""
    count = text.count("?") - text.count("(?")
    exact = 0
    for least, comma, most in _REPETITION.findall(text):
        if comma and least != most:
            count += OPTIONAL_MAX
        else:
            exact += 1
    return count + OPTIONAL_MAX * exact if count else 0


def compile_effort(text: str) -> int:
    """Return about how many microseconds it takes at most to compile a usual expression; of others, more than
    ``LONG_EFFORT``."""
    unusual = "{" in text or "\\p" in text or "\\P" in text or text.count("?") > FEW_OPTIONAL
    return USUAL_EFFORT + len(text) + (LONG_EFFORT if unusual else 0)
