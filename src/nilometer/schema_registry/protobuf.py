"""Protobuf by the .proto texts of a registry. Needs grpcio-tools, whose protoc runs in a process of its own.

After the five bytes comes which message of the file it is: its index, and those of the messages within.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final

from nilometer.schema_registry.client import HEADER, BadValue, Schema, UnusableSchema

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
        _write(folder, FILE, schema)
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


def _write(folder: Path, name: str, schema: Schema) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\0" in name:
        raise UnusableSchema(f"it refers to {name!r}, which is no name of a file within its folder")
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(schema.text, encoding="utf-8")
    for other, reference in schema.references:
        _write(folder, other, reference)


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
