"""``nilometer pipeline sample | demo``: input for pipelines."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from nilometer.broker.settings.listeners import Endpoint
from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    client_config,
    connection_options,
    json_option,
    print_json,
    run_async,
)
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.pipeline_run_command import run
from nilometer.cli.pipelines.pipeline_state_commands import home_option
from nilometer.cli.process import exit_on_sigterm
from nilometer.client.admin.admin import BROKER_DEFAULT, Admin, NewTopic
from nilometer.local.local_cluster import LaunchFailed, LocalCluster
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.run.samples import SAMPLES, SampleRecord, sample_records
from nilometer.pipeline.sink.cluster_writer import ClusterWriter, Outgoing
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

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
            try:
                await admin.create_topic(NewTopic(topic, partitions, BROKER_DEFAULT))
            except KafkaError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise


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
    cluster.configure(1, Endpoint("PLAINTEXT", "127.0.0.1", free_port()), {})
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
