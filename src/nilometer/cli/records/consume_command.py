"""``nilometer consume``: prints the records of a topic."""

from __future__ import annotations

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import client_config, connection_options, parse_pairs, run_async
from nilometer.cli.number_types import PARTITION
from nilometer.cli.records.consume_in_group import consume_in_group
from nilometer.cli.records.consume_partitions import Reading, consume_partitions
from nilometer.cli.records.record_format import NULL, BadFormat, Formatter, json_lines, template, value_lines
from nilometer.cli.records.start_positions import EARLIEST, Start, parse_places
from nilometer.cli.standard_streams import output_is_closed
from nilometer.cli.times import parse_time

TAIL_MAX = 1_000_000


def _parse_offsets(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> Start:
    return parse_places(texts)


def _parse_time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_time(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@commands.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Start at the first record.")
@click.option(
    "--offset",
    "places",
    multiple=True,
    metavar="[P:]OFFSET",
    callback=_parse_offsets,
    help="Start at this offset: a number, earliest, latest, or -N for N before the end. P:OFFSET is for "
    "partition P, and only such partitions are read unless OFFSET alone is given too; repeatable.",
)
@click.option(
    "--from-timestamp",
    callback=_parse_time,
    help="Start at this timestamp: milliseconds, or an ISO time in UTC.",
)
@click.option(
    "--tail",
    type=click.IntRange(1, TAIL_MAX),
    metavar="N",
    help="Print the N newest records of all partitions, by timestamp; then stop, or go on with --follow.",
)
@click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "--group", metavar="GROUP", help="Join this consumer group and continue at its committed offsets."
)
@click.option("--count", type=click.IntRange(0), help="Stop after this many records.")
@click.option(
    "--until-end/--follow",
    "--exit-at-end",
    "until_end",
    default=None,
    help="Stop at the end offsets found at the start, or wait for more records (default).",
)
@click.option("--format", "layout", metavar="TEXT", help="Such as '{partition}@{offset} {key}: {value}\\n'.")
@click.option(
    "--null-marker",
    metavar="TEXT",
    default=NULL,
    show_default=True,
    help="What is printed for a null key, value or header. An empty one prints nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record and line.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted"
)
@click.option(
    "-X",
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A consumer setting; repeatable.",
)
@connection_options
def consume(
    topic: str,
    from_beginning: bool,
    places: Start,
    from_timestamp: int | None,
    tail: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    count: int | None,
    until_end: bool | None,
    layout: str | None,
    null_marker: str,
    as_json: bool,
    isolation_level: str,
    properties: tuple[str, ...],
    bootstrap: str,
) -> None:
    """Print the records of TOPIC. By default: those that are written from now on.

    With --group the members of the group share the partitions, and the offsets of printed records are
    committed. --from-beginning then applies to partitions without a committed offset.
    """
    if output_is_closed():
        raise click.UsageError("standard output is closed: records would be read and lost")
    has_place = places != Start()
    if sum((from_beginning, has_place, from_timestamp is not None, tail is not None)) > 1:
        raise click.UsageError("give one of --from-beginning, --offset, --from-timestamp and --tail")
    if tail is not None and count is not None:
        raise click.UsageError("give one of --tail and --count")
    if layout is not None and as_json:
        raise click.UsageError("give one of --format and --json")
    render = _formatter(layout, as_json, null_marker)
    config: dict[str, str | bool] = {
        **client_config(bootstrap),
        "auto.offset.reset": "earliest" if from_beginning or group is None else "latest",
        "allow.auto.create.topics": False,
        "isolation.level": isolation_level,
        **({} if group is None else {"group.id": group}),
        **parse_pairs(properties, "--property"),
    }
    if group is not None:
        if partitions or has_place or from_timestamp is not None or tail is not None:
            raise click.UsageError(
                "--group starts at the committed offsets: give neither --partition, --offset, "
                "--from-timestamp nor --tail (`nilometer group reset-offsets` changes the committed offsets)"
            )
        run_async(consume_in_group(topic, count, until_end is True, render, config))
        return
    start = Start(EARLIEST) if from_beginning else places
    if from_timestamp is not None:
        start = Start(timestamp_ms=from_timestamp)
    reading = Reading(
        topic,
        _chosen(partitions, start),
        start,
        tail,
        count,
        until_end is True or (tail is not None and until_end is None),
        render,
    )
    run_async(consume_partitions(reading, config))


def _chosen(partitions: tuple[int, ...], start: Start) -> tuple[int, ...]:
    """Return the partitions to read. Raises UsageError if --partition and --offset name different ones."""
    if partitions and (others := set(start.by_partition) - set(partitions)):
        raise click.UsageError(f"--offset {min(others)}:… is for a partition that --partition leaves out")
    if partitions and start.only_partitions and (others := set(partitions) - set(start.only_partitions)):
        raise click.UsageError(f"give an --offset for partition {min(others)} too, or one for all partitions")
    return partitions or start.only_partitions or ()


def _formatter(layout: str | None, as_json: bool, null_marker: str) -> Formatter:
    if as_json:
        return json_lines
    if layout is None:
        return value_lines(null_marker)
    try:
        return template(layout, null_marker)
    except BadFormat as error:
        raise click.UsageError(f"--format: {error}") from None
