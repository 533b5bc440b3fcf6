"""``nilometer produce``: sends lines, JSON lines, whole files or a tombstone as records."""

from __future__ import annotations

import os
import sys

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    client_config,
    connection_options,
    json_option,
    parse_list,
    parse_pairs,
    print_json,
    run_async,
)
from nilometer.cli.number_types import PARTITION
from nilometer.cli.records.input_records import InputRecord, PlainLines, json_record
from nilometer.cli.records.produce_input import STANDARD_INPUT, Items, lines_of, no_data, whole_files
from nilometer.cli.records.producing import Outcome, Parse, Target, produce_items
from nilometer.client.producer.producer_keys import COMPRESSION_TYPES


@commands.command()
@click.argument("topic")
@click.argument(
    "files", nargs=-1, metavar="[FILE]…", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--key-separator", metavar="TEXT", help="The text before TEXT in a line is the key (\\t is a tab)."
)
@click.option("--key", metavar="TEXT", help="The key of every record.")
@click.option(
    "--null-marker",
    metavar="TEXT",
    help="A key or value that equals TEXT is null; a null value is a tombstone.",
)
@click.option(
    "--json-lines",
    is_flag=True,
    help="Each line is a JSON object with key, value, headers, partition, timestamp, as consume --json "
    "prints it.",
)
@click.option("--whole-file", is_flag=True, help="Each file is the value of one record.")
@click.option("--tombstone", is_flag=True, help="Write one record: --key with a null value.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    help="A header for every record; repeatable.",
)
@click.option(
    "--partition",
    type=PARTITION,
    help="Write every record to this partition. Keys do not choose the partition.",
)
@click.option("--no-create", is_flag=True, help="Fail if the topic does not exist.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option("--compression", type=click.Choice(COMPRESSION_TYPES), default="none", show_default=True)
@click.option(
    "-X",
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A producer setting; repeatable.",
)
@json_option
@connection_options
def produce(
    topic: str,
    files: tuple[str, ...],
    key_separator: str | None,
    key: str | None,
    null_marker: str | None,
    json_lines: bool,
    whole_file: bool,
    tombstone: bool,
    headers: tuple[str, ...],
    partition: int | None,
    no_create: bool,
    acks: str,
    compression: str,
    properties: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write the lines of FILEs, or of standard input (-), to TOPIC, each as a record.

    A topic that does not exist is created with the brokers' defaults, and a message says so. A line that is
    no record ends the input: the records before it are written, and the exit code is 1.
    """
    _check(key_separator, key, null_marker, json_lines, whole_file, tombstone, files)
    lines = PlainLines(_separator(key_separator), _bytes(null_marker), _bytes(key))
    items, parse = _input(files or (STANDARD_INPUT,), lines, json_lines, whole_file, tombstone)
    pairs = parse_list(headers, "--header")  # as in Kafka, a record may have several headers of one name
    target = Target(
        topic, partition, tuple((name, os.fsencode(value)) for name, value in pairs), not no_create
    )
    config = {
        **client_config(bootstrap),
        "acks": acks,
        "compression.type": compression,
        **parse_pairs(properties, "--property"),
    }
    _report(topic, run_async(produce_items(items, parse, target, config)), as_json)


def _check(
    key_separator: str | None,
    key: str | None,
    null_marker: str | None,
    json_lines: bool,
    whole_file: bool,
    tombstone: bool,
    files: tuple[str, ...],
) -> None:
    """Raise UsageError for options that contradict each other."""
    if sum((json_lines, whole_file, tombstone)) > 1:
        raise click.UsageError("give one of --json-lines, --whole-file and --tombstone")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    if key_separator is not None and (key is not None or json_lines or whole_file or tombstone):
        raise click.UsageError("--key-separator is for lines, and --key is another way to give keys")
    if json_lines and (key is not None or null_marker is not None):
        raise click.UsageError("with --json-lines, keys and nulls are in the lines")
    if null_marker is not None and (whole_file or tombstone):
        raise click.UsageError("--null-marker is for lines")
    if tombstone and (key is None or files):
        raise click.UsageError("--tombstone needs --key, and no FILE")


def _separator(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text.replace("\\t", "\t"))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _input(
    paths: tuple[str, ...], lines: PlainLines, json_lines: bool, whole_file: bool, tombstone: bool
) -> tuple[Items, Parse]:
    if tombstone:
        return no_data(), lambda _: InputRecord(lines.key, None)
    if whole_file:
        return whole_files(paths), lambda data: InputRecord(lines.key, data)
    return lines_of(paths), json_record if json_lines else lines.record


def _report(topic: str, outcome: Outcome, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "created": outcome.created,
                "records": outcome.written,
                "failed": outcome.failed,
                "partitions": {str(number): count for number, count in sorted(outcome.partitions.items())},
            }
        )
    elif sys.stderr.isatty():
        click.echo(f"{outcome.written:,} records written to {topic}.", err=True)
    if outcome.first_error is not None:
        raise click.ClickException(f"{outcome.failed:,} records were not written: {outcome.first_error}")
    if outcome.stopped_by is not None:
        before = f"{outcome.written:,} record{'' if outcome.written == 1 else 's'}"
        raise click.ClickException(f"{outcome.stopped_by} ({before} before it written)")
