"""``nilometer cluster quorum``: describes the metadata quorum, and adds and removes its voters."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_clients import run_admin
from nilometer.cli.cluster_options import (
    confirm,
    connection_options,
    json_option,
    print_json,
    print_table,
    yes_option,
)
from nilometer.cli.commands import BROKER_ID
from nilometer.client.admin.quorum_admin import QuorumAdmin, QuorumEndpoint, QuorumReplica, QuorumView
from nilometer.client.settings import parse_server
from nilometer.config import ConfigError
from nilometer.identifiers import uuid_from_text
from nilometer.wire.errors import ErrorCode, KafkaError

JOINS_AGAIN_S = 2.0
"""After a removal the voters are looked at again: with auto-join a node makes itself one within a second."""
COLUMNS = ("node", "role", "directory id", "log end", "lag", "fetched", "listens at")


@commands.group()
def cluster() -> None:
    """Look at and change the cluster as a whole."""


@cluster.group()
def quorum() -> None:
    """Describe the metadata quorum; add and remove its voters (KIP-853).

    The voters agree on the cluster's metadata, and a majority of them must run. Others observe.
    """


@quorum.command("describe")
@json_option
@connection_options
def describe(as_json: bool, bootstrap: str) -> None:
    """Show who leads the metadata quorum, its voters and its observers.

    The exit code is 1, with the reason, if there is no leader.
    """
    found = run_admin(bootstrap, QuorumAdmin, _view_or_reason)
    if isinstance(found, str):
        if as_json:
            print_json(quorum_document(found))
            raise click.exceptions.Exit(1)
        raise click.ClickException(found)
    if as_json:
        print_json(quorum_document(found))
        return
    click.echo(
        f"Leader: {found.leader_id}, in epoch {found.epoch}. Committed: all below offset "
        f"{found.high_watermark}."
    )
    if not found.is_of_brokers:
        click.echo("The metadata is in another coordination store: the controller is shown as its voter.")
    rows = [
        *(_row(one, "leader" if one.is_leader else "voter") for one in found.voters),
        *(_row(one, "observer") for one in found.observers),
    ]
    print_table(COLUMNS, rows)


async def _view_or_reason(admin: QuorumAdmin) -> QuorumView | str:
    try:
        return await admin.describe()
    except KafkaError as error:
        if error.code is not ErrorCode.leader_not_available:
            raise
        return error.message


def quorum_document(found: QuorumView | str | None) -> dict[str, Any] | None:
    """Return the view, or why there is no leader, as a JSON document: fields may be added, none changes."""
    if found is None:
        return None
    if isinstance(found, str):
        return {"leader": None, "reason": found}
    return {
        "leader": found.leader_id,
        "epoch": found.epoch,
        "high_watermark": found.high_watermark,
        "voters": [_document(one) for one in found.voters],
        "observers": [_document(one) for one in found.observers],
    }


def _document(one: QuorumReplica) -> dict[str, Any]:
    return {
        "id": one.node_id,
        "directory_id": one.directory_id or None,
        "log_end_offset": one.log_end_offset,
        "lag": one.lag,
        "fetched_ago_ms": one.fetched_ago_ms,
        "caught_up_ago_ms": one.caught_up_ago_ms,
        "endpoints": [
            {"listener": each.listener, "host": each.host, "port": each.port} for each in one.endpoints
        ],
    }


def _row(one: QuorumReplica, role: str) -> tuple[object, ...]:
    fetched = "never" if one.fetched_ago_ms is None else f"{one.fetched_ago_ms} ms ago"
    return (
        one.node_id,
        role,
        one.directory_id,
        "" if one.log_end_offset is None else one.log_end_offset,
        "" if one.lag is None else one.lag,
        "" if one.is_leader else fetched,
        ", ".join(f"{each.listener}://{each.host}:{each.port}" for each in one.endpoints),
    )


class _AddressType(click.ParamType[tuple[str, int]]):
    name = "host:port"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        try:
            return value if isinstance(value, tuple) else parse_server(value)
        except ConfigError:
            self.fail(f"{value!r} is not of the form HOST:PORT", param, ctx)


class _DirectoryIdType(click.ParamType[str]):
    name = "directory id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            uuid_from_text(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


DIRECTORY_ID = _DirectoryIdType()


@quorum.command("add")
@click.argument("node_id", type=BROKER_ID)
@click.argument("address", type=_AddressType())
@click.option(
    "--directory-id",
    type=DIRECTORY_ID,
    help="Of its metadata log. [default: that of the observer with this id]",
)
@json_option
@connection_options
def add(
    node_id: int, address: tuple[str, int], directory_id: str | None, as_json: bool, bootstrap: str
) -> None:
    """Make the node NODE_ID, which observes, a voter that is reached at ADDRESS.

    ADDRESS is that of its listener of controllers, as HOST:PORT. The node must run, with
    process.roles=broker,controller, and have fetched the metadata.
    """

    async def work(admin: QuorumAdmin) -> QuorumReplica:
        found = _of_brokers(await admin.describe())
        directory = directory_id or _directory_of(found, node_id)
        listener = next((each.listener for one in found.voters for each in one.endpoints), "CONTROLLER")
        try:
            await admin.add_voter(node_id, directory, QuorumEndpoint(listener, *address))
        except KafkaError as error:
            now = (await admin.describe()).voter(node_id)
            was = found.voter(node_id)
            if error.code is not ErrorCode.duplicate_voter or now is None or now == was:
                raise
        voter = (await admin.describe()).voter(node_id)
        if voter is None or voter.directory_id != directory:
            raise click.ClickException(
                f"node {node_id} was added, but another change of the voters has removed it"
            )
        return voter

    voter = run_admin(bootstrap, QuorumAdmin, work)
    if as_json:
        print_json(_document(voter))
    else:
        click.echo(f"Node {node_id} is a voter, with the directory id {voter.directory_id}.")


def _directory_of(found: QuorumView, node_id: int) -> str:
    observer = found.observer(node_id)
    if observer is not None:
        return observer.directory_id
    voter = found.voter(node_id)
    if voter is not None:
        raise click.ClickException(
            f"node {node_id} is a voter, with the directory id {voter.directory_id}. If its folder was lost, "
            f"remove it first: nilometer cluster quorum remove {node_id}"
        )
    raise click.ClickException(
        f"no node {node_id} observes the quorum: start it with process.roles=broker,controller and "
        "controller.quorum.bootstrap.servers"
    )


def _of_brokers(found: QuorumView) -> QuorumView:
    if found.is_of_brokers:
        return found
    raise click.ClickException(
        "this cluster keeps its metadata in another coordination store: it has no quorum whose voters could "
        "be changed"
    )


@quorum.command("remove")
@click.argument("node_id", type=BROKER_ID)
@click.option(
    "--directory-id",
    type=DIRECTORY_ID,
    help="Of its metadata log. [default: that of the voter with this id]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also if no majority of the voters that are left is reached: then the quorum has no leader until "
    "enough of them are back.",
)
@yes_option
@json_option
@connection_options
def remove(
    node_id: int, directory_id: str | None, force: bool, yes: bool, as_json: bool, bootstrap: str
) -> None:
    """Remove the voter NODE_ID. If it runs, it observes from then on.

    With controller.quorum.auto.join.enable it makes itself a voter again: stop it before, or set
    that to false.
    """

    async def look(admin: QuorumAdmin) -> tuple[QuorumView, QuorumReplica]:
        found = _of_brokers(await admin.describe())
        voter = found.voter(node_id)
        if voter is None or directory_id not in (None, voter.directory_id):
            named = "" if directory_id is None else f" with the directory id {directory_id}"
            raise click.ClickException(
                f"node {node_id}{named} is no voter: `nilometer cluster quorum describe` shows the voters "
                "and their directory ids"
            )
        return found, voter

    async def work(admin: QuorumAdmin) -> bool:
        """Return whether it is a voter again, some time after it was removed."""
        try:
            await admin.remove_voter(node_id, voter.directory_id)
        except KafkaError as error:
            if error.code is not ErrorCode.voter_not_found:
                raise
            # It was there a moment ago: an earlier response was lost.
        await asyncio.sleep(JOINS_AGAIN_S)
        try:
            return (await admin.describe()).voter(node_id) is not None
        except KafkaError:
            return False  # without a leader no voter is added

    found, voter = run_admin(bootstrap, QuorumAdmin, look)
    count, majority, silent = found.without(node_id)
    if count - len(silent) < majority and not force:
        who = f"does not reach {', '.join(map(str, silent))}" if silent else "would have no other voter"
        raise click.ClickException(
            f"without voter {node_id} a majority is {majority} of {count}, and the leader {who}: the quorum "
            "would have no leader. Start the others first, or give --force"
        )
    role = "the leader" if voter.is_leader else "a voter"
    lost = [f"node {node_id}, {role} of the metadata quorum, with the directory id {voter.directory_id}"]
    lost.append(f"it no longer votes: {majority} of the {count} voters that are left are a majority then")
    confirm("Remove this voter?", lost, yes=yes)
    if run_admin(bootstrap, QuorumAdmin, work):
        raise click.ClickException(
            f"node {node_id} was removed, and has made itself a voter again: stop it, or set "
            "controller.quorum.auto.join.enable=false there, and remove it once more"
        )
    if as_json:
        print_json(_document(voter))
    else:
        click.echo(f"Node {node_id} is no voter any more.")
