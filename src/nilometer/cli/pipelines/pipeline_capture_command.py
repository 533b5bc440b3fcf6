"""``nilometer pipeline capture``: the changes of a database's table into a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    client_config,
    confirm,
    connection_options,
    json_option,
    print_json,
    run_async,
    yes_option,
)
from nilometer.cli.console import OutputConsole
from nilometer.cli.process import exit_on_sigterm
from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.identifiers import uuid_to_text
from nilometer.pipeline.capture import capture as captures
from nilometer.pipeline.capture.databases import Source, slots
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

LOG = ".nilometer/capture/NAME.log"


@commands.command()
@click.option(
    "--dsn",
    required=True,
    metavar="URL",
    help="The database: postgresql://user@host/database (or another connection string of libpq), "
    "mysql://… or mariadb://….",
)
@click.option("--table", metavar="SCHEMA.TABLE", help="The table. It must have a primary key.")
@click.option(
    "--topic", metavar="TOPIC", help="The topic that the changes are written to.  [default: changes]"
)
@click.option(
    "--slot",
    metavar="NAME",
    help="The name of the capture, its replication slot and its publication.  "
    "[default: made of database and table]",
)
@click.option(
    "--list",
    "as_list",
    is_flag=True,
    help="Print the logical slots of a PostgreSQL server, with the log that it keeps for each, and stop.",
)
@click.option("--available-now", is_flag=True, help="Capture the changes that exist now, then stop.")
@click.option(
    "--drop",
    is_flag=True,
    help="Remove slot, publication and the capture's position. PostgreSQL keeps its log for a slot that has "
    "no reader.",
)
@click.option(
    "--jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with the jars of Kafka Connect and of Debezium's connector. Without it, they are "
    "downloaded through Maven.",
)
@click.option(
    "--log",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The file that the log of Kafka Connect goes to.  [default: {LOG}]",
)
@yes_option
@json_option
@connection_options
def capture(
    dsn: str,
    table: str | None,
    topic: str | None,
    slot: str | None,
    as_list: bool,
    available_now: bool,
    drop: bool,
    jars: Path | None,
    log: Path | None,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write the changes of a database's table to a topic: first its rows, then every later change.

    Runs Debezium in a worker of Kafka Connect, which writes each change once. Its position is in topics of
    the cluster: a later run continues where this one ended. PostgreSQL needs wal_level = logical, MySQL and
    MariaDB a binary log with binlog_format = ROW.
    """
    try:
        if as_list:
            _print_slots(dsn, as_json=as_json)
            return
        if table is None:
            raise click.UsageError("--table SCHEMA.TABLE names the table; --list needs none")
        client = client_config(bootstrap)
        source = captures.source_of(dsn, table, slot)
        if drop:
            lost = (
                f"slot {source.name} of {source.table}: changes that were not captured, and where to continue"
            )
            confirm("Remove the slot, its publication and its topics?", [lost], yes=yes)
            source.drop()
            run_async(_delete_topics(source, client))
            return
        topic = topic or SHIPPED["changelog"].inputs[0]
        _capture(source, topic, client, log, jars, available_now=available_now, as_json=as_json)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None


def _capture(
    source: Source,
    topic: str,
    client: Mapping[str, str],
    log: Path | None,
    jars: Path | None,
    *,
    available_now: bool,
    as_json: bool,
) -> None:
    exit_on_sigterm()
    lacking = source.prepare(has_begun=bool(run_async(_state_topics(source, client))))
    if lacking is not None:
        click.echo(f"WARNING: {lacking}", err=True)

    def say(state: str, text: str) -> None:
        message = {"capture": source.name, "topic": topic, "state": state}
        click.echo(json.dumps(message) if as_json else text)

    captures.run(
        source,
        topic,
        run_async(_topic_id(topic, client)),
        client,
        log or Path(LOG.replace("NAME", source.name)),
        jars,
        available_now=available_now,
        on_running=lambda: say("capturing", f"Capturing {source.table} into {topic} ({source.name})"),
        on_restart=lambda why: click.echo(
            f"WARNING: the cluster ended the capture's transaction ({why}): it is written again", err=True
        ),
    )
    say("captured", f"All changes of {source.table} until now are in {topic}")


async def _state_topics(source: Source, client: Mapping[str, str]) -> list[str]:
    """Return the topics in which the cluster keeps the capture's state; none if it has not begun."""
    async with Admin(Runtime.system(), client) as admin:
        return [one for one in await admin.list_topics() if one.startswith(captures.state_prefix(source))]


async def _topic_id(topic: str, client: Mapping[str, str]) -> str:
    """Return the id of the topic, which is created if it is not there. Raises KafkaError."""
    async with Admin(Runtime.system(), client) as admin:
        [found] = (await admin.describe_topics([topic])).values()
        if isinstance(found, KafkaError) and found.code == ErrorCode.unknown_topic_or_partition:
            await admin.create_topic(NewTopic(topic))
            [found] = (await admin.describe_topics([topic])).values()
    if isinstance(found, KafkaError):
        raise found
    return uuid_to_text(found.topic_id) if found.topic_id is not None else ""


async def _delete_topics(source: Source, client: Mapping[str, str]) -> None:
    """Delete the topics of the capture's state. Raises ClickException."""
    names = await _state_topics(source, client)
    if not names:
        return
    async with Admin(Runtime.system(), client) as admin:
        for name, outcome in (await admin.delete_topics(names)).items():
            if isinstance(outcome, KafkaError):
                raise click.ClickException(f"the topic {name} is not deleted: {outcome}")


def _print_slots(dsn: str, *, as_json: bool) -> None:
    found = slots(dsn)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    table = Table("slot", "database", "tables", "read now", "log kept", box=None)
    for one in found:
        kept = f"{one.wal_bytes / 1024 / 1024:,.1f} MiB"
        table.add_row(one.name, one.database, ", ".join(one.tables), "yes" if one.is_active else "no", kept)
    OutputConsole().print(table)
