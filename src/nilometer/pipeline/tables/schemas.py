"""The schema of a table: read from JSON Schema, inferred from rows, and followed when it changes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec

from nilometer.pipeline.tables.values import (
    BOM,
    NO_NAME,
    RESERVED,
    WIDENS,
    Field,
    Kind,
    Others,
    SchemaError,
    ValueType,
    check_columns,
    relaxed,
    struct,
)

# JSON Schema as the text of a row's type: what is supported of it, both ways. Pure.
#
# A property is a column: ``boolean``, ``integer`` (``format`` int32 or int64), ``number`` (``format`` float
# or double), ``string`` (``format`` date-time, date or, for base64, binary), ``array`` with ``items``,
# ``object`` with ``properties``. ``required``, ``additionalProperties: false`` and ``"type": [..., "null"]``
# are followed, and ``additionalProperties: {"enum": [null, [], {}]}``, which is written if others must hold
# nothing; a keyword that would restrict values further is an error, because it would not be checked.

_DESCRIBING: Final = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
    "example", "deprecated", "readOnly", "writeOnly", "type", "format", "properties", "required",
    "additionalProperties", "items", "$ref",
}  # fmt: skip
_DEPTH_MAX: Final = 50
_EMPTY: Final[dict[str, Any]] = {"enum": [None, [], {}]}
_KINDS: Final[Mapping[tuple[str, str | None], Kind]] = {
    ("boolean", None): "boolean",
    ("integer", None): "int64",
    ("integer", "int32"): "int32",
    ("integer", "int64"): "int64",
    ("number", None): "float64",
    ("number", "float"): "float32",
    ("number", "double"): "float64",
    ("string", None): "string",
    ("string", "date-time"): "timestamp",
    ("string", "date"): "date",
    ("string", "binary"): "binary",
}
_WRITTEN: Final = {
    "boolean": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer"},
    "float32": {"type": "number", "format": "float"},
    "float64": {"type": "number"},
    "string": {"type": "string"},
    "timestamp": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "binary": {"type": "string", "format": "binary"},
}


def parse_json_schema(text: str) -> ValueType:
    """Return the row's type. Raises SchemaError with the place in the schema that is not supported."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is no JSON: {error}") from None
    return check_columns(_Parser(schema).type_of(schema, "$", 0)[0])


class _Parser:
    def __init__(self, root: Any) -> None:
        self._root = root

    def type_of(self, schema: Any, where: str, depth: int) -> tuple[ValueType, bool]:
        """Return the type, and whether null is allowed."""
        if not isinstance(schema, dict):
            raise SchemaError(f"{where}: a schema is an object, and not {json.dumps(schema)}")
        if depth > _DEPTH_MAX:
            raise SchemaError(
                f"{where}: more than {_DEPTH_MAX} levels; a table's columns cannot be recursive"
            )
        given = cast("dict[str, Any]", schema)
        if "$ref" in given:
            return self.type_of(self._referred(given["$ref"], where), where, depth + 1)
        unknown = [key for key in given if key not in _DESCRIBING]
        if unknown:
            raise SchemaError(
                f"{where}: {unknown[0]} is not supported: values would not be checked by it. Remove it"
            )
        name, nullable = _type_name(given.get("type"), where)
        match name:
            case "object":
                return self._struct(given, where, depth), nullable
            case "array":
                if "items" not in given:
                    raise SchemaError(f"{where}: an array needs items")
                item, _ = self.type_of(given["items"], f"{where}[]", depth + 1)
                return ValueType("list", item=item), nullable
            case _:
                kind = _KINDS.get((name, given.get("format"))) or _KINDS.get((name, None))
                if kind is None:
                    raise SchemaError(f"{where}: type {name} is not supported")
                return ValueType(kind), nullable

    def _struct(self, given: Mapping[str, Any], where: str, depth: int) -> ValueType:
        properties = given.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise SchemaError(f"{where}: an object needs properties")
        required, others = given.get("required", []), _others(given.get("additionalProperties", True))
        if not isinstance(required, list) or others is None:
            raise SchemaError(f"{where}: required is a list of names, additionalProperties is true or false")
        fields: list[Field] = []
        for name, schema in cast("dict[str, Any]", properties).items():
            kind, nullable = self.type_of(schema, f"{where}.{name}", depth + 1)
            fields.append(Field(name, kind, required=name in required and not nullable))
        unknown = [one for one in cast("list[Any]", required) if one not in properties]
        if unknown:
            raise SchemaError(f"{where}: required {unknown[0]} is not in properties")
        return struct(*fields, others=others)

    def _referred(self, reference: Any, where: str) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise SchemaError(f"{where}: $ref {reference} is not in this file (such as #/$defs/address)")
        found = self._root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise SchemaError(f"{where}: there is no {reference}")
            found = cast("dict[str, Any]", found)[name]
        return found


def _others(given: Any) -> Others | None:
    """Return what ``additionalProperties`` says of other fields; None if that is not supported."""
    if isinstance(given, bool):
        return "ignored" if given else "refused"
    return "empty" if given == _EMPTY else None


def _type_name(given: Any, where: str) -> tuple[str, bool]:
    if isinstance(given, str) and given != "null":
        return given, False
    names = cast("list[Any]", given) if isinstance(given, list) else []
    others = [one for one in names if one != "null"]
    if len(others) != 1 or not isinstance(others[0], str):
        raise SchemaError(f"{where}: one type is needed, alone or with null")
    return others[0], len(others) < len(names)


def json_schema_of(one: ValueType) -> dict[str, Any]:
    """Return the JSON Schema of a type, which ``parse_json_schema`` reads as the same type."""
    if one.kind == "list" and one.item is not None:
        return {"type": "array", "items": json_schema_of(one.item)}
    if one.kind != "struct":
        return dict(_WRITTEN[one.kind])
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {field.name: json_schema_of(field.type) for field in one.fields},
    }
    required = [field.name for field in one.fields if field.required]
    if required:
        schema["required"] = required
    if one.others != "ignored":
        schema["additionalProperties"] = _EMPTY if one.others == "empty" else False
    return schema


# Infers the type of rows from their JSON. Pure.
#
# Times stay strings: only a schema can tell that a text is one. What is always null, an empty list or an
# empty object has no type yet, and so no column; as long as it holds nothing, its row is taken without it. Of
# two types that do not fit, the first counts: the values of the other one are rejected when they are decoded.
# Integers and floats are floats together, unless an integer would be rounded.

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
        if kind is not None and not NO_NAME.search(name):
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


# Decides how a table's columns follow a schema: what is added, what is widened, what is refused. Pure.
#
# A column is never removed or renamed: rows that exist have it. A column that the schema no longer has stays,
# and new rows have null there.


@dataclass(frozen=True, slots=True)
class Change:
    """How the columns of a table change."""

    columns: ValueType
    """The columns afterwards, those that exist first."""
    added: tuple[str, ...] = ()
    """The paths of new columns and fields, such as ``$.address.zip``."""
    widened: tuple[str, ...] = ()
    """The paths of those that change their type, with both types."""

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)


def decide_change(existing: ValueType, wanted: ValueType) -> Change:
    """Return how a table with the columns ``existing`` can take rows of the type ``wanted``.

    Raises SchemaError if it cannot.
    """
    added: list[str] = []
    widened: list[str] = []
    columns = _followed(existing, wanted, "$", added, widened)
    return Change(columns, tuple(added), tuple(widened))


def _followed(
    existing: ValueType, wanted: ValueType, where: str, added: list[str], widened: list[str]
) -> ValueType:
    if existing.kind == wanted.kind == "struct":
        return _followed_struct(existing, wanted, where, added, widened)
    if existing.kind == wanted.kind == "list" and existing.item is not None and wanted.item is not None:
        return ValueType("list", item=_followed(existing.item, wanted.item, f"{where}[]", added, widened))
    if existing.kind == wanted.kind or (wanted.kind, existing.kind) in WIDENS:
        return existing  # the table takes narrower values too
    if (existing.kind, wanted.kind) in WIDENS:
        widened.append(f"{where}: {existing.kind} to {wanted.kind}")
        return ValueType(wanted.kind)
    raise SchemaError(
        f"{where} is {existing.kind} in the table, and {wanted.kind} in the schema. A column can only "
        "be widened (int32 to int64, float32 to float64): give the property another name, or write another "
        "table with --name"
    )


def _followed_struct(
    existing: ValueType, wanted: ValueType, where: str, added: list[str], widened: list[str]
) -> ValueType:
    fields: list[Field] = []
    for field in existing.fields:
        new = wanted.field(field.name)
        kind = field.type
        if new is not None:
            kind = _followed(kind, new.type, f"{where}.{field.name}", added, widened)
        fields.append(Field(field.name, kind))
    names = {field.name.lower(): field.name for field in existing.fields}
    for field in wanted.fields:
        known = names.setdefault(field.name.lower(), field.name)
        if existing.field(field.name) is None:
            if known != field.name:
                raise SchemaError(f"{where}: {field.name} differs from {known} only in upper and lower case")
            added.append(f"{where}.{field.name}")
            fields.append(Field(field.name, relaxed(field.type)))
    return struct(*fields)


def extended(existing: ValueType, inferred: ValueType) -> ValueType:
    """Return ``existing`` with the fields that only ``inferred`` has, for a schema that is not given.

    A field that exists keeps its type, so that values of another type are rejected. So are objects with a
    field that neither has, unless it holds nothing: they do not lose it.
    """
    if existing.kind == inferred.kind == "list" and existing.item is not None and inferred.item is not None:
        return ValueType("list", item=extended(existing.item, inferred.item))
    if existing.kind != "struct" or inferred.kind != "struct":
        return existing
    fields: list[Field] = []
    known = {field.name.lower() for field in existing.fields}
    for field in existing.fields:
        new = inferred.field(field.name)
        fields.append(Field(field.name, extended(field.type, new.type) if new is not None else field.type))
    fields += [field for field in inferred.fields if field.name.lower() not in known]
    return struct(*fields, others="empty")


def closed(one: ValueType) -> ValueType:
    """Return the type for values whose other fields hold nothing; a value with more is rejected."""
    if one.kind == "list" and one.item is not None:
        return ValueType("list", item=closed(one.item))
    if one.kind == "struct":
        fields = (Field(field.name, closed(field.type), field.required) for field in one.fields)
        return struct(*fields, others="empty")
    return one
