"""Avro by the schemas of a registry. Needs fastavro, which is imported when it is used.

A schema is checked before it reads a value. fastavro ends the process when a value is nested too deeply, so
schemas are neither recursive nor deep; and a value of few bytes must not become millions of objects, so every
part of a value takes at least a byte.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final, cast

from nilometer.schema_registry.client import (
    AVRO,
    HEADER,
    BadValue,
    Schema,
    UnusableSchema,
    references_of,
)

DEPTH_MAX: Final = 300
"""The number of levels of a schema's JSON, and of its values; a record of numbers has three and two."""
DECIMAL_BYTES_MAX: Final = 4096
"""To make a decimal takes the square of its length, without letting another thread run."""


class BadSchema(ValueError):
    """A schema that is no Avro, or whose values are not read; the message says why."""


def fastavro() -> Any:
    """Raises ImportError, which says what to install."""
    try:
        found = import_module("fastavro")
    except ImportError as error:
        raise ImportError(f"fastavro is not installed: pip install 'nilometer[avro]' ({error})") from None
    readers: dict[str, Any] = found.read.LOGICAL_READERS
    for kind in ("bytes-decimal", "fixed-decimal"):
        if not isinstance(readers[kind], _BoundedDecimals):
            readers[kind] = _BoundedDecimals(readers[kind])
    return found


class _BoundedDecimals:
    """Reads decimals as fastavro does, but none of more than ``DECIMAL_BYTES_MAX``."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read

    def __call__(self, data: bytes, *schemas: Any) -> Any:
        if len(data) > DECIMAL_BYTES_MAX:
            raise BadValue(f"a decimal has more than {DECIMAL_BYTES_MAX} bytes")
        return self._read(data, *schemas)


def check_is_avro(schema: Schema) -> None:
    """Raises UnusableSchema."""
    if schema.kind != AVRO:
        raise UnusableSchema(f"it is of type {schema.kind}, and only AVRO is read")


def parsed(schema: Schema) -> Any:
    """Return what :func:`read` and :func:`write` take. Raises UnusableSchema."""
    check_is_avro(schema)
    try:
        return parsed_text(schema.text, {id(one): one for _, one in references_of(schema)}.values())
    # The text decides which error it is: every one means that no value can be read with it.
    except Exception as error:
        raise UnusableSchema(f"it cannot be read: {said(error)}") from None


def parsed_text(text: str, references: Iterable[Schema] = ()) -> Any:
    """Return a parsed schema; ``references`` come after what they refer to.

    Raises BadSchema, and fastavro's errors.
    """
    named: dict[str, Any] = {}
    checker = _Checker()
    for reference in references:
        _added(reference.text, named, checker)
    return _added(text, named, checker)


def _added(text: str, named: dict[str, Any], checker: _Checker) -> Any:
    given = json.loads(text)
    check_depth(given)
    if isinstance(given, dict) and cast("dict[str, Any]", given).get("name") in named:
        return None  # two schemas refer to it
    schema = fastavro().parse_schema(given, named_schemas=named)
    checker.check(schema)
    return schema


def read(schema: Any, value: bytes, as_schema: Any = None) -> Any:
    """Return the value after the header, as ``as_schema`` (default: as it was written). Raises BadValue."""
    stream = io.BytesIO(value)
    stream.seek(HEADER.size)
    try:
        found = fastavro().schemaless_reader(stream, schema, as_schema)
    # The bytes decide which error it is: every one means that they are no such value.
    except Exception as error:
        raise BadValue(said(error)) from None
    if stream.tell() != len(value):
        raise BadValue("bytes are left after its end")
    return found


def write(schema: Any, value: Any) -> bytes:
    """Return a value in Avro. Raises fastavro's errors for one that does not fit, also if a field is left
    over."""
    out = io.BytesIO()
    fastavro().schemaless_writer(out, schema, value, strict_allow_default=True)
    return out.getvalue()


def said(error: Exception) -> str:
    return str(error) if isinstance(error, BadSchema) else f"{type(error).__name__}: {error}"


def check_depth(part: Any, depth: int = 0) -> None:
    """Raise BadSchema if the JSON of a schema has too many levels."""
    if depth > DEPTH_MAX:
        raise BadSchema(f"the Avro schema has more than {DEPTH_MAX} levels")
    inner: list[Any] = list(cast("dict[str, Any]", part).values()) if isinstance(part, dict) else []
    for one in cast("list[Any]", part) if isinstance(part, list) else inner:
        check_depth(one, depth + 1)


class _Checker:
    """Checks parsed schemas, each with the types of those before it."""

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        """How deep the values of each record are."""

    def check(self, schema: Any) -> None:
        """Raises BadSchema."""
        self._depth(schema, frozenset())

    def _depth(self, schema: Any, within: frozenset[str], *, in_union: bool = False) -> int:
        """Return how deep values are. Raises BadSchema if a type refers to one that it is a part of, if
        values are too deep, or if they may take no bytes."""
        match schema:
            case "null" if not in_union:
                raise BadSchema("a null that is not in a union takes no bytes")
            case str() if schema in within:
                raise BadSchema(f"type {schema} is recursive")
            case str():
                levels = self._levels.get(schema, 1)
            case list():
                branches = cast("list[Any]", schema)
                levels = max((self._depth(one, within, in_union=True) for one in branches), default=1)
            case {"type": "record" | "error", "name": str() as name, "fields": given}:
                fields = cast("list[dict[str, Any]]", given)
                if not fields:
                    raise BadSchema(f"type {name} has no fields, so a value takes no bytes")
                parts = (self._depth(one["type"], within | {name}) for one in fields)
                levels = self._levels[name] = 1 + max(parts)
            case {"type": "array", "items": part} | {"type": "map", "values": part}:
                levels = 1 + self._depth(part, within)
            case {"type": "fixed", "size": 0, "name": str() as name}:
                raise BadSchema(f"type {name} takes no bytes")
            case {"type": "enum" | "fixed"}:
                levels = 1
            case {"type": inner}:
                levels = self._depth(inner, within, in_union=in_union)
            case _:
                raise BadSchema("it has a part that is no type")
        if levels + len(within) > DEPTH_MAX:
            raise BadSchema(f"its values have more than {DEPTH_MAX} levels")
        return levels
