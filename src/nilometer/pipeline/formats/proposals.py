"""Proposes definitions for lines that no format takes. Pure.

Lines are grouped: JSON objects, separated values under a header, lines with the same head, lines with the
same words. Each group gives a definition in TOML, which is compiled and applied to all the lines before it is
proposed, so that the number of lines it takes is counted and not guessed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, Final, NamedTuple, cast

from nilometer.pipeline.formats.columns import compile_times
from nilometer.pipeline.formats.definition import FormatError, parse_formats
from nilometer.pipeline.formats.matcher import Matcher, cells_of, json_object
from nilometer.pipeline.formats.tally import shortened

# Recognises times in lines of unknown formats. Pure.


class TimeShape(NamedTuple):
    pattern: str
    """In the syntax that RE2 and Python's ``re`` share."""
    time_format: str


SHAPES: Final = (
    TimeShape(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ] ?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
        r"(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?",
        "iso8601",
    ),
    TimeShape(r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,9}", "%Y/%m/%d %H:%M:%S.%f"),
    TimeShape(r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%Y/%m/%d %H:%M:%S"),
    TimeShape(r"[0-9]{4}\.[0-9]{2}\.[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%Y.%m.%d %H:%M:%S"),
    TimeShape(
        r"[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4}", "%d/%b/%Y:%H:%M:%S %z"
    ),
    TimeShape(r"[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2}", "%d/%b/%Y:%H:%M:%S"),
    TimeShape(
        r"[0-9]{2}-[A-Z][a-z]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,9}", "%d-%b-%Y %H:%M:%S.%f"
    ),
    TimeShape(r"[0-9]{2}-[A-Z][a-z]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%d-%b-%Y %H:%M:%S"),
    TimeShape(r"[0-9]{2}\.[0-9]{2}\.[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%d.%m.%Y %H:%M:%S"),
    TimeShape(
        r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4}",
        "%a %b %e %H:%M:%S %Y",
    ),
    TimeShape(r"[A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%b %e %H:%M:%S"),
    TimeShape(r"[0-9]{2}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "%y/%m/%d %H:%M:%S"),
    TimeShape(r"[0-9]{6} [0-9]{6}\b", "%y%m%d %H%M%S"),
    TimeShape(r"1[0-9]{9}(?:\.[0-9]{1,9})?\b", "epoch_s"),
    TimeShape(r"1[0-9]{12}\b", "epoch_ms"),
    TimeShape(r"1[0-9]{15}\b", "epoch_us"),
)
"""More special shapes first. A time that could be day/month or month/day is none: it is ambiguous."""

_COMPILED: Final = [(re.compile(one.pattern), one, compile_times([one.time_format], UTC)) for one in SHAPES]


def time_at(text: str, at: int) -> tuple[TimeShape, int] | None:
    """Return the shape of the time at position ``at`` and the position after it; None if there is no time."""
    for pattern, shape, read in _COMPILED:
        found = pattern.match(text, at)
        if found is not None and read(found.group(), 0) is not None:
            return shape, found.end()
    return None


def time_format_of(values: list[str]) -> str | None:
    """Return the time format that all ``values`` have, or None."""
    for _, shape, read in _COMPILED:
        if values and all(read(value, 0) is not None for value in values):
            return shape.time_format
    return None


# The shape of a line of no known format: a pattern for its head, or a template of its words. Pure.
#
# The head of a log line has a time, a level, brackets and a name, in some order; the message follows. A line
# without such a head is described by its words, with numbers, paths and names of hosts left open.

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


# Definitions for JSON objects and for separated values of unknown columns. Pure.

COLUMNS_MAX: Final = 60
LOOKED_AT: Final = 200
SHARE_MIN: Final = 0.5
"""The share of the lines that must be of this kind."""
LEVEL_NAMES: Final = ("level", "severity", "loglevel", "lvl", "levelname")
_CELL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_. -]{0,39}")


def json_definition(lines: Sequence[str], name: str) -> str | None:
    """Return a definition with all the paths that most objects have; None if few lines are objects."""
    looked_at = lines[:LOOKED_AT]
    objects = [
        one for one in (json_object(line, line.encode("utf-8", "replace")) for line in looked_at) if one
    ]
    if len(objects) < SHARE_MIN * len(looked_at) or not objects:
        return None
    values: dict[str, list[str]] = {}
    for one in objects:
        for path, value in _scalars(one):
            values.setdefault(path, []).append(value)
    columns: dict[str, str] = {}
    for path in list(values)[:COLUMNS_MAX]:
        columns.setdefault(_column(path), path)
    rows = ["[[format]]", f"name = {json.dumps(name)}"]
    rows += _roles({column: values[path] for column, path in columns.items()})
    rows += ["", "[format.json]", *(f"{column} = {json.dumps(path)}" for column, path in columns.items())]
    return "\n".join(rows) + "\n"


def _scalars(parsed: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    for key, value in parsed.items():
        path = prefix + key
        if isinstance(value, dict) and depth < 2:
            yield from _scalars(cast("dict[str, Any]", value), f"{path}.", depth + 1)
        elif isinstance(value, str | int | float):
            yield path, str(value)


def separated_definition(lines: Sequence[str], name: str) -> str | None:
    """Return a definition for lines under a header of column names; None if there is none."""
    looked_at = list(lines[:LOOKED_AT])
    if len(looked_at) < 2:
        return None
    for separator in (",", "\t", ";", "|"):
        header = cells_of(looked_at[0], separator)
        if header is None or len(header) < 2 or not _is_header(header):
            continue
        rows = [cells for cells in (cells_of(line, separator) for line in looked_at[1:]) if cells]
        rows = [cells for cells in rows if len(cells) == len(header)]
        if len(rows) < SHARE_MIN * len(looked_at):
            continue
        names = [_column(cell.strip()) for cell in header]
        if names != [cell.strip() for cell in header] or len(set(names)) < len(names):
            continue
        values = {column: [row[number] for row in rows] for number, column in enumerate(names)}
        written = ["[[format]]", f"name = {json.dumps(name)}", f"separator = {json.dumps(separator)}"]
        return "\n".join([*written, f"columns = {json.dumps(names)}", *_roles(values)]) + "\n"
    return None


def _is_header(cells: Sequence[str]) -> bool:
    distinct = Counter(cell.strip() for cell in cells)
    return len(distinct) == len(cells) and all(_CELL_NAME.fullmatch(cell) for cell in distinct)


def _roles(values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the settings for the time and the level, as far as the values of the columns show them."""
    rows: list[str] = []
    for column, texts in values.items():
        form = time_format_of(list(texts))
        if form is not None:
            rows += [f"time = {json.dumps(column)}", f"time_format = {json.dumps(form)}"]
            break
    level = next((column for column in values if column.lower() in LEVEL_NAMES), None)
    return [*rows, *([f"level = {json.dumps(level)}"] if level else [])]


def _column(path: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", path.removeprefix("@"))[:40] or "_"
    return name if not name[0].isdigit() else f"_{name}"[:40]


LINES_MAX: Final = 5_000
"""Only so many lines are looked at."""
PROPOSALS_MAX: Final = 5
SAMPLES_MAX: Final = 3
CANDIDATES_MAX: Final = 12
TEMPLATE_LINES_MIN: Final = 2
"""A single line with its own words is no format."""


class Proposal(NamedTuple):
    """A proposed format definition, for lines that no known format matches."""

    name: str
    toml: str
    lines: int
    """How many of the lines it takes."""
    samples: list[str]


def propose(lines: Sequence[str], taken: Sequence[str] = ()) -> list[Proposal]:
    """Return definitions for ``lines``, the one that takes most first; ``taken`` are names already in use."""
    left: list[str] = [line for line in lines[:LINES_MAX] if line.strip()]
    proposals: list[Proposal] = []
    while left and len(proposals) < PROPOSALS_MAX:
        name = _free_name([*taken, *(one.name for one in proposals)])
        best = max((one for one in _candidates(left, name)), key=lambda one: len(one[1]), default=None)
        if best is None or not best[1]:
            break
        toml, matched = best
        samples = [shortened(left[number]) for number in matched[:SAMPLES_MAX]]
        proposals.append(Proposal(name, toml, len(matched), samples))
        gone = set(matched)
        left = [line for number, line in enumerate(left) if number not in gone]
    return proposals


def clusters(lines: Sequence[str], most: int = 10) -> list[tuple[int, str]]:
    """Return the most frequent templates of words of ``lines``: how many lines, and one of them."""
    first: dict[tuple[str, ...], str] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for line in lines[:LINES_MAX]:
        template = template_of(line)
        first.setdefault(template, line)
        counts[template] += 1
    return [(count, shortened(first[template])) for template, count in counts.most_common(most)]


def _candidates(lines: Sequence[str], name: str) -> Iterator[tuple[str, list[int]]]:
    """Yield definitions in TOML, each with the numbers of the lines that it takes."""
    for toml in _definitions(lines, name):
        try:
            matcher = Matcher(parse_formats(toml, "the proposal"))
        except FormatError:
            continue  # such as a pattern that is larger than RE2 allows
        yield toml, [number for number, line in enumerate(lines) if _takes(matcher, line)]


def _takes(matcher: Matcher, line: str) -> bool:
    return matcher.match_text(line).format not in ("blank", "unparsed")


def _definitions(lines: Sequence[str], name: str) -> Iterator[str]:
    for toml in (json_definition(lines, name), separated_definition(lines, name)):
        if toml is not None:
            yield toml
    heads = Counter(shape for shape in map(head_of, lines) if shape is not None)
    if heads:
        yield from (pattern_definition(shape, name) for shape, _ in heads.most_common(CANDIDATES_MAX))
        return
    templates = Counter(map(template_of, lines))
    for template, count in templates.most_common(CANDIDATES_MAX):
        if count >= TEMPLATE_LINES_MIN and any(word != "*" for word in template):
            yield pattern_definition(template_shape(template), name)


def pattern_definition(shape: Shape, name: str) -> str:
    rows = ["[[format]]", f"name = {json.dumps(name)}", f"pattern = {_literal(shape.pattern)}"]
    if shape.time_format is not None:
        rows += ['time = "time"', f"time_format = {json.dumps(shape.time_format)}"]
    if shape.has_level:
        rows.append('level = "level"')
    if shape.has_name:
        rows.append('key = "logger"')
    return "\n".join(rows) + "\n"


def _literal(text: str) -> str:
    """Return a TOML string; one in single quotes needs no escapes."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _free_name(taken: Sequence[str]) -> str:
    number = 1
    while f"mine-{number}" in taken:
        number += 1
    return f"mine-{number}"
