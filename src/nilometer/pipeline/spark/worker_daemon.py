"""Spark's daemon of Python workers, with the data sources imported before the workers are forked from it.

Spark forks a worker for each data source that a query creates, another one for its plan, and on executors one
for each task at a time: each would import Nilometer's client first, which takes a third of a second. What is
imported here must start no thread, since a fork has only the thread that forks: neither numpy nor pyarrow.

Spark's archive of pyspark has no bytecode, so that importing it takes half a second of compiling. Where the
same version is installed as well, with bytecode, that one is imported.
"""

from __future__ import annotations

import importlib
import sys
import zipimport
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

SOURCES = (
    "nilometer.pipeline.source.cluster.cluster_source",
    "nilometer.pipeline.source.log_folders.log_source",
)
ARCHIVE = "pyspark.zip"
VERSION = str(Path("pyspark", "version.py"))


def places(path: Sequence[str]) -> list[str]:
    """Return the places of modules without Spark's archives, if the others have what these have."""
    archives = [one for one in path if one.endswith(ARCHIVE)]
    others = [one for one in path if not one.endswith((ARCHIVE, "-src.zip"))]
    found = PathFinder.find_spec("pyspark", others)
    if not archives or found is None or found.origin is None or PathFinder.find_spec("py4j", others) is None:
        return list(path)
    with suppress(OSError, zipimport.ZipImportError):
        if (
            zipimport.zipimporter(archives[0]).get_data(VERSION)
            == Path(found.origin).with_name("version.py").read_bytes()
        ):
            return others
    return list(path)


sys.path[:] = places(sys.path)
for name in SOURCES:
    with suppress(ImportError):  # the task that needs it says what is missing
        importlib.import_module(name)

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
