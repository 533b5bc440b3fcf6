"""``nilometer broker list`` and ``broker config``: the brokers of a cluster, and their settings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of
from nilometer.cli.cluster_options import connection_options, json_option, print_json, print_table, run_async
from nilometer.cli.config_view import (
    all_option,
    changes_of,
    check_deleted,
    delete_option,
    print_settings,
    set_option,
    shown,
)
from nilometer.cli.number_types import BROKER_ID
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.descriptions import ClusterDescription, ConfigEntry, ConfigSource, ResourceType
from nilometer.client.network.cluster_metadata import TopicMetadata

ALL_BROKERS = ""
"""As a broker's name: the settings that all brokers share."""


@commands.command("list")
@json_option
@connection_options
def list_brokers(as_json: bool, bootstrap: str) -> None:
    """List the live brokers of a cluster, with the partitions they lead and the replicas they have."""

    async def work() -> tuple[ClusterDescription, dict[str, TopicMetadata]]:
        async with admin_of(bootstrap) as admin:
            return await admin.describe_cluster(), await admin.list_topics()

    cluster, topics = run_async(work())
    documents = _documents(cluster, topics)
    if as_json:
        print_json({"cluster_id": cluster.cluster_id, "brokers": documents})
        return
    rows = [
        (one["id"], one["host"], one["port"], one["rack"], one["leaders"], one["replicas"], _role(one))
        for one in documents
    ]
    print_table(("id", "host", "port", "rack", "leaders", "replicas", "role"), rows)


def _documents(cluster: ClusterDescription, topics: dict[str, TopicMetadata]) -> list[dict[str, Any]]:
    partitions = [part for topic in topics.values() for part in topic.partitions]
    leaders = Counter(part.leader_id for part in partitions)
    replicas = Counter(one for part in partitions for one in part.replicas)
    return [
        {
            "id": node.node_id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "controller": node.node_id == cluster.controller_id,
            "leaders": leaders[node.node_id],
            "replicas": replicas[node.node_id],
        }
        for node in cluster.brokers
    ]


def _role(one: dict[str, Any]) -> str:
    return "controller" if one["controller"] else ""


@commands.command("config")
@click.argument("broker_id", required=False, metavar="[ID]", type=BROKER_ID)
@click.option("--all-brokers", is_flag=True, help="The settings that all brokers share, instead of one ID.")
@set_option
@delete_option
@all_option
@json_option
@connection_options
def broker_config(
    broker_id: int | None,
    all_brokers: bool,
    given: tuple[str, ...],
    deleted: tuple[str, ...],
    show_all: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Show the settings that were changed while the brokers run, after --set and --delete.

    Those of a broker are its own ones, and those that all brokers share. --all also shows those of the
    broker's server.properties, and the defaults.
    """
    if all_brokers == (broker_id is not None):
        raise click.UsageError("give the ID of a broker, or --all-brokers")
    name = ALL_BROKERS if broker_id is None else str(broker_id)
    changes = changes_of(given, deleted)

    async def work() -> dict[str, ConfigEntry]:
        async with admin_of(bootstrap) as admin:
            live = await _check_broker(admin, broker_id)
            if changes:
                await check_deleted(admin, ResourceType.BROKER, str(live), deleted)
                await admin.incremental_alter_configs(ResourceType.BROKER, name, changes)
            return await admin.describe_configs(ResourceType.BROKER, name)

    changed = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    print_settings({"broker": broker_id}, shown(run_async(work()), show_all, *changed), as_json)


async def _check_broker(admin: Admin, broker_id: int | None) -> int:
    """Return the id of a live broker: this one, or any. Raises ClickException if no live broker has this id:
    the client would try for a minute."""
    live = [node.node_id for node in (await admin.describe_cluster()).brokers]
    if broker_id is not None and broker_id not in live:
        raise click.ClickException(
            f"there is no live broker {broker_id}; the live brokers are {', '.join(map(str, live))}"
        )
    return live[0] if broker_id is None else broker_id
