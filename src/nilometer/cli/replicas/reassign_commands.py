"""``nilometer reassign plan | execute | status | cancel``: moves partitions to other brokers.

Files are in the format of Kafka's own tool. Exit codes: 0 done (for ``status`` with a file: every move is
complete), 1 not.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of, survey_of
from nilometer.cli.cluster_options import connection_options, json_option, print_json, print_table, run_async
from nilometer.cli.number_types import INT64_MAX
from nilometer.cli.replicas.reassign_files import read_targets, write_rollback
from nilometer.cli.replicas.reassign_plan import plan
from nilometer.cli.replicas.reassign_view import MoveBars, progress_document, progress_rows
from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.replicas.partition_operations import (
    PartitionOutcomes,
    alter_reassignments,
    describe_by_controller,
    list_reassignments,
)
from nilometer.client.replicas.reassignment_file import Targets
from nilometer.client.replicas.reassignment_progress import (
    MoveProgress,
    MoveState,
    is_over,
    reassignment_progress,
)
from nilometer.client.replicas.replica_survey import ReplicaSurvey
from nilometer.client.replicas.replication_throttle import throttle as set_throttle
from nilometer.client.replicas.replication_throttle import unthrottle
from nilometer.wire.errors import KafkaError

POLL_S = 0.3

_file = click.argument("file", type=click.File("rb"), metavar="FILE")
_optional_file = click.argument("file", type=click.File("rb"), metavar="[FILE]", required=False)
_preserve = click.option("--preserve-throttles", is_flag=True, help="Do not remove the throttle.")


@commands.group()
def reassign() -> None:
    """Move partitions to other brokers, while they are in use.

    `plan` proposes an assignment, `execute` starts the moves, `status` shows their progress, `cancel` stops
    them. FILE is JSON as kafka-reassign-partitions writes and reads it; - stands for standard input.
    """


reassign.add_command(plan)


# --- execute


@reassign.command()
@_file
@click.option(
    "--throttle",
    "bytes_per_second",
    type=click.IntRange(1, INT64_MAX),
    metavar="BYTES/S",
    help="Bytes per second that a broker may send, and receive, for moving replicas.",
)
@click.option(
    "--rollback",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the current assignment to this file, which must not exist. Executing it undoes the moves.",
)
@json_option
@connection_options
def execute(
    file: Any, bytes_per_second: int | None, rollback: Path | None, as_json: bool, bootstrap: str
) -> None:
    """Start the moves of FILE, and return. `status FILE --wait` waits until they are complete."""
    targets = read_targets(file)

    async def work() -> tuple[Targets, PartitionOutcomes]:
        async with admin_of(bootstrap) as admin:
            before = await _present(admin, targets)
            if rollback is not None:
                write_rollback(rollback, before)
            if bytes_per_second is not None:
                await set_throttle(admin, before, targets, bytes_per_second)
            return before, await alter_reassignments(admin, targets)

    before, outcomes = run_async(work())
    if as_json:
        print_json(
            {"partitions": [_outcome(key, before, targets, outcomes[key]) for key in sorted(outcomes)]}
        )
    else:
        for key in sorted(outcomes):
            change = f"{_ids(before[key])} -> {_ids(targets[key])}"
            _print_outcome(
                key,
                outcomes[key],
                f"moves {change}" if before[key] != targets[key] else "has these replicas already",
            )
        if bytes_per_second is not None:
            click.echo(
                f"Throttled to {bytes_per_second:,} bytes/s; `reassign status FILE` removes the throttle "
                "once the moves are complete."
            )
    _fail_on(outcomes)


async def _present(admin: Admin, targets: Targets) -> Targets:
    """Return the partitions' present replicas, including those being added.

    Raises KafkaError, and ClickException for a partition that does not exist.
    """
    found = await describe_by_controller(admin, sorted({key.topic for key in targets}))
    present: Targets = {}
    for key in sorted(targets):
        partitions = found[key.topic].partitions
        if key.partition >= len(partitions):
            raise click.ClickException(f"{key} does not exist: {key.topic} has {len(partitions)} partitions")
        present[key] = tuple(partitions[key.partition].replicas)
    return present


def _outcome(
    key: TopicPartition, before: Targets, after: Targets, error: KafkaError | None
) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "before": list(before[key]),
        "after": list(after[key]),
        "error": None if error is None else str(error),
    }


# --- status


@reassign.command()
@_optional_file
@click.option("--wait", is_flag=True, help="Wait until no move is in progress.")
@_preserve
@json_option
@connection_options
def status(file: Any, wait: bool, preserve_throttles: bool, as_json: bool, bootstrap: str) -> None:
    """Show the progress of the moves of FILE, or of all moves.

    When all moves of FILE are complete, the throttle of its topics and brokers is removed.
    """
    targets = read_targets(file) if file is not None else None

    async def work() -> tuple[list[MoveProgress], bool]:
        async with admin_of(bootstrap) as admin, survey_of(bootstrap) as survey:
            progress = await _follow(admin, survey, targets, wait, quiet=as_json)
            if targets is None or preserve_throttles or not is_over(progress):
                return progress, False
            return progress, await _unthrottle(admin, targets)

    progress, was_throttled = run_async(work())
    if as_json:
        print_json({"moves": [progress_document(one) for one in progress]})
    elif progress:
        print_table(("partition", "state", "replicas", "target", "copied"), progress_rows(progress))
    else:
        click.echo("No partition is being moved.")
    if was_throttled:
        click.echo("Removed the throttle.", err=True)
    if targets is not None and any(one.state is not MoveState.COMPLETE for one in progress):
        raise click.exceptions.Exit(1)


async def _follow(
    admin: Admin, survey: ReplicaSurvey, targets: Targets | None, wait: bool, *, quiet: bool
) -> list[MoveProgress]:
    progress = await reassignment_progress(admin, survey, targets)
    if not wait or is_over(progress):
        return progress
    followed = targets or {one.partition: one.target for one in progress}
    with MoveBars(shown=not quiet and sys.stderr.isatty()) as bars:
        while not is_over(progress):
            bars.show(progress)
            await asyncio.sleep(POLL_S)
            progress = await reassignment_progress(admin, survey, followed)
        bars.show(progress)
    return progress


# --- cancel


@reassign.command()
@_optional_file
@click.option("--all", "cancel_all", is_flag=True, help="Cancel every move in progress.")
@_preserve
@json_option
@connection_options
def cancel(file: Any, cancel_all: bool, preserve_throttles: bool, as_json: bool, bootstrap: str) -> None:
    """Cancel the moves of FILE, or all moves. The partitions keep the replicas they had before."""
    if (file is None) != cancel_all:
        raise click.UsageError("give either FILE or --all")
    named = read_targets(file) if file is not None else None

    async def work() -> PartitionOutcomes:
        async with admin_of(bootstrap) as admin:
            ongoing = await list_reassignments(admin, None if named is None else sorted(named))
            outcomes = await alter_reassignments(admin, dict.fromkeys(ongoing))
            if not preserve_throttles:
                await _unthrottle(
                    admin, {**(named or {}), **{k: move.replicas for k, move in ongoing.items()}}
                )
            return outcomes

    outcomes = run_async(work())
    if as_json:
        print_json({"partitions": [_cancelled(key, outcomes[key]) for key in sorted(outcomes)]})
    else:
        for key in sorted(outcomes):
            _print_outcome(key, outcomes[key], "keeps its replicas")
        if not outcomes:
            click.echo("No partition is being moved.")
    _fail_on(outcomes)


# --- helpers


def _cancelled(key: TopicPartition, error: KafkaError | None) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "error": None if error is None else str(error),
    }


async def _unthrottle(admin: Admin, moves: Mapping[TopicPartition, Iterable[int]]) -> bool:
    """Remove the throttle of the moved topics and of all live brokers; return whether there was one.

    Which brokers took part in the moves is not known afterwards.
    """
    if not moves:
        return False
    brokers = {node.node_id for node in (await admin.describe_cluster()).brokers}
    brokers.update(one for replicas in moves.values() for one in replicas)
    return await unthrottle(admin, sorted({key.topic for key in moves}), sorted(brokers))


def _print_outcome(key: TopicPartition, error: KafkaError | None, done: str) -> None:
    if error is None:
        click.echo(f"{key} {done}.")
    else:
        click.echo(f"Error: {key}: {error}", err=True)


def _fail_on(outcomes: PartitionOutcomes) -> None:
    if any(error is not None for error in outcomes.values()):
        raise click.exceptions.Exit(1)


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))
