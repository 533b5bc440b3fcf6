"""Avro values with a registry's header: five bytes, of which the last four are the id of the schema.

The columns come from the newest schema of the topic. A value is read with the schema that it was written
with, and fits if its fields do: what it lacks is null.
"""

from __future__ import annotations

import io
import json
import struct as binary
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, cast

from nilometer.pipeline.tables.schema_registry import SchemaRegistry, UnknownSchema
from nilometer.pipeline.tables.table_store import needed
from nilometer.pipeline.tables.value_types import Field, Kind, SchemaError, ValueType, check_columns, struct
from nilometer.pipeline.tables.values import Decoder, RejectedValue, row_converter

_HEADER: Final = binary.Struct(">bI")
_KINDS: Final[Mapping[str, Kind]] = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}
_LOGICAL: Final[Mapping[tuple[str, str], Kind]] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("string", "uuid"): "string",
}


def avro_decoder(row: ValueType, registry: SchemaRegistry) -> Decoder:
    """Return the decoder of Avro values that are rows of type ``row``."""
    fastavro = needed("fastavro")
    convert = row_converter(row)

    @lru_cache(maxsize=1_024)
    def schema_of(schema_id: int) -> Any:
        return fastavro.parse_schema(json.loads(registry.by_id(schema_id)))

    def decode(value: bytes) -> dict[str, Any]:
        if len(value) < _HEADER.size or value[0] != 0:
            raise RejectedValue("the value does not begin with the 5 bytes of a schema registry")
        schema_id = _HEADER.unpack_from(value)[1]
        try:
            schema = schema_of(schema_id)
        except UnknownSchema:
            raise RejectedValue(f"the registry has no schema {schema_id}") from None
        stream = io.BytesIO(value)
        stream.seek(_HEADER.size)
        try:
            found = fastavro.schemaless_reader(stream, schema)
        # The bytes decide which error it is: every one means that they are no such value.
        except Exception as error:
            raise RejectedValue(f"no value of schema {schema_id}: {type(error).__name__}: {error}") from None
        if stream.tell() != len(value):
            raise RejectedValue(f"no value of schema {schema_id}: bytes are left after its end")
        return convert(_with_texts(found))

    return decode


def _with_texts(value: Any) -> Any:
    """Return the value with UUIDs as texts."""
    match value:
        case dict():
            return {name: _with_texts(inner) for name, inner in cast("dict[str, Any]", value).items()}
        case list():
            return [_with_texts(inner) for inner in cast("list[Any]", value)]
        case uuid.UUID():
            return str(value)
        case _:
            return value


def parse_avro_schema(text: str) -> ValueType:
    """Return the type of the rows of an Avro record. Raises SchemaError with the place."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the Avro schema is no JSON: {error}") from None
    return check_columns(_Parser().type_of(schema, "$")[0])


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, ValueType | None] = {}

    def type_of(self, schema: Any, where: str) -> tuple[ValueType, bool]:
        """Return the type, and whether null is allowed."""
        match schema:
            case list():
                members = cast("list[Any]", schema)
                others = [one for one in members if one != "null"]
                if len(others) != 1:
                    raise SchemaError(f"{where}: a union of several types is no column")
                return self.type_of(others[0], where)[0], len(others) < len(members)
            case str():
                return self._named_type(schema, where), False
            case dict():
                return self._complex(cast("dict[str, Any]", schema), where), False
            case _:
                raise SchemaError(f"{where}: {json.dumps(schema)} is no Avro schema")

    def _named_type(self, name: str, where: str) -> ValueType:
        if name in _KINDS:
            return ValueType(_KINDS[name])
        short = name.rpartition(".")[2]
        if self._named.get(short) is None:
            reason = "is recursive" if short in self._named else "is not supported"
            raise SchemaError(f"{where}: type {name} {reason} as a column")
        return cast("ValueType", self._named[short])

    def _complex(self, schema: dict[str, Any], where: str) -> ValueType:
        kind, name = schema.get("type"), str(schema.get("name", "")).rpartition(".")[2]
        logical = schema.get("logicalType")
        match kind:
            case "record":
                self._named[name] = None
                fields: list[Field] = []
                for one in cast("list[dict[str, Any]]", schema.get("fields", [])):
                    inner, _ = self.type_of(one.get("type"), f"{where}.{one.get('name')}")
                    fields.append(Field(str(one.get("name")), inner))
                found = struct(*fields)
            case "array":
                return ValueType("list", item=self.type_of(schema.get("items"), f"{where}[]")[0])
            case str() if (kind, logical) in _LOGICAL:
                found = ValueType(_LOGICAL[kind, cast("str", logical)])
            case str() if logical is None and kind in _KINDS:
                found = ValueType(_KINDS[kind])
            case _:
                said = f"{kind} ({logical})" if logical else kind
                raise SchemaError(f"{where}: type {said} is not supported as a column")
        if name:
            self._named[name] = found
        return found
