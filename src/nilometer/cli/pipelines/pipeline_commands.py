"""``nilometer pipeline``: the group of the commands for the shipped pipelines; ``list``, ``declare`` and
``new``.

``declare`` writes a shipped pipeline as a project, ``new`` as a file to change. Nothing of Spark is imported
before a pipeline runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table

from nilometer.cli import commands
from nilometer.cli.cluster_options import bootstrap_option, json_option, print_json
from nilometer.cli.console import pipeline_console
from nilometer.cli.pipelines.pipeline_choice import named_topics, topics_options
from nilometer.cli.pipelines.pipeline_deliver_command import deliver
from nilometer.cli.pipelines.pipeline_feed_commands import capture, demo, sample
from nilometer.cli.pipelines.pipeline_formats_commands import formats
from nilometer.cli.pipelines.pipeline_run_command import run
from nilometer.cli.pipelines.pipeline_state_commands import report_command, status, stop
from nilometer.pipeline.declared.project import DECLARED, write_project
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.catalogue import SHIPPED, write_copy


@commands.command()
@click.argument("name", metavar="NAME", type=click.Choice(DECLARED))
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@topics_options
@json_option
@bootstrap_option
def declare(
    name: str,
    folder: Path | None,
    topics: tuple[str, ...],
    to_topic: str | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write a pipeline as a project of Spark Declarative Pipelines.

    FOLDER defaults to the pipeline's name. You may change the project.
    """
    shipped = SHIPPED[name]
    chosen = named_topics(shipped, topics)
    if shipped.writes is not None:
        chosen[shipped.writes] = to_topic or shipped.writes
    elif to_topic is not None:
        raise click.UsageError(f"--to: {name} does not have this option")
    try:
        spec = write_project(name, folder or Path(name), bootstrap, chosen)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"spec": str(spec)})
        return
    click.echo(f"The pipeline is in {spec.parent}. Now run it:")
    click.echo(f"  nilometer spark pipelines run --spec {spec}")


@commands.command()
@click.argument("name")
@click.option(
    "--from",
    "origin",
    type=click.Choice(list(SHIPPED)),
    default="logs",
    show_default=True,
    help="The shipped pipeline to copy.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    help="The folder of the new files.  [default: the current one]",
)
def new(name: str, origin: str, folder: Path) -> None:
    """Write a copy of a shipped pipeline to NAME.py, to change, with a test.

    `nilometer pipeline run ./NAME.py` runs it.
    """
    try:
        pipeline, test = write_copy(name, origin, folder)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    at = pipeline if folder != Path(".") else f"./{pipeline.name}"
    click.echo(f"The pipeline is in {pipeline}, its test in {test}. Now run one:")
    click.echo(f"  nilometer pipeline run {at}")
    click.echo(f"  pytest {test}")


# The group, and ``list``.


@commands.group()
def pipeline() -> None:
    """Run the shipped pipelines on Spark: topics into tables."""


for command in (status, stop, report_command, sample, demo, capture, deliver, declare, new, run, formats):
    pipeline.add_command(command)


@pipeline.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def list_pipelines(as_json: bool) -> None:
    """List the pipelines."""
    if as_json:
        listing = [
            {
                "name": one.name,
                "module": one.module,
                "summary": one.summary,
                "reads": one.inputs,
                "writes": one.writes,
                "table": one.table,
            }
            for one in SHIPPED.values()
        ]
        click.echo(json.dumps({"pipelines": listing}))
        return
    table = Table("name", "what it does", "topics")
    table.add_column("file to copy", overflow="fold")
    for one in SHIPPED.values():
        topics = ", ".join(one.inputs) + (f" → {one.writes}" if one.writes else "")
        table.add_row(one.name, one.summary, topics, one.module.replace(".", "/") + ".py")
    pipeline_console().print(table)
