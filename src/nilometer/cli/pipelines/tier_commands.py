"""``nilometer tier``: what remote storage has, and topics that come back from it alone.

Needs no broker, and the extra `s3` for a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, print_json, print_table, run_async
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.folder_commands import (
    chosen_places,
    data_dir_option,
    log_dirs_option,
    ranges_text,
    time_text,
)
from nilometer.pipeline.errors import PipelineError
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import ObjectStore, ObjectStoreError

if TYPE_CHECKING:
    from nilometer.pipeline.archive.tier_restore import RestoredTier
    from nilometer.tier.catalogue import StoredPartition

from_option = click.option(
    "--from",
    "source",
    metavar="URI",
    required=True,
    help="The store, as nilometer.tier.uri names it: file:///folder or s3://bucket/prefix.",
)


@commands.group()
def tier() -> None:
    """Show what the remote storage of tiered topics has; restore topics from it alone."""


@tier.command("list")
@from_option
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option("--verify", is_flag=True, help="Read every object, and check it.")
@json_option
def list_tier(source: str, topics: tuple[str, ...], verify: bool, as_json: bool) -> None:
    """Show the partitions that remote storage has: their offsets, sizes and newest timestamps.

    Of every cluster that has written there. A topic that was deleted, and whose objects are being removed, is
    named too. The exit code is 1 if a partition cannot be read, or if the check finds damage.
    """
    found, problems = run_async(_listed(_opened(source), topics, verify=verify))
    if as_json:
        print_json({"partitions": [_stored_json(one) for one in found], "problems": problems})
    else:
        print_table(_STORED_COLUMNS, [_stored_row(one) for one in found])
        if verify:
            segments = sum(len(one.manifest.segments) for one in found if one.manifest is not None)
            said = f"{len(problems):,} problems." if problems else "all as written."
            click.echo(f"Checked {segments:,} segments: {said}")
    for problem in problems:
        click.echo(f"Error: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


@tier.command("restore")
@from_option
@click.option("--topic", "topics", multiple=True, required=True, help="The topic to restore; repeatable.")
@click.option(
    "--as", "name", metavar="TOPIC", help="The topic that gets the records, if it has another name."
)
@click.option(
    "--topic-id", metavar="ID", help="Which of several stored topics of that name: ID or CLUSTER/ID."
)
@click.option(
    "--to",
    "target",
    metavar="URI",
    help="The remote storage of the brokers, if it is another one.  [default: that of --from]",
)
@click.option("--allow-missing", is_flag=True, help="Also if the store lacks offsets or partitions.")
@click.option(
    "--only-here",
    is_flag=True,
    help="Leave out partitions of which other machines have all replicas.",
)
@data_dir_option
@log_dirs_option
@json_option
def restore_tier(
    source: str,
    topics: tuple[str, ...],
    name: str | None,
    topic_id: str | None,
    target: str | None,
    allow_missing: bool,
    only_here: bool,
    data_dir: Path | None,
    log_dirs: str | None,
    as_json: bool,
) -> None:
    """Bring topics back from remote storage alone, into new, empty topics of brokers that are stopped.

    Create each topic as a tiered one, with as many partitions as it had (the command that does so is shown if
    there is none), stop the brokers, restore, and start them. The records go from store to store, to the
    folder of the new topic there; the disks of the brokers need no room for them. All records come back that
    the store has, at their offsets, with their transactions. Those that were never copied are lost, and so
    are the committed offsets of groups. What is stored of the former topic stays.
    """
    from nilometer.pipeline.archive.tier_restore import restore

    if len(topics) > 1 and (name is not None or topic_id is not None):
        raise click.UsageError("--as and --topic-id are about one --topic")
    try:
        places = chosen_places(data_dir, log_dirs)
        store = _opened(source)
        target_store = store if target is None else _opened(target)
        with OutputConsole(stderr=True).status("Restoring ...") as status:
            restored = run_async(
                restore(
                    store,
                    target_store,
                    topics,
                    places,
                    name=name,
                    topic_id=topic_id,
                    allows_missing=allow_missing,
                    only_here=only_here,
                    say=status.update,
                )
            )
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"partitions": [_restored_json(one) for one in restored]})
        return
    print_table(_RESTORED_COLUMNS, [_restored_row(one) for one in restored])
    if any(one.aborted for one in restored):
        click.echo("Aborted: transactions whose ends are not in the store; no reader of committed records")
        click.echo("sees their records.")
    click.echo(
        "Keep remote.storage.enable=true: the brokers of a topic that is not tiered give up what is only in "
        "remote storage, which is all of it."
    )
    click.echo(
        "Lost: what was appended after the end, and the committed offsets of groups (`nilometer group "
        "reset-offsets` sets them, by time for example)."
    )


def _opened(uri: str) -> ObjectStore:
    """Raises UsageError."""
    runtime = Runtime.system()
    try:
        return runtime.open_object_store(uri, runtime.entropy.uuid().hex)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


async def _listed(
    store: ObjectStore, topics: Sequence[str], *, verify: bool
) -> tuple[list[StoredPartition], list[str]]:
    """Return the partitions, and what is wrong with them. Raises ClickException."""
    from nilometer.tier.catalogue import find_partitions
    from nilometer.tier.transfer import check_partition

    try:
        found = await find_partitions(store, topics)
        problems = [f"{one.folder}: {one.problem}" for one in found if one.problem]
        if missing := sorted(set(topics) - {one.topic for one in found}):
            absent = f"the store has nothing of topic {', '.join(missing)}: without --topic all are listed"
            raise click.ClickException("\n".join((absent, *problems)))
        if verify:
            with OutputConsole(stderr=True).status("Checking ...") as status:
                for one in found:
                    problems += await check_partition(store, one, status.update)
    except ObjectStoreError as error:
        raise click.ClickException(str(error)) from error
    return found, problems


# --- text

_STORED_COLUMNS = (
    "partition", "cluster", "topic id", "start", "end", "segments", "bytes", "newest", "last manifest",
    "state",
)  # fmt: skip
_RESTORED_COLUMNS = (
    "partition", "replicas", "start", "end", "records", "bytes", "newest", "aborted", "missing",
)  # fmt: skip


def _stored_row(one: StoredPartition) -> tuple[object, ...]:
    manifest = one.manifest
    if manifest is None:
        state = "unreadable" if one.problem else "no manifest"
        return (f"?-{one.partition}", one.cluster_id, one.topic_id, *("",) * 6, state)
    return (
        f"{one.topic}-{one.partition}",
        one.cluster_id,
        one.topic_id,
        one.start_offset,
        manifest.end_offset,
        len(one.segments),
        manifest.log_bytes,
        time_text(one.newest_ms) if one.segments else "",
        time_text(manifest.written_ms),
        "deleted" if one.is_deleted else f"lacks {ranges_text(one.gaps)}" if one.gaps else "",
    )


def _restored_row(one: RestoredTier) -> tuple[object, ...]:
    return (
        str(one.part),
        one.replicas,
        one.start,
        one.end,
        "" if one.records is None else one.records,
        one.bytes,
        time_text(one.stored.newest_ms) if one.stored.segments else "",
        "" if one.aborted is None else one.aborted,
        ranges_text(one.stored.gaps),
    )


# --- JSON


def _stored_json(one: StoredPartition) -> dict[str, Any]:
    manifest = one.manifest
    known = manifest is not None
    return {
        "cluster_id": one.cluster_id,
        "topic": one.topic or None,
        "topic_id": one.topic_id,
        "partition": one.partition,
        "partition_count": manifest.topic.partition_count if known else None,
        "settings": manifest.topic.settings if known else None,
        "start_offset": one.start_offset if known else None,
        "end_offset": manifest.end_offset if known else None,
        "segments": len(one.segments),
        "bytes": manifest.log_bytes if known else None,
        "newest_timestamp_ms": one.newest_ms if one.newest_ms >= 0 else None,
        "manifest": manifest.number if known else None,
        "written_ms": manifest.written_ms if known else None,
        "leader_epoch": manifest.leader_epoch if known else None,
        "deleted": one.is_deleted,
        "gaps": [list(each) for each in one.gaps],
        "problem": one.problem or None,
    }


def _restored_json(one: RestoredTier) -> dict[str, Any]:
    return {
        "topic": one.part.topic,
        "partition": one.part.partition,
        "cluster_id": one.stored.cluster_id,
        "stored_topic_id": one.stored.topic_id,
        "replicas": one.replicas,
        "start": one.start,
        "end": one.end,
        "records": one.records,
        "bytes": one.bytes,
        "newest_timestamp_ms": one.stored.newest_ms if one.stored.newest_ms >= 0 else None,
        "aborted_transactions": one.aborted,
        "missing": [list(each) for each in one.stored.gaps],
    }
