"""The messages that kio does not have yet have the fields of Apache Kafka's own schemas, in their order."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from nilometer.wire.building import FieldShape, shape_of
from nilometer.wire.later_versions import LATER_VERSIONS, message_type
from support.kafka.apache_kafka import KAFKA_JARS, kafka_version

pytestmark = pytest.mark.java

Shape = list[tuple[Any, ...]]
"""Of each field: its name, type (a list for a structure), whether it is an array, and may be null; and its
tag."""
RENAMED = {"generation_id_or_member_epoch": "generation_id"}
"""What kio calls otherwise than Kafka's newest schemas."""


@pytest.fixture(scope="module")
def schemas() -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(KAFKA_JARS / f"kafka-clients-{kafka_version()}.jar") as jar:
        yield jar


def schema(jar: zipfile.ZipFile, name: str, part: str) -> dict[str, Any]:
    title = "".join(word.capitalize() for word in name.split("_")) + part.capitalize()
    text = jar.read(f"common/message/{title}.json").decode()
    return json.loads(re.sub(r"^[ \t]*//.*$", "", text, flags=re.MULTILINE))


def has(versions: str, version: int) -> bool:
    if versions == "none":
        return False
    low, _, high = versions.partition("-")
    return int(low.rstrip("+")) <= version <= (int(high) if high else 99 if low.endswith("+") else int(low))


def theirs(fields: list[dict[str, Any]], structs: dict[str, list[dict[str, Any]]], version: int) -> Shape:
    found: Shape = []
    for field in fields:
        if not has(field["versions"], version):
            continue
        kind: str = field["type"]
        is_array, kind = kind.startswith("[]"), kind.removeprefix("[]")
        inner: Any = kind
        if kind[0].isupper():
            inner = theirs(field.get("fields") or structs[kind], structs, version)
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", field["name"]).lower()
        if name.endswith("_ms") and kind == "int32":
            name, inner = name.removesuffix("_ms"), "timedelta_i32"
        elif name == "error_code":
            inner = "error_code"
        nullable = has(field.get("nullableVersions", "none"), version) or kind == "uuid"
        tag = field.get("tag") if has(field.get("taggedVersions", "none"), version) else None
        found.append((RENAMED.get(name, name), inner, is_array, nullable, tag))
    return found


def ours(fields: tuple[FieldShape, ...]) -> Shape:
    return [
        (
            field.name,
            ours(shape_of(field.entity).fields) if field.entity is not None else field.kafka_type,
            field.is_array,
            field.nullable,
            field.tag,
        )
        for field in fields
    ]


@pytest.mark.parametrize("part", ["request", "response"])
@pytest.mark.parametrize(("name", "version"), LATER_VERSIONS)
def test_the_fields_of_kafkas_schema(schemas: zipfile.ZipFile, name: str, version: int, part: str) -> None:
    found = schema(schemas, name, part)
    structs = {each["name"]: each["fields"] for each in found.get("commonStructs", ())}
    assert has(found["validVersions"], version)
    made = message_type(name, version, part)
    assert made.__api_key__ == found["apiKey"]
    assert made.__version__ == version
    assert ours(shape_of(made).fields) == theirs(found["fields"], structs, version)
