"""Starts a Spark session: fast and without output, with this Python for the workers.

Spark's own messages (JVM, log4j, worker tracebacks) go to a file, since errors are also raised as exceptions;
error messages name the file. Spark's other files are in a temporary folder that is removed when the process
ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nilometer.pipeline.spark.executors import (
    DAEMON_SETTINGS,
    DRIVER_PYTHON_SETTING,
    PYTHON_SETTING,
    driver_environment,
    python_settings,
    shipping_settings,
    write_archive,
)
from nilometer.pipeline.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
"""Spark's own Kafka connector; the suffix is the version of Scala that pyspark 4 is built with."""

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

SOCKET_FOLDER_MAX = 60
"""The maximum length of the sockets' folder: paths of sockets are limited to 104 bytes, Spark adds 42."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUICK_JAVA = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUICK_PYTHON = """#!/bin/sh
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
  case "$place" in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept="$kept${{kept:+:}}$place" ;;
  esac
done
unset IFS
export PYTHONPATH="$kept"
exec {python} "$@"
"""

_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The number of cores; the default of 200 is for clusters.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    # Arrow data between JVM and Python over Unix sockets: measured about a seventh faster than TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # An invalid date such as 31/Feb becomes null rather than an error.
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Checkpoints on this machine without checksum files, which double the number of files that each batch
    # creates and renames: a micro-batch of one record takes a quarter less. Renames stay atomic.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Spark's default, and the user of SASL: options are shown in plans.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|ssl[.]keystore[.]key",
    # The default of 100 recent progress updates is for dashboards.
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}


def connector_coordinate() -> str:
    """Return the Maven coordinate of Spark's Kafka connector for the installed pyspark."""
    import pyspark

    return f"{CONNECTOR}:{pyspark.__version__}"


def connector_settings(jars: str | None) -> dict[str, str]:
    """Return the settings that load Spark's connector: jars of folder ``jars``, or (None) from Maven."""
    if jars is None:
        return {"spark.jars.packages": connector_coordinate()}
    paths = sorted(str(path.resolve()) for path in Path(jars).glob("*.jar"))
    return {"spark.jars": ",".join(paths)}


def build_session(
    name: str,
    *,
    master: str = "local[*]",
    timezone: str = "UTC",
    settings: Mapping[str, str] | None = None,
    quick: bool = False,
    log_file: Path,
) -> SparkSession:
    """Start Spark and return its session. Raises PipelineError if there is no suitable Java.

    ``quick`` is for jobs of seconds on this machine: it turns off Java's optimising compiler, which takes
    nearly half the processor time of such a job and pays off only in longer ones, and forks Python workers
    from a process that has imported the data sources (``worker_daemon``).
    """
    require_java()
    from pyspark.sql import SparkSession

    work = work_folder()
    given = dict(settings or {})
    # Workers on this machine must be this Python: the data source and its packages are installed here.
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", quick_python(Path(work)))
        shipped: dict[str, str] = {}
    else:
        python, shipped = python_settings(given, os.environ)
        os.environ.update(driver_environment(python, Path(work, "bin"), os.environ))
        given = {key: one for key, one in given.items() if key not in (PYTHON_SETTING, DRIVER_PYTHON_SETTING)}
        shipped |= shipping_settings(write_archive(Path(work)), given.pop("spark.archives", None))
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log4j = Path(work, "log4j2.properties")
    log4j.write_text(_LOG4J)
    builder = SparkSession.builder.appName(f"nilometer {name}").master(master)  # pyright: ignore[reportAttributeAccessIssue]
    java_options = f"-Dlog4j2.configurationFile={log4j.as_uri()}" + (_QUICK_JAVA if quick else "")
    builder = builder.config(
        map={
            **_SETTINGS,
            **(DAEMON_SETTINGS if quick or not master.startswith("local") else {}),
            "spark.sql.session.timeZone": timezone,
            "spark.sql.warehouse.dir": str(Path(work, "warehouse")),
            **_socket_folder(master, work),
            **given,
            **shipped,
            JAVA_OPTIONS: f"{java_options} {given.get(JAVA_OPTIONS, '')}".rstrip(),
        }
    )
    with _stderr_into(log_file):
        return builder.getOrCreate()


def work_folder() -> str:
    """Return a new folder that is removed when this process ends, unless by SIGKILL."""
    folder = tempfile.mkdtemp(prefix="nilometer-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def quick_python(folder: Path) -> str:
    """Write a script to ``folder`` that starts this Python with the installed pyspark; return its path.

    Spark's workers otherwise import pyspark from a zip file without bytecode: each would begin with almost a
    second of compiling, and Spark gives up a worker that takes ten seconds on a busy machine.
    """
    if os.name != "posix":
        return sys.executable
    program = folder / "python"
    program.write_text(_QUICK_PYTHON.format(python=shlex.quote(sys.executable)), encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def _socket_folder(master: str, folder: str) -> dict[str, str]:
    """Return the setting that puts the workers' Unix sockets into ``folder``, unless its path is too long.

    Workers leave their sockets behind, and ``folder`` is removed at the end.
    """
    fits = master.startswith("local") and len(folder) <= SOCKET_FOLDER_MAX
    return {"spark.python.unix.domain.socket.dir": folder} if fits else {}


@contextlib.contextmanager
def _stderr_into(path: Path) -> Generator[None]:
    """Redirect standard error to ``path``, so that the JVM started meanwhile, and its workers, inherit it."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
