"""Patterns in RE2's syntax, whose time is linear in the line: no pattern and no line can make it explode.

RE2 has no back-references and no look-ahead; its ``.`` matches every character here.
"""

from __future__ import annotations

from typing import Any, Final, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

_RE2: Final = cast(Any, re2)
PATTERN_CHARS_MAX: Final = 10_000


class PatternError(ValueError):
    """The pattern is no pattern of RE2; the message says why."""


class Pattern:
    """A compiled pattern. Lines are UTF-8."""

    def __init__(self, text: str) -> None:
        """Compile ``text``. Raises PatternError."""
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"it is longer than {PATTERN_CHARS_MAX:,} characters")
        options = _RE2.Options()
        options.dot_nl = True
        options.log_errors = False
        try:
            self._compiled = _RE2.compile(text, options)
        except _RE2.error as error:
            raise PatternError(_reason(error)) from None
        groups: dict[str, int] = self._compiled.groupindex
        self.names = tuple(sorted(groups, key=groups.__getitem__))

    def first_bytes(self) -> tuple[int, int]:
        """Return the smallest and the largest first byte that a matching line may have."""
        try:
            least, most = cast("tuple[bytes, bytes]", self._compiled.possiblematchrange(1))
        except _RE2.error:
            return 0, 255
        return (least[0] if least else 0), (most[0] if most else 255)

    def match_whole(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups that took part in a match of the whole line; None if there is none."""
        found: Any = self._compiled.fullmatch(line)
        if found is None:
            return None
        groups: dict[str, bytes | None] = found.groupdict()
        return {name: value.decode("utf-8", "replace") for name, value in groups.items() if value is not None}

    def search(self, text: str) -> str | None:
        """Return the first group (the whole match without groups) of a match anywhere; None without one."""
        found: Any = self._compiled.search(text.encode("utf-8", "replace"))
        if found is None:
            return None
        value: bytes | None = found.group(1) if self._compiled.groups else found.group(0)
        return (value or b"").decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    given: object = error.args[0] if error.args else error
    said = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
    if "(?=" in said or "(?!" in said or "(?<" in said:
        return f"{said} (RE2 has no look-ahead and no look-behind)"
    if said.startswith("invalid escape sequence") and said[-1:].isdigit():
        return f"{said} (RE2 has no back-references)"
    return said
