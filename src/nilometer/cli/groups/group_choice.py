"""Shared by the group commands: options that name groups and topics, running requests, reporting errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import click

from nilometer.cli.cluster_options import client_config, run_async
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.runtime import Runtime

TIMEOUT_MS = 15_000
T = TypeVar("T")

names_argument = click.argument("names", nargs=-1, metavar="[GROUP]…")
group_option = click.option(
    "--group", "more", multiple=True, metavar="GROUP", help="A group id, instead of an argument; repeatable."
)
all_groups_option = click.option("--all-groups", is_flag=True, help="All groups.")
topics_metavar = "TOPIC[:P,…]"

Work = Callable[[Admin, GroupAdmin], Awaitable[T]]


def run_work(bootstrap: str, work: Work[T]) -> T:
    async def main() -> T:
        config = {**client_config(bootstrap), "default.api.timeout.ms": str(TIMEOUT_MS)}
        async with Admin(Runtime.system(), config) as admin:
            return await work(admin, GroupAdmin(admin.client, TIMEOUT_MS))

    return run_async(main())


async def chosen_groups(
    groups: GroupAdmin, names: tuple[str, ...], more: tuple[str, ...], all_groups: bool
) -> list[str]:
    given = list(dict.fromkeys((*names, *more)))
    if all_groups == bool(given):
        raise click.UsageError("name groups, or give --all-groups")
    return [one.group_id for one in await groups.list_groups()] if all_groups else given


def finish(errors: Mapping[str, object]) -> None:
    """Print the errors by name; exit with code 1 if there are any."""
    for name, error in errors.items():
        click.echo(f"Error: {name}: {error}", err=True)
    if errors:
        raise click.exceptions.Exit(1)


def parse_topic(text: str) -> tuple[str, list[int]]:
    """Parse ``TOPIC`` or ``TOPIC:0,1``: the topic, and the partitions (empty: all). Raises UsageError."""
    name, separator, numbers = text.partition(":")
    try:
        found = [int(number) for number in numbers.split(",")] if separator else []
    except ValueError:
        found = [-1]
    if not name or any(number < 0 for number in found):
        raise click.UsageError(f"--topic takes TOPIC or TOPIC:PARTITION,…, not {text!r}")
    return name, found
