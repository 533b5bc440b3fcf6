"""Runs a project of Spark Declarative Pipelines in this process, on this machine.

Spark's own program, spark-pipelines, starts a Java process that starts Python that starts another Java
process. Here this process is the Python one; environment variables replace what the first Java process would
pass.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

from nilometer.pipeline.declared.project import CONF, SERVERS_KEY, TOPIC_KEYS
from nilometer.pipeline.errors import PipelineError, readable
from nilometer.pipeline.run.runner import Job, check_source
from nilometer.pipeline.spark.java import require_java
from nilometer.pipeline.spark.spark_session import quick_python, work_folder

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
