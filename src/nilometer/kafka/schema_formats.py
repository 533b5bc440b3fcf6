"""Formats by the schemas of a registry: Avro and JSON Schema, with Confluent's five bytes before the data.

What is written names its schema by id: the newest one of the topic's subject, or a given one. What is read
names its own. A registry that does not answer is a RegistryError, which leaves the record to be read again;
a record that is no value of its schema is one of another format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeVar, overload
from uuid import UUID

import msgspec

from nilometer.kafka.formats import Format, struct_checked
from nilometer.schema_registry import avro
from nilometer.schema_registry.client import (
    AVRO,
    HEADER,
    JSON_SCHEMA,
    NOT_FRAMED,
    SCHEMAS_KEPT,
    BadValue,
    Schema,
    SchemaRegistry,
    UnusableSchema,
    framed,
    schema_id,
)

T = TypeVar("T")

SchemaText = str | Mapping[str, Any] | Sequence[Any]
"""A schema as text, or as what its JSON is."""
_AVRO_TYPES: Final = (bytes, datetime, date, time, Decimal, UUID)
"""What Avro has besides the types of JSON."""


class _Subjects:
    """Writes data by the schema of its subject, which is ``<topic>-key`` or ``<topic>-value`` by default."""

    def __init__(
        self,
        registry: SchemaRegistry,
        subject: str | None,
        id_and_schema: Callable[[str], tuple[int, Any]],
        write: Callable[[Any, Any], bytes],
        waits_to_decode: Callable[[int], bool],
    ) -> None:
        self._registry = registry
        self._subject = subject
        self._id_and_schema = id_and_schema
        self._write = write
        self._waits = waits_to_decode
        self._known: dict[str, tuple[int, Any]] = {}

    def encode(self, data: Any, topic: str, field: str) -> bytes:
        subject = self._subject_of(topic, field)
        known = self._known.get(subject)
        if known is None:
            if len(self._known) >= SCHEMAS_KEPT:
                self._known.clear()
            known = self._known[subject] = self._id_and_schema(subject)
        number, schema = known
        return framed(number, self._write(schema, data))

    def encode_alone(self, data: Any) -> bytes:
        if self._subject is None:
            raise TypeError("without a topic it needs a subject: subject=…")
        return self.encode(data, "", "")

    def waits_to_encode(self, topic: str, field: str) -> bool:
        return self._subject_of(topic, field) not in self._known

    def waits_to_decode(self, data: bytes) -> bool:
        number = schema_id(data)
        return number is not None and self._waits(number)

    def _subject_of(self, topic: str, field: str) -> str:
        return self._subject or f"{topic}-{field}"


@overload
def Avro(
    registry: SchemaRegistry | str,
    kind: type[T],
    *,
    schema: SchemaText | None = None,
    subject: str | None = None,
    register: bool = True,
) -> Format[T]: ...
@overload
def Avro(
    registry: SchemaRegistry | str,
    kind: None = None,
    *,
    schema: SchemaText | None = None,
    subject: str | None = None,
    register: bool = True,
) -> Format[Any]: ...
def Avro(
    registry: SchemaRegistry | str,
    kind: type[Any] | None = None,
    *,
    schema: SchemaText | None = None,
    subject: str | None = None,
    register: bool = True,
) -> Format[Any]:
    """Return the format of Avro by a registry: its URL, or a SchemaRegistry with its settings.

    Data is of type ``kind``, such as a struct or a dataclass; without it, what Avro has: dictionaries,
    numbers, texts, bytes, datetimes, decimals, UUIDs. It is written by ``schema``, which is registered, or
    with ``register=False`` only looked up; without a schema by the newest one that the subject has when it is
    first written. ``subject`` is by default ``<topic>-key`` or ``<topic>-value``. What is read becomes what
    ``schema`` has, if it is given. Needs fastavro: ``pip install 'nilometer[avro]'``. Raises RegistryError.
    """
    avro.fastavro()
    registry = _registry(registry)
    given = None if schema is None else Schema(AVRO, _text(schema))
    as_schema = None if given is None else avro.parsed(given)
    convert = _from_builtins(kind)

    @lru_cache(maxsize=SCHEMAS_KEPT)
    def parsed(number: int) -> Any:
        return avro.parsed(registry.by_id(number))

    def id_and_schema(name: str) -> tuple[int, Any]:
        if given is not None:
            return _id_of(registry, name, given, register=register), as_schema
        number, newest = registry.newest(name)
        return number, avro.parsed(newest)

    def decode(data: bytes) -> Any:
        number = _schema_id(data)
        try:
            return convert(avro.read(parsed(number), data, as_schema))
        except UnusableSchema as error:
            raise ValueError(f"schema {number} of the registry: {error.message}") from None
        except (BadValue, msgspec.ValidationError) as error:
            raise ValueError(
                f"the value, written with schema {number} of the registry, does not fit: {error}"
            ) from error

    to_avro = _to_builtins(kind)
    subjects = _Subjects(
        registry,
        subject,
        id_and_schema,
        lambda schema, data: avro.write(schema, to_avro(data)),
        lambda number: not registry.knows(number),
    )
    return Format(subjects.encode_alone, decode, reads_null=kind is None, subjects=subjects)


@overload
def JsonSchema(
    registry: SchemaRegistry | str,
    kind: type[T],
    *,
    schema: SchemaText | None = None,
    subject: str | None = None,
    register: bool = True,
) -> Format[T]: ...
@overload
def JsonSchema(
    registry: SchemaRegistry | str,
    kind: None = None,
    *,
    schema: SchemaText | None = None,
    subject: str | None = None,
    register: bool = True,
) -> Format[Any]: ...
def JsonSchema(
    registry: SchemaRegistry | str,
    kind: type[Any] | None = None,
    *,
    schema: SchemaText | None = None,
    subject: str | None = None,
    register: bool = True,
) -> Format[Any]:
    """Return the format of JSON whose schema is in a registry; the parameters are those of :func:`Avro`.

    The schema of ``kind`` is the default of ``schema``. What is read is checked against ``kind``, not against
    the schema, so reading does not ask the registry. Raises RegistryError.
    """
    registry = _registry(registry)
    if schema is None and kind is not None:
        schema = msgspec.json.schema(kind)
    given = None if schema is None else Schema(JSON_SCHEMA, _text(schema))
    check = struct_checked(kind)
    decoder = msgspec.json.Decoder(Any if kind is None else kind)

    def id_and_schema(name: str) -> tuple[int, None]:
        if given is not None:
            return _id_of(registry, name, given, register=register), None
        number, newest = registry.newest(name)
        if newest.kind != JSON_SCHEMA:
            raise UnusableSchema(f"the newest schema of {name} is of type {newest.kind}, not {JSON_SCHEMA}")
        return number, None

    def decode(data: bytes) -> Any:
        number = _schema_id(data)
        try:
            return decoder.decode(data[HEADER.size :])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(
                f"the value, written with schema {number} of the registry, does not fit: {error}"
            ) from error

    subjects = _Subjects(
        registry,
        subject,
        id_and_schema,
        lambda _schema, data: msgspec.json.encode(check(data)),
        lambda _number: False,
    )
    return Format(subjects.encode_alone, decode, reads_null=kind is None, subjects=subjects)


def _registry(given: SchemaRegistry | str) -> SchemaRegistry:
    return given if isinstance(given, SchemaRegistry) else SchemaRegistry(given)


def _text(schema: SchemaText) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def _id_of(registry: SchemaRegistry, subject: str, schema: Schema, *, register: bool) -> int:
    return registry.register(subject, schema) if register else registry.look_up(subject, schema)


def _schema_id(data: bytes) -> int:
    number = schema_id(data)
    if number is None:
        raise ValueError(NOT_FRAMED)
    return number


def _unchanged(data: Any) -> Any:
    return data


def _from_builtins(kind: type[Any] | None) -> Callable[[Any], Any]:
    return _unchanged if kind is None else lambda data: msgspec.convert(data, kind)


def _to_builtins(kind: type[Any] | None) -> Callable[[Any], Any]:
    """Return what makes of data of type ``kind`` what fastavro writes."""
    if kind is None:
        return _unchanged
    check = struct_checked(kind)
    return lambda data: msgspec.to_builtins(check(data), builtin_types=_AVRO_TYPES)
