"""Keys and values by the schemas of a registry as JSON, for people to read: Avro, JSON Schema and Protobuf.

It waits for the registry and for protoc: an event loop calls it in another thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from nilometer.schema_registry import avro, protobuf
from nilometer.schema_registry.client import (
    AVRO,
    HEADER,
    JSON_SCHEMA,
    PROTOBUF,
    SCHEMAS_KEPT,
    BadValue,
    RegistryError,
    Schema,
    SchemaRegistry,
    UnusableSchema,
    schema_id,
)

GROWTH: Final = 64
"""JSON that is longer than this many times its value, and 64 KiB, is not made: names repeat in it."""
NAMES: Final = {AVRO: "Avro", JSON_SCHEMA: "JSON Schema", PROTOBUF: "Protobuf"}


class Limits(msgspec.Struct, frozen=True):
    """How much one call of :meth:`Decoding.decode` does."""

    schemas: int
    """How many schemas are asked for that are not known yet."""
    seconds: float
    """For how long schemas are asked for."""
    value_bytes: int
    """Of one key or value."""


class Decoded(msgspec.Struct, frozen=True):
    schema_id: int
    kind: str
    """What :data:`NAMES` has."""
    content: bytes
    """As JSON without spaces."""


class NotDecoded(msgspec.Struct, frozen=True):
    reason: str
    error: RegistryError | None = None
    """If the registry did not answer, or refused."""


class _Decoder(msgspec.Struct, frozen=True):
    kind: str
    decode: Callable[[bytes], Any]
    """Raises BadValue."""


class Decoding:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._decoders: dict[int, _Decoder] = {}

    def decode(
        self, data: Sequence[bytes | None], limits: Limits | None = None
    ) -> list[Decoded | NotDecoded | None]:
        """Return what each of ``data`` is; None for what names no schema."""
        turn = _Turn(self._decoder, limits)
        return [turn.decode(one) for one in data]

    def _decoder(self, number: int, *, may_ask: bool) -> _Decoder | None:
        """Return the decoder of a schema; None if the registry must be asked and may not be.

        Raises RegistryError.
        """
        found = self._decoders.get(number)
        if found is None and may_ask:
            schema = self._registry.by_id(number)
            if len(self._decoders) >= SCHEMAS_KEPT:
                self._decoders.clear()
            found = self._decoders[number] = _Decoder(NAMES.get(schema.kind, schema.kind), _function(schema))
        return found


class _Turn:
    """One call: what it has asked for, and which schemas cannot be used, each asked for once."""

    def __init__(self, decoder: Any, limits: Limits | None) -> None:
        self._decoder = decoder
        self._limits = limits
        self._until_s = time.monotonic() + limits.seconds if limits is not None else None
        self._asked = 0
        self._refused: dict[int, NotDecoded] = {}
        self._unavailable: RegistryError | None = None

    def decode(self, data: bytes | None) -> Decoded | NotDecoded | None:
        number = None if data is None else schema_id(data)
        if data is None or number is None:
            return None
        if self._limits is not None and len(data) > self._limits.value_bytes:
            return NotDecoded(f"it is larger than {self._limits.value_bytes // 1024} KiB")
        if number in self._refused:
            return self._refused[number]
        found = self._known(number)
        if isinstance(found, NotDecoded):
            self._refused[number] = found
            return found
        try:
            return Decoded(number, found.kind, as_json(found.decode(data), len(data)))
        except BadValue as error:
            return NotDecoded(f"it is no value of schema {number}, {found.kind}: {error}")

    def _known(self, number: int) -> _Decoder | NotDecoded:
        try:
            found: _Decoder | None = self._decoder(number, may_ask=False)
            if found is not None:
                return found
            if self._unavailable is not None:
                return NotDecoded(f"schema {number}: {self._unavailable.message}", self._unavailable)
            if not self._may_ask():
                return NotDecoded(
                    f"schema {number} was not asked for: there are too many, or it took too long"
                )
            self._asked += 1
            return self._decoder(number, may_ask=True)
        except UnusableSchema as error:
            return NotDecoded(f"schema {number} of the registry: {error.message}")
        except RegistryError as error:
            self._unavailable = error
            return NotDecoded(f"schema {number}: {error.message}", error)

    def _may_ask(self) -> bool:
        if self._limits is None or self._until_s is None:
            return True
        return self._asked < self._limits.schemas and time.monotonic() < self._until_s


def _function(schema: Schema) -> Callable[[bytes], Any]:
    """Return what decodes values of a schema. Raises UnusableSchema."""
    if schema.kind == AVRO:
        try:
            known = avro.parsed(schema)
        except ImportError as error:
            raise UnusableSchema(str(error)) from None
        return lambda data: avro.read(known, data)
    if schema.kind == JSON_SCHEMA:
        return _json
    if schema.kind == PROTOBUF:
        return protobuf.decoder(schema)
    raise UnusableSchema(f"it is of type {schema.kind}, which is not decoded")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data[HEADER.size :])
    except (ValueError, RecursionError) as error:
        raise BadValue(f"{type(error).__name__}: {error}") from None


def as_json(value: Any, size: int) -> bytes:
    """Return JSON of a value that was made of ``size`` bytes. Raises BadValue if it is much longer."""
    room = GROWTH * size + 65_536
    parts: list[str] = []
    try:
        for part in _ENCODER.iterencode(value):
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise BadValue("its JSON would be too long")
        return "".join(parts).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise BadValue("it has too many levels") from None


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=msgspec.to_builtins)
