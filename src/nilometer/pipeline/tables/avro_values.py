"""Avro values with a registry's header: the schemas of a batch, the decoder, and the columns of a schema.

The columns come from the newest schema of the topic. A value is read with the schema that it was written
with, and fits if its fields do: what it lacks is null. A value of a schema that cannot be read is rejected.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

from nilometer.pipeline.errors import PipelineError, RejectedValue
from nilometer.pipeline.tables.table_store import needed
from nilometer.pipeline.tables.values import (
    Decoder,
    Field,
    Kind,
    SchemaError,
    ValueType,
    check_columns,
    row_converter,
    struct,
)
from nilometer.schema_registry.avro import (
    BadSchema,
    check_depth,
    check_is_avro,
    parsed_text,
    read,
    said,
)
from nilometer.schema_registry.client import (
    BadValue,
    RegistryError,
    SchemaRegistry,
    UnusableSchema,
    schema_id,
)


def registry_at(url: str) -> SchemaRegistry:
    """Raises PipelineError if ``url`` is none of a registry."""
    try:
        return SchemaRegistry(url)
    except RegistryError as error:
        raise PipelineError(f"--set registry: {error.message}") from None


def newest_schema(topic: str, registry: SchemaRegistry) -> str:
    """Return the newest schema of a topic's values, subject ``<topic>-value``. Raises PipelineError."""
    subject = f"{topic}-value"
    try:
        _, schema = registry.newest(subject)
    except RegistryError as error:
        raise PipelineError(error.message) from None
    try:
        check_is_avro(schema)
    except UnusableSchema as error:
        raise PipelineError(f"the newest schema of {subject} in {registry.url}: {error.message}") from None
    return schema.text


# The schemas that the Avro values of a batch were written with, as the registry has them when it is planned.
#
# A value begins with five bytes: 0, and the id of its schema. The registry is asked once for a batch, and the
# answers are part of the batch's plan: whether an id is known does not change while the batch is repeated,
# and its tasks need no registry.

SCHEMAS_MAX: Final = 1_000
"""The number of schemas of one batch. Values whose ids are made up could otherwise ask for each of them."""


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    texts: Mapping[int, str]
    """The schemas by id."""
    refused: Mapping[int, str]
    """Why the values of an id are rejected, by id."""

    def as_json(self) -> dict[str, Any]:
        return {"texts": dict(self.texts), "refused": dict(self.refused)}


def avro_schemas_of(said: Mapping[str, Mapping[str, str]]) -> AvroSchemas:
    """Return the schemas that :meth:`AvroSchemas.as_json` wrote."""
    texts, refused = said["texts"], said["refused"]
    return AvroSchemas(
        {int(number): text for number, text in texts.items()},
        {int(number): why for number, why in refused.items()},
    )


def schema_ids(values: Iterable[bytes | None]) -> Counter[int]:
    """Return how often the values name each schema; the most frequent ones only, if there are too many."""
    found = Counter(
        number for value in values if value is not None and (number := schema_id(value)) is not None
    )
    return Counter(dict(most_frequent(found)))


def most_frequent(ids: Counter[int]) -> list[tuple[int, int]]:
    return sorted(ids.items(), key=lambda one: (-one[1], one[0]))[:SCHEMAS_MAX]


def read_schemas(ids: Counter[int], registry: SchemaRegistry) -> AvroSchemas:
    """Ask the registry for the schemas with these ids. Raises PipelineError if it does not answer."""
    texts: dict[int, str] = {}
    refused: dict[int, str] = {}
    for number, _ in most_frequent(ids):
        try:
            schema = registry.by_id(number)
            check_is_avro(schema)
            if schema.references:
                raise UnusableSchema("it refers to other schemas")
        except UnusableSchema as error:
            refused[number] = error.message
        except RegistryError as error:
            raise PipelineError(error.message) from None
        else:
            texts[number] = schema.text
    return AvroSchemas(texts, refused)


_KINDS: Final[Mapping[str, Kind]] = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}
_LOGICAL: Final[Mapping[tuple[str, str], Kind]] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("string", "uuid"): "string",
}


def avro_decoder(row: ValueType, schemas: AvroSchemas) -> Decoder:
    """Return the decoder of Avro values that are rows of type ``row``, written with ``schemas``."""
    needed("fastavro")
    convert = row_converter(row)

    @lru_cache(maxsize=SCHEMAS_MAX)
    def schema_of(number: int) -> tuple[Any, str | None]:
        """Return the schema, or why it cannot be used."""
        text = schemas.texts.get(number)
        if text is None:
            others = f"it is not among the {SCHEMAS_MAX} most frequent schemas of its batch"
            return None, schemas.refused.get(number, others)
        try:
            return parsed_text(text), None
        # The text decides which error it is: every one means that no value can be read with it.
        except Exception as error:
            return None, f"it cannot be read: {said(error)}"

    def decode(value: bytes) -> dict[str, Any]:
        number = schema_id(value)
        if number is None:
            raise RejectedValue("the value does not begin with the 5 bytes of a schema registry")
        schema, why = schema_of(number)
        if why is not None:
            raise RejectedValue(f"schema {number} of the registry: {why}")
        try:
            found = _with_texts(read(schema, value))
        except BadValue as error:
            raise RejectedValue(f"no value of schema {number}", str(error)) from None
        return convert(found)

    return Decoder(decode)


def _with_texts(value: Any) -> Any:
    """Return the value with UUIDs as texts."""
    match value:
        case dict():
            return {name: _with_texts(inner) for name, inner in cast("dict[str, Any]", value).items()}
        case list():
            return [_with_texts(inner) for inner in cast("list[Any]", value)]
        case uuid.UUID():
            return str(value)
        case _:
            return value


def parse_avro_schema(text: str) -> ValueType:
    """Return the type of the rows of an Avro record. Raises SchemaError with the place."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the Avro schema is no JSON: {error}") from None
    try:
        check_depth(schema)
    except BadSchema as error:
        raise SchemaError(str(error)) from None
    return check_columns(_Parser().type_of(schema, "$")[0])


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, ValueType | None] = {}

    def type_of(self, schema: Any, where: str) -> tuple[ValueType, bool]:
        """Return the type, and whether null is allowed."""
        match schema:
            case list():
                members = cast("list[Any]", schema)
                others = [one for one in members if one != "null"]
                if len(others) != 1:
                    raise SchemaError(f"{where}: a union of several types is no column")
                return self.type_of(others[0], where)[0], len(others) < len(members)
            case str():
                return self._named_type(schema, where), False
            case dict():
                return self._complex(cast("dict[str, Any]", schema), where), False
            case _:
                raise SchemaError(f"{where}: {json.dumps(schema)} is no Avro schema")

    def _named_type(self, name: str, where: str) -> ValueType:
        if name in _KINDS:
            return ValueType(_KINDS[name])
        short = name.rpartition(".")[2]
        if self._named.get(short) is None:
            reason = "is recursive" if short in self._named else "is not supported"
            raise SchemaError(f"{where}: type {name} {reason} as a column")
        return cast("ValueType", self._named[short])

    def _complex(self, schema: dict[str, Any], where: str) -> ValueType:
        kind, name = schema.get("type"), str(schema.get("name", "")).rpartition(".")[2]
        given = schema.get("logicalType")
        logical = given if isinstance(given, str) else None
        match kind:
            case "record":
                self._named[name] = None
                fields: list[Field] = []
                for one in _fields_of(schema, where):
                    inner, _ = self.type_of(one.get("type"), f"{where}.{one.get('name')}")
                    fields.append(Field(str(one.get("name")), inner))
                found = struct(*fields)
            case "array":
                return ValueType("list", item=self.type_of(schema.get("items"), f"{where}[]")[0])
            case str() if (kind, logical) in _LOGICAL:
                found = ValueType(_LOGICAL[kind, cast("str", logical)])
            case str() if logical is None and kind in _KINDS:
                found = ValueType(_KINDS[kind])
            case _:
                said = f"{kind} ({logical})" if logical else kind
                raise SchemaError(f"{where}: type {said} is not supported as a column")
        if name:
            self._named[name] = found
        return found


def _fields_of(schema: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    fields: Any = schema.get("fields", [])
    if not isinstance(fields, list) or not all(isinstance(one, dict) for one in cast("list[Any]", fields)):
        raise SchemaError(f"{where}: the fields of a record are a list of objects")
    return cast("list[dict[str, Any]]", fields)
