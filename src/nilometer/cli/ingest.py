"""``nilometer ingest``: writes the lines of files to a topic, and shows progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    client_config,
    connection_options,
    json_option,
    parse_pairs,
    print_json,
    property_option,
    run_async,
    stop_on_signals,
)
from nilometer.cli.commands import PARTITIONS_COUNT
from nilometer.client.admin.admin import BROKER_DEFAULT, Admin, NewTopic
from nilometer.client.ingest.ingest import Ingest
from nilometer.client.ingest.ledger import IngestOptions, IngestTotals, LineRefused, Oversized
from nilometer.client.ingest.state_file import BadState
from nilometer.client.ingest.tracker import COPY
from nilometer.client.network.cluster_metadata import TopicMetadata
from nilometer.client.producer.producer_settings import COMPRESSION_TYPES
from nilometer.client.settings import COMMON_KEYS
from nilometer.runtime import LockHeld, Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    pass

LINGER_MS = 20
BATCH_BYTES = 256 * 1024
STATE_FOLDER = ".nilometer/ingest"
OVERSIZED_DONE = {
    Oversized.SKIP: "skipped",
    Oversized.TRUNCATE: "truncated",
    Oversized.SPLIT: "sent in pieces",
}


@commands.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=click.Path())
@click.option("--topic", required=True, help="The topic to write to. It is created if it does not exist.")
@click.option("--follow", is_flag=True, help="Keep reading as the files grow and rotate, until Ctrl-C.")
@click.option(
    "--state",
    metavar="FILE",
    help=f"The file that stores the position in each source file.  [default: {STATE_FOLDER}/TOPIC.json]",
)
@click.option(
    "--partitions", type=PARTITIONS_COUNT, help="The number of partitions, if the topic is created."
)
@click.option("--key", type=click.Choice(["none", "path"]), default="none", show_default=True)
@click.option("--compression", type=click.Choice(COMPRESSION_TYPES), default="none", show_default=True)
@click.option(
    "--join-traces",
    is_flag=True,
    help="Send the lines of a stack trace, and other indented lines, in the record of the line before them.",
)
@click.option(
    "--oversized",
    type=click.Choice([action.value for action in Oversized]),
    default=Oversized.FAIL.value,
    show_default=True,
    help="What to do with a line that is too long for a record of the topic.",
)
@property_option
@json_option
@connection_options
def ingest(
    paths: tuple[str, ...],
    topic: str,
    follow: bool,
    state: str | None,
    partitions: int | None,
    key: str,
    compression: str,
    join_traces: bool,
    oversized: str,
    properties: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write the lines of files, and of the files in folders, to a topic, each line once.

    Plain and gzip files are read. In folders, hidden files are ignored, and files that are not text are
    reported and left out. A line ends with LF or CRLF; a byte order mark, and NULs before a line, belong to
    none. UTF-16 is refused. The position in each file is stored, so that the next run continues where this
    one ended, even if files were rotated in between. Records carry the headers path, line and source. With
    --key path, all lines of a file go to one partition, in order.

    A line that is too long for a record (max.request.size, the topic's max.message.bytes) stops its file's
    ingest with an error; other files are still read. --oversized skip leaves such lines out, truncate
    sends the part that fits (header truncated: the bytes of the whole line), split sends the line in several
    records (header piece counts from 1; the last one has the header pieces: their number). Each such line is
    counted and reported.
    """
    config: dict[str, str | int] = {
        **client_config(bootstrap),
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_BYTES,
        "compression.type": compression,
        **parse_pairs(properties, "--property"),
    }
    options = IngestOptions(
        paths=paths,
        topic=topic,
        state_path=state or f"{STATE_FOLDER}/{topic}.json",
        follow=follow,
        key_by_path=key == "path",
        oversized=Oversized(oversized),
        join_traces=join_traces,
    )
    shown = _ErrorsShown()
    try:
        with _progress(follow, shown) as on_progress:
            totals = run_async(_ingest(config, options, partitions, on_progress))
    except LockHeld as error:
        raise click.ClickException(
            f"another ingest is running with the state {options.state_path} (process {error.holder_pid}); "
            "stop it, or give another file with --state"
        ) from None
    except (LineRefused, BadState) as error:
        raise click.ClickException(str(error)) from None
    _report(totals, options, shown, as_json)


async def _ingest(
    config: dict[str, str | int],
    options: IngestOptions,
    partitions: int | None,
    on_progress: Callable[[IngestTotals], None],
) -> IngestTotals:
    runtime = Runtime.system()
    common = {key.name: config[key.name] for key in COMMON_KEYS if key.name in config}
    async with Admin(runtime, common) as admin:
        await _ensure_topic(admin, options.topic, partitions)
    work = Ingest(runtime, config, options, on_progress)
    if options.follow:
        stop_on_signals(work.stop)
    return await work.run()


async def _ensure_topic(admin: Admin, topic: str, partitions: int | None) -> None:
    """Create the topic if it does not exist. Raises KafkaError.

    The controller is needed only to create it.
    """
    if isinstance((await admin.describe_topics([topic]))[topic], TopicMetadata):
        return
    error = (await admin.create_topics([NewTopic(topic, partitions or BROKER_DEFAULT)]))[topic]
    if error is not None and error.code != ErrorCode.topic_already_exists:
        raise KafkaError(error.code, f"topic {topic}: {error.message}")


@contextmanager
def _progress(follow: bool, shown: _ErrorsShown) -> Generator[Callable[[IngestTotals], None], None, None]:
    """Provide a progress callback: a progress bar on a terminal.

    Elsewhere it prints errors as they happen with ``follow``, and otherwise nothing.
    """
    if not sys.stderr.isatty():
        yield shown.print_new if follow else lambda _totals: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    from nilometer.cli.console import OutputConsole

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=OutputConsole(stderr=True), transient=True) as progress:
        task = progress.add_task("Following" if follow else "Reading", total=None, lines=0)

        def show(totals: IngestTotals) -> None:
            progress.update(
                task,
                total=totals.bytes_total,
                completed=totals.bytes_read,
                lines=totals.lines + totals.lines_there,
            )

        yield show


class _ErrorsShown:
    """Writes each error, and each file that is not read, to standard error once."""

    def __init__(self) -> None:
        self._count = 0
        self._skipped: dict[str, str] = {}

    def print_new(self, totals: IngestTotals, *, copies: bool = False) -> None:
        """Print what is new in ``totals``; with ``copies``, also the copies that each rotation makes."""
        for path, why in sorted(totals.skipped.items()):
            if self._skipped.get(path) != why and (copies or not why.startswith(COPY)):
                self._skipped[path] = why
                click.echo(f"Warning: {path} was not read: {why}", err=True)
        for error in totals.errors[self._count :]:
            click.echo(f"Error: {error}", err=True)
        self._count = len(totals.errors)


def _report(totals: IngestTotals, options: IngestOptions, shown: _ErrorsShown, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": options.topic,
                "state": options.state_path,
                "lines": totals.lines,
                "lines_there": totals.lines_there,
                "holes": [{"path": path, "nul_bytes": size} for path, size in sorted(totals.holes.items())],
                "oversized": {"action": options.oversized.value, "files": totals.oversized},
                "files": [{"path": path, "lines": lines} for path, lines in sorted(totals.files.items())],
                "skipped": [{"path": path, "why": why} for path, why in sorted(totals.skipped.items())],
                "problems": totals.errors,
            }
        )
    else:
        there = f" ({totals.lines_there:,} more were already in the topic)" if totals.lines_there else ""
        files = "1 file" if len(totals.files) == 1 else f"{len(totals.files):,} files"
        click.echo(f"{totals.lines:,} lines of {files} written to {options.topic}{there}.")
    for path, count in sorted(totals.oversized.items()):
        lines = "1 line" if count == 1 else f"{count:,} lines"
        click.echo(
            f"Warning: {path}: {lines} too long for a record: {OVERSIZED_DONE[options.oversized]}", err=True
        )
    for path, size in sorted(totals.holes.items()):
        click.echo(
            f"Warning: {path}: {size:,} NULs before lines, as truncation leaves them, were left out", err=True
        )
    shown.print_new(totals, copies=True)
    if totals.errors:
        raise click.exceptions.Exit(1)
