"""The shipped pipelines by name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class PipelineModule(Protocol):
    """What the module of a shipped pipeline offers."""

    LATENESS: timedelta

    def start(
        self, records: DataFrame, output: str, *, available_now: bool = False, seconds: int = 5
    ) -> StreamingQuery: ...

    def results(self, spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]: ...


@dataclass(frozen=True, slots=True)
class Shipped:
    name: str
    module: str
    summary: str

    def load(self) -> PipelineModule:
        """The module; imports pyspark."""
        return importlib.import_module(self.module)  # pyright: ignore[reportReturnType]


SHIPPED = {
    one.name: one
    for one in (
        Shipped(
            "logs",
            "nilometer.pipeline.shipped.logs",
            "Parse access, syslog and package manager logs; count by minute, status or level, name.",
        ),
    )
}
