"""Spark's daemon of Python workers, with the data sources imported before the workers are forked from it.

Spark forks a worker for each data source that a query creates, and another one for its plan: each would
import Nilometer's client first, which takes a third of a second. What is imported here must start no thread,
since a fork has only the thread that forks: neither numpy nor pyarrow.
"""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

SOURCES = (
    "nilometer.pipeline.source.cluster.cluster_source",
    "nilometer.pipeline.source.log_folders.log_source",
)

for name in SOURCES:
    importlib.import_module(name)

if __name__ == "__main__":
    manager()
