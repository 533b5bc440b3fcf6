"""Decides how a table's columns follow a schema: what is added, what is widened, what is refused. Pure.

A column is never removed or renamed: rows that exist have it. A column that the schema no longer has stays,
and new rows have null there.
"""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.pipeline.tables.value_types import WIDENS, Field, SchemaError, ValueType, relaxed, struct


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

    A field that exists keeps its type, so that values of another type are rejected. What was
    not inferred is rejected, and not left out, unless it holds nothing.
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
