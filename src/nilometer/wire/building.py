"""Building the messages of an API once for all versions: the fields of kio's classes as plain data, what is
built by them, and the interface of one version (:class:`Api`), which also reads and writes its messages.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from nilometer.wire.api_keys import AnyApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.later_versions import schema_module, versions_of

# Building messages once for all versions.
#
# ``build`` takes field values for the newest version, drops those that the given version does not have, and
# sets missing ones to Kafka's implicit default (zero, empty, none). A name that *no* version has raises
# TypeError, so that a misspelt field is noticed.
#
# Durations and times, for which kio uses ``timedelta`` and ``datetime``, may be given in milliseconds by
# their name in the protocol: ``throttle_time_ms=0``, ``log_append_time_ms=-1``.

# The fields of kio's schema classes, as plain data.
#
# kio describes a message as frozen dataclasses with Kafka's types in the fields' metadata. They are converted
# to :class:`EntityShape`, from which surveyors, writers and builders are made. No other module inspects kio's
# classes.

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


_LAST_BEFORE_FIELDS_WENT: Mapping[str, int] = {
    "add_partitions_to_txn": 3,
    "fetch": 12,
    "find_coordinator": 3,
    "leave_group": 2,
    "metadata": 10,
    "offset_commit": 4,
    "offset_fetch": 7,
}
"""Of APIs that have had two versions or more since then. To load a version takes 2 to 5 ms, in the turn of
the first request that needs it."""


@functools.cache
def _has_another_version(message_type: type[Any], name: str) -> bool:
    """Whether another version of the type has the field ``name``. Loads versions until one has: the newest
    and, if that has not, the last one before fields went."""
    api_path, _, part = message_type.__module__.rsplit(".", 2)
    api_name = api_path.rsplit(".", 1)[1]
    newest_first = sorted(versions_of(api_name), reverse=True)
    before = _LAST_BEFORE_FIELDS_WENT.get(api_name, newest_first[0])
    for number in dict.fromkeys((newest_first[0], before, *newest_first)):
        module = schema_module(api_name, number, part)
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


# The interface of one version of one API, Kafka's or Nilometer's own.


class Api(Protocol):
    """One version of one API: builds, reads and writes its messages. Get it with ``messages.api``."""

    @property
    def key(self) -> AnyApiKey: ...
    @property
    def version(self) -> int: ...
    @property
    def request_type(self) -> type[Any]: ...
    @property
    def response_type(self) -> type[Any]: ...
    @property
    def flexible(self) -> bool:
        """Whether the request's header has tagged fields (KIP-482). ``flexible_response_header``: whether the
        response's header has."""
        ...

    @property
    def flexible_response_header(self) -> bool: ...

    def has(self, name: str) -> bool:
        """Return whether the response of this version has the nested type ``name``."""
        ...

    def response(self, **fields: object) -> Message: ...

    def make(self, name: str, /, **fields: object) -> Message:
        """Build a part of the response by its type: ``make("PartitionProduceResponse", index=0, ...)``."""
        ...

    def request(self, **fields: object) -> Message: ...

    def make_request(self, name: str, /, **fields: object) -> Message:
        """Build a part of the request by its type's name."""
        ...

    def read_request(self, body: bytes, position: int = 0) -> Message:
        """Decode the request at ``body[position:]``. Raises MalformedRequest."""
        ...

    def read_response(self, body: bytes, position: int = 0) -> Message:
        """Decode the response at ``body[position:]``. Raises MalformedResponse."""
        ...

    def write_request(self, request: Message) -> bytes: ...

    def write_response(self, response: Message) -> bytes: ...

    def response_slices(self, response: Message) -> Iterator[bytes]:
        """Yield what :meth:`write_response` returns in parts, each after a bounded amount of work."""
        ...
