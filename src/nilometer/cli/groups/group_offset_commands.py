"""``nilometer group reset-offsets`` and ``delete-offsets``: change the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Sequence

import click

from nilometer.cli import commands
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
    parse_topic,
    run_work,
    topics_metavar,
)
from nilometer.cli.groups.group_view import reset_document, reset_rows
from nilometer.cli.number_types import INT64, OFFSET
from nilometer.cli.times import parse_time
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.group_admin import DEAD, EMPTY, GroupAdmin
from nilometer.client.admin.group_offsets import PlannedReset, ResetTo, partitions_of, plan_reset, reachable
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.settings.durations import parse_duration_ms
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

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
@click.option("--all-topics", is_flag=True, help="All topics for which the group has committed offsets.")
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
@click.option("--execute", is_flag=True, help="Commit the new offsets. The group must have no members.")
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
    """Set the committed offsets of groups. By default they are only printed; --execute commits them."""
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

    plans, errors = run_work(bootstrap, work)
    if as_json:
        print_json(reset_document(plans, execute))
    elif plans:
        columns = ("group", "topic", "partition", "before", "after", "note")
        print_table(columns, reset_rows(plans))
        if not execute:
            click.echo("Nothing was changed. --execute commits these offsets.")
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
    """Delete the committed offsets of a group for topics that it does not read now."""
    committed = run_work(bootstrap, lambda _, groups: groups.committed(name))
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
    outcomes = run_work(bootstrap, lambda _, groups: groups.delete_offsets(name, list(chosen)))
    if as_json:
        print_json({str(one): str(error) if error else None for one, error in outcomes.items()})
    elif done := [str(one) for one, error in outcomes.items() if error is None]:
        click.echo(f"Deleted the offsets of {', '.join(done)}.")
    finish({str(one): error for one, error in outcomes.items() if error is not None})
