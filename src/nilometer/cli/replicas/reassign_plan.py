"""``nilometer reassign plan``: plans moves that spread replicas evenly; it moves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of, survey_of
from nilometer.cli.cluster_options import always_json_option, connection_options, run_async
from nilometer.cli.replicas.reassign_files import write_rollback, write_targets
from nilometer.cli.replicas.reassign_view import moved_bytes
from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.client.replicas.partition_operations import describe_by_controller
from nilometer.client.replicas.reassignment_file import format_reassignment
from nilometer.cluster.placement import CannotPlace, UsableBroker
from nilometer.cluster.reassignment_plan import PlannedMove, plan_reassignment
from nilometer.identifiers import BrokerId


@commands.command()
@click.option("--topic", "topics", multiple=True, required=True, help="A topic to place; repeatable.")
@click.option(
    "--brokers",
    "broker_list",
    metavar="ID[,…]",
    help="The ids of the brokers to use. [default: all live brokers]",
)
@click.option(
    "--replication-factor", type=click.IntRange(1, 32767), help="Change the replication factor to this."
)
@click.option("--ignore-racks", is_flag=True, help="Do not spread replicas over racks.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan to this file instead of standard output.",
)
@click.option(
    "--rollback",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the current assignment of the partitions that would move to this file, which must not exist.",
)
@always_json_option
@connection_options
def plan(
    topics: tuple[str, ...],
    broker_list: str | None,
    replication_factor: int | None,
    ignore_racks: bool,
    output: Path | None,
    rollback: Path | None,
    bootstrap: str,
) -> None:
    """Spread topics evenly over brokers and racks, moving as little as possible.

    The plan goes to standard output, a summary to standard error. Nothing is moved yet.
    """
    broker_ids = _parse_brokers(broker_list)

    async def work() -> tuple[list[PlannedMove], int]:
        async with admin_of(bootstrap) as admin:
            assigned = {
                name: _assignment(topic)
                for name, topic in (await describe_by_controller(admin, topics)).items()
            }
            brokers = await _usable_brokers(admin, broker_ids, ignore_racks)
            moves = plan_reassignment(assigned, brokers, replication_factor)
            async with survey_of(bootstrap) as survey:
                return moves, moved_bytes(moves, await survey.look(topics))

    try:
        moves, copied_bytes = run_async(work())
    except CannotPlace as error:
        raise click.ClickException(str(error)) from None
    _write_plan(moves, output, rollback)
    copies = sum(len(move.added) for move in moves)
    click.echo(
        f"{len(moves)} partitions change, {copies} replicas are copied ({copied_bytes:,} bytes)."
        if moves
        else "No replica has to move.",
        err=True,
    )


def _write_plan(moves: Sequence[PlannedMove], output: Path | None, rollback: Path | None) -> None:
    after = {TopicPartition(m.topic, m.partition): m.after for m in moves}
    if rollback is not None:
        write_rollback(rollback, {TopicPartition(m.topic, m.partition): m.before for m in moves})
    if output is None:
        click.echo(format_reassignment(after))
    else:
        write_targets(output, after)


def _parse_brokers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items or not all(item.isdecimal() for item in items):
        raise click.BadParameter("takes broker ids, like 1,2,3", param_hint="--brokers")
    return sorted({int(item) for item in items})


def _assignment(topic: TopicMetadata) -> dict[int, tuple[BrokerId, ...]]:
    return {part.partition: tuple(BrokerId(one) for one in part.replicas) for part in topic.partitions}


async def _usable_brokers(
    admin: Admin, broker_ids: Sequence[int] | None, ignore_racks: bool
) -> list[UsableBroker]:
    live = {node.node_id: node for node in (await admin.describe_cluster()).brokers}
    wanted = sorted(live) if broker_ids is None else broker_ids
    if absent := [one for one in wanted if one not in live]:
        raise click.ClickException(f"not among the live brokers: {', '.join(map(str, absent))}")
    return [UsableBroker(BrokerId(one), None if ignore_racks else live[one].rack) for one in wanted]
