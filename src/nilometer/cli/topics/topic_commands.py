"""``nilometer topic``: create, list, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of, say_if_hidden
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    parse_pairs,
    print_json,
    print_table,
    run_async,
    yes_option,
)
from nilometer.cli.config_view import changes_of, check_deleted, config_documents
from nilometer.cli.number_types import PARTITIONS_COUNT
from nilometer.cli.topics.topic_config_command import topic_config
from nilometer.cli.topics.topic_offset_commands import delete_records_command, offsets
from nilometer.client.admin.descriptions import (
    BROKER_DEFAULT,
    ConfigEntry,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from nilometer.client.network.cluster_metadata import TopicMetadata
from nilometer.identifiers import NO_LEADER
from nilometer.wire.errors import ErrorCode, KafkaError


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
    for name, one, configs in found:
        if isinstance(one, KafkaError):
            failed = True
            click.echo(f"Error: topic {name}: {one}", err=True)
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
        "topic_id": str(one.topic_id) if one.topic_id else None,
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
    print_table(columns, rows, title=f"{one.name}  (id {one.topic_id})")
    own = [entry for entry in configs.values() if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG]
    for entry in own:
        click.echo(f"  {entry.name}={entry.value}")
