"""The plan of a batch, ``plan.json``: what decides which of its records are rows, in each attempt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nilometer.pipeline.tables.avro_schemas import AvroSchemas, avro_schemas_of
from nilometer.pipeline.tables.json_schema import json_schema_of, parse_json_schema
from nilometer.pipeline.tables.staged_files import write_whole
from nilometer.pipeline.tables.value_types import ValueType

PLAN: Final = "plan.json"
"""The file of the plan, in the run's folder."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    row: ValueType
    """The type that values must have."""
    schemas: AvroSchemas | None = None
    """What Avro values were written with; None: values are JSON."""


def saved_plan(output: Path, application: str, batch_id: int) -> BatchPlan | None:
    """Return the plan that an earlier attempt of the batch saved; None if there is none."""
    path = output / PLAN
    if not path.exists():
        return None
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if said["batch"] != batch_id or said["application"] != application:
        return None
    schemas = said.get("avro")
    row = parse_json_schema(json.dumps(said["schema"]))
    return BatchPlan(row, None if schemas is None else avro_schemas_of(schemas))


def save_plan(output: Path, application: str, batch_id: int, plan: BatchPlan) -> None:
    """Replace the plan of the batch before."""
    said = {
        "batch": batch_id,
        "application": application,
        "schema": json_schema_of(plan.row),
        "avro": None if plan.schemas is None else plan.schemas.as_json(),
    }
    write_whole(output / PLAN, said)
