"""The row of the pipeline `table`: a topic of JSON records into Delta Lake, Iceberg and Parquet.

The columns are those of a JSON Schema; the pipeline reads what is there and stops. The time is that of the
whole query, with its start and the commits of its batches.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from typing import get_args

from confluent_kafka import Producer

from nilometer.pipeline.shipped import table
from nilometer.pipeline.tables.table_writer import TableFormat

from .rows import Column, Numbers, Row
from .spark import PARTITIONS, SparkOnNilometer
from .systems import System, create_topic, delete_topic, remove

SHARE = 10
"""Of the records that the other rows of Spark read, this row reads one in so many."""
FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
TITLES = {"delta": "Delta Lake", "iceberg": "Iceberg", "parquet": "Parquet"}
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "user": {"type": "string"},
        "kind": {"type": "string"},
        "amount": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["id", "user"],
    "additionalProperties": False,
}


def _tables(system: System) -> Numbers:
    """Records per second into a new table of each format."""
    assert isinstance(system, SparkOnNilometer)
    records = system.records // SHARE
    topic = create_topic(system, f"orders-{uuid.uuid4().hex[:6]}", PARTITIONS)
    fill(system, topic, records)
    schema = system.folder / "orders.schema.json"
    schema.write_text(json.dumps(SCHEMA))
    _into(system, topic, "parquet", str(schema), records)  # imports and compilers, not reported
    found = {one: _into(system, topic, one, str(schema), records) for one in FORMATS}
    delete_topic(system, topic)
    return found


def _into(
    system: SparkOnNilometer, topic: str, table_format: TableFormat, schema: str, records: int
) -> float:
    servers = {"kafka.bootstrap.servers": system.bootstrap}
    options = {**servers, **table.SOURCE_OPTIONS, "subscribe": topic, "startingOffsets": "earliest"}
    frame = system.spark.readStream.format("nilometer").options(**options).load()
    output = system.folder / f"table-{uuid.uuid4().hex[:6]}"
    settings = table.Settings(format=table_format, schema=schema)
    letters = {**servers, "topic": "dead-letters"}
    began = time.monotonic()
    query = table.start(frame, str(output), dead_letters=letters, settings=settings, available_now=True)
    query.awaitTermination()
    seconds = time.monotonic() - began
    rows = settings.options().store(output).totals().rows
    remove(output)
    if rows != records:
        raise RuntimeError(f"the {table_format} table has {rows} rows, not {records}")
    return records / seconds


def fill(system: SparkOnNilometer, topic: str, records: int) -> None:
    """JSON records of about 100 B, all different."""
    producer = Producer({"bootstrap.servers": system.bootstrap, "linger.ms": 5})
    chance = random.Random(records)
    for number in range(records):
        record = {
            "id": number,
            "user": f"u{chance.randrange(100_000)}",
            "kind": chance.choice(("payment", "refund", "order")),
            "amount": chance.randrange(100_000) / 100,
            "at": "2026-01-31T12:00:00Z",
        }
        value = json.dumps(record).encode()
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(60):
        raise RuntimeError(f"{len(producer)} records were not acknowledged")


TABLE_ROWS: tuple[Row, ...] = (
    Row(
        "spark-table",
        "JSON records of 100 B through the pipeline `table`, columns by a schema",
        tuple(
            Column(one, f"into {TITLES[one]}", "records/s", more_is_better=True, digits=0) for one in FORMATS
        ),
        measure=_tables,
        in_spark=True,
    ),
)
