"""``nilometer consume``: prints the records of a topic."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import click

from nilometer.cli.cluster_options import bootstrap_option, parse_pairs, run_async, stop_on_signals
from nilometer.cli.records.consume_in_group import consume_in_group
from nilometer.cli.records.record_format import BadFormat, Formatter, json_lines, template, value_lines
from nilometer.cli.times import parse_time
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

POLL_MS = 60_000
RECORDS_PER_POLL = 2_000


@dataclass(frozen=True, slots=True)
class _Start:
    """The position to begin at: one field is set, or none for the end of the log."""

    beginning: bool = False
    offset: int | None = None
    timestamp_ms: int | None = None


def _parse_offset(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | int | None:
    if value is None or value in ("earliest", "latest"):
        return value
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number, earliest or latest") from None


def _parse_time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_time(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Start at the first record.")
@click.option(
    "--offset",
    callback=_parse_offset,
    help="Start at this offset: a number, earliest, latest, or -N for N records before the end.",
)
@click.option(
    "--from-timestamp",
    callback=_parse_time,
    help="Start at this timestamp: milliseconds, or an ISO time in UTC.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "--group", metavar="GROUP", help="Join this consumer group and continue at its committed offsets."
)
@click.option("--count", type=click.IntRange(0), help="Stop after this many records.")
@click.option(
    "--exit-at-end/--follow",
    default=None,
    help="Stop at the end offsets found at the start, or wait for more records (default).",
)
@click.option("--format", "layout", metavar="TEXT", help="Such as '{partition}@{offset} {key}: {value}\\n'.")
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
@bootstrap_option
def consume(
    topic: str,
    from_beginning: bool,
    offset: str | int | None,
    from_timestamp: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    count: int | None,
    exit_at_end: bool | None,
    layout: str | None,
    as_json: bool,
    isolation_level: str,
    properties: tuple[str, ...],
    bootstrap: str,
) -> None:
    """Print the records of TOPIC. By default: those that are written from now on.

    With --group the members of the group share the partitions, and the offsets of printed records are
    committed. --from-beginning then applies to partitions without a committed offset.
    """
    if sum((from_beginning, offset is not None, from_timestamp is not None)) > 1:
        raise click.UsageError("give one of --from-beginning, --offset and --from-timestamp")
    if layout is not None and as_json:
        raise click.UsageError("give one of --format and --json")
    start = _Start(
        from_beginning or offset == "earliest", offset if isinstance(offset, int) else None, from_timestamp
    )
    config = {
        "bootstrap.servers": bootstrap,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "isolation.level": isolation_level,
        **parse_pairs(properties, "--property"),
    }
    if group is not None:
        if partitions or start not in (_Start(), _Start(beginning=True)):
            raise click.UsageError(
                "--group starts at the committed offsets: give neither --partition, --offset nor "
                "--from-timestamp (`nilometer group reset-offsets` changes the committed offsets)"
            )
        config = {
            **config,
            "group.id": group,
            "auto.offset.reset": "earliest" if start.beginning else "latest",
        }
        config |= parse_pairs(properties, "--property")
        run_async(consume_in_group(topic, count, exit_at_end is True, _formatter(layout, as_json), config))
        return
    run_async(
        _consume(topic, partitions, start, count, exit_at_end is True, _formatter(layout, as_json), config)
    )


def _formatter(layout: str | None, as_json: bool) -> Formatter:
    if as_json:
        return json_lines
    if layout is None:
        return value_lines
    try:
        return template(layout)
    except BadFormat as error:
        raise click.UsageError(f"--format: {error}") from None


async def _consume(
    topic: str,
    wanted: tuple[int, ...],
    start: _Start,
    count: int | None,
    exit_at_end: bool,
    render: Formatter,
    config: dict[str, str | bool],
) -> None:
    output = sys.stdout.buffer
    left = count
    async with Consumer(Runtime.system(), config) as consumer:
        if not exit_at_end:
            # Ctrl-C is the normal end of following, so close the consumer.
            closing: list[asyncio.Task[None]] = []
            stop_on_signals(lambda: closing.append(asyncio.ensure_future(consumer.close())))
        partitions = await _partitions(consumer, topic, wanted)
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        await _seek(consumer, partitions, ends, start)
        unfinished = [one for one in partitions if await consumer.position(one) < ends[one]]
        while (left is None or left > 0) and not (exit_at_end and not unfinished):
            limit = RECORDS_PER_POLL if left is None else min(left, RECORDS_PER_POLL)
            records = await consumer.poll(limit, timeout_ms=POLL_MS)
            if not records and consumer.closed:
                return
            if exit_at_end:
                records = [
                    one for one in records if one.offset < ends[TopicPartition(one.topic, one.partition)]
                ]
            output.write(b"".join(map(render, records)))
            output.flush()
            if left is not None:
                left -= len(records)
            if exit_at_end:
                unfinished = [one for one in unfinished if await consumer.position(one) < ends[one]]
                consumer.pause(*(one for one in partitions if one not in unfinished))


async def _partitions(consumer: Consumer, topic: str, wanted: tuple[int, ...]) -> list[TopicPartition]:
    partitions = await consumer.partitions_for(topic)
    for number in wanted:
        if number >= len(partitions):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {len(partitions)} partitions and none is number {number}",
            )
    return [one for one in partitions if one.partition in wanted] if wanted else partitions


async def _seek(
    consumer: Consumer, partitions: list[TopicPartition], ends: dict[TopicPartition, int], start: _Start
) -> None:
    if start.timestamp_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, start.timestamp_ms))
        for partition in partitions:
            one = found.get(partition)
            consumer.seek(partition, one.offset if one is not None else ends[partition])
    elif start.beginning:
        consumer.seek_to_beginning(*partitions)
    elif start.offset is None:
        for partition in partitions:
            consumer.seek(partition, ends[partition])
    else:
        begins = await consumer.beginning_offsets(partitions)
        for partition in partitions:
            offset = (
                start.offset if start.offset >= 0 else max(ends[partition] + start.offset, begins[partition])
            )
            consumer.seek(partition, offset)
