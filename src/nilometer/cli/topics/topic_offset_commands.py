"""``nilometer topic offsets`` and ``topic delete-records``: where the records of partitions begin and end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    run_async,
    yes_option,
)
from nilometer.cli.number_types import INT32_MAX, INT64_MAX, PARTITION
from nilometer.cli.times import parse_time
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.record_deletion import HIGH_WATERMARK, Deletions, delete_records
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.offset_queries import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED
from nilometer.client.replicas.partition_operations import describe_by_controller
from nilometer.wire.errors import ErrorCode, KafkaError

TIMEOUT_MS = 30_000
_BEFORE = re.compile("([0-9]{1,10}):([0-9]{1,19})")


class PartitionOffsets(NamedTuple):
    partition: TopicPartition
    start: int
    last_stable: int
    """The end for readers with isolation.level=read_committed."""
    high_watermark: int
    at: int | None
    """The first offset with a given timestamp or a later one; None if there is none."""


@commands.command("offsets")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC…")
@click.option("--partition", "partitions", type=PARTITION, multiple=True, help="Only this one; repeatable.")
@click.option(
    "--at",
    "at",
    metavar="TIME",
    help="Also the first offset with this timestamp or a later one: milliseconds, or an ISO time in UTC.",
)
@json_option
@connection_options
def offsets(
    names: tuple[str, ...], partitions: tuple[int, ...], at: str | None, as_json: bool, bootstrap: str
) -> None:
    """Show where the records of each partition begin and end, and how many offsets that are."""
    timestamp_ms = _time(at)

    async def work() -> list[PartitionOffsets]:
        async with admin_of(bootstrap) as admin:
            return await _offsets(admin, await _places(admin, names, partitions), timestamp_ms)

    found = run_async(work())
    if as_json:
        print_json({"partitions": [_document(one, at is not None) for one in found]})
        return
    columns = ("topic", "partition", "start", "last stable", "high watermark", "offsets")
    rows = [(*one.partition, *one[1:4], one.high_watermark - one.start) for one in found]
    if at is not None:
        columns, rows = (*columns, "at"), [(*row, one.at) for row, one in zip(rows, found, strict=True)]
    print_table(columns, rows)


def _time(text: str | None) -> int | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from None


async def _places(admin: Admin, names: Sequence[str], partitions: Sequence[int]) -> list[TopicPartition]:
    """Return the chosen partitions (empty: all) of topics. Raises KafkaError for one that does not exist."""
    found: list[TopicPartition] = []
    for name, topic in (await describe_by_controller(admin, names)).items():
        count = len(topic.partitions)
        for number in partitions:
            _check_partition(name, number, count)
        found += [TopicPartition(name, number) for number in (sorted(set(partitions)) or range(count))]
    return found


def _check_partition(topic: str, number: int, count: int) -> None:
    if number >= count:
        raise KafkaError(
            ErrorCode.unknown_topic_or_partition,
            f"topic {topic} has {count} partitions; there is no partition {number}",
        )


async def _offsets(
    admin: Admin, places: Sequence[TopicPartition], timestamp_ms: int | None
) -> list[PartitionOffsets]:
    starts = await admin.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP))
    latest = dict.fromkeys(places, LATEST_TIMESTAMP)
    stable = await admin.list_offsets(latest, isolation_level=READ_COMMITTED)
    high = await admin.list_offsets(latest)
    timed = {} if timestamp_ms is None else await admin.list_offsets(dict.fromkeys(places, timestamp_ms))
    return [
        PartitionOffsets(
            one,
            starts[one].offset,
            stable[one].offset,
            high[one].offset,
            timed[one].offset if one in timed and timed[one].offset >= 0 else None,
        )
        for one in places
    ]


def _document(one: PartitionOffsets, with_time: bool) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "start": one.start,
        "last_stable": one.last_stable,
        "high_watermark": one.high_watermark,
        **({"at": one.at} if with_time else {}),
    }


# --- delete-records


@commands.command("delete-records")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--before",
    "texts",
    multiple=True,
    metavar="P:OFFSET",
    help="Delete the records of partition P below OFFSET; repeatable.",
)
@click.option("--all", "delete_all", is_flag=True, help="Delete all records of all partitions.")
@yes_option
@json_option
@connection_options
def delete_records_command(
    name: str, texts: tuple[str, ...], delete_all: bool, yes: bool, as_json: bool, bootstrap: str
) -> None:
    """Delete the oldest records of partitions, for all readers and for good."""
    if delete_all == bool(texts):
        raise click.UsageError("give --before, or --all")
    before = _parse_before(texts)

    async def look() -> dict[TopicPartition, int]:
        async with admin_of(bootstrap) as admin:
            count = len((await describe_by_controller(admin, [name]))[name].partitions)
        for number in before:
            _check_partition(name, number, count)
        wanted = dict.fromkeys(range(count), HIGH_WATERMARK) if delete_all else before
        return {TopicPartition(name, number): offset for number, offset in wanted.items()}

    async def work(by_place: Mapping[TopicPartition, int]) -> Deletions:
        async with admin_of(bootstrap) as admin:
            await admin.client.topic(name, TIMEOUT_MS)
            return await delete_records(admin.client, by_place, TIMEOUT_MS)

    by_place = run_async(look())
    lost = [
        f"all records of {place}" if offset == HIGH_WATERMARK else f"records of {place} below offset {offset}"
        for place, offset in sorted(by_place.items())
    ]
    confirm("Delete these records?", lost, yes=yes)
    _report(run_async(work(by_place)), as_json)


def _parse_before(texts: Sequence[str]) -> dict[int, int]:
    before: dict[int, int] = {}
    for text in texts:
        match = _BEFORE.fullmatch(text)
        number, offset = (int(group) for group in match.groups()) if match else (-1, -1)
        if not (0 <= number <= INT32_MAX and 0 <= offset <= INT64_MAX):
            raise click.UsageError(f"--before takes PARTITION:OFFSET, not {text!r}")
        if number in before:
            raise click.UsageError(f"--before names partition {number} twice")
        before[number] = offset
    return before


def _report(outcomes: Mapping[TopicPartition, int | KafkaError], as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "partitions": [
                    {
                        "topic": one.topic,
                        "partition": one.partition,
                        "start": outcome if isinstance(outcome, int) else None,
                        "error": None if isinstance(outcome, int) else str(outcome),
                    }
                    for one, outcome in sorted(outcomes.items())
                ]
            }
        )
    for one, outcome in sorted(outcomes.items()):
        if isinstance(outcome, KafkaError):
            click.echo(f"Error: {one}: {outcome}", err=True)
        elif not as_json:
            click.echo(f"{one} begins at offset {outcome} now.")
    if any(isinstance(outcome, KafkaError) for outcome in outcomes.values()):
        raise click.exceptions.Exit(1)
