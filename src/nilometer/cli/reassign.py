"""``nilometer reassign`` and ``nilometer elect-leaders``: on which brokers partitions have their replicas,
and which of them lead.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nilometer.cli import commands
from nilometer.cli.cluster_clients import admin_of, survey_of
from nilometer.cli.cluster_options import (
    always_json_option,
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    run_async,
    yes_option,
)
from nilometer.cli.commands import INT64_MAX, PARTITION
from nilometer.cli.console import OutputConsole
from nilometer.client.admin.admin import Admin
from nilometer.client.admin.reassignments import (
    BadReassignment,
    ElectionType,
    LogDirs,
    MoveProgress,
    MoveState,
    PartitionOutcomes,
    Targets,
    alter_log_dirs,
    alter_reassignments,
    describe_by_controller,
    format_reassignment,
    is_over,
    list_reassignments,
    parse_log_dirs,
    parse_reassignment,
    reassignment_progress,
    unthrottle,
)
from nilometer.client.admin.reassignments import elect_leaders as ask_to_elect
from nilometer.client.admin.reassignments import throttle as set_throttle
from nilometer.client.admin.replica_survey import ReplicaSurvey, Survey
from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.cluster.placement import CannotPlace, PlannedMove, UsableBroker, plan_reassignment
from nilometer.identifiers import BrokerId
from nilometer.wire.errors import ErrorCode, KafkaError

# ``nilometer reassign plan | execute | status | cancel``: moves partitions to other brokers.
#
# ``plan`` plans moves that spread replicas evenly, and moves nothing. Progress is shown as table rows, JSON
# documents and progress bars.

LogDirOutcomes = dict[tuple[TopicPartition, int], KafkaError | None]

# Reads and writes reassignment files; reports an invalid file as a command-line error.


def read_targets(file: Any) -> Targets:
    return read_reassignment(file)[0]


def read_reassignment(file: Any) -> tuple[Targets, LogDirs]:
    try:
        text = file.read()
        return parse_reassignment(text), parse_log_dirs(text)
    except BadReassignment as error:
        raise click.ClickException(f"{file.name}: {error}") from None


def write_targets(path: Path, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
    path.write_text(format_reassignment(targets) + "\n", encoding="utf-8")


def write_rollback(path: Path, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
    """Write the way back. Raises ClickException if the file exists: earlier moves may need it."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(format_reassignment(targets) + "\n")
    except FileExistsError:
        raise click.ClickException(
            f"--rollback: {path} exists, and may be what undoes earlier moves: name another file. "
            "Nothing was moved."
        ) from None


# Formats the progress of reassignments: table rows, JSON documents, progress bars.

BARS_MAX = 20
"""The maximum number of partitions with a progress bar each; with more there is one bar for all."""


def progress_rows(progress: Sequence[MoveProgress]) -> list[tuple[object, ...]]:
    return [(str(one.partition), one.state.value, one.replicas, one.target, _copied(one)) for one in progress]


def progress_document(one: MoveProgress) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "state": one.state.value,
        "replicas": list(one.replicas),
        "target": list(one.target),
        "adding": list(one.adding),
        "copied_offsets": one.copied,
        "total_offsets": one.total,
    }


def moved_bytes(moves: Sequence[PlannedMove], seen: Survey) -> int:
    """Return the number of bytes that ``moves`` copy, by the present sizes of the leaders' logs."""
    sizes = {
        (row.topic, row.partition): row.state.size_bytes
        for row in seen.rows
        if row.state is not None and row.state.leader is not None
    }
    return sum(len(move.added) * sizes.get((move.topic, move.partition), 0) for move in moves)


def _copied(one: MoveProgress) -> str:
    if one.state is not MoveState.MOVING or not one.total:
        return ""
    return f"{one.copied} of {one.total} ({one.fraction:.0%})"


class MoveBars:
    """Progress bars on standard error, as a context manager. If ``shown`` is false, nothing is printed."""

    def __init__(self, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            console=OutputConsole(stderr=True),
            disable=not shown,
        )
        self._bars: dict[TopicPartition | None, TaskID] = {}

    def __enter__(self) -> MoveBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, progress: Sequence[MoveProgress]) -> None:
        if len(progress) > BARS_MAX:
            done = sum(one.fraction for one in progress) / len(progress)
            self._draw(None, f"{len(progress)} partitions", done)
            return
        for one in progress:
            self._draw(one.partition, str(one.partition), one.fraction)

    def _draw(self, key: TopicPartition | None, name: str, fraction: float) -> None:
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(name, total=1.0)
        self._progress.update(self._bars[key], completed=fraction)


# ``nilometer reassign plan``: plans moves that spread replicas evenly; it moves nothing.


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


# Files are in the format of Kafka's own tool. Exit codes: 0 done (for ``status`` with a file: every move is
# complete), 1 not.

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
    """Start the moves of FILE, and return. `status FILE --wait` waits until they are complete.

    Where FILE names log directories (`log_dirs`), replicas move to these directories of their brokers, too.
    """
    targets, log_dirs = read_reassignment(file)

    async def work() -> tuple[Targets, PartitionOutcomes, LogDirOutcomes]:
        async with admin_of(bootstrap) as admin:
            before = await _present(admin, targets)
            if rollback is not None:
                write_rollback(rollback, before)
            if bytes_per_second is not None:
                await set_throttle(admin, before, targets, bytes_per_second)
            folders = await alter_log_dirs(admin, log_dirs)
            return before, await alter_reassignments(admin, targets), folders

    before, outcomes, folders = run_async(work())
    if as_json:
        document: dict[str, Any] = {
            "partitions": [_outcome(key, before, targets, outcomes[key]) for key in sorted(outcomes)]
        }
        if folders:
            document["log_dirs"] = [
                _folder_outcome(key, broker_id, log_dirs[broker_id][key], error)
                for (key, broker_id), error in sorted(folders.items(), key=lambda item: item[0])
            ]
        print_json(document)
    else:
        for (key, broker_id), error in sorted(folders.items(), key=lambda item: item[0]):
            _print_outcome(key, error, f"on broker {broker_id} is to be in {log_dirs[broker_id][key]}")
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
    _fail_on(outcomes, *folders.values())


def _folder_outcome(
    key: TopicPartition, broker_id: int, path: str, error: KafkaError | None
) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "broker": broker_id,
        "path": path,
        "error": None if error is None else str(error),
    }


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


def _fail_on(outcomes: PartitionOutcomes, *others: KafkaError | None) -> None:
    if any(error is not None for error in (*outcomes.values(), *others)):
        raise click.exceptions.Exit(1)


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))


# ``nilometer elect-leaders``: elects the preferred replicas; or uncleanly, any live one, losing records.
#
# The exit code is 1 if the election of a requested partition failed. A partition that needs no election is
# not an error.


@commands.command("elect-leaders")
@click.option(
    "--preferred",
    "kind",
    flag_value="PREFERRED",
    default="PREFERRED",
    help="Elect the preferred replica, the first one of the assignment (default).",
)
@click.option(
    "--unclean",
    "kind",
    flag_value="UNCLEAN",
    help="Elect any live replica where no eligible one is left. Records can be lost.",
)
@click.option("--topic", "topics", multiple=True, help="All partitions of this topic; repeatable.")
@click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    help="Only this partition of the one --topic; repeatable.",
)
@click.option("--all", "elect_all", is_flag=True, help="Every partition of the cluster.")
@yes_option
@json_option
@connection_options
def elect_leaders(
    kind: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    elect_all: bool,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Elect partition leaders."""
    if bool(topics) == elect_all:
        raise click.UsageError("give either --topic or --all")
    if partitions and len(topics) != 1:
        raise click.UsageError("--partition goes with one --topic")

    async def look() -> list[TopicPartition] | None:
        async with admin_of(bootstrap) as admin:
            return None if elect_all else await _partitions(admin, topics, partitions)

    async def work() -> PartitionOutcomes:
        async with admin_of(bootstrap) as admin:
            return await ask_to_elect(admin, ElectionType[kind], wanted)

    wanted = run_async(look())
    if ElectionType[kind] is ElectionType.UNCLEAN:
        lost = ["every partition without a leader"] if wanted is None else wanted
        confirm(
            "Elect replicas that may lack records?",
            [f"records of {one} can be lost" for one in lost],
            yes=yes,
        )
    outcomes = run_async(work())
    if as_json:
        print_json({"partitions": [_document(key, outcomes[key]) for key in sorted(outcomes)]})
    else:
        _tell(outcomes)
    if any(error is not None and not _is_needless(error) for error in outcomes.values()):
        raise click.exceptions.Exit(1)


async def _partitions(
    admin: Admin, topics: tuple[str, ...], partitions: tuple[int, ...]
) -> list[TopicPartition]:
    """Return the chosen partitions (empty: all) of ``topics``. Raises KafkaError for a missing topic."""
    found: list[TopicPartition] = []
    for name, topic in (await admin.describe_topics(topics)).items():
        if isinstance(topic, KafkaError):
            raise topic
        numbers = partitions or tuple(part.partition for part in topic.partitions)
        found.extend(TopicPartition(name, number) for number in numbers)
    return found


def _is_needless(error: KafkaError) -> bool:
    return error.code == ErrorCode.election_not_needed


def _tell(outcomes: PartitionOutcomes) -> None:
    elected = [key for key, error in outcomes.items() if error is None]
    for key in sorted(elected):
        click.echo(f"{key} has a new leader.")
    for key, error in sorted(outcomes.items()):
        if error is not None and not _is_needless(error):
            click.echo(f"Error: {key}: {error}", err=True)
    if needless := sum(error is not None and _is_needless(error) for error in outcomes.values()):
        click.echo(f"{needless} of {len(outcomes)} partitions needed no election.")
    if not outcomes:
        click.echo("No partition needed an election.")


def _document(key: TopicPartition, error: KafkaError | None) -> dict[str, object]:
    needless = error is not None and _is_needless(error)
    return {
        "topic": key.topic,
        "partition": key.partition,
        "elected": error is None,
        "error": None if error is None or needless else str(error),
    }
