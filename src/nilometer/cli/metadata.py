"""``nilometer metadata`` and ``rotate-secret``: what brokers share in the coordination store is read, moves
to another store, and gets a new secret with which the brokers authenticate each other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click
import msgspec

from nilometer.broker.listening import CannotListen
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.quorum import ROLES, QuorumSettings
from nilometer.broker.settings.zookeeper_settings import security_from
from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    DEFAULT_DATA_DIR,
    always_json_option,
    confirm,
    json_option,
    print_json,
    run_async,
    stop_on_signals,
    yes_option,
)
from nilometer.cli.commands import BROKER_ID
from nilometer.cli.storage import check_user
from nilometer.cluster.cluster_secret import UnreadableSecret, decode_secrets
from nilometer.cluster.entries import BadEntry
from nilometer.cluster.history import DecodedEntry, MetadataHistory, record_fields, snapshot_fields
from nilometer.cluster.image import ClusterImage
from nilometer.config import ConfigError, parse_properties
from nilometer.coordination import copying
from nilometer.coordination.copying import Contents
from nilometer.coordination.factory import (
    StoreReader,
    copy_source,
    copy_target,
    is_moved,
    make_store,
    open_reader,
)
from nilometer.coordination.quorum.folder_reader import inspect
from nilometer.coordination.store import CoordinationError, EntriesRetired, StoreDamaged
from nilometer.coordination.zookeeper.connect import OPEN, ZooKeeperSecurity
from nilometer.invariants import InvariantBroken
from nilometer.local.local_cluster import SETTINGS, LocalCluster
from nilometer.runtime import LockHeld, Runtime
from nilometer.storage.errors import CorruptCheckpoint

# ``nilometer metadata dump | image`` and ``rotate-secret``: what brokers share in the coordination store.
#
# The first two read the cluster's metadata log; the last one creates a new secret with which the brokers
# authenticate each other.

# Reads the store without a session, so brokers do not notice it and need not run.

READ_ENTRIES_MAX = 256
COORDINATION_CONFIG_VARIABLE = "NILOMETER_COORDINATION_CONFIG"
FOLLOW_POLL_S = 0.1

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The folder of `nilometer up`, or a broker's log folder.  [default: {DEFAULT_DATA_DIR}]",
)
coordination_option = click.option(
    "--coordination",
    metavar="STORE",
    help="The brokers' nilometer.coordination: local:/folder or zookeeper://host:port[,…][/chroot]; "
    "quorum:/folder reads the log directory of a node of a metadata quorum.",
)
coordination_config_option = click.option(
    "--coordination-config",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=COORDINATION_CONFIG_VARIABLE,
    show_envvar=True,
    help="A broker's server.properties: how ZooKeeper, or the nodes of a metadata quorum, are reached.",
)


@commands.group()
def metadata() -> None:
    """Read the cluster's metadata log: what its controllers decided, entry by entry."""


@metadata.command()
@data_dir_option
@coordination_option
@coordination_config_option
@click.option(
    "--from", "first", type=click.IntRange(0), default=0, help="Start at the entry with this number."
)
@click.option("--follow", is_flag=True, help="Print new entries as they are appended, until Ctrl-C.")
@json_option
def dump(
    data_dir: Path | None,
    coordination: str | None,
    coordination_config: Path | None,
    first: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the metadata log, a line for each record; with --json, a document for each entry.

    A snapshot is one line. An entry marked "void" was written by a controller that had been deposed, and
    changed nothing.
    """
    setting, security = store_setting(data_dir, coordination), store_security(coordination_config)

    async def work() -> None:
        stop = asyncio.Event()
        if follow:
            stop_on_signals(stop.set)
        log = _Log(await open_reader(setting, Runtime.system(), security))
        try:
            async for item in log.entries(stop, follow=follow):
                _print(item, log, first, as_json)
        finally:
            await log.close()

    _run(work)


@metadata.command()
@data_dir_option
@coordination_option
@coordination_config_option
@click.option(
    "--at",
    "number",
    type=click.IntRange(0),
    help="The metadata up to the entry with this number. [default: the newest]",
)
@always_json_option
def image(
    data_dir: Path | None, coordination: str | None, coordination_config: Path | None, number: int | None
) -> None:
    """Print the metadata that the log results in, as JSON: brokers, topics, partitions, settings."""
    setting, security = store_setting(data_dir, coordination), store_security(coordination_config)

    async def work() -> dict[str, Any]:
        log = _Log(await open_reader(setting, Runtime.system(), security))
        try:
            async for item in log.entries(asyncio.Event(), follow=False):
                if number is not None and isinstance(item, DecodedEntry) and item.number >= number:
                    break
        finally:
            await log.close()
        return snapshot_fields(log.history.image)

    found = _run(work)
    if number is not None and found["number"] != number:
        raise click.ClickException(
            f"there is no entry {number}: the newest one of this image is {found['number']}"
        )
    print_json(found)


class _Log:
    """Reads the entries of a store in order, and applies them to ``history``."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self.history = MetadataHistory()

    async def close(self) -> None:
        await self._reader.close()

    async def entries(self, stop: asyncio.Event, *, follow: bool) -> AsyncIterator[DecodedEntry | int]:
        """Yield the entries until the newest; with ``follow``, wait for more until ``stop`` is set.

        If a number n is yielded, a snapshot has replaced the entries below n.
        """
        while not stop.is_set():
            try:
                found = await self._reader.read(self.history.next_number, READ_ENTRIES_MAX)
            except EntriesRetired:
                snapshot = await self._reader.read_snapshot()
                if snapshot is not None:
                    self.history.load_snapshot(snapshot.data)
                    yield snapshot.number
                continue
            for item in self.history.apply((entry.number, entry.data) for entry in found):
                yield item
            if found:
                continue
            if not follow:
                return
            try:
                async with asyncio.timeout(FOLLOW_POLL_S):
                    await stop.wait()
            except TimeoutError:
                continue


def _print(item: DecodedEntry | int, log: _Log, first: int, as_json: bool) -> None:
    if isinstance(item, int):
        snapshot = log.history.image.snapshot()
        if as_json:
            click.echo(json.dumps({"snapshot_below": item, "image": snapshot_fields(log.history.image)}))
        else:
            click.echo(
                f"snapshot  replaces all entries below {item}: {len(snapshot.brokers)} brokers, "
                f"{len(snapshot.topics)} topics, {log.history.image.partitions_count} partitions"
            )
    elif item.number >= first:
        click.echo(json.dumps(_entry_document(item)) if as_json else "\n".join(_entry_lines(item)))


def _entry_document(item: DecodedEntry) -> dict[str, Any]:
    entry = item.entry
    return {
        "number": item.number,
        "accepted": item.accepted,
        "controller_id": entry.controller_id,
        "controller_epoch": entry.controller_epoch,
        "controller_incarnation": entry.controller_incarnation,
        "records": [record_fields(record) for record in entry.records],
    }


def _entry_lines(item: DecodedEntry) -> list[str]:
    entry = item.entry
    void = "" if item.accepted else " void"
    head = f"{item.number:>8}  controller {entry.controller_id} epoch {entry.controller_epoch}{void}"
    lines: list[str] = []
    for record in entry.records:
        fields = record_fields(record)
        kind = fields.pop("type")
        topic_id = getattr(record, "topic_id", None)
        named = item.topics.get(topic_id) if topic_id is not None else None
        topic = f" topic={named}" if named is not None and "name" not in fields else ""
        shown = " ".join(f"{name}={_value(value)}" for name, value in fields.items())
        lines.append(f"{head}  {kind}{topic} {shown}".rstrip())
    return lines


def _value(value: object) -> str:
    if isinstance(value, str) and value and not any(sign in value for sign in ' ="'):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def store_setting(data_dir: Path | None, coordination: str | None) -> str:
    """Return the coordination store, as a value of the brokers' setting ``nilometer.coordination``.

    Raises ClickException if ``data_dir`` contains no store.
    """
    if coordination is not None:
        if data_dir is not None:
            raise click.UsageError("give either --data-dir or --coordination")
        return coordination
    folder = Path(DEFAULT_DATA_DIR) if data_dir is None else data_dir
    tried = [folder / "coordination", folder / ".coordination", folder]
    stores = [candidate for candidate in tried if (candidate / "store").is_file()]
    for candidate in stores:
        if not _is_moved(candidate):
            return f"local:{candidate.absolute()}"
    if (directory := _quorum_directory(folder)) is not None:
        return f"quorum:{directory.absolute()}"
    if stores:
        return f"local:{stores[0].absolute()}"
    raise click.ClickException(
        f"no coordination store in {folder}: give --data-dir, or --coordination as the brokers have it"
    )


def _is_moved(folder: Path) -> bool:
    try:
        return is_moved(Runtime.system().disk, str(folder))
    except (CoordinationError, OSError):
        return False  # what opens it says why it cannot be read


def _quorum_directory(folder: Path) -> Path | None:
    """Return the log directory of the node that knows most of the metadata, of those in ``folder``."""
    disk = Runtime.system().disk
    found = [
        (node.committed, str(one), one)
        for one in (folder, *sorted(folder.glob("broker-*/logs")))
        if (node := inspect(disk, str(one))) is not None
    ]
    return max(found)[2] if found else None


def store_security(config: Path | None) -> ZooKeeperSecurity:
    """Return how to connect to ZooKeeper by the settings in a file. Raises BadParameter."""
    if config is None:
        return OPEN
    try:
        return security_from(parse_properties(config.read_text(encoding="utf-8"), str(config)))
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {config}: {error}") from None
    except ConfigError as error:
        raise click.BadParameter(f"{config}: {error}") from None


def _run(work: Any) -> Any:
    try:
        return run_async(work())
    except (CoordinationError, BadEntry, InvariantBroken) as error:
        raise click.ClickException(str(error)) from None


# ``nilometer rotate-secret``: creates a new secret with which the brokers authenticate each other.


GIVE_NODES = (
    "the metadata is in a quorum of the brokers: give the server.properties of one as --coordination-config, "
    "which has its nodes and how they are reached"
)


@commands.command("rotate-secret")
@data_dir_option
@coordination_option
@coordination_config_option
@json_option
def rotate_secret(
    data_dir: Path | None, coordination: str | None, coordination_config: Path | None, as_json: bool
) -> None:
    """Create a new secret that the brokers of a cluster authenticate each other with.

    Brokers read it within seconds, without a restart. The previous secret stays accepted until the next
    rotation. To exclude a process that may have read it, rotate twice, with half a minute in between.
    Connections that are open already stay open: restart the brokers one by one to close them.

    With a metadata quorum a majority of its voters must run, or be on this machine.
    """
    nodes = quorum_nodes(data_dir, coordination, coordination_config)
    try:
        if nodes:
            number = run_async(_rotate_in_quorum(nodes))
        else:
            setting = store_setting(data_dir, coordination)
            if setting.startswith("quorum:"):
                raise click.UsageError(GIVE_NODES)
            number = run_async(_rotate(setting, store_security(coordination_config)))
    except (CoordinationError, CannotListen, CorruptCheckpoint, LockHeld) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"current": number, "previous": number - 1})
        return
    click.echo(f"Secret {number} is current now; secret {number - 1} is accepted until the next rotation.")


def quorum_nodes(
    data_dir: Path | None, coordination: str | None, config: Path | None
) -> Sequence[QuorumSettings]:
    """Return the settings of the quorum's nodes on this machine; none if the store is another one.

    Raises ClickException if two stores are named.
    """
    if config is not None and (found := _quorum_of(config)) is not None:
        if not _names_node(found, data_dir, coordination):
            raise click.UsageError(
                f"{config}, of --coordination-config or {COORDINATION_CONFIG_VARIABLE}, is of a node of a "
                f"metadata quorum, in {found.directory}: give neither --coordination nor --data-dir with it"
            )
        return (found,)
    if coordination is not None:
        return ()
    cluster = LocalCluster(Path(DEFAULT_DATA_DIR) if data_dir is None else data_dir)
    if (former := cluster.former_place()) is not None:
        raise click.ClickException(
            f"the cluster was in {former} before: `nilometer up --data-dir {cluster.data_dir}` corrects its "
            "files"
        )
    each = [_quorum_of(cluster.broker_dir(one) / SETTINGS) for one in cluster.broker_ids()]
    return [one for one in each if one is not None]


def _names_node(node: QuorumSettings, data_dir: Path | None, coordination: str | None) -> bool:
    """Whether the other options name no store, or that of the node, too."""
    directory = Path(node.directory).resolve()
    if coordination is not None:
        scheme, _, folder = coordination.partition(":")
        return data_dir is None and scheme == "quorum" and Path(folder).resolve() == directory
    return data_dir is None or directory in (
        one.resolve() for one in (data_dir, *data_dir.glob("broker-*/logs"))
    )


def _quorum_of(config: Path) -> QuorumSettings | None:
    try:
        texts = parse_properties(config.read_text(encoding="utf-8"), str(config))
        return BrokerConfig(texts).quorum if ROLES in texts else None
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {config}: {error}") from None
    except ConfigError as error:
        raise click.BadParameter(f"{config}: {error}") from None


async def _rotate(setting: str, security: ZooKeeperSecurity) -> int:
    from nilometer.broker.control.secret_keeper import rotate_secrets

    runtime = Runtime.system()
    reader = await open_reader(
        setting, runtime, security
    )  # raises if there is no store: none must be created here
    await reader.close()
    store = make_store(setting, runtime, local_folder="", zookeeper=security)
    await store.open()
    try:
        return (await rotate_secrets(store, runtime.entropy)).current.number
    finally:
        await store.close()


async def _rotate_in_quorum(nodes: Sequence[QuorumSettings]) -> int:
    """Rotate by the nodes of this machine, or as one more node if one of them runs."""
    from nilometer.broker.control.secret_keeper import rotate_secrets
    from nilometer.broker.offline_metadata import (
        as_observer,
        nodes_store,  # loads the quorum
    )

    runtime = Runtime.system()
    try:
        async with nodes_store([one for one in nodes if one.is_controller] or nodes, runtime) as store:
            return (await rotate_secrets(store, runtime.entropy)).current.number
    except LockHeld:
        with TemporaryDirectory(prefix="nilometer-") as folder:
            observer = as_observer(nodes[0], folder, runtime)
            async with nodes_store([observer], runtime) as store:
                return (await rotate_secrets(store, runtime.entropy)).current.number


# ``nilometer metadata copy | reopen``: the metadata of a cluster moves to another store.
#
# Brokers must not run: see :mod:`nilometer.coordination.copying`.

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

    old, new, copied = _run_copy(work)
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

    name, target = _run_copy(work)
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


def _run_copy(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    try:
        return run_async(main())
    except CoordinationError as error:
        raise click.ClickException(str(error)) from None
