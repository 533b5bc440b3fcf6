"""Writes a project folder for ``spark-pipelines run``, with one of the definitions of this package.

Imports nothing of Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nilometer.pipeline.errors import PipelineError

DECLARED = ("activity", "logs", "metrics")
SPEC_NAME = "spark-pipeline.yml"
CONF = "conf"
"""The folder of Spark's settings in the project folder."""

_SPEC = """# Run it here with one of:
#   nilometer spark pipelines run
#   SPARK_CONF_DIR=conf spark-pipelines run
# Beside this file go tables (spark-warehouse), their catalog (metastore_db) and checkpoints (storage).
# Removing the three makes the next run read from the beginning.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
{configuration}
"""
_CONFIGURATION = {
    "spark.sql.session.timeZone": "UTC",
    # About the number of cores; the default of 200 is for clusters.
    "spark.sql.shuffle.partitions": "2",
    # An invalid date such as 31/Feb becomes null rather than an error.
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}
_DEFAULTS = """# What Spark must know before it starts. (spark-pipelines loses some of many --conf.)
# A catalog that outlives the run is what makes the next one go on.
spark.sql.catalogImplementation          hive
spark.python.unix.domain.socket.enabled  true
spark.driver.host                        127.0.0.1
spark.driver.bindAddress                 127.0.0.1
spark.ui.enabled                         false
spark.ui.showConsoleProgress             false
"""
_LOGGING = """# What goes wrong comes back as an exception; the rest is for reading afterwards.
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = spark.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
SERVERS_KEY = "spark.nilometer.bootstrap.servers"
TOPIC_KEYS = "spark.nilometer.topic."


def write_project(name: str, folder: Path, bootstrap: str, topics: Mapping[str, str]) -> Path:
    """Write the project of definition ``name`` to ``folder``; return the path of its specification.

    ``topics`` maps each topic name of the definition to the topic to use. Raises PipelineError if ``folder``
    is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise PipelineError(f"{folder} is not empty: name another folder")
    definitions = folder / "transformations"
    definitions.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name(f"{name}.py")
    (definitions / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    configuration = {
        SERVERS_KEY: bootstrap,
        **{f"{TOPIC_KEYS}{ours}": topic for ours, topic in topics.items()},
        **_CONFIGURATION,
    }
    spec = folder / SPEC_NAME
    text = _SPEC.format(
        name=name,
        storage=json.dumps((folder.absolute() / "storage").as_uri()),
        configuration="\n".join(f"  {key}: {json.dumps(value)}" for key, value in configuration.items()),
    )
    spec.write_text(text, encoding="utf-8")
    conf = folder / CONF
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(_DEFAULTS, encoding="utf-8")
    (conf / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    return spec
