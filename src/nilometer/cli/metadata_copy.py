"""``nilometer metadata copy | reopen``: the metadata of a cluster moves to another store.

Brokers must not run: see :mod:`nilometer.coordination.copying`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from nilometer.cli.cluster_options import confirm, json_option, print_json, run_async, yes_option
from nilometer.cli.commands import BROKER_ID
from nilometer.cli.metadata import coordination_config_option, metadata, store_security
from nilometer.cli.storage import check_user
from nilometer.cluster.cluster_secret import UnreadableSecret, decode_secrets
from nilometer.cluster.entries import BadEntry
from nilometer.cluster.history import MetadataHistory
from nilometer.cluster.image import ClusterImage
from nilometer.coordination import copying
from nilometer.coordination.copying import Contents
from nilometer.coordination.factory import copy_source, copy_target
from nilometer.coordination.store import CoordinationError, StoreDamaged
from nilometer.invariants import InvariantBroken
from nilometer.runtime import Runtime

T = TypeVar("T")

STORES = (
    "local:/folder, zookeeper://host:port[,…][/chroot], or quorum:/folder with the log directory of a node "
    "of a metadata quorum"
)


@metadata.command("copy")
@click.option("--from", "source", metavar="STORE", required=True, help=f"{STORES}.")
@click.option("--to", "target", metavar="STORE", required=True, help=f"{STORES}. It must not have metadata.")
@click.option(
    "--node-id", type=BROKER_ID, help="Whose log directory quorum:/folder is, if there is no meta.properties."
)
@coordination_config_option
@json_option
def copy(
    source: str, target: str, node_id: int | None, coordination_config: Path | None, as_json: bool
) -> None:
    """Copy the metadata of a cluster to another store, while no broker runs, and close the first one.

    Brokers refuse the closed store, and name the other one. All entries keep their numbers; the cluster keeps
    its id and its secret. Run it as the brokers' user.

    A metadata quorum begins with the node of the folder as its only voter: the others
    join it. An interrupted copy is repeated with the same command.
    """
    security = store_security(coordination_config)

    async def work() -> tuple[str, str, Contents]:
        runtime = Runtime.system()
        old, new = copy_source(source, runtime, security), copy_target(target, runtime, node_id, security)
        if old.name == new.name:
            raise click.UsageError(f"--from and --to name the same store, {old.name}")
        for name in (old.name, new.name):
            check_user(name.partition(":")[2])
        try:
            await old.open()
            adapted = None if new.name.startswith("quorum:") else _with_readable_secret
            return old.name, new.name, await copying.copy(old, new, _incarnations, adapted)
        finally:
            await new.close()
            await old.close()

    old, new, copied = _run(work)
    if as_json:
        print_json(
            {
                "from": old,
                "to": new,
                "cluster_id": copied.cluster_id,
                "entries": len(copied.entries),
                "snapshot_below": None if copied.snapshot is None else copied.snapshot.number,
                "next_number": copied.next_number,
                "secret": None if copied.secret is None else copied.secret.number,
            }
        )
        return
    snapshot = (
        "" if copied.snapshot is None else f"a snapshot of the entries below {copied.snapshot.number}, and "
    )
    click.echo(
        f"Copied {snapshot}{len(copied.entries)} entries of cluster {copied.cluster_id} to {new}, and read "
        f"them there again; the next entry has number {copied.next_number}. {old} is closed."
    )
    if copied.secret is None:
        click.echo("There is no readable secret by which the brokers know each other: they make another one.")


@metadata.command("reopen")
@click.argument("store", metavar="STORE")
@coordination_config_option
@yes_option
@json_option
def reopen(store: str, coordination_config: Path | None, yes: bool, as_json: bool) -> None:
    """Let brokers use a store again whose metadata was copied to another one.

    STORE is as --from of "metadata copy". It has the metadata as it was then: if brokers have used the other
    store since, topics that are deleted there come back, and what was created there is not known here.
    """
    security = store_security(coordination_config)

    async def work() -> tuple[str, str]:
        opened = copy_source(store, Runtime.system(), security)
        try:
            check_user(opened.name.partition(":")[2])
            await opened.open()
            target = opened.moved_to
            if not target:
                raise click.ClickException(f"{opened.name} is open: its metadata was not copied elsewhere")
            confirm(
                f"Open {opened.name} again?",
                [
                    f"what brokers have changed in {target}",
                    f"the use of {target}: two stores make two clusters",
                ],
                yes=yes,
            )
            await opened.note_moved("")
            return opened.name, target
        finally:
            await opened.close()

    name, target = _run(work)
    if as_json:
        print_json({"store": name, "was_copied_to": target})
        return
    click.echo(f"{name} is open again. Do not start a broker with {target} any more.")


def _with_readable_secret(contents: Contents) -> Contents:
    """Leave out a secret that is encrypted for the nodes of a quorum: brokers make another one."""
    try:
        if contents.secret is not None:
            decode_secrets(contents.secret.data)
    except UnreadableSecret:
        return msgspec.structs.replace(contents, secret=None)
    return contents


def _incarnations(contents: Contents) -> dict[int, int]:
    """Return the highest incarnation of each broker that the metadata names. Raises StoreDamaged."""
    history, found = MetadataHistory(), dict[int, int]()
    try:
        if contents.snapshot is not None:
            history.load_snapshot(contents.snapshot.data)
            _note(history.image, found)
        for _ in history.apply((entry.number, entry.data) for entry in contents.entries):
            _note(history.image, found)
    except (BadEntry, InvariantBroken) as error:
        raise StoreDamaged(f"the metadata cannot be read by this version: {error}") from error
    return found


def _note(image: ClusterImage, found: dict[int, int]) -> None:
    named = [(broker.id, broker.incarnation) for broker in image.brokers()]
    for broker_id, incarnation in (
        *named,
        (image.controllership.controller_id, image.controllership.incarnation),
    ):
        if incarnation.isdecimal():
            found[broker_id] = max(found.get(broker_id, 0), int(incarnation))


def _run(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    try:
        return run_async(main())
    except CoordinationError as error:
        raise click.ClickException(str(error)) from None
