"""``nilometer storage``: formats a log directory as Kafka's ``kafka-storage.sh`` (KIP-853), says what it has
of its node of the metadata quorum, and how that goes on when the majority of the voters is lost.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Any, NamedTuple

import click

from nilometer.broker.process import load_config
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.quorum import (
    BOOTSTRAP,
    CONTROLLER_LISTENERS,
    ROLES,
    VOTERS,
    QuorumAddress,
    QuorumSettings,
)
from nilometer.cli import commands
from nilometer.cli.cluster_options import confirm, json_option, print_json, yes_option
from nilometer.client.settings import parse_server
from nilometer.config import ConfigError
from nilometer.coordination.quorum.folder_reader import NodeFolder, inspect
from nilometer.identifiers import CLUSTER_ID_MAX, BrokerId, is_cluster_id
from nilometer.raft.control_records import Endpoint, VoterEntry, directory_uuid
from nilometer.raft.quorum_state import (
    FOLDER,
    LOCK,
    OWNER,
    Owner,
    check_is_open,
    check_is_ours,
    claim,
    has_metadata,
    read_owner,
    write_owner,
)
from nilometer.raft.recovery import QuorumDamaged, become_only_voter, format_folder
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Disk, Runtime
from nilometer.runtime.disk import LockHeld, sync_ancestors
from nilometer.storage import names
from nilometer.storage.directories.log_directory import (
    LogDirectory,
    MetaProperties,
    new_directory_id,
    read_meta_properties,
    write_meta_properties,
)
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


# ``nilometer storage format | random-uuid``, as Kafka's ``kafka-storage.sh`` (KIP-853).
#
# A node that is formatted with the voters of its quorum does not ask the others whether they are blank. The
# ``meta.properties`` of a directory are written last: without it a directory is not formatted.

MODES = "--standalone, --initial-controllers, or --no-initial-controllers"


class _Plan(NamedTuple):
    """What is written to the metadata directory."""

    directory_id: str
    voters: tuple[VoterEntry, ...]
    """Empty: they are not known yet."""
    only_joins: bool


@storage.command("random-uuid")
@json_option
def random_uuid(as_json: bool) -> None:
    """Print a random id, for a cluster or for a directory."""
    made = _new_id(Runtime.system())
    if as_json:
        print_json({"uuid": made})
        return
    click.echo(made)


@storage.command("format")
@click.option(
    "-c",
    "--config",
    "config_path",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The broker's server.properties.",
)
@click.option(
    "-t", "--cluster-id", required=True, help='The same for all nodes: see "nilometer storage random-uuid".'
)
@click.option(
    "-s", "--standalone", is_flag=True, help="The node is the only voter of a new quorum; others may join."
)
@click.option(
    "-I",
    "--initial-controllers",
    metavar="ID@HOST:PORT:DIRECTORY_ID[,…]",
    help="The voters of a new quorum. Give the same ones to each of its nodes.",
)
@click.option(
    "-N", "--no-initial-controllers", is_flag=True, help="The node joins a quorum, and never forms one."
)
@click.option(
    "-g",
    "--ignore-formatted",
    is_flag=True,
    help="Leave directories alone that are formatted for this node and cluster.",
)
@json_option
def format_storage(
    config_path: Path,
    cluster_id: str,
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    ignore_formatted: bool,
    as_json: bool,
) -> None:
    """Write the ids of a node of a metadata quorum, and its first voters, into empty log directories.

    A broker needs none of it: with controller.quorum.voters it forms a quorum with the others at its first
    start. With controller.quorum.bootstrap.servers, as in Kafka, the voters are given here.
    """
    if sum((standalone, initial_controllers is not None, no_initial_controllers)) > 1:
        raise click.UsageError(f"give one of {MODES}")
    _check_cluster_id(cluster_id)
    config = _config(config_path)
    quorum = config.quorum
    if quorum is None:
        raise click.ClickException(
            f"{config_path} is not of a node of a metadata quorum: it needs {ROLES}, and {VOTERS} or "
            f"{BOOTSTRAP}, and nilometer.coordination must not name another store. Brokers with another "
            "store need no format"
        )
    runtime = Runtime.system()
    try:
        plan = _plan(config, quorum, runtime, standalone, initial_controllers, no_initial_controllers)
        formatted = _format(runtime, config, quorum, cluster_id, plan, ignore_formatted=ignore_formatted)
    except (CorruptCheckpoint, OSError) as error:
        raise click.ClickException(f"{error}. Nothing that was there is changed") from error
    if as_json:
        print_json({"node_id": config.node_id, "cluster_id": cluster_id, "formatted": formatted})
        return
    if not formatted:
        click.echo("All of the log directories are already formatted.")
    for directory, directory_id in formatted.items():
        kind = "metadata" if directory == quorum.directory else "data"
        click.echo(f"Formatted {kind} directory {directory}, with the directory id {directory_id}.")


def _check_cluster_id(cluster_id: str) -> None:
    if not is_cluster_id(cluster_id):
        raise click.UsageError(
            f"--cluster-id {cluster_id!r} is no cluster id, which is a folder's name in remote storage: up "
            f'to {CLUSTER_ID_MAX} of A-Z a-z 0-9 . _ -, and neither "." nor "..", as of "nilometer '
            'storage random-uuid"'
        )


def _config(path: Path) -> BrokerConfig:
    try:
        return load_config(path, {})
    except ConfigError as error:
        raise click.ClickException(f"{path}: {error}") from None


def _plan(
    config: BrokerConfig,
    quorum: QuorumSettings,
    runtime: Runtime,
    standalone: bool,
    initial: str | None,
    none: bool,
) -> _Plan:
    """Raises ClickException if the settings and the options do not fit together."""
    given = standalone or none or initial is not None
    if given and quorum.voters:
        raise click.ClickException(
            f"you cannot specify {VOTERS} and format the node with {MODES}: remove {VOTERS}, and specify "
            f"{BOOTSTRAP} instead"
        )
    if not given and quorum.is_controller and not quorum.voters:
        raise click.ClickException(
            f"because {VOTERS} is not set on this controller, you must specify one of the following: {MODES}"
        )
    own_id = _new_id(runtime)
    listener = config.strings(CONTROLLER_LISTENERS)[0].upper()
    if standalone:
        if quorum.own is None:
            raise click.ClickException("you can only use --standalone on a controller")
        return _Plan(own_id, (_entry(listener, quorum.own, own_id),), only_joins=False)
    voters = () if initial is None else _voters(initial, listener)
    mine = next((one for one in voters if one.key.node_id == config.node_id), None)
    if mine is not None and quorum.own is None:
        raise click.ClickException(
            f"--initial-controllers names this node, {config.node_id}, and {ROLES} has no controller"
        )
    return _Plan(own_id if mine is None else mine.key.directory_id, voters, only_joins=none)


def _entry(listener: str, address: QuorumAddress, directory_id: str) -> VoterEntry:
    key = VoterKey(BrokerId(address.node_id), directory_id)
    return VoterEntry(key, (Endpoint(listener, address.host, address.port),))


def _voters(text: str, listener: str) -> tuple[VoterEntry, ...]:
    """Parse the option, as Kafka does. Raises BadParameter."""
    found: dict[int, VoterEntry] = {}
    for one in (part.strip() for part in text.split(",") if part.strip()):
        number, _, rest = one.partition("@")
        server, _, directory_id = rest.rpartition(":")
        try:
            if not number.isdecimal() or not number.isascii() or directory_uuid(directory_id) is None:
                raise ValueError(one)
            host, port = parse_server(server)
        except (ConfigError, ValueError):
            raise click.BadParameter(
                f"{one!r} is not ID@HOST:PORT:DIRECTORY_ID, for example "
                "1@broker1:9093:JEXY6aqzQY-32P5TStzaFg",
                param_hint="--initial-controllers",
            ) from None
        node_id = int(number)
        if node_id in found:
            raise click.BadParameter(
                f"node {node_id} is named more than once", param_hint="--initial-controllers"
            )
        found[node_id] = _entry(listener, QuorumAddress(host, port, node_id), directory_id)
    if not found:
        raise click.BadParameter("no voters are given", param_hint="--initial-controllers")
    if len({entry.key.directory_id for entry in found.values()}) < len(found):
        raise click.BadParameter("two nodes have the same directory id", param_hint="--initial-controllers")
    return tuple(found[node_id] for node_id in sorted(found))


def _format(
    runtime: Runtime,
    config: BrokerConfig,
    quorum: QuorumSettings,
    cluster_id: str,
    plan: _Plan,
    *,
    ignore_formatted: bool,
) -> dict[str, str]:
    """Format the directories that are not; return their directory ids, by directory.

    Everything is checked before anything is written. Raises ClickException, CorruptCheckpoint, OSError.
    """
    disk, metadata = runtime.disk, quorum.directory
    for directory in (*config.log_dirs, metadata):
        check_user(directory)
    empty = [
        directory
        for directory in (*(one for one in config.log_dirs if one != metadata), metadata)
        if not _is_formatted(disk, directory, config.node_id, cluster_id, ignore_formatted)
    ]
    if metadata in empty:
        check_is_ours(disk, metadata)
        if has_metadata(disk, posixpath.join(metadata, FOLDER)):
            raise click.ClickException(
                f"{metadata}/{FOLDER} has a metadata log, and {metadata} no {names.META_PROPERTIES}: restore "
                f"that file, or, if a format was interrupted, remove {metadata}/{FOLDER}"
            )
    formatted: dict[str, str] = {}
    for directory in empty:
        directory_id = plan.directory_id if directory == metadata else _new_id(runtime)
        properties = MetaProperties(config.node_id, cluster_id, directory_id)
        if directory == metadata:
            _write_metadata(runtime, directory, properties, plan)
        else:
            disk.make_directories(directory)
            write_meta_properties(disk, posixpath.join(directory, names.META_PROPERTIES), properties)
            sync_ancestors(disk, directory)
        formatted[directory] = directory_id
    return formatted


def _is_formatted(disk: Disk, directory: str, node_id: int, cluster_id: str, ignore_formatted: bool) -> bool:
    if disk.exists(directory) and not disk.is_directory(directory):
        raise click.ClickException(f"{directory} is not a directory")
    path = posixpath.join(directory, names.META_PROPERTIES)
    found = read_meta_properties(disk, path)
    if found is not None:
        found.check(path, node_id, cluster_id)
        if not ignore_formatted:
            raise click.ClickException(
                f"log directory {directory} is already formatted. Use --ignore-formatted to ignore this "
                "directory and format the others"
            )
        return True
    if disk.exists(directory) and LogDirectory(disk, directory).partition_folders():
        raise click.ClickException(
            f"{directory} has logs, and no {names.META_PROPERTIES}: restore that file from a copy, or name "
            "an empty directory"
        )
    return False


def _write_metadata(runtime: Runtime, directory: str, properties: MetaProperties, plan: _Plan) -> None:
    disk, folder = runtime.disk, posixpath.join(directory, FOLDER)
    owner = Owner(directory_id=plan.directory_id, only_joins=plan.only_joins)
    disk.make_directories(directory)
    try:
        lock = disk.lock(posixpath.join(directory, LOCK))
    except LockHeld as held:
        raise click.ClickException(f"a broker uses {directory}: {held}. Stop it first") from held
    try:
        disk.make_directories(folder, private=True)
        write_owner(disk, folder, owner)
        if plan.voters:
            format_folder(disk, folder, plan.voters, runtime.clock.wall_ms())
        claim(disk, directory, properties, owner)
    finally:
        lock.release()


def _new_id(runtime: Runtime) -> str:
    """Return a random id that an option of a command can take, as Kafka's: it does not begin with "-"."""
    while True:
        made = new_directory_id(runtime.entropy.uuid())
        if not made.startswith("-"):
            return made
