"""Infers the type of rows from their JSON. Pure.

Times stay strings: only a schema can tell that a text is one. What is always null, an empty list or an empty
object has no type yet, and so no column; as long as it holds nothing, its row is taken without it. Of two
types that do not fit, the first counts: the values of the other one are rejected when they are decoded.
Integers and floats are floats together, unless an integer would be rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import msgspec

from nilometer.pipeline.tables.value_types import BOM, RESERVED, Field, ValueType, struct

COLUMNS_MAX: Final = 1_000
"""The number of fields of one object above which further ones are not inferred, as of a map's keys."""
DEPTH_MAX: Final = 20
_INT64: Final = range(-(2**63), 2**63)
_EXACT_INTEGERS: Final = range(-(2**53), 2**53 + 1)
_FLOAT_BITS: Final = 1_024
_EXACT: Final = ValueType("int32")
"""Stands for integers that a 64-bit float has exactly, until all values are seen: alone they become int64,
with floats float64. No value is inferred as 32 bits."""


def infer(values: Iterable[bytes | None]) -> ValueType:
    """Return the type of the rows in ``values``; a struct without fields if none is an object."""
    return settled(infer_part(values))


def infer_part(values: Iterable[bytes | None]) -> ValueType:
    """Return the type of some rows, to be :func:`joined` with that of others and then :func:`settled`."""
    found = struct(others="empty")
    for value in values:
        try:
            row = msgspec.json.decode(value.removeprefix(BOM)) if value is not None else None
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            kind = _type_of(cast("dict[str, Any]", row), 0)
            if kind is not None:
                found = joined(found, kind)
    usable = (field for field in found.fields if field.name.lower() not in RESERVED)
    return struct(*usable, others="empty")


def settled(one: ValueType) -> ValueType:
    """Return the type of columns for all values that were seen."""
    if one == _EXACT:
        return ValueType("int64")
    if one.kind == "list" and one.item is not None:
        return ValueType("list", item=settled(one.item))
    return replace(one, fields=tuple(replace(field, type=settled(field.type)) for field in one.fields))


def _type_of(value: Any, depth: int) -> ValueType | None:
    match value:
        case bool():
            return ValueType("boolean")
        case int():
            return _type_of_integer(value)
        case float():
            return ValueType("float64")
        case str():
            return ValueType("string")
        case list() if depth < DEPTH_MAX:
            return _list_of(cast("list[Any]", value), depth)
        case dict() if depth < DEPTH_MAX:
            return _struct_of(cast("dict[str, Any]", value), depth)
        case _:
            return None


def _type_of_integer(value: int) -> ValueType | None:
    if value in _EXACT_INTEGERS:
        return _EXACT
    if value in _INT64:
        return ValueType("int64")
    return ValueType("float64") if value.bit_length() <= _FLOAT_BITS and int(float(value)) == value else None


def _list_of(values: list[Any], depth: int) -> ValueType | None:
    item: ValueType | None = None
    for value in values:
        kind = _type_of(value, depth + 1)
        if kind is not None:
            item = kind if item is None else joined(item, kind)
    return ValueType("list", item=item) if item is not None else None


def _struct_of(value: Mapping[str, Any], depth: int) -> ValueType | None:
    fields: dict[str, Field] = {}
    for name, inner in value.items():
        kind = _type_of(inner, depth + 1)
        if kind is not None and name:
            fields.setdefault(name.lower(), Field(name, kind))
    return struct(*fields.values(), others="empty") if fields else None


def joined(first: ValueType, second: ValueType) -> ValueType:
    """Return the type of values of both types; ``first`` if there is none."""
    if first.kind == second.kind == "list" and first.item is not None and second.item is not None:
        return ValueType("list", item=joined(first.item, second.item))
    if first.kind == second.kind == "struct":
        return _joined_structs(first, second)
    if _EXACT in (first, second) and {first.kind, second.kind} <= {"int32", "int64", "float64"}:
        return second if first == _EXACT else first
    return first


def _joined_structs(first: ValueType, second: ValueType) -> ValueType:
    fields = {field.name: field for field in first.fields}
    known = {field.name.lower() for field in first.fields}
    for field in second.fields:
        mine = fields.get(field.name)
        if mine is not None:
            fields[field.name] = replace(mine, type=joined(mine.type, field.type))
        elif field.name.lower() not in known and len(fields) < COLUMNS_MAX:
            fields[field.name] = field
            known.add(field.name.lower())
    return replace(first, fields=tuple(fields.values()))
