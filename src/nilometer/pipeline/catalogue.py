"""The shipped pipelines by name: what they read, what they write, and what they do."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class PipelineModule(Protocol):
    """What the module of a shipped pipeline offers. It may also have ``charts`` and ``SOURCE_OPTIONS``."""

    LATENESS: timedelta

    def start(self, *inputs_and_output: Any, available_now: bool, seconds: int) -> StreamingQuery:
        """The inputs' records, then the folder; ``to_topic`` and ``table`` by name where it needs them."""
        ...

    def results(self, spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]: ...


@dataclass(frozen=True, slots=True)
class Shipped:
    name: str
    summary: str
    inputs: tuple[str, ...]
    """The topics that it reads, by the names they have if no other is given."""
    writes: str | None = None
    """The topic that it writes to, likewise."""
    table: str | None = None
    """What the table is that it needs beside its topics: columns of a CSV file."""

    @property
    def module(self) -> str:
        return f"nilometer.pipeline.shipped.{self.name}"

    def load(self) -> PipelineModule:
        """The module; imports pyspark."""
        return importlib.import_module(self.module)  # pyright: ignore[reportReturnType]


SHIPPED = {
    one.name: one
    for one in (
        Shipped(
            "logs",
            "Parse access, syslog and package manager logs; count by minute, status or level, name.",
            ("logs",),
        ),
        Shipped(
            "activity",
            "Sessions, page views, funnels and top paths from access logs.",
            ("access",),
        ),
        Shipped(
            "metrics",
            "Measurements rolled up by minute; rules that are broken raise alerts in a topic.",
            ("measurements",),
            writes="alerts",
        ),
        Shipped(
            "changelog",
            "A database's change events as its current table and its history (SCD 1 and 2).",
            ("changes",),
        ),
        Shipped(
            "join",
            "Orders met with their payments within an hour, and with a table of customers.",
            ("orders", "payments"),
            table="customer,name,country",
        ),
        Shipped(
            "notifications",
            "Messages to users, rendered where events reach a threshold, for a webhook.",
            ("events",),
            writes="notifications",
            table="user,name,language,address",
        ),
        Shipped(
            "burst",
            "A burst of records absorbed by its topic and drained at a set rate.",
            ("burst",),
        ),
    )
}
