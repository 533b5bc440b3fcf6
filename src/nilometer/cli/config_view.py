"""Shared by ``topic config`` and ``broker config``: options, and how settings are changed and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from nilometer.cli.cluster_options import parse_pairs, print_json, print_table
from nilometer.client.admin.admin import (
    Admin,
    AlterOperation,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ResourceType,
)

HIDDEN = "(hidden)"

set_option = click.option(
    "--set", "given", multiple=True, metavar="KEY=VALUE", help="Set KEY to VALUE; repeatable."
)
delete_option = click.option(
    "--delete", "deleted", multiple=True, metavar="KEY", help="Reset this key to its default; repeatable."
)
all_option = click.option("--all", "show_all", is_flag=True, help="Also show the other settings.")


def changes_of(
    given: tuple[str, ...], deleted: tuple[str, ...], setting: str = "--set", deleting: str = "--delete"
) -> list[ConfigChange]:
    """Return the changes of the options ``setting`` and ``deleting``. Raises UsageError for a key in both."""
    pairs = parse_pairs(given, setting)
    if both := sorted(set(pairs) & set(deleted)):
        raise click.UsageError(f"{both[0]} is in {setting} and in {deleting}")
    changes = [ConfigChange(key, value) for key, value in pairs.items()]
    return changes + [ConfigChange(key, None, AlterOperation.DELETE) for key in dict.fromkeys(deleted)]


async def check_deleted(admin: Admin, resource_type: ResourceType, name: str, deleted: Sequence[str]) -> None:
    """Raise ClickException if a topic or broker has no such setting: brokers say nothing of it."""
    if not deleted:
        return
    known = await admin.describe_configs(resource_type, name)
    if missing := [key for key in deleted if key not in known]:
        what = f"{resource_type.name.lower()} {name}"
        raise click.ClickException(
            f"{what} has no setting {', '.join(missing)}, and nothing was changed. "
            f"`nilometer {resource_type.name.lower()} config {name} --all` shows the settings."
        )


def shown(
    entries: Mapping[str, ConfigEntry], show_all: bool, *sources: ConfigSource
) -> dict[str, ConfigEntry]:
    """Return the settings to show, by key: those from ``sources``, or all."""
    return {key: one for key, one in sorted(entries.items()) if show_all or one.source in sources}


def print_settings(subject: Mapping[str, Any], entries: Mapping[str, ConfigEntry], as_json: bool) -> None:
    """Print the settings of the topic or broker that the fields of ``subject`` name."""
    if as_json:
        print_json({**subject, "configs": config_documents(entries)})
        return
    if not entries:
        click.echo("Every setting has its default; --all shows them.")
        return
    rows = [
        (one.name, HIDDEN if one.sensitive else one.value, one.source.name, "yes" if one.read_only else "no")
        for one in entries.values()
    ]
    print_table(("key", "value", "source", "read-only"), rows)


def config_documents(entries: Mapping[str, ConfigEntry]) -> dict[str, Any]:
    return {
        one.name: {"value": one.value, "source": one.source.name, "read_only": one.read_only}
        for one in entries.values()
    }
