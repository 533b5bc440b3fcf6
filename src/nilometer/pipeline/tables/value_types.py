"""The types of a table's columns. Pure.

They are what JSON Schema, Avro, Delta Lake, Iceberg and Parquet have in common. An object is a struct, also
the row itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final, Literal

from nilometer.pipeline.errors import PipelineError

Kind = Literal[
    "boolean",
    "int32",
    "int64",
    "float32",
    "float64",
    "string",
    "binary",
    "date",
    "timestamp",
    "list",
    "struct",
]

Others = Literal["ignored", "empty", "refused"]
"""What becomes of a value's fields that a struct does not have. ``empty``: they must hold nothing, that is
null, empty lists and objects, and lists and objects of these; inference gives such fields no column."""

WIDENS: Final = {("int32", "int64"), ("float32", "float64")}
"""The changes of a type that Delta Lake and Iceberg both allow, since no value is lost."""

BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that some programs write before JSON; it is no part of the value."""
KEY, PARTITION, OFFSET, TIMESTAMP, DAY = "_key", "_partition", "_offset", "_timestamp", "_day"
RESERVED: Final = (KEY, PARTITION, OFFSET, TIMESTAMP, DAY, "_deleted")
"""The columns that a table has besides those of the values."""


class SchemaError(PipelineError):
    """A schema cannot be a table's, or does not fit the table that exists; the message says where."""


@dataclass(frozen=True, slots=True)
class ValueType:
    kind: Kind
    item: ValueType | None = None
    """The type of a list's items."""
    fields: tuple[Field, ...] = ()
    """The fields of a struct."""
    others: Others = "ignored"
    """What becomes of other fields than a struct's."""

    def field(self, name: str) -> Field | None:
        return next((one for one in self.fields if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: ValueType
    required: bool = False
    """Whether each value must have it, and not null."""


def struct(*fields: Field, others: Others = "ignored") -> ValueType:
    return ValueType("struct", fields=fields, others=others)


def check_columns(row: ValueType) -> ValueType:
    """Return ``row``. Raises SchemaError if it cannot be a table's: its names, or a struct without fields."""
    if row.kind != "struct" or not row.fields:
        raise SchemaError("the schema must describe an object with at least one property")
    for field in row.fields:
        if field.name.lower() in RESERVED:
            raise SchemaError(f"{field.name}: this name is taken by the table itself; rename the property")
    _check_struct(row, "$")
    if len(without_collisions(row).fields) < len(row.fields):
        twice = next(path for path, count in Counter(paths_of(row, "")).items() if count > 1)
        raise SchemaError(f"{twice} names two columns: one has a dot in its name. Rename a property")
    return row


def paths_of(one: ValueType, where: str) -> list[str]:
    """Return the paths of a type's parts, joined by dots as Iceberg does, in lower case."""
    if one.kind == "list" and one.item is not None:
        return [f"{where}.element", *paths_of(one.item, f"{where}.element")]
    found: list[str] = []
    for field in one.fields:
        path = f"{where}.{field.name.lower()}" if where else field.name.lower()
        found += [path, *paths_of(field.type, path)]
    return found


def without_collisions(row: ValueType) -> ValueType:
    """Return the row without columns of which a part has the path of another: of several, the first counts.

    ``{"a.b": 1, "a": {"b": 2}}`` has ``a.b`` twice.
    """
    seen: set[str] = set()
    kept: list[Field] = []
    for field in row.fields:
        paths = paths_of(struct(field), "")
        if len(set(paths)) == len(paths) and seen.isdisjoint(paths):
            seen.update(paths)
            kept.append(field)
    return replace(row, fields=tuple(kept))


def _check_struct(one: ValueType, where: str) -> None:
    seen: dict[str, str] = {}
    for field in one.fields:
        # Delta Lake and Spark do not distinguish upper and lower case in the names of columns.
        other = seen.setdefault(field.name.lower(), field.name)
        if other is not field.name:
            raise SchemaError(f"{where}: {other} and {field.name} differ only in upper and lower case")
        _check_type(field.type, f"{where}.{field.name}")


def _check_type(one: ValueType, where: str) -> None:
    if one.kind == "list" and one.item is not None:
        _check_type(one.item, f"{where}[]")
    elif one.kind == "struct":
        if not one.fields:
            raise SchemaError(f"{where}: an object must have at least one property")
        _check_struct(one, where)


def relaxed(one: ValueType) -> ValueType:
    """Return the type as a table stores it: without what is demanded of values."""
    if one.kind == "list" and one.item is not None:
        return replace(one, item=relaxed(one.item))
    if one.kind == "struct":
        return struct(*(Field(field.name, relaxed(field.type)) for field in one.fields))
    return one
