"""``nilometer storage``: what a log directory says of its node of the metadata quorum, and how that goes on
when the majority of the voters is lost."""

from __future__ import annotations

import os
import posixpath
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import confirm, json_option, print_json, yes_option
from nilometer.raft.quorum_state import FOLDER, LOCK, OWNER, check_is_open, check_is_ours, read_owner
from nilometer.raft.recovery import NodeFolder, QuorumDamaged, become_only_voter, inspect
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.runtime.disk import LockHeld
from nilometer.storage.errors import CorruptCheckpoint


def check_user(path: str) -> None:
    """Raise ClickException if a folder belongs to another user: its broker could not use what is written."""
    try:
        owner = os.stat(path).st_uid
    except OSError:
        return  # there is none yet, or what opens it says why it cannot be opened
    if owner != os.geteuid():
        raise click.ClickException(
            f"{path} belongs to user {owner}, and this command runs as user {os.geteuid()}: run it as "
            "the user of the broker, who could not use the files otherwise"
        )


@commands.group()
def storage() -> None:
    """Format and look at a broker's log directory, whether the broker runs or not."""


@storage.command("info")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@json_option
def info(directory: str, as_json: bool) -> None:
    """Show which node of a metadata quorum a log directory belongs to, how it voted, and the voters it knows.

    DIRECTORY is metadata.log.dir, or the first one of log.dirs. Nothing in it is changed.
    """
    found, closed = _inspected(directory), _why_closed(directory)
    if as_json:
        print_json(_document(found))
        return
    properties, election = found.properties, found.election
    click.echo(f"Node {properties.node_id} of cluster {properties.cluster_id or '(not known yet)'}")
    click.echo(f"Directory id: {properties.directory_id}")
    if election is not None:
        voted = "it has not voted" if election.voted is None else f"it has voted for {election.voted}"
        leader = "no leader is known" if election.leader < 0 else f"node {election.leader} leads"
        click.echo(f"Epoch {election.epoch}: {leader}, {voted}")
    click.echo(
        f"The metadata log ends at offset {found.log_end_offset}; committed at least below {found.committed}"
    )
    if found.snapshot is not None:
        click.echo(f"Newest snapshot: of all below offset {found.snapshot.end_offset}")
    for entry in found.voters:
        where = ", ".join(f"{one.listener}://{one.host}:{one.port}" for one in entry.endpoints)
        shown = where or "an address that is not known yet"
        click.echo(f"Voter {entry.key.node_id}, directory id {entry.key.directory_id}, at {shown}")
    if closed is not None:
        click.echo(f"This metadata log {closed}", err=True)
    if found.damage is not None:
        click.echo(f"The end of the log cannot be read, or is being written: {found.damage}", err=True)


@storage.command("recover")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--unsafe", is_flag=True, help="Needed: what only the lost voters have committed is lost.")
@yes_option
@json_option
def recover(directory: str, unsafe: bool, yes: bool, as_json: bool) -> None:
    """Let this voter go on alone, after the majority of the metadata quorum's voters is lost for good.

    DIRECTORY is its metadata.log.dir, or the first one of log.dirs; its broker must not run. Choose the voter
    whose metadata log ends at the highest offset, in the latest epoch: see "nilometer storage info".
    Afterwards start it. What becomes of the other nodes is said at the end.
    """
    _inspected(directory)
    check_user(directory)
    runtime = Runtime.system()
    try:
        lock = runtime.disk.lock(posixpath.join(directory, LOCK))
    except LockHeld as held:
        raise click.ClickException(f"the broker of {directory} runs: {held}. Stop it first") from held
    try:
        check_is_ours(runtime.disk, directory)
        check_is_open(runtime.disk, directory)
        found = _inspected(directory)
        own, others = _own_and_others(found)
        _ask(found, own, others, unsafe=unsafe, yes=yes)
        folder = posixpath.join(directory, FOLDER)
        become_only_voter(runtime.disk, folder, own, runtime.clock.wall_ms())
    except (QuorumDamaged, CorruptCheckpoint) as damaged:
        raise click.ClickException(str(damaged)) from damaged
    finally:
        lock.release()
    if as_json:
        print_json(
            {
                "voter": {"id": own.node_id, "directory_id": own.directory_id},
                "removed": [{"id": one.node_id, "directory_id": one.directory_id} for one in others],
                "log_end_offset": found.log_end_offset,
            }
        )
        return
    click.echo(
        f"Node {own.node_id} is the only voter, with the metadata below offset {found.log_end_offset}. "
        f"Before {_ids(others)} are started again, remove all files but {OWNER} in their folders {FOLDER}."
    )


def _why_closed(directory: str) -> str | None:
    try:
        owner = read_owner(Runtime.system().disk, posixpath.join(directory, FOLDER))
    except CorruptCheckpoint as damaged:
        raise click.ClickException(str(damaged)) from damaged
    return None if owner is None else owner.why_closed


def _own_and_others(found: NodeFolder) -> tuple[VoterKey, list[VoterKey]]:
    """Return the voter that a folder is of, and the other voters. Raises ClickException if it is of none, or
    of the only one."""
    voters = [entry.key for entry in found.voters]
    own = next((one for one in voters if one.directory_id == found.properties.directory_id), None)
    if own is None:
        raise click.ClickException(
            f"node {found.properties.node_id} with directory id {found.properties.directory_id} is no voter: "
            "only a voter's folder has what the quorum has committed"
        )
    others = [one for one in voters if one != own]
    if not others:
        raise click.ClickException(f"node {own.node_id} is the only voter already: start it")
    return own, others


def _ask(found: NodeFolder, own: VoterKey, others: list[VoterKey], *, unsafe: bool, yes: bool) -> None:
    """Name what is lost. Raises UsageError or ClickException if that is not agreed to."""
    if not unsafe:
        raise click.UsageError(
            f"What the voters {_ids(others)} have committed, and node {own.node_id} has not, will be lost: "
            f"its log ends at offset {found.log_end_offset}. If a majority can be started, start it instead. "
            "Give --unsafe to go on"
        )
    confirm(
        f"Make node {own.node_id} the only voter?",
        [
            f"what was committed above offset {found.log_end_offset} of the metadata log",
            f"the votes of {_ids(others)}: started again with their metadata logs, these nodes may go on as "
            "a second cluster",
        ],
        yes=yes,
    )


def _ids(voters: list[VoterKey]) -> str:
    return ", ".join(str(voter.node_id) for voter in voters)


def _inspected(directory: str) -> NodeFolder:
    try:
        found = inspect(Runtime.system().disk, directory)
    except CorruptCheckpoint as damaged:
        raise click.ClickException(str(damaged)) from damaged
    if found is None:
        raise click.ClickException(
            f"{directory} has no metadata log of a quorum: no broker has run there with one"
        )
    return found


def _document(found: NodeFolder) -> dict[str, Any]:
    election = found.election
    voted = None if election is None or election.voted is None else election.voted
    return {
        "node_id": found.properties.node_id,
        "cluster_id": found.properties.cluster_id,
        "directory_id": found.properties.directory_id,
        "epoch": None if election is None else election.epoch,
        "leader": None if election is None or election.leader < 0 else election.leader,
        "voted": None if voted is None else {"id": voted.node_id, "directory_id": voted.directory_id},
        "log_end_offset": found.log_end_offset,
        "committed": found.committed,
        "snapshot_end_offset": None if found.snapshot is None else found.snapshot.end_offset,
        "voters": [
            {
                "id": entry.key.node_id,
                "directory_id": entry.key.directory_id,
                "endpoints": [
                    {"listener": one.listener, "host": one.host, "port": one.port} for one in entry.endpoints
                ],
            }
            for entry in found.voters
        ],
        "damage": found.damage,
    }
