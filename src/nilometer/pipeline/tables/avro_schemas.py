"""The schemas that the Avro values of a batch were written with, as the registry has them when it is planned.

A value begins with five bytes: 0, and the id of its schema. The registry is asked once for a batch, and the
answers are part of the batch's plan: whether an id is known does not change while the batch is repeated, and
its tasks need no registry.
"""

from __future__ import annotations

import struct as binary
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nilometer.pipeline.tables.schema_registry import SchemaRegistry, UnusableSchema

HEADER: Final = binary.Struct(">bi")
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


def schema_id(value: bytes) -> int | None:
    """Return the id of the schema that a value names; None if it names none."""
    if len(value) < HEADER.size:
        return None
    first, number = HEADER.unpack_from(value)
    return number if first == 0 and number >= 0 else None


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
            texts[number] = registry.by_id(number)
        except UnusableSchema as error:
            refused[number] = str(error)
    return AvroSchemas(texts, refused)
