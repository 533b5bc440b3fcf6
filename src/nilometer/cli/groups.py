"""``nilometer group``: list, describe and delete groups, and change their offsets: those that a consumer
group has committed, or those from which a share group reads.

Groups are shown as tables for people, and as JSON documents for programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import ADMIN_TIMEOUT_MS, run_with_admin, say_if_hidden
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    yes_option,
)
from nilometer.cli.commands import INT64, OFFSET, parse_time
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import (
    GroupAdmin,
    PartitionLag,
    PlannedReset,
    ResetTo,
    lags,
    partitions_of,
    plan_reset,
    reachable,
)
from nilometer.client.admin.group_descriptions import (
    DEAD,
    EMPTY,
    GROUP_TYPES,
    SHARE,
    STATES,
    GroupDescription,
    GroupListing,
    MemberDescription,
    ShareOffset,
    rebalance_warning,
)
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.config import parse_duration_ms
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import RebalanceState

# Shared by the group commands: options that name groups and topics, running requests, reporting errors.

T = TypeVar("T")

names_argument = click.argument("names", nargs=-1, metavar="[GROUP]…")
group_option = click.option(
    "--group", "more", multiple=True, metavar="GROUP", help="A group id, instead of an argument; repeatable."
)
all_groups_option = click.option("--all-groups", is_flag=True, help="All groups.")
topics_metavar = "TOPIC[:P,…]"


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
        said = str(error)
        if isinstance(error, KafkaError) and name in error.message:
            click.echo(f"Error: {said}", err=True)  # it names what it is about
        else:
            click.echo(f"Error: {name}: {said}", err=True)
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


# Groups as tables for people, and as JSON documents for programs.

NONE = "-"
OFFSET_COLUMNS = (
    "topic",
    "partition",
    "committed",
    "high watermark",
    "lag",
    "stable lag",
    "member",
    "host",
    "client id",
)
SHARE_COLUMNS = ("topic", "partition", "start offset", "lag", "members")
MEMBER_COLUMNS = ("member", "instance", "client id", "host", "partitions", "assignment", "target")


# --- for people


Offsets = Sequence[PartitionLag] | Sequence[ShareOffset]
"""Of a consumer group, or of a share group."""


def describe_group(group: GroupDescription, lags: Offsets, *, offsets: bool, members: bool) -> None:
    click.echo(_headline(group))
    if (warning := rebalance_warning(group)) is not None:
        click.echo(warning)
    if offsets:
        shared = [one for one in lags if isinstance(one, ShareOffset)]
        committed = [one for one in lags if isinstance(one, PartitionLag)]
        if shared:
            print_table(SHARE_COLUMNS, [_share_row(group, one) for one in shared])
            click.echo(total_share_lag(shared))
        elif committed:
            print_table(OFFSET_COLUMNS, [_offset_row(group, one) for one in committed])
            click.echo(total_lag(committed))
        elif group.group_type == SHARE:
            click.echo("The group reads no partition yet.")
        else:
            click.echo("No offset is committed, and no partition is assigned.")
    if members:
        print_table(MEMBER_COLUMNS, [_member_row(one) for one in group.members])
    click.echo()


def _headline(group: GroupDescription) -> str:
    epoch = "" if group.epoch is None else f", epoch {group.epoch}"
    assignor = f", assignor {group.assignor}" if group.assignor else ""
    count = len(group.members)
    return (
        f"Group {group.group_id}: {group.state}, {count} member{'' if count == 1 else 's'} "
        f"({group.group_type} protocol{assignor}{epoch}), coordinator {group.coordinator_id}"
    )


def _offset_row(group: GroupDescription, one: PartitionLag) -> tuple[object, ...]:
    owner = group.owner(one.partition)
    return (
        one.partition.topic,
        one.partition.partition,
        _or_none(one.committed),
        _or_none(one.high_watermark),
        _or_none(one.lag),
        _or_none(one.stable_lag),
        owner.member_id if owner is not None else NONE,
        owner.host if owner is not None else NONE,
        owner.client_id if owner is not None else NONE,
    )


def _share_row(group: GroupDescription, one: ShareOffset) -> tuple[object, ...]:
    members = [member.member_id for member in group.owners(one.partition)]
    return (
        one.partition.topic,
        one.partition.partition,
        _or_none(one.start_offset),
        _or_none(one.lag),
        " ".join(members) or NONE,
    )


def total_share_lag(offsets: Sequence[ShareOffset]) -> str:
    """Return the sum of the known lags as a sentence, and of how many the lag is not known."""
    known = [one.lag for one in offsets if one.lag is not None]
    if len(known) == len(offsets):
        return f"Total lag {sum(known)}."
    text = f"the lag of {_partitions(len(offsets) - len(known))} is not known, which no member has read yet"
    return f"Total lag {sum(known)}; {text}." if known else f"{text[0].upper()}{text[1:]}."


def total_lag(lags: Sequence[PartitionLag]) -> str:
    """Return the sum of the known lags as a sentence, and why others are not known."""
    known = [one.lag for one in lags if one.lag is not None]
    uncommitted = sum(one.committed is None for one in lags)
    without_end = len(lags) - len(known) - uncommitted
    parts = [f"Total lag {sum(known)}"] if known or not lags else []
    if uncommitted:
        parts.append(f"no offset is committed yet for {_partitions(uncommitted)}")
    if without_end:
        parts.append(f"the end of {_partitions(without_end)} is not known, for lack of a leader")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _member_row(one: MemberDescription) -> tuple[object, ...]:
    return (
        one.member_id,
        one.instance_id or NONE,
        one.client_id,
        one.host,
        len(one.assignment),
        _ranges(one.assignment),
        "" if one.target is None or one.target == one.assignment else _ranges(one.target),
    )


def _ranges(partitions: Sequence[TopicPartition]) -> str:
    """Return partitions as text such as ``logs:0-3,7 t:1``."""
    by_topic: dict[str, list[list[int]]] = {}
    for topic, number in sorted(partitions):
        runs = by_topic.setdefault(topic, [])
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(
        f"{topic}:" + ",".join(str(begin) if begin == end else f"{begin}-{end}" for begin, end in runs)
        for topic, runs in by_topic.items()
    )


def _or_none(value: int | None) -> object:
    return NONE if value is None else value


def reset_rows(plans: Mapping[str, Sequence[PlannedReset]]) -> list[tuple[object, ...]]:
    return [
        (name, one.partition.topic, one.partition.partition, _or_none(one.before), one.after, one.note)
        for name, plan in plans.items()
        for one in plan
    ]


# --- for programs


def group_document(group: GroupDescription, lags: Offsets) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator_id,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "trouble": rebalance_warning(group),  # codespell:ignore
        "last_rebalance": _rebalance_document(group.last_rebalance),
        "members": [_member_document(one) for one in group.members],
        "offsets": [_offset_document(group, one) for one in lags],
    }


def _rebalance_document(last: RebalanceState | None) -> dict[str, Any] | None:
    if last is None:
        return None
    return {
        "reason": last.reason,
        "member": last.member_id,
        "instance": last.group_instance_id,
        "client_id": last.client_id,
        "host": last.client_host,
        "at_ms": last.wall_ms,
        "generation": last.generation,
        "times_in_a_row": last.times_in_a_row,
    }


def _member_document(one: MemberDescription) -> dict[str, Any]:
    return {
        "member": one.member_id,
        "instance": one.instance_id,
        "client_id": one.client_id,
        "host": one.host,
        "rack": one.rack,
        "epoch": one.epoch,
        "topics": list(one.topics),
        "assignment": _partition_documents(one.assignment),
        "target": None if one.target is None else _partition_documents(one.target),
    }


def _partition_documents(partitions: Sequence[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": number} for topic, number in partitions]


def _offset_document(group: GroupDescription, one: PartitionLag | ShareOffset) -> dict[str, Any]:
    if isinstance(one, ShareOffset):
        return {
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "start_offset": one.start_offset,
            "lag": one.lag,
            "members": [member.member_id for member in group.owners(one.partition)],
        }
    owner = group.owner(one.partition)
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "committed": one.committed,
        "leader_epoch": one.leader_epoch if one.leader_epoch >= 0 else None,
        "metadata": one.metadata,
        "log_start": one.log_start_offset,
        "high_watermark": one.high_watermark,
        "last_stable": one.last_stable_offset,
        "lag": one.lag,
        "stable_lag": one.stable_lag,
        "member": owner.member_id if owner is not None else None,
    }


def reset_document(plans: Mapping[str, Sequence[PlannedReset]], executed: bool) -> dict[str, Any]:
    return {
        "executed": executed,
        "groups": {
            name: [
                {
                    "topic": one.partition.topic,
                    "partition": one.partition.partition,
                    "before": one.before,
                    "after": one.after,
                    "note": one.note,
                }
                for one in plan
            ]
            for name, plan in plans.items()
        },
    }


# ``nilometer group reset-offsets`` and ``delete-offsets``: change the offsets of groups.

INACTIVE = (EMPTY, DEAD)


@commands.command("reset-offsets")
@names_argument
@group_option
@all_groups_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar=topics_metavar,
    help="Only this topic, or these partitions of it; repeatable.",
)
@click.option("--all-topics", is_flag=True, help="All topics that the group has offsets of.")
@click.option("--to-earliest", is_flag=True, help="To the log start offset.")
@click.option("--to-latest", is_flag=True, help="To the end offset.")
@click.option("--to-current", is_flag=True, help="To the committed offset.")
@click.option("--to-offset", type=OFFSET, help="To this offset.")
@click.option("--shift-by", type=INT64, help="By N records forwards, or by -N backwards.")
@click.option(
    "--to-datetime",
    help="To the first record with this timestamp or a later one: milliseconds, or an ISO time in UTC.",
)
@click.option(
    "--by-duration",
    metavar="PnDTnHnMnS",
    help="To the first record of this last period, such as PT1H or P7D.",
)
@click.option("--dry-run", is_flag=True, help="Only print the new offsets (default).")
@click.option("--execute", is_flag=True, help="Set the new offsets. The group must have no members.")
@json_option
@connection_options
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
    """Set the committed offsets of groups, or the start offsets of share groups.

    By default they are only printed; --execute sets them. What a share group has acknowledged from its new
    start offset on is delivered again.
    """
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
    wanted = [parse_topic(text) for text in topics]

    async def work(
        admin: Admin, groups: GroupAdmin
    ) -> tuple[dict[str, list[PlannedReset]], dict[str, object]]:
        plans: dict[str, list[PlannedReset]] = {}
        errors: dict[str, object] = {}
        for name in await chosen_groups(groups, names, more, all_groups):
            try:
                plans[name] = await _reset(admin, groups, name, wanted, to, execute)
            except KafkaError as error:
                errors[f"group {name}"] = error
        return plans, errors

    plans, errors = run_with_admin(bootstrap, GroupAdmin, work)
    if as_json:
        print_json(reset_document(plans, execute))
    elif plans:
        columns = ("group", "topic", "partition", "before", "after", "note")
        print_table(columns, reset_rows(plans))
        if not execute:
            click.echo("Nothing was changed. --execute sets these offsets.")
    finish(errors)


def _timestamp(to_datetime: str | None, by_duration: str | None) -> int | None:
    try:
        if to_datetime is not None:
            return parse_time(to_datetime)
        if by_duration is not None:
            return max(Runtime.system().clock.wall_ms() - parse_duration_ms(by_duration), 0)
    except ValueError as error:
        option = "--to-datetime" if to_datetime is not None else "--by-duration"
        raise click.UsageError(f"{option}: {error}") from None
    return None


async def _reset(
    admin: Admin,
    groups: GroupAdmin,
    name: str,
    wanted: Sequence[tuple[str, list[int]]],
    to: ResetTo,
    execute: bool,
) -> list[PlannedReset]:
    """Plan the reset of one group and commit it with ``execute``; return the plan.

    Raises KafkaError; then nothing was changed.
    """
    described = (await groups.describe([name]))[name]
    if isinstance(described, KafkaError):
        if described.code != ErrorCode.group_id_not_found or not wanted:
            raise described  # with given topics the group may not exist yet: it gets its first offsets
    elif execute and described.state not in INACTIVE:
        raise KafkaError(
            ErrorCode.non_empty_group,
            f"it is {described.state}, with {len(described.members)} members: offsets can be reset "
            "only while the group has no members",
        )
    committed = await groups.positions(name)
    partitions: list[TopicPartition] = []
    for topic, numbers in wanted:
        partitions += await partitions_of(admin.client, topic, numbers, ADMIN_TIMEOUT_MS)
    if not wanted:
        partitions = await reachable(admin.client, sorted(committed))
    plan = await plan_reset(admin.client, sorted(set(partitions)), committed, to, ADMIN_TIMEOUT_MS)
    if execute:
        await groups.set_positions(name, {one.partition: one.after for one in plan})
    return plan


@commands.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar=topics_metavar,
    help="Only this topic, or these partitions of it; repeatable.",
)
@yes_option
@json_option
@connection_options
def delete_offsets(name: str, topics: tuple[str, ...], yes: bool, as_json: bool, bootstrap: str) -> None:
    """Delete the committed offsets of a group for topics that it does not read now, or where a share group
    without members reads topics from."""

    async def known(_: Admin, groups: GroupAdmin) -> dict[TopicPartition, OffsetAndMetadata] | None:
        """Return the committed offsets; None if it is a share group."""
        described = (await groups.describe([name]))[name]
        if isinstance(described, GroupDescription) and described.group_type == SHARE:
            return None
        return await groups.committed(name)

    committed = run_with_admin(bootstrap, GroupAdmin, known)
    if committed is None:
        _delete_share_offsets(name, [parse_topic(text) for text in topics], yes, as_json, bootstrap)
        return
    chosen: dict[TopicPartition, None] = {}
    for text in topics:
        topic, numbers = parse_topic(text)
        here = [one for one in committed if one.topic == topic and (not numbers or one.partition in numbers)]
        missing = [f"{topic}-{number}" for number in numbers if TopicPartition(topic, number) not in here]
        if missing or not here:
            raise click.ClickException(
                f"group {name} has no committed offset of {', '.join(missing) or topic}. Nothing was deleted."
            )
        chosen |= dict.fromkeys(here)
    lost = [f"offset {committed[one].offset} of {one} in group {name}" for one in chosen]
    confirm("Delete these offsets?", lost, yes=yes)
    outcomes = run_with_admin(
        bootstrap, GroupAdmin, lambda _, groups: groups.delete_offsets(name, list(chosen))
    )
    if as_json:
        print_json({str(one): str(error) if error else None for one, error in outcomes.items()})
    elif done := [str(one) for one, error in outcomes.items() if error is None]:
        click.echo(f"Deleted the offsets of {', '.join(done)}.")
    finish({str(one): error for one, error in outcomes.items() if error is not None})


def _delete_share_offsets(
    name: str, topics: Sequence[tuple[str, list[int]]], yes: bool, as_json: bool, bootstrap: str
) -> None:
    if any(numbers for _, numbers in topics):
        raise click.UsageError(f"{name} is a share group: its offsets are deleted for whole topics")
    names = list(dict.fromkeys(topic for topic, _ in topics))
    lost = [f"where group {name} reads topic {topic} from, and what it has acknowledged" for topic in names]
    confirm("Forget these?", lost, yes=yes)
    outcomes = run_with_admin(
        bootstrap, GroupAdmin, lambda _, groups: groups.delete_share_offsets(name, names)
    )
    if as_json:
        print_json({topic: str(error) if error else None for topic, error in outcomes.items()})
    elif done := [topic for topic, error in outcomes.items() if error is None]:
        click.echo(f"Deleted the offsets of {', '.join(done)}.")
    finish({topic: error for topic, error in outcomes.items() if error is not None})


# The group of commands: list, describe, delete, and those for offsets.


@commands.group()
def group() -> None:
    """List, describe and delete groups of all types, and reset their offsets."""


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
    help=f"Only groups of this type: {', '.join(GROUP_TYPES[:-1])} or {GROUP_TYPES[-1]}.",
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

    found = run_with_admin(bootstrap, GroupAdmin, work)
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
    stable offset, which limits readers with isolation.level=read_committed. LAG of a share group is the
    number of records that are neither acknowledged nor archived.
    """
    offsets = offsets or not (members or state)

    async def work(
        admin: Admin, groups: GroupAdmin
    ) -> tuple[dict[str, GroupDescription | KafkaError], dict[str, Offsets | KafkaError]]:
        chosen = await chosen_groups(groups, names, more, all_groups)
        described = await groups.describe(chosen)
        outcomes = await asyncio.gather(*(_lags(admin, groups, one) for one in described.values()))
        offsets_of: dict[str, Offsets | KafkaError] = dict(zip(described, outcomes, strict=True))
        shared = [
            name
            for name, one in described.items()
            if isinstance(one, GroupDescription) and one.group_type == SHARE
        ]
        for name, found in (await groups.share_offsets_of(shared)).items():
            offsets_of[name] = found if isinstance(found, KafkaError) else list(found.values())
        return described, offsets_of

    described, lag = run_with_admin(bootstrap, GroupAdmin, work)
    documents: list[dict[str, Any]] = []
    errors: dict[str, object] = {}
    for name, one in described.items():
        partitions = lag[name]
        if isinstance(one, KafkaError):
            errors[f"group {name}"] = one
            continue
        if isinstance(partitions, KafkaError):
            errors[f"offsets of group {name}"] = partitions
            partitions = list[PartitionLag]()
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
    if isinstance(one, KafkaError) or one.group_type == SHARE:
        return []
    try:
        committed = await groups.committed(one.group_id)
        owned = [partition for member in one.members for partition in member.assignment]
        return await lags(admin.client, committed, owned, ADMIN_TIMEOUT_MS)
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
    chosen = run_with_admin(
        bootstrap, GroupAdmin, lambda _, groups: chosen_groups(groups, names, more, all_groups)
    )
    if chosen:
        confirm("Delete these groups?", [f"group {name} with its offsets" for name in chosen], yes=yes)
    outcomes = (
        run_with_admin(bootstrap, GroupAdmin, lambda _, groups: groups.delete(chosen)) if chosen else {}
    )
    if as_json:
        print_json({name: str(error) if error else None for name, error in outcomes.items()})
    else:
        for name, error in outcomes.items():
            if error is None:
                click.echo(f"Deleted group {name}.")
    finish({f"group {name}": error for name, error in outcomes.items() if error is not None})
