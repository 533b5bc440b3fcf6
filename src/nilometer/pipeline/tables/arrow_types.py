"""A table's columns as an Arrow schema, and back."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from nilometer.pipeline.tables.value_types import (
    DAY,
    KEY,
    OFFSET,
    PARTITION,
    RESERVED,
    TIMESTAMP,
    Field,
    SchemaError,
    ValueType,
    struct,
)

_MICROSECONDS: Final = pa.timestamp("us", "UTC")
_SCALARS: Final = {
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _MICROSECONDS,
}
_NAMES: Final = {
    "bool": "boolean",
    "int32": "int32",
    "int64": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
}
RECORD_FIELDS: Final = (
    pa.field(KEY, pa.binary()),
    pa.field(PARTITION, pa.int32()),
    pa.field(OFFSET, pa.int64()),
    pa.field(TIMESTAMP, _MICROSECONDS),
)
"""The columns of each record, after those of its value."""
DAY_FIELD: Final = pa.field(DAY, pa.date32())


def arrow_schema(row: ValueType, *, with_day: bool = False) -> pa.Schema:
    """Return the columns of a table: those of the values, then those of the records."""
    more = (DAY_FIELD,) if with_day else ()
    return pa.schema([*(_field(one) for one in row.fields), *RECORD_FIELDS, *more])


def _field(field: Field) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.type))


def _arrow_type(one: ValueType) -> pa.DataType:
    if one.kind == "list" and one.item is not None:
        return pa.list_(pa.field("element", _arrow_type(one.item)))
    if one.kind == "struct":
        return pa.struct([_field(field) for field in one.fields])
    return _SCALARS[one.kind]


def row_type(schema: pa.Schema) -> ValueType:
    """Return the type of the rows of a table that this package wrote. Raises SchemaError."""
    return struct(
        *(Field(field.name, _value_type(field.type)) for field in schema if field.name not in RESERVED)
    )


def _value_type(arrow: Any) -> ValueType:
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return ValueType("list", item=_value_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        fields = [arrow.field(number) for number in range(arrow.num_fields)]
        return struct(*(Field(field.name, _value_type(field.type)) for field in fields))
    kind = _NAMES.get(str(arrow))
    if kind is None:
        raise SchemaError(f"the table has a column of type {arrow}, which no schema describes")
    return ValueType(kind)  # pyright: ignore[reportArgumentType]: the dictionary has only kinds
