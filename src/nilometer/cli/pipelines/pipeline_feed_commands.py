"""``nilometer pipeline sample | demo | capture``: where the records of a pipeline's topic come from."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from nilometer.broker.settings.listeners import Endpoint
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
from nilometer.cli.pipelines.pipeline_run_command import run
from nilometer.cli.pipelines.pipeline_state_commands import home_option
from nilometer.cli.process import exit_on_sigterm
from nilometer.client.admin.admin import BROKER_DEFAULT, Admin, NewTopic
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.positions import LATEST_TIMESTAMP
from nilometer.identifiers import uuid_to_text
from nilometer.local.local_cluster import LaunchFailed, LocalCluster
from nilometer.pipeline.capture import capture as captures
from nilometer.pipeline.capture.databases import Source, slots
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.run.samples import SAMPLES, SampleRecord, sample_records
from nilometer.pipeline.sink.cluster_writer import ClusterWriter, Outgoing
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

# ``nilometer pipeline sample | demo``: input for pipelines.

CHUNK = 5_000
PORTS = range(15_000, 32_000)


@commands.command()
@click.argument("name", metavar="NAME", type=click.Choice(sorted(SAMPLES)))
@click.option("--records", type=click.IntRange(1), help="The number of records.  [default: by pipeline]")
@click.option("--partitions", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seed", type=int, default=7, show_default=True, help="The seed of the generated input.")
@home_option
@json_option
@connection_options
def sample(
    name: str,
    records: int | None,
    partitions: int,
    seed: int,
    home: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write generated input to a pipeline's topics, and print how to run the pipeline."""
    count, table = fill(name, bootstrap, home, records, partitions, seed)
    if as_json:
        path = None if table is None else str(table)
        print_json({"records": count, "topics": list(SHIPPED[name].inputs), "table": path})
        return
    more = f" --table {table}" if table is not None else ""
    more += "".join(f" --set {one}" for one in SHIPPED[name].sample_settings)
    click.echo(f"{count:,} records are in {', '.join(SHIPPED[name].inputs)}. Now run it:")
    click.echo(f"  nilometer pipeline run {name}{more} --available-now --report {name}.html")


def fill(
    name: str,
    bootstrap: str,
    home: str,
    records: int | None = None,
    partitions: int = 3,
    seed: int = 7,
) -> tuple[int, Path | None]:
    """Create the pipeline's topics, send sample records, and write its CSV table.

    Returns the number of records sent, and the table's path (None if the pipeline needs none).
    """
    shipped = SHIPPED[name]
    topics = [*shipped.inputs, *([shipped.writes] if shipped.writes else [])]
    client = client_config(bootstrap)
    run_async(create_topics(client, topics, partitions))
    with OutputConsole(stderr=True).status(f"Sending to {', '.join(shipped.inputs)} ..."):
        count = send(client, _outgoing(sample_records(name, records, seed)))
    make_table = SAMPLES[name].table
    if make_table is None:
        return count, None
    table = Path(home, name, "table.csv")
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(make_table(), encoding="utf-8")
    return count, table


def _outgoing(records: Iterable[SampleRecord]) -> Iterator[Outgoing]:
    for one in records:
        yield Outgoing(one.topic, None, one.key, one.value, ())


def send(client: Mapping[str, str], records: Iterable[Outgoing]) -> int:
    """Send all records, wait for their acknowledgements and return their number. Raises ClickException.

    ``client`` are the settings of the connection.
    """
    settings = {**client, "linger.ms": "20", "batch.size": str(256 * 1024)}
    writer = ClusterWriter(settings.items())
    waiting = iter(records)
    try:
        return writer.write(iter(lambda: list(itertools.islice(waiting, CHUNK)), []))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    finally:
        writer.close()


async def create_topics(client: Mapping[str, str], topics: Iterable[str], partitions: int) -> None:
    """Create the topics that do not exist. Raises KafkaError."""
    async with Admin(Runtime.system(), client) as admin:
        for topic in topics:
            await admin.ensure_topic(NewTopic(topic, partitions, BROKER_DEFAULT))


@commands.command()
@click.argument("name", metavar="NAME", type=click.Choice(sorted(SAMPLES)))
@click.option("--records", type=click.IntRange(1), help="The number of records.  [default: by pipeline]")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the data of the broker and the pipeline.  [default: .nilometer/pipeline-demo/NAME]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The HTML page to write.  [default: FOLDER/report.html]",
)
@json_option
@click.pass_context
def demo(
    context: click.Context,
    name: str,
    records: int | None,
    folder: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Run a pipeline on generated input, with its own broker, and write a report with plots.

    The files of an earlier demo in the folder are removed first.
    """
    exit_on_sigterm()  # so that the broker is stopped in any case
    folder = folder or Path(".nilometer", "pipeline-demo", name)
    cluster = LocalCluster(folder / "cluster")
    if (folder / "pipelines").exists() and not cluster.broker_ids():
        raise click.UsageError(
            f"{folder / 'pipelines'} is of no demo, and would be removed: give another folder"
        )
    for part in ("cluster", "pipelines"):
        shutil.rmtree(folder / part, ignore_errors=True)
    endpoint = Endpoint("PLAINTEXT", "127.0.0.1", free_port())
    cluster.configure(1, cluster.new_settings(1, endpoint, {}))
    home = str(folder / "pipelines")
    try:
        (broker,) = cluster.start([1], {})
        bootstrap = f"{broker.host}:{broker.port}"
        count, table = fill(name, bootstrap, home, records)
        click.echo(f"{count:,} records are in {', '.join(SHIPPED[name].inputs)}", err=True)
        context.invoke(
            run,
            pipeline=name,
            home=home,
            table=str(table) if table is not None else None,
            pairs=SHIPPED[name].sample_settings,
            bootstrap_server=bootstrap,
            available_now=True,
            as_json=as_json,
            report=report or folder / "report.html",
        )
    except LaunchFailed as error:
        raise click.ClickException(str(error)) from None
    finally:
        cluster.stop([one for one in cluster.brokers() if one.state == "running"], lambda _: None)


def free_port() -> int:
    """Return a free port, below the range of outgoing connections, so that none of them takes it."""
    for number in range(len(PORTS)):
        port = PORTS[(os.getpid() * 101 + number) % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise click.ClickException(f"no free port between {PORTS.start} and {PORTS.stop}")


# ``nilometer pipeline capture``: the changes of a database's table into a topic.

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
    has_begun = bool(run_async(_state_topics(source, client)))
    lacking = source.prepare(has_begun=has_begun)
    if lacking is not None:
        click.echo(f"WARNING: {lacking}", err=True)
    topic_id, has_records = run_async(_topic_state(topic, client))
    if not has_begun and has_records and (emptied := source.if_empty()) is not None:
        # The first rows of a capture end those of an earlier one; of an empty table there are none.
        event = captures.truncate_event(emptied, int(time.time() * 1000))
        send(client, [Outgoing(topic, 0, None, event, ())])

    def say(state: str, text: str) -> None:
        message = {"capture": source.name, "topic": topic, "state": state}
        click.echo(json.dumps(message) if as_json else text)

    captures.run(
        source,
        topic,
        topic_id,
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


async def _topic_state(topic: str, client: Mapping[str, str]) -> tuple[str, bool]:
    """Return the topic's id, and whether it has had records; it is created if it is not there.

    Raises KafkaError.
    """
    async with Admin(Runtime.system(), client) as admin:
        [found] = (await admin.describe_topics([topic])).values()
        if isinstance(found, KafkaError) and found.code == ErrorCode.unknown_topic_or_partition:
            await admin.create_topic(NewTopic(topic))
            [found] = (await admin.describe_topics([topic])).values()
        if isinstance(found, KafkaError):
            raise found
        places = [TopicPartition(topic, number) for number in range(len(found.partitions))]
        ends = await admin.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
    topic_id = uuid_to_text(found.topic_id) if found.topic_id is not None else ""
    return topic_id, any(one.offset > 0 for one in ends.values())


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
