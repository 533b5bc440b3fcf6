"""``nilometer pipeline``: the group of the commands for the shipped pipelines, and ``list``.

Nothing of Spark is imported before a pipeline runs.
"""

from __future__ import annotations

import json

import click
from rich.table import Table

from nilometer.cli import commands
from nilometer.cli.pipelines.pipeline_declare_command import declare, new
from nilometer.cli.pipelines.pipeline_deliver_command import deliver
from nilometer.cli.pipelines.pipeline_feed_commands import capture, demo, sample
from nilometer.cli.pipelines.pipeline_formats_commands import formats
from nilometer.cli.pipelines.pipeline_run_command import run
from nilometer.cli.pipelines.pipeline_state_commands import (
    report_command,
    status,
    stop,
    table_console,
)
from nilometer.pipeline.run.catalogue import SHIPPED


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
    table_console().print(table)
