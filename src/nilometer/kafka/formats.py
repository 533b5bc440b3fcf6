"""The formats of keys and values: what ``key=`` and ``value=`` of a producer or a consumer take.

A format is :data:`JSON`; a type; a pair of functions, ``(encode, decode)``; or a :class:`Format`, such as
those by the schemas of a registry (:mod:`nilometer.kafka.schema_formats`). ``str`` is text in UTF-8 and
``bytes`` are bytes; any other type is JSON that msgspec checks against the type, as a struct, a dataclass, a
TypedDict or ``list[int]``.

A null never reaches the functions of a format. When sending, None is always null. When reading, null is None
for JSON and for :func:`nullable` formats, and an error for all others: so a ``value`` has the type that the
format says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from nilometer.schema_registry.client import RegistryError

T = TypeVar("T")

Data = bytes | str | None
"""A key or a value without a format. Text is sent as UTF-8; None is Kafka's null, as a value a tombstone."""
Headers = Mapping[str, Data] | Sequence[tuple[str, Data]]


class Subjects(Protocol):
    """What a format by the schemas of a registry has besides its functions, which then may wait for it."""

    def encode(self, data: Any, topic: str, field: str) -> bytes:
        """In place of the format's own, since schemas are those of a topic's keys or values."""
        ...

    def waits_to_encode(self, topic: str, field: str) -> bool: ...

    def waits_to_decode(self, data: bytes) -> bool: ...


@dataclass(frozen=True, slots=True)
class Format(Generic[T]):
    encode: Callable[[T], bytes | str]
    """Raises an exception for what has no such form."""
    decode: Callable[[bytes], T]
    """Raises an exception for bytes of another format."""
    reads_null: bool = False
    """Whether null is read as None."""
    subjects: Subjects | None = None
    """Only of formats by the schemas of a registry."""

    def waits_to_encode(self, topic: str, field: str) -> bool:
        """Return whether encoding may wait for a registry, so that it must not run in the event loop."""
        return self.subjects is not None and self.subjects.waits_to_encode(topic, field)

    def waits_to_decode(self, data: bytes | None) -> bool:
        return self.subjects is not None and data is not None and self.subjects.waits_to_decode(data)


FormatLike = Format[T] | type[T] | tuple[Callable[[T], bytes | str], Callable[[bytes], T]]

JSON: Format[Any] = Format(msgspec.json.encode, msgspec.json.decode, reads_null=True)
"""Any JSON value. Dataclasses, structs, dates and decimals are written as JSON too."""


def format_of(given: FormatLike[T]) -> Format[T]:
    """Return what ``given`` stands for. Raises TypeError if it is no format."""
    if isinstance(given, Format):
        return given
    if isinstance(given, tuple):
        return Format(*given)
    kind = cast("Any", given)
    if kind is str:
        return Format(cast("Any", checked(str)), cast("Any", bytes.decode))
    if kind is bytes:
        return Format(cast("Any", checked(bytes)), kind)
    if not isinstance(kind, type) and not hasattr(kind, "__origin__"):
        raise TypeError(f"{given!r} is no format: give JSON, a type, or (encode, decode)")
    return Format(_encoder(kind), msgspec.json.Decoder(given).decode)


def nullable(given: FormatLike[T]) -> Format[T | None]:
    """Return a format that reads null as None: for topics with tombstones, and records without a key."""
    return cast("Format[T | None]", replace(format_of(given), reads_null=True))


def _encoder(kind: Any) -> Callable[[Any], bytes]:
    check = struct_checked(kind)
    return lambda data: msgspec.json.encode(check(data))


def struct_checked(kind: Any) -> Callable[[Any], Any]:
    """Return :func:`checked` for a struct; for other types, which JSON does not tell apart, do not check."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return checked(kind)
    return lambda data: data


def checked(kind: type) -> Callable[[Any], Any]:
    """Return a function that returns its argument, and raises TypeError if that is not a ``kind``."""

    def check(data: object) -> object:
        if not isinstance(data, kind):
            raise TypeError(f"it is of type {type(data).__name__}, not {kind.__name__}")
        return data

    return check


# What is sent.


def to_bytes(data: object, topic: str, field: str, form: Format[Any] | None = None) -> bytes | None:
    """Return a key or a value as bytes. Raises RegistryError; TypeError, which names topic and field."""
    if form is not None and data is not None:
        try:
            data = form.encode(data) if form.subjects is None else form.subjects.encode(data, topic, field)
        except RegistryError:
            raise
        except Exception as error:
            raise TypeError(f"the {field} of a record for {topic} cannot be encoded: {error}") from error
    if isinstance(data, str):
        return data.encode()
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, bytearray):
        return bytes(data)
    raise TypeError(
        f"the {field} of a record for {topic} is of type {type(data).__name__}: give bytes, text or None, "
        "or a producer a format, for example kafka.producer(value=nilometer.JSON)"
    )


async def encoded(data: object, topic: str, field: str, form: Format[Any] | None) -> bytes | None:
    """Return what :func:`to_bytes` returns; a format that may wait runs in another thread."""
    if form is not None and data is not None and form.waits_to_encode(topic, field):
        return await asyncio.to_thread(to_bytes, data, topic, field, form)
    return to_bytes(data, topic, field, form)


def to_headers(headers: Headers, topic: str) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, to_bytes(value, topic, f"header {name!r}")) for name, value in pairs]


# What is read.


def from_bytes(data: bytes | None, form: Format[Any] | None) -> Any:
    """Return a key or a value as its format says. Raises what the format's function raises."""
    if form is None:
        return data
    if data is None:
        if form.reads_null:
            return None
        raise ValueError("it is null, which nilometer.nullable(...) would read as None")
    return form.decode(data)
