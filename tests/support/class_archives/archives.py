"""Archives of classes that a JVM maps instead of loading each class (class-data sharing, JEP 310 and 350).

A Kafka or Spark process of a few seconds spends half of its processor time on loading and verifying
classes. `make class-archives` writes the archives. A JVM ignores an archive of another class path or version.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "build" / "class-archives"
KAFKA = FOLDER / "kafka.jsa"
CONNECT = FOLDER / "connect.jsa"
SPARK = FOLDER / "spark.jsa"
SPARK_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Spark's start script passes the options in this variable to the driver."""


def options(archive: Path) -> tuple[str, ...]:
    """Return the JVM options that use ``archive``; none, if it has not been made."""
    if not archive.exists():
        return ()
    return ("-Xshare:auto", f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def use_for_spark(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let every Spark driver that is started with ``environment`` use the archive."""
    wanted = " ".join(options(SPARK))
    given = environment.get(SPARK_OPTIONS, "")
    if wanted and wanted not in given:
        environment[SPARK_OPTIONS] = f"{given} {wanted}".strip()
