"""Building messages once for all versions.

``build`` takes field values for the newest version, drops those that the given version does not have, and
sets missing ones to Kafka's implicit default (zero, empty, none). A name that *no* version has raises
TypeError, so that a misspelt field is noticed.

Durations and times, for which kio uses ``timedelta`` and ``datetime``, may be given in milliseconds by their
name in the protocol: ``throttle_time_ms=0``, ``log_append_time_ms=-1``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.index import schema_name_map

from nilometer.wire.errors import ErrorCode
from nilometer.wire.schema import FieldShape, shape_of

Message = Any
"""An instance of one of kio's schema classes."""

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(duration: timedelta) -> int:
    return duration.days * 86_400_000 + duration.seconds * 1000 + duration.microseconds // 1000


def milliseconds_since_epoch(time: datetime) -> int:
    return milliseconds(time - _EPOCH)


def build(message_type: type[Any], /, **fields: object) -> Message:
    """Return an instance of ``message_type``; ``fields`` that only other versions have are ignored.

    Raises TypeError for a field that no version has.
    """
    known, direct, implicit = _plan(message_type)
    if fields.keys() <= direct:
        return message_type(**(implicit | fields))
    values = implicit.copy()
    for name, value in fields.items():
        if (target := known.get(name)) is not None:
            field_name, convert = target
            values[field_name] = value if convert is None else convert(value)
        elif not _has_another_version(message_type, name):
            raise TypeError(f"{message_type.__name__} has no field {name} in any version")
    return message_type(**values)


@functools.cache
def _plan(
    message_type: type[Any],
) -> tuple[Mapping[str, tuple[str, Convert | None]], frozenset[str], dict[str, Any]]:
    """Return how to build a type: accepted name → (field, conversion); names without conversion; implicit
    defaults."""
    known: dict[str, tuple[str, Convert | None]] = {}
    implicit: dict[str, Any] = {}
    for field in shape_of(message_type).fields:
        known[field.name] = (field.name, None)
        if (convert := _FROM_MILLISECONDS.get(field.kafka_type)) is not None:
            known[field.name + "_ms"] = (field.name, convert)
        if not field.has_default:
            implicit[field.name] = implicit_default(field)
    direct = frozenset(field.name for field in shape_of(message_type).fields)
    return known, direct, implicit


@functools.cache
def _has_another_version(message_type: type[Any], name: str) -> bool:
    """Whether another version of the type has the field ``name``. Loads versions until one has, the newest
    first: nearly always one is enough."""
    api_path, _, part = message_type.__module__.rsplit(".", 2)
    api_name = api_path.rsplit(".", 1)[1]
    for number in sorted(schema_name_map[api_name], reverse=True):
        module = importlib.import_module(f"{api_path}.v{number}.{part}")
        other = getattr(module, message_type.__name__, None)
        if other is not None and name in _plan(other)[0]:
            return True
    return False


def implicit_default(field: FieldShape) -> Any:
    """Return the value of a field that is not given and has no default in the schema."""
    if field.is_array:
        return ()
    if field.entity is not None:
        return None if field.nullable else build(field.entity)
    if field.kafka_type == "datetime_i64":
        return None if field.nullable else _EPOCH
    return _IMPLICIT[field.kafka_type]


def _timedelta(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _datetime(value: int) -> datetime | None:
    return None if value == -1 else _EPOCH + timedelta(milliseconds=value)


_FROM_MILLISECONDS: Mapping[str, Convert] = {
    "timedelta_i32": _timedelta,
    "timedelta_i64": _timedelta,
    "datetime_i64": _datetime,
}

_IMPLICIT: Mapping[str, Any] = {
    "bool": False,
    "int8": 0,
    "uint8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "uint32": 0,
    "int64": 0,
    "uint64": 0,
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "uuid": None,
    "string": "",
    "bytes": b"",
    "records": None,
}
