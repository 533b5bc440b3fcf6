"""``nilometer consume``: prints the records of a topic, of chosen partitions or as a member of a consumer
group.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import click
import msgspec

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    client_config,
    connection_options,
    parse_pairs,
    partitions_option,
    run_async,
    stop_on_signals,
)
from nilometer.cli.commands import parse_time
from nilometer.cli.process import output_is_closed
from nilometer.cli.record_format import (
    NULL,
    BadFormat,
    Formatter,
    Render,
    json_lines,
    template,
    value_lines,
)
from nilometer.cli.registry_options import registry_options
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.consumer.tail import LogRange, log_ranges, read_tail
from nilometer.client.group.committer import CommitFailed
from nilometer.client.network.client import no_such_topic, topic_exists
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.settings import GivenConfig
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from nilometer.schema_registry.client import SchemaRegistry

# Where ``nilometer consume`` begins: parses ``--offset``, and finds the offset of each partition.
#
# An offset that a partition's log does not have is an error that names the range: what the user asked for is
# not there, and other records would be mistaken for it.

EARLIEST = "earliest"
LATEST = "latest"
_PLACE = re.compile(rf"(?:([0-9]{{1,10}}):)?({EARLIEST}|{LATEST}|-?[0-9]{{1,19}})")
_NO_PARTITIONS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin. A *place* is an offset, ``earliest``, ``latest``, or ``-N`` for N before the end."""

    place: str | None = None
    """The place in every partition without its own."""
    by_partition: Mapping[int, str] = field(default_factory=lambda: _NO_PARTITIONS)
    timestamp_ms: int | None = None

    @property
    def only_partitions(self) -> tuple[int, ...] | None:
        """The partitions to read: those with a place of their own, if no place is for all; else None, for all
        partitions."""
        return tuple(self.by_partition) if self.by_partition and self.place is None else None


def parse_places(texts: Sequence[str]) -> Start:
    """Return the start for the values of ``--offset``: PLACE or PARTITION:PLACE. Raises BadParameter."""
    place: str | None = None
    by_partition: dict[int, str] = {}
    for text in texts:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise click.BadParameter(
                f"{text!r} is not an offset, earliest, latest, -N, or PARTITION: and one of them"
            )
        number, one = match.groups()
        if number is None and place is None:
            place = one
        elif number is not None and int(number) not in by_partition:
            by_partition[int(number)] = one
        else:
            raise click.BadParameter(f"{text!r} names a second place for the same partitions")
    return Start(place, by_partition)


def resolve(place: str, log: LogRange) -> int | None:
    """Return the offset of ``place`` in a partition; None if the log does not have it."""
    if place == EARLIEST:
        return log.start
    if place == LATEST:
        return log.end
    if place.startswith("-"):
        return max(log.end - int(place[1:]), log.start)
    offset = int(place)
    return offset if log.start <= offset <= log.high_watermark else None


async def seek_to_start(consumer: Consumer, partitions: Sequence[TopicPartition], start: Start) -> None:
    """Set the position of each assigned partition.

    Raises KafkaError, for an offset that a log does not have with OFFSET_OUT_OF_RANGE.
    """
    logs = await log_ranges(consumer, partitions)
    if start.timestamp_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, start.timestamp_ms))
        for partition in partitions:
            one = found.get(partition)
            consumer.seek(partition, one.offset if one is not None else logs[partition].end)
        return
    for partition in partitions:
        place = start.by_partition.get(partition.partition, start.place or LATEST)
        offset = resolve(place, logs[partition])
        if offset is None:
            raise KafkaError(ErrorCode.offset_out_of_range, _not_there(place, partition, logs[partition]))
        consumer.seek(partition, offset)


def _not_there(place: str, partition: TopicPartition, log: LogRange) -> str:
    if log.start == log.high_watermark:
        has = f"the log is empty, and its next record gets offset {log.high_watermark}"
    else:
        has = f"the log has the offsets {log.start} to {log.high_watermark - 1}"
    return f"offset {place} is not in {partition}: {has}"


# ``nilometer consume --group``: prints the records of a topic as a member of a consumer group.
#
# Invariant: an offset is committed only once the records before it were written to the output.

POLL_MS = 60_000
LOOK_MS = 200
RECORDS_PER_POLL = 2_000


def _limit(left: int | None) -> int:
    return RECORDS_PER_POLL if left is None else min(left, RECORDS_PER_POLL)


async def consume_in_group(
    topic: str, count: int | None, exit_at_end: bool, render: Render, config: GivenConfig
) -> None:
    output = sys.stdout.buffer
    left = count
    async with Consumer(Runtime.system(), {**config, "enable.auto.commit": False}) as consumer:
        closing: list[asyncio.Task[None]] = []
        stop_on_signals(lambda: closing.append(asyncio.ensure_future(consumer.close())))
        if not await topic_exists(consumer.client, topic, consumer.config.api_timeout_ms):
            if exit_at_end:
                raise no_such_topic(topic)
            click.echo(f"Topic {topic} does not exist yet: waiting for it.", err=True)
        await consumer.subscribe([topic])
        while left is None or left > 0:
            records = await consumer.poll(_limit(left), timeout_ms=LOOK_MS if exit_at_end else POLL_MS)
            if consumer.closed:
                break
            output.write(await render(records))
            output.flush()
            if records:
                if left is not None:
                    left -= len(records)
                await _commit(consumer)
            elif exit_at_end and await _is_at_end(consumer):
                await _commit(consumer)
                break
        await asyncio.gather(*closing)


async def _commit(consumer: Consumer) -> None:
    try:
        await consumer.commit()
    except CommitFailed as error:  # another member has the partitions, and will print these records again
        sys.stderr.write(f"Not committed: {error}\n")


async def _is_at_end(consumer: Consumer) -> bool:
    """Whether this member has partitions and has read all of them to their end.

    Without partitions, as during a rebalance, it is not.
    """
    assigned = consumer.assignment()
    if not assigned:
        return False
    ends = await consumer.end_offsets(assigned)
    return all([await consumer.position(one) >= ends[one] for one in assigned])


# ``nilometer consume`` without a group: reads chosen partitions of a topic, and prints their records.


class Reading(msgspec.Struct, frozen=True):
    """What to read of one topic, and how to print it."""

    topic: str
    partitions: tuple[int, ...]
    """The partitions by number; empty: all."""
    start: Start
    tail: int | None
    """Begin with this many newest records, instead of at ``start``."""
    count: int | None
    until_end: bool
    render: Render


async def consume_partitions(reading: Reading, config: GivenConfig) -> None:
    """Print the records of ``reading`` until its end, or until Ctrl-C. Raises KafkaError."""
    async with Consumer(Runtime.system(), config) as consumer:
        if not reading.until_end:
            # Ctrl-C is the normal end of following, so close the consumer.
            closing: list[asyncio.Task[None]] = []
            stop_on_signals(lambda: closing.append(asyncio.ensure_future(consumer.close())))
        try:
            await _read(consumer, reading)
        except KafkaError:
            if not consumer.closed:
                raise


async def _read(consumer: Consumer, reading: Reading) -> None:
    partitions = await _partitions(consumer, reading.topic, reading.partitions)
    consumer.assign(partitions)
    if reading.tail is not None:
        await _write(await read_tail(consumer, partitions, reading.tail), reading.render)
        if reading.until_end:
            return
    else:
        await seek_to_start(consumer, partitions, reading.start)
    if reading.until_end:
        await _read_to_end(consumer, partitions, reading)
    else:
        await _follow(consumer, reading)


async def _follow(consumer: Consumer, reading: Reading) -> None:
    left = reading.count
    while left is None or left > 0:
        records = await consumer.poll(_limit(left), timeout_ms=POLL_MS)
        if not records and consumer.closed:
            return
        await _write(records, reading.render)
        if left is not None:
            left -= len(records)


async def _read_to_end(consumer: Consumer, partitions: Sequence[TopicPartition], reading: Reading) -> None:
    left = reading.count
    ends = await consumer.end_offsets(partitions)
    unfinished = [one for one in partitions if await consumer.position(one) < ends[one]]
    consumer.pause(*(one for one in partitions if one not in unfinished))
    while unfinished and (left is None or left > 0):
        polled = await consumer.poll(_limit(left), timeout_ms=POLL_MS)
        records = [one for one in polled if one.offset < ends[TopicPartition(one.topic, one.partition)]]
        await _write(records, reading.render)
        if left is not None:
            left -= len(records)
        unfinished = [one for one in unfinished if await consumer.position(one) < ends[one]]
        consumer.pause(*(one for one in partitions if one not in unfinished))


async def _write(records: Sequence[ConsumerRecord], render: Render) -> None:
    sys.stdout.buffer.write(await render(records))
    sys.stdout.buffer.flush()


async def _partitions(consumer: Consumer, topic: str, wanted: tuple[int, ...]) -> list[TopicPartition]:
    if not await topic_exists(consumer.client, topic, consumer.config.api_timeout_ms):
        raise no_such_topic(topic)
    partitions = await consumer.partitions_for(topic)
    for number in wanted:
        if number >= len(partitions):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {len(partitions)} partitions and none is number {number}",
            )
    return [one for one in partitions if one.partition in wanted] if wanted else partitions


# The command.

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
@partitions_option
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
@registry_options
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
    registry: SchemaRegistry | None,
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
    render = _render(_formatter(layout, as_json, null_marker), registry)
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


def _render(formatter: Formatter, registry: SchemaRegistry | None) -> Render:
    if registry is not None:
        from nilometer.cli.registry_options import by_registry

        return by_registry(formatter, registry)

    async def render(records: Sequence[ConsumerRecord]) -> bytes:
        return b"".join(map(formatter, records))

    return render


def _formatter(layout: str | None, as_json: bool, null_marker: str) -> Formatter:
    if as_json:
        return json_lines
    if layout is None:
        return value_lines(null_marker)
    try:
        return template(layout, null_marker)
    except BadFormat as error:
        raise click.UsageError(f"--format: {error}") from None
