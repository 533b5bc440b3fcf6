"""``nilometer group``: list, describe and delete groups; also adds the commands for offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import say_if_hidden
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    yes_option,
)
from nilometer.cli.groups.group_choice import (
    TIMEOUT_MS,
    all_groups_option,
    chosen_groups,
    finish,
    group_option,
    names_argument,
    run_work,
)
from nilometer.cli.groups.group_offset_commands import delete_offsets, reset_offsets
from nilometer.cli.groups.group_view import describe_group, group_document
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import STATES, GroupAdmin, GroupDescription, GroupListing
from nilometer.client.admin.group_offsets import PartitionLag, lags
from nilometer.wire.errors import KafkaError

GROUP_TYPES = ("classic", "consumer")


@commands.group()
def group() -> None:
    """List, describe and delete consumer groups, and reset their offsets."""


group.add_command(reset_offsets)
group.add_command(delete_offsets)


def _check_each(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for one in given:
        if one.lower() not in map(str.lower, known):
            raise click.UsageError(f"{option}: {one} is none of {', '.join(known)}")


def _comma_separated(text: str | None) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip()) if text else ()


@group.command("list")
@click.option(
    "--state",
    "states",
    is_flag=False,
    flag_value="",
    metavar="[STATE,…]",
    help="Only groups in these states (Empty, Stable, PreparingRebalance …).",
)
@click.option(
    "--type",
    "types",
    is_flag=False,
    flag_value="",
    metavar="[TYPE,…]",
    help="Only groups of this type: classic or consumer.",
)
@json_option
@connection_options
def list_groups(states: str | None, types: str | None, as_json: bool, bootstrap: str) -> None:
    """List groups with their state and type."""
    _check_each("--type", _comma_separated(types), GROUP_TYPES)
    _check_each("--state", _comma_separated(states), STATES)

    async def work(admin: Admin, groups: GroupAdmin) -> list[GroupListing]:
        listed = await groups.list_groups(_comma_separated(states), _comma_separated(types))
        if not listed:
            await say_if_hidden(admin, "group")
        return listed

    found = run_work(bootstrap, work)
    if as_json:
        print_json(
            {
                "groups": [
                    {
                        "group": one.group_id,
                        "type": one.group_type,
                        "state": one.state,
                        "protocol_type": one.protocol_type,
                    }
                    for one in found
                ]
            }
        )
    else:
        rows = [(one.group_id, one.group_type, one.state, one.protocol_type) for one in found]
        print_table(("group", "type", "state", "protocol"), rows)


@group.command()
@names_argument
@group_option
@all_groups_option
@click.option("--members", is_flag=True, help="Show the members and the partitions assigned to each.")
@click.option("--offsets", is_flag=True, help="Show offsets and lag by partition (default).")
@click.option("--state", "state", is_flag=True, help="Show only state, assignor and coordinator.")
@json_option
@connection_options
def describe(
    names: tuple[str, ...],
    more: tuple[str, ...],
    all_groups: bool,
    members: bool,
    offsets: bool,
    state: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Show offsets, lag and members of groups, and the member that causes repeated rebalances.

    LAG is the distance of the committed offset to the high watermark. STABLE LAG is the distance to the last
    stable offset, which limits readers with isolation.level=read_committed.
    """
    offsets = offsets or not (members or state)

    async def work(
        admin: Admin, groups: GroupAdmin
    ) -> tuple[dict[str, GroupDescription | KafkaError], dict[str, list[PartitionLag] | KafkaError]]:
        chosen = await chosen_groups(groups, names, more, all_groups)
        described = await groups.describe(chosen)
        outcomes = await asyncio.gather(*(_lags(admin, groups, one) for one in described.values()))
        return described, dict(zip(described, outcomes, strict=True))

    described, lag = run_work(bootstrap, work)
    documents: list[dict[str, Any]] = []
    errors: dict[str, object] = {}
    for name, one in described.items():
        partitions = lag[name]
        if isinstance(one, KafkaError):
            errors[f"group {name}"] = one
            continue
        if isinstance(partitions, KafkaError):
            errors[f"offsets of group {name}"] = partitions
            partitions = []
        if as_json:
            documents.append(group_document(one, partitions))
        else:
            describe_group(one, partitions, offsets=offsets, members=members)
    if as_json:
        print_json({"groups": documents})
    finish(errors)


async def _lags(
    admin: Admin, groups: GroupAdmin, one: GroupDescription | KafkaError
) -> list[PartitionLag] | KafkaError:
    if isinstance(one, KafkaError):
        return []
    try:
        committed = await groups.committed(one.group_id)
        owned = [partition for member in one.members for partition in member.assignment]
        return await lags(admin.client, committed, owned, TIMEOUT_MS)
    except KafkaError as error:
        return error


@group.command()
@names_argument
@group_option
@all_groups_option
@yes_option
@json_option
@connection_options
def delete(
    names: tuple[str, ...], more: tuple[str, ...], all_groups: bool, yes: bool, as_json: bool, bootstrap: str
) -> None:
    """Delete groups that have no members, with all their offsets."""
    chosen = run_work(bootstrap, lambda _, groups: chosen_groups(groups, names, more, all_groups))
    if chosen:
        confirm("Delete these groups?", [f"group {name} with its offsets" for name in chosen], yes=yes)
    outcomes = run_work(bootstrap, lambda _, groups: groups.delete(chosen)) if chosen else {}
    if as_json:
        print_json({name: str(error) if error else None for name, error in outcomes.items()})
    else:
        for name, error in outcomes.items():
            if error is None:
                click.echo(f"Deleted group {name}.")
    finish({f"group {name}": error for name, error in outcomes.items() if error is not None})
