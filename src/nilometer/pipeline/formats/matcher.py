"""The matcher: definitions -> one function from a line to what it is. Pure.

Invariants: the result depends on the line, its source, and (for times without a year) the record's timestamp,
and on nothing that was read before, so that a repeated batch gives the same rows; no line takes more time
than its length allows, whatever it contains.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import tzinfo
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from nilometer.pipeline.formats.columns import INT64_MAX, Columns, Line, Value
from nilometer.pipeline.formats.definition import FormatDefinition, FormatError, Paths, Pattern, texts

# Takes a line apart: by pattern, as JSON, as logfmt, or as separated values. Pure.
#
# A reader gets the line as text and as UTF-8 and returns the columns it found, or None if the line is not of
# its kind. Each is linear in the line's length.

Reader = Callable[[str, bytes], "dict[str, Value] | None"]
LOGFMT_PAIRS_MIN: Final = 2
"""A line with one ``=`` in it may be anything."""

# No alternative of this pattern overlaps another, and the quoted part does not give back what it took.
_PAIR: Final = re.compile(r'([^\s="]+)=(?:"((?:[^"\\]|\\.)*+)"|([^\s"=]*+))(?:\s++|\Z)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def reader_of(definition: FormatDefinition) -> Reader:
    """Return the reader of a checked definition."""
    if definition.json is not None:
        return _json_reader(
            definition.json, {column for column, kind in definition.types.items() if kind == "bytes"}
        )
    if definition.logfmt is not None:
        return _logfmt_reader(definition.logfmt)
    if definition.columns is not None:
        return _separated_reader(definition.columns, definition.separator)
    return _pattern_reader([Pattern(one) for one in texts(definition.pattern)])


def first_bytes_of(definition: FormatDefinition) -> frozenset[int]:
    """Return the first bytes of the lines that the format may take."""
    if definition.pattern is None:
        return frozenset(range(256))
    return frozenset(byte for one in texts(definition.pattern) for byte in _first_bytes(Pattern(one)))


def _first_bytes(pattern: Pattern) -> range:
    least, most = pattern.first_bytes()
    return range(least, most + 1)


def _pattern_reader(patterns: Sequence[Pattern]) -> Reader:
    by_first = [[one for one in patterns if byte in _first_bytes(one)] for byte in range(256)]

    def read(_: str, line: bytes) -> dict[str, Value] | None:
        for pattern in by_first[line[0]]:
            found = pattern.match_whole(line)
            if found is not None:
                return cast("dict[str, Value]", found)
        return None

    return read


def _json_reader(mapping: Mapping[str, Paths], of_bytes: AbstractSet[str] = frozenset()) -> Reader:
    paths = {column: [(path, path.split(".")) for path in texts(given)] for column, given in mapping.items()}

    def read(text: str, line: bytes) -> dict[str, Value] | None:
        parsed = json_object(text, line)
        if parsed is None:
            return None
        found: dict[str, Value] = {}
        for column, alternatives in paths.items():
            for path, steps in alternatives:
                given = parsed[path] if path in parsed else _at(parsed, steps)
                value = _text_of_bytes(given) if column in of_bytes else _scalar(given)
                if value is not None:
                    found[column] = value
                    break
        return found or None

    return read


def json_object(text: str, line: bytes) -> dict[str, Any] | None:
    """Return the object that the line is; None if it is none."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return cast("dict[str, Any]", msgspec.json.decode(line))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _at(parsed: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if not isinstance(parsed, dict) or step not in parsed:
            return None
        parsed = cast("dict[str, Any]", parsed)[step]
    return parsed


def _scalar(value: Any) -> Value | None:
    """Return a JSON value as a column's value: numbers as numbers, arrays and objects as JSON."""
    if isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return value if abs(value) <= INT64_MAX else float(value)
    return None if value is None else msgspec.json.encode(value).decode()


def _text_of_bytes(value: Any) -> Value | None:
    """Return the text of an array of bytes, as journald writes what is no UTF-8; other values as they are."""
    if not isinstance(value, list):
        return _scalar(value)
    try:
        return bytes(cast("list[int]", value)).decode(errors="replace")
    except (TypeError, ValueError):  # an array of something else
        return _scalar(cast("list[Any]", value))


def logfmt_pairs(text: str) -> dict[str, str] | None:
    """Return the pairs of a line that consists of nothing else; None for other lines."""
    found: dict[str, str] = {}
    at, end = len(text) - len(text.lstrip()), len(text)
    while at < end:
        pair = _PAIR.match(text, at)
        if pair is None:
            return None
        key, quoted, plain = pair.groups()
        found[key] = _ESCAPED.sub(r"\1", quoted) if quoted is not None else plain
        at = pair.end()
    return found if len(found) >= LOGFMT_PAIRS_MIN else None


def _logfmt_reader(mapping: Mapping[str, Paths]) -> Reader:
    def read(text: str, _: bytes) -> dict[str, Value] | None:
        if "=" not in text:
            return None
        pairs = logfmt_pairs(text)
        if pairs is None:
            return None
        found: dict[str, Value] = {}
        for column, given in mapping.items():
            key = next((one for one in texts(given) if one in pairs), None)
            if key is not None:
                found[column] = pairs[key]
        return found or None

    return read


def cells_of(text: str, separator: str) -> list[str] | None:
    """Return the cells of a line of separated values; None if a quote is not closed or a cell is too long."""
    if separator not in text:
        return [text]
    try:
        rows = list(csv.reader([text], delimiter=separator, strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None


def _separated_reader(columns: Sequence[str], separator: str) -> Reader:
    names = list(columns)

    def read(text: str, _: bytes) -> dict[str, Value] | None:
        if text.count(separator) < len(names) - 1:
            return None
        cells = cells_of(text, separator)
        if cells is None or len(cells) != len(names):
            return None
        if [cell.strip() for cell in cells] == names:
            return {}
        return {name: cell for name, cell in zip(names, cells, strict=True) if cell}

    return read


BLANK: Final = Line("blank")
UNPARSED: Final = Line("unparsed")
HEADER_LABEL: Final = "header"
"""The label of a line with the names of columns."""
LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is of no format. It is kept whole where lines are kept."""
_SOURCES_MAX: Final = 10_000


class _Compiled(NamedTuple):
    definition: FormatDefinition
    read: Reader
    columns: Columns
    first: frozenset[int]


class Matcher:
    """Finds the first of some formats that fits a line."""

    def __init__(self, definitions: Sequence[FormatDefinition], timezone: str = "UTC") -> None:
        """Compile the definitions; times without a zone are in ``timezone``. Raises FormatError."""
        zone = _zone(timezone)
        self.definitions = tuple(definitions)
        self._compiled = [
            _Compiled(one, reader_of(one), Columns(one, zone), first_bytes_of(one)) for one in definitions
        ]
        self._of_anywhere = _by_first_byte([one for one in self._compiled if not one.definition.files])
        self._has_files = any(one.files for one in definitions)
        self._by_source: dict[str, list[list[_Compiled]]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the formats, in the order in which they are tried."""
        return list(dict.fromkeys(one.name for one in self.definitions))

    def match(self, line: bytes, source: str = "", recorded_us: int = 0) -> Line:
        """Return what ``line`` is. ``source`` is the path of its file, if known; ``recorded_us`` the time at
        which it was recorded, from which a time without a year gets one."""
        return self.match_text(text_of(line), source, recorded_us)

    def match_text(self, text: str, source: str = "", recorded_us: int = 0) -> Line:
        """Return what a line, decoded by ``text_of``, is."""
        if not text.strip(" "):
            return BLANK
        line = text.encode("utf-8", "replace")
        if len(line) > LINE_BYTES_MAX:
            return UNPARSED
        for compiled in self._candidates(source)[line[0]]:
            found = compiled.read(text, line)
            if found is None:
                continue
            if not found and compiled.definition.columns is not None:
                return Line(compiled.definition.name, label=HEADER_LABEL)
            fitted = compiled.columns.line(found, recorded_us)
            if fitted is not None:
                return fitted
        return UNPARSED

    def _candidates(self, source: str) -> list[list[_Compiled]]:
        """Return, by first byte, the formats that are tried for lines of this file."""
        if not self._has_files or not source:
            return self._of_anywhere
        known = self._by_source.get(source)
        if known is None:
            if len(self._by_source) >= _SOURCES_MAX:
                self._by_source.clear()
            known = _by_first_byte([one for one in self._compiled if _takes(one.definition, source)])
            self._by_source[source] = known
        return known


def text_of(line: bytes) -> str:
    """Decode a line: what is not UTF-8 becomes U+FFFD, and LF, CRLF or CR at the end is dropped."""
    return line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


def _takes(definition: FormatDefinition, source: str) -> bool:
    return not definition.files or any(fnmatchcase(source, one) for one in definition.files)


def _by_first_byte(compiled: Sequence[_Compiled]) -> list[list[_Compiled]]:
    return [[one for one in compiled if byte in one.first] for byte in range(256)]


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise FormatError(f"there is no time zone {name!r}; examples are UTC and Europe/Zurich") from None
