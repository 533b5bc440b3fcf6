"""Projects of Spark Declarative Pipelines: written with one of the definitions of this package, and run in
this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

from nilometer.pipeline.errors import PipelineError, readable
from nilometer.pipeline.run.runner import Job, check_source
from nilometer.pipeline.spark.java import require_java
from nilometer.pipeline.spark.spark_session import quick_python, work_folder

# Writes a project folder for ``spark-pipelines run``, with one of the definitions of this package.
#
# Imports nothing of Spark.

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


# Runs a project of Spark Declarative Pipelines in this process, on this machine.
#
# Spark's own program, spark-pipelines, starts a Java process that starts Python that starts another Java
# process. Here this process is the Python one; environment variables replace what the first Java process
# would pass.

MASTER = "local[*]"


def run_project(spec: Path, command: str, *arguments: str) -> None:
    """Run ``spark-pipelines COMMAND --spec SPEC ARGUMENTS`` in this process. Raises PipelineError."""
    require_java()
    job = job_of(spec)
    if job is not None:
        check_source(job)
    try:
        from pyspark.errors import PySparkException
        from pyspark.pipelines import cli
    except ImportError as error:
        raise PipelineError(
            f"Spark Declarative Pipelines need more packages ({error}): pip install 'nilometer[spark]'"
        ) from error
    folder = spec.absolute().parent
    with _environment(folder), contextlib.chdir(folder), _arguments(command, "--spec", spec.name, *arguments):
        try:
            cli.main()
        except PySparkException as error:
            log = folder / "spark.log"
            more = f" (more in {log})" if log.exists() else ""
            message = readable(error) or str(error).strip().partition("\n")[0]
            raise PipelineError(message + more) from error


def job_of(spec: Path) -> Job | None:
    """Return the brokers and topics in a specification's ``spark.nilometer.`` keys; None without these keys.

    With them a missing broker or topic can be reported before Spark is started. Raises PipelineError if the
    file is no specification.
    """
    import yaml

    try:
        parsed = yaml.safe_load(spec.read_text(encoding="utf-8"))
        configuration: Mapping[str, str] = dict(parsed.get("configuration") or {})
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise PipelineError(f"{spec} is not a specification of a pipeline: {error}") from error
    topics = [str(topic) for key, topic in sorted(configuration.items()) if str(key).startswith(TOPIC_KEYS)]
    if SERVERS_KEY not in configuration or not topics:
        return None
    return Job(",".join(topics), str(spec.parent), str(configuration[SERVERS_KEY]))


@contextlib.contextmanager
def _environment(folder: Path) -> Generator[None]:
    """Set Spark's environment variables that the user has not set; restore the environment at the end."""
    wanted = {
        "SPARK_REMOTE": MASTER,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": quick_python(Path(work_folder())),
    }
    if (folder / CONF).is_dir():
        wanted["SPARK_CONF_DIR"] = str(folder / CONF)
    before = dict(os.environ)
    os.environ.update({key: value for key, value in wanted.items() if key not in before})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _arguments(*arguments: str) -> Generator[None]:
    before = sys.argv
    sys.argv = ["spark-pipelines", *arguments]
    try:
        yield
    finally:
        sys.argv = before
