"""Takes a line apart: by pattern, as JSON, as logfmt, or as separated values. Pure.

A reader gets the line as text and as UTF-8 and returns the columns it found, or None if the line is not of
its kind. Each is linear in the line's length.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

import msgspec

from nilometer.pipeline.formats.columns import INT64_MAX, Value
from nilometer.pipeline.formats.definition import FormatDefinition, Paths, texts
from nilometer.pipeline.formats.patterns import Pattern

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
