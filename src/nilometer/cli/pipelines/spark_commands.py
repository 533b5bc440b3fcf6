"""``nilometer spark``: runs the user's own Spark jobs, with what they need to read and write topics."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import confirm, json_option, yes_option
from nilometer.cli.process import exit_on_sigterm
from nilometer.pipeline.declared.project import SPEC_NAME
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark.executors import (
    DAEMON_SETTINGS,
    DRIVER_PYTHON_SETTING,
    PYTHON_SETTING,
    driver_environment,
    python_settings,
    shipping_settings,
    write_archive,
)

SHIPPED_FROM = Path(".nilometer/spark")
"""The folder of the archive for executors that `submit` writes; it must exist while the job runs."""
FLAGS = frozenset({"--supervise", "--verbose", "-v", "--help", "-h", "--version", "--usage-error"})
"""The options of spark-submit without a value."""


@commands.group()
def spark() -> None:
    """Run your own Spark jobs on topics."""


@spark.command()
@json_option
def packages(as_json: bool) -> None:
    """Print the Maven coordinate of Spark's Kafka connector for the pyspark that is installed.

    For `spark-submit --packages`. The data source "nilometer" needs no jar.
    """
    from nilometer.pipeline.spark.spark_session import connector_coordinate

    coordinate = connector_coordinate()
    click.echo(json.dumps({"coordinate": coordinate}) if as_json else coordinate)


@spark.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@json_option
def archive(folder: Path, as_json: bool) -> None:
    """Write this package to nilometer.tar.gz, for executors where it is not installed.

    `submit` and `pipeline run --master` do so themselves. Elsewhere give Spark
    `spark.archives=nilometer.tar.gz#nilometer-package` and
    `spark.executorEnv.PYTHONPATH=./nilometer-package`.
    """
    path = str(write_archive(folder))
    click.echo(json.dumps({"archive": path}) if as_json else path)


@spark.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option("--kafka-connector", is_flag=True, help='Also provide Spark\'s own connector, format("kafka").')
@click.option("--print", "only_print", is_flag=True, help="Print the command instead of running it.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(master: str, kafka_connector: bool, only_print: bool, arguments: tuple[str, ...]) -> None:
    """Run spark-submit with the packages that reading and writing topics needs.

    ARGUMENTS are spark-submit's own options, the job's file, and the job's arguments.
    """
    from nilometer.pipeline.spark.java import require_java

    try:
        require_java()
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    variables, command = submit_command(master, arguments, kafka_connector=kafka_connector)
    if only_print:
        given = [f"{key}={value}" for key, value in variables.items()]
        click.echo(shlex.join(["env", *given, *command]))
        return
    os.execvpe(command[0], command, {**os.environ, **variables})


def submit_command(
    master: str, arguments: tuple[str, ...], *, kafka_connector: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the variables and the command of spark-submit. Writes what executors get to SHIPPED_FROM."""
    import pyspark

    from nilometer.pipeline.spark.spark_session import connector_coordinate

    given, left = _taken_settings(arguments)
    settings = {"spark.python.unix.domain.socket.enabled": "true", **given}
    if master.startswith("local"):
        variables = {
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        }
    else:
        python, found = python_settings(given, os.environ)
        variables = driver_environment(python, SHIPPED_FROM / "bin", os.environ)
        shipped = shipping_settings(write_archive(SHIPPED_FROM), given.get("spark.archives"))
        settings = {**DAEMON_SETTINGS, **settings, **found, **shipped}
        settings.pop(PYTHON_SETTING, None)
        settings.pop(DRIVER_PYTHON_SETTING, None)
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(program), "--master", master]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    if kafka_connector:
        command += ["--packages", connector_coordinate()]
    return variables, [*command, *left]


def _taken_settings(arguments: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Take the settings out of spark-submit's own options, which end with the job's file."""
    taken: dict[str, str] = {}
    left: list[str] = []
    words = list(arguments)
    while words and words[0].startswith("-"):
        option, separator, value = words.pop(0).partition("=")
        if option not in ("--conf", "-c", "--archives"):
            left.append(f"{option}{separator}{value}")
            if not separator and option not in FLAGS and words:
                left.append(words.pop(0))
            continue
        if not separator:
            value = words.pop(0) if words else ""
        key, _, setting = value.partition("=") if option != "--archives" else ("spark.archives", "", value)
        taken[key] = setting
    return taken, [*left, *words]


@spark.command()
@click.option(
    "--spec",
    default=SPEC_NAME,
    show_default=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The specification file of the pipeline.",
)
@click.option(
    "--full-refresh-all", is_flag=True, help="Drop the tables and checkpoints, and read from the beginning."
)
@yes_option
@click.argument("command", type=click.Choice(["run", "dry-run"]))
def pipelines(spec: Path, full_refresh_all: bool, yes: bool, command: str) -> None:
    """Run a project of Spark Declarative Pipelines on this machine, up to the newest record.

    Spark's settings are read from conf/spark-defaults.conf next to the specification, its logging settings
    from conf/log4j2.properties. `dry-run` only checks what the project declares.
    """
    from nilometer.pipeline.declared.project import run_project

    if full_refresh_all and command == "run":
        confirm("Drop them?", [f"the tables and checkpoints of {spec}"], yes=yes)
    exit_on_sigterm()
    try:
        run_project(spec, command, *(["--full-refresh-all"] if full_refresh_all else []))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
