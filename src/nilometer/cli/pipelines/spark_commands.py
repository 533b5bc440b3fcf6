"""``nilometer spark``: runs the user's own Spark jobs, with what they need to read and write topics."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    confirm,
    json_option,
    yes_option,
)
from nilometer.cli.signals import exit_on_sigterm
from nilometer.pipeline.declared.project import SPEC_NAME
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark.package_archive import shipping_settings, write_archive

SHIPPED_FROM = Path(".nilometer/spark")
"""The folder of the archive for executors that `submit` writes; it must exist while the job runs."""


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
    """Write this package to nilometer.zip, for executors where it is not installed."""
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
    command = submit_command(master, arguments, kafka_connector=kafka_connector)
    if only_print:
        click.echo(" ".join(command))
        return
    environment = {**os.environ, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.execvpe(command[0], command, environment)


def submit_command(master: str, arguments: tuple[str, ...], *, kafka_connector: bool) -> list[str]:
    import pyspark

    from nilometer.pipeline.spark.spark_session import connector_coordinate

    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {"spark.python.unix.domain.socket.enabled": "true"}
    if not master.startswith("local"):
        settings |= shipping_settings(write_archive(SHIPPED_FROM))
    command = [str(program), "--master", master]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    if kafka_connector:
        command += ["--packages", connector_coordinate()]
    return [*command, *arguments]


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
    from nilometer.pipeline.declared.running import run_project

    if full_refresh_all and command == "run":
        confirm("Drop them?", [f"the tables and checkpoints of {spec}"], yes=yes)
    exit_on_sigterm()
    try:
        run_project(spec, command, *(["--full-refresh-all"] if full_refresh_all else []))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
