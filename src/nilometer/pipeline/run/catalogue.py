"""The shipped pipelines by name: their input topics, their output and a summary."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class PipelineModule(Protocol):
    """The functions that a shipped pipeline's module must have.

    It may also have ``charts`` and ``SOURCE_OPTIONS``.
    """

    LATENESS: timedelta

    def start(self, *inputs_and_output: Any, available_now: bool, seconds: int) -> StreamingQuery:
        """Start the pipeline. The positional arguments are the inputs' records and the output folder.

        ``to_topic`` and ``table`` are passed by name to pipelines that need them.
        """
        ...

    def results(self, spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]: ...


@dataclass(frozen=True, slots=True)
class Shipped:
    name: str
    summary: str
    inputs: tuple[str, ...]
    """The default names of the topics that it reads."""
    writes: str | None = None
    """The default name of the topic that it writes to; None if it writes to none."""
    table: str | None = None
    """The columns of the CSV file that it needs, separated by commas; None if it needs none."""

    @property
    def module(self) -> str:
        return f"nilometer.pipeline.shipped.{self.name}"

    def load(self) -> PipelineModule:
        """Import and return its module, which imports pyspark."""
        return cast(PipelineModule, importlib.import_module(self.module))


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
