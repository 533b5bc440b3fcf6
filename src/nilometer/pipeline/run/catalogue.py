"""The shipped pipelines by name: their input topics, their output and a summary."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEAD_LETTERS = "dead-letters"
"""The default topic of rejected records."""


class PipelineModule(Protocol):
    """The functions that a shipped pipeline's module must have.

    It may also have ``charts``, ``SOURCE_OPTIONS``, a dataclass ``Settings`` (with a ``check`` that raises
    PipelineError), ``check`` (of the output folder and the settings, before Spark starts) and ``finish``,
    which writes what is still open. ``formats`` and ``settings`` are passed by name to the functions that
    have such an argument.
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
    sample_settings: tuple[str, ...] = ()
    """The settings, as for ``--set``, that its generated input needs."""
    path: str | None = None
    """The file of a pipeline of the user's own; None for a shipped one."""

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
            "Parses access, syslog and package manager logs; counts by minute, status or level, name.",
            ("logs",),
        ),
        Shipped(
            "activity",
            "Finds sessions, page views, funnels and top paths in access logs.",
            ("access",),
        ),
        Shipped(
            "metrics",
            "Rolls up measurements by minute; writes an alert to a topic when a rule is broken.",
            ("measurements",),
            writes="alerts",
        ),
        Shipped(
            "changelog",
            "Makes the current table and its history (SCD 1 and 2) from a database's change events.",
            ("changes",),
        ),
        Shipped(
            "join",
            "Joins orders with their payments within an hour, and with a table of customers.",
            ("orders", "payments"),
            table="customer,name,country",
        ),
        Shipped(
            "notifications",
            "Writes messages to users, for a webhook, when events reach a threshold.",
            ("events",),
            writes="notifications",
            table="user,name,language,address",
        ),
        Shipped(
            "burst",
            "Processes a burst of records, which its topic holds, at a fixed rate.",
            ("burst",),
        ),
        Shipped(
            "table",
            "Writes a topic as a table of Delta Lake, Iceberg or Parquet, each record once.",
            ("orders",),
            sample_settings=("schema=infer",),
        ),
    )
}
