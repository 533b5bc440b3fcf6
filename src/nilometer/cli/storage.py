"""``nilometer storage info``: what a log directory says of its node of the metadata quorum."""

from __future__ import annotations

from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, print_json
from nilometer.raft.recovery import NodeFolder, inspect
from nilometer.runtime import Runtime


@commands.group()
def storage() -> None:
    """Look at a broker's log directory, whether the broker runs or not."""


@storage.command("info")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@json_option
def info(directory: str, as_json: bool) -> None:
    """Show which node of a metadata quorum a log directory belongs to, how it voted, and the voters it knows.

    DIRECTORY is metadata.log.dir, or the first one of log.dirs. Nothing in it is changed.
    """
    found = inspect(Runtime.system().disk, directory)
    if found is None:
        raise click.ClickException(
            f"{directory} has no metadata log of a quorum: no broker has run there with one"
        )
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
        click.echo(f"Voter {entry.key.node_id}, directory id {entry.key.directory_id}, at {where}")
    if found.damage is not None:
        click.echo(f"The end of the log cannot be read, or is being written: {found.damage}", err=True)


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
