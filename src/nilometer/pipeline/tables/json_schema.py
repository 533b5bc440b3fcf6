"""JSON Schema as the text of a row's type: what is supported of it, both ways. Pure.

A property is a column: ``boolean``, ``integer`` (``format`` int32 or int64), ``number`` (``format`` float or
double), ``string`` (``format`` date-time, date or, for base64, binary), ``array`` with ``items``, ``object``
with ``properties``. ``required``, ``additionalProperties: false`` and ``"type": [..., "null"]`` are followed,
and ``additionalProperties: {"enum": [null, [], {}]}``, which is written if others must hold nothing; a
keyword that would restrict values further is an error, because it would not be checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from nilometer.pipeline.tables.value_types import (
    Field,
    Kind,
    Others,
    SchemaError,
    ValueType,
    check_columns,
    struct,
)

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
