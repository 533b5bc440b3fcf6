"""The shape of a line of no known format: a pattern for its head, or a template of its words. Pure.

The head of a log line has a time, a level, brackets and a name, in some order; the message follows. A line
without such a head is described by its words, with numbers, paths and names of hosts left open.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from nilometer.pipeline.formats.time_shapes import time_at

CHARS_MAX: Final = 1_000
"""Only the beginning of a line is looked at."""
PARTS_MAX: Final = 16
WORDS_MAX: Final = 30


class Shape(NamedTuple):
    pattern: str
    time_format: str | None = None
    has_level: bool = False
    has_name: bool = False


_LEVEL: Final = re.compile(
    r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERR|ERROR|CRIT|CRITICAL|ALERT|EMERG|FATAL|SEVERE|LOG)(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]+)?(?![0-9A-Za-z])")
_NUMBER: Final = re.compile(r"[0-9]+(?![0-9A-Za-z_.:])")
_PAIR: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,30})=([^ \t\"]*)(?=[ \t]|$)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.$/@-]*:(?= |$)")
_BLANKS: Final = re.compile(r"[ \t]+")
_BRACKETS: Final = {"[": (r"\[", "]", r"[^\]]*"), "(": (r"\(", ")", r"[^)]*"), "<": ("<", ">", "[^>]*")}
_SEPARATORS: Final = "|-,;:*#"


class _Head:
    """Reads the head of one line, part by part."""

    def __init__(self, text: str) -> None:
        self.text = text[:CHARS_MAX]
        self.at = 0
        self.parts: list[str] = []
        self.names: set[str] = set()
        self.time_format: str | None = None
        self.is_over = False

    def group(self, name: str, pattern: str) -> None:
        base, number = name, 2
        while name in self.names:
            name, number = f"{base}{number}", number + 1
        self.names.add(name)
        self.parts.append(f"(?P<{name}>{pattern})")

    def step(self) -> None:
        """Read one part; at the first free word, the message begins and the head is over."""
        for part in (self._blanks, self._time, self._level, self._bracket, self._value, self._name):
            if part():
                return
        if self.text[self.at] in _SEPARATORS:
            self.parts.append(re.escape(self.text[self.at]))
            self.at += 1
            return
        self.is_over = True

    def _blanks(self) -> bool:
        found = _BLANKS.match(self.text, self.at)
        if found is not None:
            self.parts.append(r"\s+")
            self.at = found.end()
        return found is not None

    def _time(self) -> bool:
        found = time_at(self.text, self.at) if self.time_format is None else None
        if found is None:
            return False
        shape, self.at = found
        self.time_format = shape.time_format
        self.group("time", shape.pattern)
        return True

    def _level(self) -> bool:
        found = _LEVEL.match(self.text, self.at) if "level" not in self.names else None
        if found is None:
            return False
        self.group("level", "[A-Za-z]+")
        self.at = found.end()
        return True

    def _bracket(self) -> bool:
        """Take what is in brackets as one column, unless it begins with the time or the level."""
        if self.text[self.at] not in _BRACKETS:
            return False
        opened, closing, inner = _BRACKETS[self.text[self.at]]
        end = self.text.find(closing, self.at)
        if end < 0:
            return False
        begins = time_at(self.text, self.at + 1) if self.time_format is None else None
        level = _LEVEL.match(self.text, self.at + 1) if "level" not in self.names else None
        self.parts.append(opened)
        self.at += 1
        if (begins is None or begins[1] != end) and (level is None or level.end() != end):
            self.group("field", inner)
            self.at = end
        else:
            _ = self._time() or self._level()
        self.parts.append(re.escape(closing))
        self.at = end + 1
        return True

    def _value(self) -> bool:
        for pattern, name, written in (
            (_ADDRESS, "host", r"[0-9.:]+"),
            (_NUMBER, "number", "[0-9]+"),
        ):
            found = pattern.match(self.text, self.at)
            if found is not None:
                self.group(name, written)
                self.at = found.end()
                return True
        pair = _PAIR.match(self.text, self.at)
        if pair is None:
            return False
        self.parts.append(f"{pair.group(1)}=")
        self.group(pair.group(1), r"[^ \t]*")
        self.at = pair.end()
        return True

    def _name(self) -> bool:
        """Take ``name: `` as the logger; nothing before the time or the level is one."""
        found = _NAME.match(self.text, self.at) if "logger" not in self.names and self.names else None
        if found is None:
            return False
        self.group("logger", "[^ :]+")
        self.parts.append(":")
        self.at = found.end()
        return True


def head_of(text: str) -> Shape | None:
    """Return the shape of a line whose head has a time or a level; None for others."""
    head = _Head(text)
    while head.at < len(head.text) and not head.is_over and len(head.parts) < PARTS_MAX:
        head.step()
    if head.time_format is None and "level" not in head.names:
        return None
    if head.parts and head.parts[-1] == r"\s+":
        head.parts[-1] = r"\s*"
    head.group("message", ".*")
    return Shape("".join(head.parts), head.time_format, "level" in head.names, "logger" in head.names)


_OPEN: Final = re.compile(r"[0-9/\\@]|^[\"'(\[<].*[\"')\]>][,;:.]?$")
"""Matches words that differ from line to line: with digits, paths, addresses, in quotes."""


def template_of(text: str) -> tuple[str, ...]:
    """Return the words of a line, with ``*`` for those that differ from line to line."""
    words = text[:CHARS_MAX].split()[:WORDS_MAX]
    return tuple("*" if _OPEN.search(word) else word for word in words)


def template_shape(template: tuple[str, ...]) -> Shape:
    """Return the pattern for lines of a template."""
    parts: list[str] = []
    for number, word in enumerate(template, 1):
        parts.append(f"(?P<word{number}>[^ \\t]+)" if word == "*" else re.escape(word).replace("\\ ", " "))
    tail = r".*" if len(template) >= WORDS_MAX else r"\s*"
    return Shape(r"\s*" + r"\s+".join(parts) + tail)
