"""``nilometer group``: list, describe, reset-offsets, delete, delete-offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from nilometer.cli.cluster_options import bootstrap_option, json_option, print_json, print_table, run_async
from nilometer.cli.group_view import describe_group, group_document, reset_document, reset_rows
from nilometer.cli.times import parse_time
from nilometer.client.admin import Admin
from nilometer.client.cluster_metadata import TopicPartition
from nilometer.client.durations import parse_duration_ms
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.group_admin import DEAD, EMPTY, GroupAdmin, GroupDescription
from nilometer.client.group_offsets import (
    PartitionLag,
    PlannedReset,
    ResetTo,
    lags,
    partitions_of,
    plan_reset,
    reachable,
)
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

TIMEOUT_MS = 15_000
INACTIVE = (EMPTY, DEAD)
T = TypeVar("T")

names_argument = click.argument("names", nargs=-1, metavar="[GROUP]…")
group_option = click.option("--group", "more", multiple=True, metavar="GROUP", help="The same; repeatable.")
all_groups_option = click.option("--all-groups", is_flag=True, help="All there are.")


@click.group()
def group() -> None:
    """List, describe and delete consumer groups, and reset their offsets."""


Work = Callable[[Admin, GroupAdmin], Awaitable[T]]


def _run(bootstrap: str, work: Work[T]) -> T:
    async def main() -> T:
        config = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": TIMEOUT_MS}
        async with Admin(Runtime.system(), config) as admin:
            return await work(admin, GroupAdmin(admin.client, TIMEOUT_MS))

    return run_async(main())


async def _chosen(
    groups: GroupAdmin, names: tuple[str, ...], more: tuple[str, ...], all_groups: bool
) -> list[str]:
    given = list(dict.fromkeys((*names, *more)))
    if all_groups == bool(given):
        raise click.UsageError("name groups, or give --all-groups")
    return [one.group_id for one in await groups.list_groups()] if all_groups else given


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def _finish(problems: Mapping[str, object]) -> None:
    """Say what failed; exit code 1 if anything did."""
    for name, problem in problems.items():
        click.echo(f"Error: {name}: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


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
    "--type", "types", is_flag=False, flag_value="", metavar="[TYPE,…]", help="Only classic or consumer ones."
)
@json_option
@bootstrap_option
def list_groups(states: str | None, types: str | None, as_json: bool, bootstrap: str) -> None:
    """List groups with their state and type."""
    found = _run(bootstrap, lambda _, groups: groups.list_groups(_words(states), _words(types)))
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
@click.option("--members", is_flag=True, help="The members and what each of them has.")
@click.option("--offsets", is_flag=True, help="Offsets and lag by partition (this is the default).")
@click.option("--state", "state", is_flag=True, help="State, assignor and coordinator alone.")
@json_option
@bootstrap_option
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
    """Show offsets, lag and members of groups, and who keeps them from settling.

    LAG is counted to the high watermark, STABLE LAG to the last stable offset: how far a reader of committed
    transactions is behind.
    """
    offsets = offsets or not (members or state)

    async def work(
        admin: Admin, groups: GroupAdmin
    ) -> tuple[dict[str, GroupDescription | KafkaError], dict[str, list[PartitionLag] | KafkaError]]:
        chosen = await _chosen(groups, names, more, all_groups)
        described = await groups.describe(chosen)
        outcomes = await asyncio.gather(*(_lags(admin, groups, one) for one in described.values()))
        return described, dict(zip(described, outcomes, strict=True))

    described, lag = _run(bootstrap, work)
    documents: list[dict[str, Any]] = []
    problems: dict[str, object] = {}
    for name, one in described.items():
        partitions = lag[name]
        if isinstance(one, KafkaError):
            problems[f"group {name}"] = one
            continue
        if isinstance(partitions, KafkaError):
            problems[f"offsets of group {name}"] = partitions
            partitions = []
        if as_json:
            documents.append(group_document(one, partitions))
        else:
            describe_group(one, partitions, offsets=offsets, members=members)
    if as_json:
        print_json({"groups": documents})
    _finish(problems)


async def _lags(
    admin: Admin, groups: GroupAdmin, one: GroupDescription | KafkaError
) -> list[PartitionLag] | KafkaError:
    if isinstance(one, KafkaError):
        return []
    try:
        committed = await groups.committed(one.group_id)
        owned = [partition for member in one.members for partition in member.assignment]
        return await lags(admin.client, committed, owned, TIMEOUT_MS)
    except KafkaError as problem:
        return problem


@group.command()
@names_argument
@group_option
@all_groups_option
@json_option
@bootstrap_option
def delete(
    names: tuple[str, ...], more: tuple[str, ...], all_groups: bool, as_json: bool, bootstrap: str
) -> None:
    """Delete groups that have no members, with all their offsets."""

    async def work(_: Admin, groups: GroupAdmin) -> dict[str, KafkaError | None]:
        return await groups.delete(await _chosen(groups, names, more, all_groups))

    outcomes = _run(bootstrap, work)
    if as_json:
        print_json({name: str(problem) if problem else None for name, problem in outcomes.items()})
    else:
        for name, problem in outcomes.items():
            if problem is None:
                click.echo(f"Deleted group {name}.")
    _finish({f"group {name}": problem for name, problem in outcomes.items() if problem is not None})


def _parse_topic(text: str) -> tuple[str, list[int]]:
    """``TOPIC`` or ``TOPIC:0,1``."""
    name, separator, numbers = text.partition(":")
    try:
        found = [int(number) for number in numbers.split(",")] if separator else []
    except ValueError:
        found = [-1]
    if not name or any(number < 0 for number in found):
        raise click.UsageError(f"--topic takes TOPIC or TOPIC:PARTITION,…, not {text!r}")
    return name, found


@group.command("reset-offsets")
@names_argument
@group_option
@all_groups_option
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,…]", help="Which topics, or partitions; repeatable."
)
@click.option("--all-topics", is_flag=True, help="All topics that the group has committed offsets of.")
@click.option("--to-earliest", is_flag=True, help="To the first record that is there.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-current", is_flag=True, help="To what is committed now.")
@click.option("--to-offset", type=click.IntRange(0), help="To this offset.")
@click.option("--shift-by", type=int, help="By so many records, forwards or (-N) backwards.")
@click.option("--to-datetime", help="To the first record of this time: milliseconds, or ISO (UTC).")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="To the first record of the last so long.")
@click.option("--dry-run", is_flag=True, help="Only show what would be set (this is the default).")
@click.option("--execute", is_flag=True, help="Set it. The group must have no members.")
@json_option
@bootstrap_option
def reset_offsets(
    names: tuple[str, ...],
    more: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    dry_run: bool,
    execute: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Set where a group goes on reading. Shows what it would do; --execute does it."""
    if dry_run and execute:
        raise click.UsageError("give one of --dry-run and --execute")
    if all_topics == bool(topics):
        raise click.UsageError("give --topic, or --all-topics")
    given = (to_earliest, to_latest, to_current, to_offset is not None, shift_by is not None)
    if sum((*given, to_datetime is not None, by_duration is not None)) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime "
            "and --by-duration"
        )
    to = ResetTo(
        earliest=to_earliest,
        latest=to_latest,
        current=to_current,
        offset=to_offset,
        shift_by=shift_by,
        timestamp_ms=_timestamp(to_datetime, by_duration),
    )
    wanted = [_parse_topic(text) for text in topics]

    async def work(
        admin: Admin, groups: GroupAdmin
    ) -> tuple[dict[str, list[PlannedReset]], dict[str, object]]:
        plans: dict[str, list[PlannedReset]] = {}
        problems: dict[str, object] = {}
        for name in await _chosen(groups, names, more, all_groups):
            try:
                plans[name] = await _reset(admin, groups, name, wanted, to, execute)
            except KafkaError as problem:
                problems[f"group {name}"] = problem
        return plans, problems

    plans, problems = _run(bootstrap, work)
    if as_json:
        print_json(reset_document(plans, execute))
    elif plans:
        columns = ("group", "topic", "partition", "before", "after", "note")
        print_table(columns, reset_rows(plans))
        if not execute:
            click.echo("Nothing was changed. --execute sets these offsets.")
    _finish(problems)


def _timestamp(to_datetime: str | None, by_duration: str | None) -> int | None:
    try:
        if to_datetime is not None:
            return parse_time(to_datetime)
        if by_duration is not None:
            return Runtime.system().clock.wall_ms() - parse_duration_ms(by_duration)
    except ValueError as problem:
        option = "--to-datetime" if to_datetime is not None else "--by-duration"
        raise click.UsageError(f"{option}: {problem}") from None
    return None


async def _reset(
    admin: Admin,
    groups: GroupAdmin,
    name: str,
    wanted: Sequence[tuple[str, list[int]]],
    to: ResetTo,
    execute: bool,
) -> list[PlannedReset]:
    """Raises KafkaError; then nothing was changed."""
    described = (await groups.describe([name]))[name]
    if isinstance(described, KafkaError):
        if described.code != ErrorCode.group_id_not_found or not wanted:
            raise described  # a group that is not there yet may be given offsets to begin at
    elif execute and described.state not in INACTIVE:
        raise KafkaError(
            ErrorCode.non_empty_group,
            f"it is {described.state}, with {len(described.members)} members: offsets can be reset "
            "only while nobody reads",
        )
    committed = await groups.committed(name)
    partitions: list[TopicPartition] = []
    for topic, numbers in wanted:
        partitions += await partitions_of(admin.client, topic, numbers, TIMEOUT_MS)
    if not wanted:
        partitions = await reachable(admin.client, sorted(committed))
    plan = await plan_reset(admin.client, sorted(set(partitions)), committed, to, TIMEOUT_MS)
    if execute:
        await groups.alter_offsets(name, {one.partition: OffsetAndMetadata(one.after) for one in plan})
    return plan


@group.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:P,…]",
    help="Which topics, or partitions; repeatable.",
)
@json_option
@bootstrap_option
def delete_offsets(name: str, topics: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """Forget what a group has committed of topics that it does not read now."""
    wanted = [_parse_topic(text) for text in topics]

    async def work(_: Admin, groups: GroupAdmin) -> dict[TopicPartition, KafkaError | None]:
        committed = await groups.committed(name)
        chosen = [
            partition
            for partition in committed
            for topic, numbers in wanted
            if partition.topic == topic and (not numbers or partition.partition in numbers)
        ]
        return await groups.delete_offsets(name, chosen) if chosen else {}

    outcomes = _run(bootstrap, work)
    if as_json:
        print_json({str(one): str(problem) if problem else None for one, problem in outcomes.items()})
    else:
        done = [str(one) for one, problem in outcomes.items() if problem is None]
        click.echo(f"Deleted the offsets of {', '.join(done)}." if done else "Nothing to delete.")
    _finish({str(one): problem for one, problem in outcomes.items() if problem is not None})
