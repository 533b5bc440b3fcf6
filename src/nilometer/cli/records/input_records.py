"""The records of lines that `nilometer produce` reads: plain lines, and JSON lines. Pure.

A JSON line has the form that ``nilometer consume --json`` prints, so a topic can be copied with its keys,
headers, timestamps and nulls; the fields that only a broker can set are ignored.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, cast

Headers = tuple[tuple[str, bytes | None], ...]
TIMESTAMP_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1

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

    A value or key that is no string is written as compact JSON; null is null. Raises BadInput.
    """
    try:
        document: Any = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadInput("it is not a JSON object")
    fields = cast("dict[str, Any]", document)
    for name in fields:
        if name not in _FIELDS and name not in _OF_THE_BROKER:
            raise BadInput(f"{name!r} is none of the fields {', '.join(_FIELDS)}")
    if "value" not in fields and "value_base64" not in fields:
        raise BadInput('it has no "value" (null makes a tombstone)')
    return InputRecord(
        _bytes(fields, "key"),
        _bytes(fields, "value"),
        _headers(fields.get("headers")),
        _number(fields, "partition", PARTITION_MAX),
        _number(fields, "timestamp", TIMESTAMP_MAX),
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is None:
        return _text(name, fields.get(name))
    if name in fields:
        raise BadInput(f'it has both "{name}" and "{name}_base64"')
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise BadInput(f'"{name}_base64" is not base64: {error}') from None


def _text(name: str, value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadInput(f'"{name}" has a surrogate that no UTF-8 text has') from None


def _headers(found: Any) -> Headers:
    if found is None:
        return ()
    if isinstance(found, dict):
        pairs = cast("dict[str, Any]", found).items()
        return tuple((name, _text(f"headers.{name}", value)) for name, value in pairs)
    if not isinstance(found, list):
        raise BadInput('"headers" is neither an object nor a list of {"name", "value"}')
    headers: list[tuple[str, bytes | None]] = []
    for one in cast("list[Any]", found):
        header = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        name = header.get("name")
        if not isinstance(name, str) or set(header) - {"name", "value", "value_base64"}:
            raise BadInput('an element of "headers" is not {"name": …, "value": …}')
        headers.append((name, _bytes(header, "value")))
    return tuple(headers)


def _number(fields: Mapping[str, Any], name: str, largest: int) -> int | None:
    value = fields.get(name)
    if value is None or (name == "timestamp" and value == -1):  # -1: a record without a timestamp
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise BadInput(f'"{name}" is not a number from 0 to {largest}')
    return value
