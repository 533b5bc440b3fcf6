"""``nilometer topic``: create, list, describe, alter and delete topics; their settings and offsets.

``topic offsets`` shows where the records of partitions begin and end, and ``topic delete-records`` moves the
beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of, say_if_hidden
from nilometer.cli.cluster_options import (
    all_option,
    changes_of,
    check_deleted,
    config_documents,
    confirm,
    connection_options,
    delete_option,
    json_option,
    parse_pairs,
    print_json,
    print_settings,
    print_table,
    run_async,
    set_option,
    shown,
    yes_option,
)
from nilometer.cli.commands import INT32_MAX, INT64_MAX, PARTITION, PARTITIONS_COUNT, parse_time
from nilometer.client.admin.admin import (
    BROKER_DEFAULT,
    HIGH_WATERMARK,
    Admin,
    ConfigEntry,
    ConfigSource,
    Deletions,
    NewTopic,
    ResourceType,
    delete_records,
)
from nilometer.client.admin.reassignments import describe_by_controller
from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.client.offset_queries import READ_COMMITTED
from nilometer.client.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.identifiers import NO_LEADER, uuid_to_text
from nilometer.wire.errors import ErrorCode, KafkaError

# ``nilometer topic config``: shows and changes the settings of a topic.


@commands.command("config")
@click.argument("name")
@set_option
@delete_option
@all_option
@json_option
@connection_options
def topic_config(
    name: str,
    given: tuple[str, ...],
    deleted: tuple[str, ...],
    show_all: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Change settings of a topic with --set and --delete, then show those that differ from the defaults."""
    changes = changes_of(given, deleted)

    async def work() -> dict[str, ConfigEntry]:
        async with admin_of(bootstrap) as admin:
            if changes:
                await check_deleted(admin, ResourceType.TOPIC, name, deleted)
                await admin.incremental_alter_configs(ResourceType.TOPIC, name, changes)
            return await admin.describe_configs(ResourceType.TOPIC, name)

    entries = shown(run_async(work()), show_all, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    print_settings({"topic": name}, entries, as_json)


# ``nilometer topic offsets`` and ``topic delete-records``: where the records of partitions begin and end.

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
    _report_deleted_records(run_async(work(by_place)), as_json)


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


def _report_deleted_records(outcomes: Mapping[TopicPartition, int | KafkaError], as_json: bool) -> None:
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


# The group of commands: create, list, describe, alter, delete.


@commands.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics; show and change their offsets and settings."""


for command in (offsets, delete_records_command, topic_config):
    topic.add_command(command)


def _report(
    outcomes: Mapping[str, KafkaError | None], done: str, as_json: bool, ignored_error: ErrorCode | None
) -> None:
    """Print the outcome of each topic; exit with code 1 if one has an error other than ``ignored_error``.

    ``done`` is the verb for success.
    """
    failed = False
    for name, error in outcomes.items():
        if error is not None and error.code != ignored_error:
            failed = True
            click.echo(f"Error: topic {name}: {error}", err=True)
        elif not as_json:
            click.echo(f"{done} topic {name}." if error is None else f"Nothing to do for topic {name}.")
    if as_json:
        print_json({name: str(error) if error else None for name, error in outcomes.items()})
    if failed:
        raise click.exceptions.Exit(1)


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option(
    "--partitions",
    type=PARTITIONS_COUNT,
    help="The number of partitions. [default: the broker's num.partitions]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="The number of replicas of each partition. [default: the broker's default.replication.factor]",
)
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="A topic setting KEY=VALUE; repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail for a topic that exists.")
@json_option
@connection_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Create topics."""
    settings = parse_pairs(configs, "--config")
    wanted = [
        NewTopic(name, partitions or BROKER_DEFAULT, replication_factor or BROKER_DEFAULT, settings)
        for name in names
    ]

    async def work() -> dict[str, KafkaError | None]:
        async with admin_of(bootstrap) as admin:
            return await admin.create_topics(wanted)

    ignored_error = ErrorCode.topic_already_exists if if_not_exists else None
    _report(run_async(work()), "Created", as_json, ignored_error)


@topic.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@json_option
@connection_options
def list_topics(internal: bool, as_json: bool, bootstrap: str) -> None:
    """List topics."""

    async def work() -> list[TopicMetadata]:
        async with admin_of(bootstrap) as admin:
            listed = await admin.list_topics()
            if not listed:
                await say_if_hidden(admin, "topic")
            return [one for one in listed.values() if internal or not one.is_internal]

    found = run_async(work())
    if as_json:
        print_json({"topics": [_summary(one) for one in found]})
    else:
        rows = [(one.name, len(one.partitions), _replication(one)) for one in found]
        print_table(("topic", "partitions", "replicas"), rows)


@topic.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@json_option
@connection_options
def describe(names: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """Show the partitions and settings of topics. Without a name: of all topics."""

    async def work() -> list[tuple[str, TopicMetadata | KafkaError, dict[str, ConfigEntry]]]:
        async with admin_of(bootstrap) as admin:
            wanted = names or tuple(await admin.list_topics())
            described = await admin.describe_topics(wanted)
            return [
                (
                    name,
                    one,
                    await admin.describe_configs(ResourceType.TOPIC, name)
                    if isinstance(one, TopicMetadata)
                    else {},
                )
                for name, one in described.items()
            ]

    found = run_async(work())
    if as_json:
        topics = [_detail(one, configs) for _, one, configs in found if isinstance(one, TopicMetadata)]
        print_json({"topics": topics})
    failed = False
    for _, one, configs in found:
        if isinstance(one, KafkaError):
            failed = True
            click.echo(f"Error: {one}", err=True)
        elif not as_json:
            _print_topic(one, configs)
    if failed:
        raise click.exceptions.Exit(1)


@topic.command()
@click.argument("name")
@click.option("--partitions", type=PARTITIONS_COUNT, help="Increase the number of partitions to this.")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set KEY=VALUE; repeatable.")
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Reset this key to its default; repeatable.",
)
@json_option
@connection_options
def alter(
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Change the settings of a topic, or give it more partitions."""
    changes = changes_of(configs, deleted, "--config", "--delete-config")
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")

    async def work() -> None:
        async with admin_of(bootstrap) as admin:
            if changes:
                await check_deleted(admin, ResourceType.TOPIC, name, deleted)
                await admin.incremental_alter_configs(ResourceType.TOPIC, name, changes)
            if partitions is not None:
                error = (await admin.create_partitions({name: partitions}))[name]
                if error is not None:
                    raise error

    run_async(work())
    if as_json:
        print_json({name: None})
    else:
        click.echo(f"Altered topic {name}.")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--if-exists", is_flag=True, help="Do not fail for a topic that does not exist.")
@click.option(
    "--internal",
    is_flag=True,
    help="Delete internal topics, too: with __consumer_offsets the offsets of all groups are lost.",
)
@yes_option
@json_option
@connection_options
def delete(
    names: tuple[str, ...], if_exists: bool, internal: bool, yes: bool, as_json: bool, bootstrap: str
) -> None:
    """Delete topics and all their records."""

    async def look() -> list[TopicMetadata]:
        async with admin_of(bootstrap) as admin:
            described = await admin.describe_topics(names)
            return [one for one in described.values() if isinstance(one, TopicMetadata)]

    async def work() -> dict[str, KafkaError | None]:
        async with admin_of(bootstrap) as admin:
            return await admin.delete_topics(names)

    found = run_async(look())
    if not internal and (refused := [one.name for one in found if one.is_internal]):
        raise click.UsageError(
            f"{', '.join(refused)}: the brokers keep their own state there, and it is lost for all clients. "
            "--internal deletes internal topics, too"
        )
    if found:
        lost = [f"topic {one.name} with the records of {len(one.partitions)} partitions" for one in found]
        confirm("Delete these topics?", lost, yes=yes)
    ignored_error = ErrorCode.unknown_topic_or_partition if if_exists else None
    _report(run_async(work()), "Deleted", as_json, ignored_error)


def _replication(one: TopicMetadata) -> int:
    return len(one.partitions[0].replicas) if one.partitions else 0


def _summary(one: TopicMetadata) -> dict[str, Any]:
    return {
        "name": one.name,
        "topic_id": uuid_to_text(one.topic_id) if one.topic_id else None,
        "internal": one.is_internal,
        "partitions": len(one.partitions),
        "replication_factor": _replication(one),
    }


def _detail(one: TopicMetadata, configs: Mapping[str, ConfigEntry]) -> dict[str, Any]:
    return {
        **_summary(one),
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader_id if part.leader_id != NO_LEADER else None,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.in_sync_replicas),
                "offline": list(part.offline_replicas),
            }
            for part in one.partitions
        ],
        "configs": config_documents(configs),
    }


def _print_topic(one: TopicMetadata, configs: Mapping[str, ConfigEntry]) -> None:
    rows = [
        (
            part.partition,
            part.leader_id if part.leader_id != NO_LEADER else "none",
            part.leader_epoch,
            part.replicas,
            part.in_sync_replicas,
            part.offline_replicas,
        )
        for part in one.partitions
    ]
    columns = ("partition", "leader", "leader epoch", "replicas", "isr", "offline")
    topic_id = f"  (id {uuid_to_text(one.topic_id)})" if one.topic_id else ""
    print_table(columns, rows, title=one.name + topic_id)
    own = [entry for entry in configs.values() if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG]
    for entry in own:
        click.echo(f"  {entry.name}={entry.value}")
