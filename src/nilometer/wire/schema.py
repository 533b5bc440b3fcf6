"""The fields of kio's schema classes, as plain data.

kio describes a message as frozen dataclasses with Kafka's types in the fields' metadata. They are converted
to :class:`EntityShape`, from which surveyors, writers and builders are made. No other module inspects kio's
classes.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIXED_SIZES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
"""Bytes of the types with a fixed size."""


@dataclass(frozen=True, slots=True)
class FieldShape:
    name: str
    kafka_type: str
    """Empty if the field is an entity (a nested type) or an array of entities."""
    entity: type[Any] | None
    is_array: bool
    nullable: bool
    tag: int | None
    has_default: bool
    default: Any


@dataclass(frozen=True, slots=True)
class EntityShape:
    type: type[Any]
    flexible: bool
    fields: tuple[FieldShape, ...]
    plain: tuple[FieldShape, ...]
    """The fields without a tag, in the order of the bytes."""
    tagged: tuple[FieldShape, ...]
    """The fields with a tag, by tag."""


@functools.cache
def shape_of(entity: type[Any]) -> EntityShape:
    fields = tuple(_field(f) for f in dataclasses.fields(entity))
    plain = tuple(field for field in fields if field.tag is None)
    tagged = tuple(sorted((f for f in fields if f.tag is not None), key=lambda f: f.tag or 0))
    return EntityShape(entity, entity.__flexible__, fields, plain, tagged)


def nested_types(module: Mapping[str, Any]) -> dict[str, type[Any]]:
    """Return the schema classes that are defined in one of kio's modules, by name."""
    name = module["__name__"]
    return {
        key: value
        for key, value in module.items()
        if isinstance(value, type) and value.__module__ == name and dataclasses.is_dataclass(value)
    }


def _field(field: dataclasses.Field[Any]) -> FieldShape:
    inner, nullable = _without_none(field.type)
    is_array = typing.get_origin(inner) is tuple
    if is_array:
        inner, item_nullable = _without_none(typing.get_args(inner)[0])
        nullable = nullable or (item_nullable and field.metadata.get("kafka_type") != "uuid")
    entity = inner if dataclasses.is_dataclass(inner) and isinstance(inner, type) else None
    return FieldShape(
        name=field.name,
        kafka_type=field.metadata.get("kafka_type", ""),
        entity=entity,
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        has_default=field.default is not dataclasses.MISSING,
        default=field.default,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    inner = [part for part in typing.get_args(annotation) if part is not types.NoneType]
    return inner[0], True
