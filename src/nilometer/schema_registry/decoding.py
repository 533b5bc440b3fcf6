"""Keys and values by the schemas of a registry as JSON, for people to read: Avro, JSON Schema and Protobuf.

It waits for the registry and for protoc: an event loop calls it in another thread.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from nilometer.schema_registry import avro
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
    references_of,
    schema_id,
)

# Protobuf by the .proto texts of a registry. Needs grpcio-tools, whose protoc runs in a process of its own.
#
# After the five bytes comes which message of the file it is: its index, and those of the messages within.

FILE: Final = "nilometer_schema.proto"
COMPILE_TIMEOUT_S: Final = 10.0
_LOG_LINE: Final = re.compile(r"WARNING|[IW]\d{4} ")
INDEXES_MAX: Final = 100
"""How deep a message may be within others."""


def decoder(schema: Schema) -> Callable[[bytes], Any]:
    """Return what makes JSON's dictionaries of values; it raises BadValue. Raises UnusableSchema."""
    if find_spec("grpc_tools") is None:
        raise UnusableSchema("Protobuf is decoded with grpcio-tools: pip install 'nilometer[protobuf]'")
    files = import_module("google.protobuf.descriptor_pb2").FileDescriptorSet.FromString(_compiled(schema))
    pool: Any = import_module("google.protobuf.descriptor_pool").DescriptorPool()
    for one in files.file:
        pool.Add(one)
    main = files.file[-1]
    message_class: Any = import_module("google.protobuf.message_factory").GetMessageClass
    to_dict: Any = import_module("google.protobuf.json_format").MessageToDict

    def decode(value: bytes) -> Any:
        indexes, start = _indexes(value, HEADER.size)
        message = message_class(pool.FindMessageTypeByName(_name(main, indexes)))
        try:
            found = message.FromString(value[start:])
            return to_dict(found, preserving_proto_field_name=True, descriptor_pool=pool)
        # The bytes decide which error it is: every one means that they are no such message.
        except Exception as error:
            raise BadValue(f"{type(error).__name__}: {error}") from None

    return decode


def _compiled(schema: Schema) -> bytes:
    """Return the descriptors of the files. Raises UnusableSchema."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, one in ((FILE, schema), *references_of(schema)):
            _write(folder, file, one.text)
        shipped = Path(import_module("grpc_tools").__file__ or "").parent / "_proto"
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={folder}",
            f"--proto_path={shipped}",
        ]
        command += ["--include_imports", f"--descriptor_set_out={folder / 'descriptors'}", FILE]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UnusableSchema(f"protoc took longer than {COMPILE_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            said = done.stderr.replace(f"{folder}/", "").replace(FILE, "line").splitlines()
            errors = " ".join(line for line in said if _LOG_LINE.match(line) is None)
            raise UnusableSchema(f"it cannot be read: {errors[:500]}")
        return (folder / "descriptors").read_bytes()


def _write(folder: Path, name: str, text: str) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\0" in name:
        raise UnusableSchema(f"it refers to {name!r}, which is no name of a file within its folder")
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _indexes(value: bytes, start: int) -> tuple[list[int], int]:
    """Return which message it is, and where it begins. Raises BadValue."""
    count, start = _number(value, start)
    if count == 0:
        return [0], start  # short for the first one
    if not 0 < count <= INDEXES_MAX:
        raise BadValue(f"its message has {count} indexes")
    indexes: list[int] = []
    for _ in range(count):
        index, start = _number(value, start)
        indexes.append(index)
    return indexes, start


def _number(value: bytes, start: int) -> tuple[int, int]:
    """Return a zigzag varint, and where it ends. Raises BadValue."""
    found = 0
    for shift, byte in enumerate(value[start : start + 5]):
        found |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), start + shift + 1
    raise BadValue("the indexes of its message do not end")


def _name(main: Any, indexes: list[int]) -> str:
    names = [main.package] if main.package else []
    messages = main.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise BadValue(f"the schema has no message {indexes}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


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
        return decoder(schema)
    raise UnusableSchema(f"it is of type {schema.kind}, which is not decoded")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data[HEADER.size :])
    except (ValueError, RecursionError) as error:
        raise BadValue(f"{type(error).__name__}: {error}") from None


def as_json(value: Any, size: int) -> bytes:
    """Return ``value``, which was decoded from ``size`` bytes, as JSON.

    Raises BadValue if the JSON is much longer, or nested too deeply.
    """
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
