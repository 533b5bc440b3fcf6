"""The records of lines that `nilometer produce` reads: plain lines, and JSON lines. Pure.

A JSON line has the form that ``nilometer consume --json`` prints, so a topic can be copied with its keys,
headers, timestamps and nulls; the fields that only a broker can set are ignored.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, cast

Headers = tuple[tuple[str, bytes | None], ...]
TIMESTAMP_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1

_DECODER = json.JSONDecoder()
_OF_THE_BROKER = ("topic", "offset", "timestamp_type", "leader_epoch")
_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")


class BadInput(ValueError):
    """A line or file that is no record; the message says why."""


class InputRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None
    """In milliseconds; None: the time at which it is sent."""


@dataclass(frozen=True, slots=True)
class PlainLines:
    """How a line is a record: the key before a separator, and the text that stands for null."""

    separator: bytes | None = None
    null_marker: bytes | None = None
    key: bytes | None = None
    """The key of every record."""

    def record(self, line: bytes) -> InputRecord:
        """Raises BadInput for a line without the separator."""
        key, value = self.key, line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise BadInput(f"no key: {os.fsdecode(self.separator)!r} is not in it")
        return InputRecord(self._or_null(key), self._or_null(value))

    def _or_null(self, text: bytes | None) -> bytes | None:
        return None if text is not None and text == self.null_marker else text


def json_record(line: bytes) -> InputRecord:
    """Return the record of a JSON object with the fields of ``_FIELDS``; ``value`` is required.

    A value or key that is no string is written as its text in the line, byte for byte: 1.10 stays 1.10. Null
    is null. Raises BadInput.
    """
    try:
        text = line.decode(json.detect_encoding(line), "surrogatepass")
        document: Any = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"it is not JSON: {error}") from None
    if not isinstance(document, _Object):
        raise BadInput("it is not a JSON object")
    document.check("it")
    for name in document:
        if name not in _FIELDS and name not in _OF_THE_BROKER:
            raise BadInput(f"{name!r} is none of the fields {', '.join(_FIELDS)}")
    if "value" not in document and "value_base64" not in document:
        raise BadInput('it has no "value" (null makes a tombstone)')
    return InputRecord(
        _bytes(document, text, "key"),
        _bytes(document, text, "value"),
        _headers(document.get("headers"), text),
        _number(document, "partition", PARTITION_MAX),
        _number(document, "timestamp", TIMESTAMP_MAX),
    )


class _Object(dict[str, Any]):
    """A JSON object that knows whether a name was repeated: then all but the last value are not in it."""

    repeated: str | None = None

    def check(self, what: str) -> None:
        """Raise BadInput for a repeated name."""
        if self.repeated is not None:
            raise BadInput(f'{what} has "{self.repeated}" twice')


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        found.repeated = next(name for name in names if names.count(name) > 1)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _bytes(fields: Mapping[str, Any], line: str, name: str, *below: str | int) -> bytes | None:
    """Return the bytes of a field. ``below``: where ``fields`` are in the line."""
    encoded = fields.get(f"{name}_base64")
    if encoded is None:
        return _text(fields.get(name), line, *below, name)
    if name in fields:
        raise BadInput(f'it has both "{name}" and "{name}_base64"')
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise BadInput(f'"{name}_base64" is not base64: {error}') from None


def _text(value: Any, line: str, *path: str | int) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else _text_at(line, path)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadInput(f'"{".".join(map(str, path))}" has a surrogate that no UTF-8 text has') from None


def _text_at(line: str, path: Sequence[str | int]) -> str:
    """Return the text of a value in a JSON document: the names and indexes of ``path`` lead to it."""
    begin, end = _after_space(line, 0), len(line)
    for wanted in path:
        begin, end = next(span for name, *span in _values(line, begin) if name == wanted)
    return line[begin:end]


def _values(line: str, at: int) -> Iterator[tuple[str | int, int, int]]:
    """Yield name or index, begin and end of each value in the JSON object or array that begins at ``at``."""
    is_object, index = line[at] == "{", 0
    at = _after_space(line, at + 1)
    while line[at] not in "}]":
        name: str | int = index
        if is_object:
            name, at = _DECODER.raw_decode(line, at)
            at = _after_space(line, _after_space(line, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(line, at)
        yield name, at, end
        at, index = _after_space(line, end), index + 1
        if line[at] == ",":
            at = _after_space(line, at + 1)


def _after_space(line: str, at: int) -> int:
    while at < len(line) and line[at] in " \t\n\r":
        at += 1
    return at


def _headers(found: Any, line: str) -> Headers:
    if found is None:
        return ()
    if isinstance(found, _Object):
        found.check('"headers"')
        return tuple((name, _text(value, line, "headers", name)) for name, value in found.items())
    if not isinstance(found, list):
        raise BadInput('"headers" is neither an object nor a list of {"name", "value"}')
    headers: list[tuple[str, bytes | None]] = []
    for index, one in enumerate(cast("list[Any]", found)):
        header = one if isinstance(one, _Object) else _Object()
        name = header.get("name")
        if not isinstance(name, str) or set(header) - {"name", "value", "value_base64"}:
            raise BadInput('an element of "headers" is not {"name": …, "value": …}')
        header.check('an element of "headers"')
        headers.append((name, _bytes(header, line, "value", "headers", index)))
    return tuple(headers)


def _number(fields: Mapping[str, Any], name: str, largest: int) -> int | None:
    value = fields.get(name)
    if value is None or (name == "timestamp" and value == -1):  # -1: a record without a timestamp
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise BadInput(f'"{name}" is not a number from 0 to {largest}')
    return value
