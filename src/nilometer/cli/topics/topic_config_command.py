"""``nilometer topic config``: shows and changes the settings of a topic."""

from __future__ import annotations

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of
from nilometer.cli.cluster_options import connection_options, json_option, run_async
from nilometer.cli.config_view import (
    all_option,
    changes_of,
    check_deleted,
    delete_option,
    print_settings,
    set_option,
    shown,
)
from nilometer.client.admin.descriptions import ConfigEntry, ConfigSource, ResourceType


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
    """Show the settings of a topic that differ from the brokers' defaults, after --set and --delete."""
    changes = changes_of(given, deleted)

    async def work() -> dict[str, ConfigEntry]:
        async with admin_of(bootstrap) as admin:
            if changes:
                await check_deleted(admin, ResourceType.TOPIC, name, deleted)
                await admin.incremental_alter_configs(ResourceType.TOPIC, name, changes)
            return await admin.describe_configs(ResourceType.TOPIC, name)

    entries = shown(run_async(work()), show_all, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    print_settings({"topic": name}, entries, as_json)
