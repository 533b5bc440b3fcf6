"""What a replica of the quorum must never forget, in two small files: who it is, and how it voted.

``meta.properties`` of the log directory has its ``node.id`` and ``directory.id``: together they are its
:class:`~nilometer.raft.voters.VoterKey`. ``nilometer.properties`` in the folder of the metadata log repeats
the directory id. A folder that is found without it gets another directory id, so it does not vote under the
name of the one that was lost. ``quorum-state`` has the newest epoch, the vote in it, and
its leader, as Kafka's version 1: one line of JSON. Damage in either is an error that names the file, never a
replica that has not voted yet.
"""

from __future__ import annotations

import json
import posixpath
import uuid
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import msgspec

from nilometer.identifiers import NO_LEADER, BrokerId, LeaderEpoch
from nilometer.raft import snapshot_files
from nilometer.raft.control_records import directory_text, directory_uuid
from nilometer.raft.exchange import Election
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Disk
from nilometer.runtime.disk import sync_ancestors
from nilometer.storage import names
from nilometer.storage.directories.log_directory import (
    METADATA_TOPIC,
    MetaProperties,
    new_directory_id,
    read_meta_properties,
    write_meta_properties,
)
from nilometer.storage.errors import CorruptCheckpoint

QUORUM_STATE: Final = "quorum-state"
OWNER: Final = "nilometer.properties"
LOCK: Final = ".quorum-lock"
"""In the log directory: whose process holds it may change the metadata log."""
FOLDER: Final = f"{METADATA_TOPIC}-0"
VERSION: Final = 1
"""Of ``quorum-state``, and of ``nilometer.properties``."""
CLOSED_VERSION: Final = 2
"""Of ``nilometer.properties`` in a metadata log that must not be used: earlier versions refuse it, too."""
_NO_VOTE: Final = -1


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``nilometer.properties``."""

    directory_id: str
    only_joins: bool = False
    """Whether the node forms no quorum, whatever its settings say."""
    moved_to: str = ""
    """The store that has this log's metadata now. No node uses this one."""
    copied_from: str = ""
    """The store whose metadata is being copied here. No node uses this one before that is complete."""

    @property
    def why_closed(self) -> str | None:
        """Why no node may use the log; None if one may."""
        if self.moved_to:
            return (
                f"is closed: its metadata was copied to {self.moved_to}. Set the brokers' settings to that "
                "store; if the copy was interrupted, repeat it; or open this one again with "
                '"nilometer metadata reopen"'
            )
        if self.copied_from:
            return (
                f"has an incomplete copy of the metadata of {self.copied_from}: repeat "
                '"nilometer metadata copy", or remove the folder'
            )
        return None


class MetadataClosed(CorruptCheckpoint):
    """The metadata log is not to be used: it was copied elsewhere, or a copy to it is incomplete."""


def identify(
    disk: Disk,
    directory: str,
    node_id: BrokerId,
    cluster_id: str | None,
    random: uuid.UUID,
) -> VoterKey:
    """Return the voter whose log directory it is. It gets an id made of ``random`` if it has none, or if the
    metadata log that had it was removed: as one of a quorum's node the id may have voted. Blocks.

    Raises CorruptCheckpoint if the directory belongs to another node or cluster, if the metadata log in it is
    another's, as one of Apache Kafka, or closed, or if only the log knows the directory's id; OSError.
    """
    path = posixpath.join(directory, names.META_PROPERTIES)
    found = read_meta_properties(disk, path) or MetaProperties()
    found.check(path, node_id, cluster_id)
    check_is_ours(disk, directory)
    owner = check_is_open(disk, directory)
    folder = posixpath.join(directory, FOLDER)
    if owner is not None and found.directory_id is None and has_metadata(disk, folder):
        raise CorruptCheckpoint(
            path,
            f"has no directory.id, and the metadata log in {folder} is of the directory "
            f"{owner.directory_id}. If a format was interrupted, remove {folder}, and format again; else "
            f"restore this file from a copy, with directory.id={owner.directory_id}",
        )
    if owner is None or found.directory_id is None:
        kept = None if found.is_quorum_node else found.directory_id
        found = MetaProperties(node_id, cluster_id or found.cluster_id, kept or new_directory_id(random))
        claim(disk, directory, found)
    whole = MetaProperties(node_id, found.cluster_id or cluster_id, found.directory_id, is_quorum_node=True)
    if whole != found:
        write_meta_properties(disk, path, whole)
    assert found.directory_id is not None, "it was written"
    _directory_id(path, "directory.id", found.directory_id)
    return VoterKey(node_id, found.directory_id)


def has_metadata(disk: Disk, folder: str) -> bool:
    """Whether the folder of a replica has records, a vote or a snapshot. It may not exist. Blocks."""
    return disk.is_directory(folder) and any(
        name == QUORUM_STATE
        or name.endswith(snapshot_files.SUFFIX)
        or (name.endswith(names.LOG_SUFFIX) and disk.file_size(posixpath.join(folder, name)) > 0)
        for name in disk.list_directory(folder)
    )


def check_is_open(disk: Disk, directory: str) -> Owner | None:
    """Return what the metadata log says of its directory. Raises MetadataClosed, CorruptCheckpoint."""
    folder = posixpath.join(directory, FOLDER)
    owner = read_owner(disk, folder)
    if owner is not None and owner.why_closed is not None:
        raise MetadataClosed(folder, owner.why_closed)
    return owner


def check_is_ours(disk: Disk, directory: str) -> None:
    """Raise CorruptCheckpoint if the directory has a metadata log that is not Nilometer's, or another
    directory's; nothing is changed."""
    folder, path = posixpath.join(directory, FOLDER), posixpath.join(directory, names.META_PROPERTIES)
    owner = read_owner(disk, folder)
    if is_of_others(disk, folder):
        raise CorruptCheckpoint(folder, "is not a metadata log of Nilometer, perhaps one of Apache Kafka")
    known = read_meta_properties(disk, path)
    if owner is not None and known is not None and known.directory_id not in (None, owner.directory_id):
        raise CorruptCheckpoint(
            folder,
            f"belongs to the directory {owner.directory_id}, and {path} has directory.id "
            f"{known.directory_id}",
        )


def is_of_others(disk: Disk, folder: str) -> bool:
    """Whether the folder has a metadata log that is not Nilometer's. A crash in a first start may leave it
    empty, or with ``nilometer.properties`` before that had its name."""
    if not disk.is_directory(folder) or disk.exists(posixpath.join(folder, OWNER)):
        return False
    return not all(
        name.startswith(f"{OWNER}.") and name.endswith(names.TEMPORARY_SUFFIX)
        for name in disk.list_directory(folder)
    )


def claim(disk: Disk, directory: str, properties: MetaProperties, owner: Owner | None = None) -> None:
    """Write durably which node has the directory and the metadata log in it. Blocks. Raises OSError.

    ``owner``: what the log says of it; by default the id of ``properties``.
    """
    assert properties.directory_id is not None, "a node's directory has an id"
    folder = posixpath.join(directory, FOLDER)
    disk.make_directories(directory)
    disk.make_directories(folder, private=True)  # the log has the cluster's secret
    write_meta_properties(disk, posixpath.join(directory, names.META_PROPERTIES), properties)
    sync_ancestors(disk, folder)
    write_owner(disk, folder, owner or Owner(directory_id=properties.directory_id))


def write_owner(disk: Disk, folder: str, owner: Owner) -> None:
    """Make the content of ``nilometer.properties`` durable. Blocks. Raises OSError."""
    values = {
        "directory.id": owner.directory_id,
        "version": VERSION if owner.why_closed is None else CLOSED_VERSION,
        **({"only.joins": "true"} if owner.only_joins else {}),
        **({"moved.to": quote(owner.moved_to)} if owner.moved_to else {}),
        **({"copied.from": quote(owner.copied_from)} if owner.copied_from else {}),
    }
    content = "".join(f"{name}={value}\n" for name, value in values.items())
    disk.replace_file(posixpath.join(folder, OWNER), content.encode())


def read_owner(disk: Disk, folder: str) -> Owner | None:
    """Return what the metadata log says of its directory; None if no file does. Raises CorruptCheckpoint."""
    path = posixpath.join(folder, OWNER)
    try:
        lines = disk.read_file(path).decode().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "is not text") from None
    values = {name: value for name, _, value in (line.partition("=") for line in lines)}
    owner = Owner(
        directory_id=_directory_id(path, "directory.id", values.get("directory.id")),
        only_joins=values.get("only.joins") == "true",
        moved_to=unquote(values.get("moved.to", "")),
        copied_from=unquote(values.get("copied.from", "")),
    )
    version = VERSION if owner.why_closed is None else CLOSED_VERSION
    if values.get("version") != str(version):
        raise CorruptCheckpoint(path, f"has version {values.get('version')}, not {version}")
    return owner


def read_election(disk: Disk, folder: str) -> Election | None:
    """Return the stored election; None if there is no file. Raises CorruptCheckpoint."""
    path = posixpath.join(folder, QUORUM_STATE)
    try:
        content: Any = json.loads(disk.read_file(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptCheckpoint(path, f"is not JSON ({error}): this replica may have voted") from None
    if not isinstance(content, dict):
        raise CorruptCheckpoint(path, "is not a JSON object: this replica may have voted")
    fields = cast("dict[str, Any]", content)
    version = _number(path, fields, "data_version")
    if version != VERSION:
        raise CorruptCheckpoint(path, f"has data_version {version}, not {VERSION}")
    voted_id = _number(path, fields, "votedId", _NO_VOTE)
    voted = None
    if voted_id != _NO_VOTE:
        directory_id = _directory_id(path, "votedDirectoryId", fields.get("votedDirectoryId"))
        voted = VoterKey(BrokerId(voted_id), directory_id)
    epoch = _number(path, fields, "leaderEpoch")
    return Election(LeaderEpoch(epoch), voted, BrokerId(_number(path, fields, "leaderId", NO_LEADER)))


def write_election(disk: Disk, folder: str, election: Election) -> None:
    """Make the election durable. Blocks. Raises OSError."""
    voted = election.voted or VoterKey(BrokerId(_NO_VOTE), "")
    fields = {
        "leaderId": election.leader,
        "leaderEpoch": election.epoch,
        "votedId": voted.node_id,
        "votedDirectoryId": voted.directory_id or directory_text(uuid.UUID(int=0)),
        "data_version": VERSION,
    }
    content = json.dumps(fields, separators=(",", ":")).encode()
    disk.replace_file(posixpath.join(folder, QUORUM_STATE), content)


def _number(path: str, fields: dict[str, Any], name: str, lowest: int = 0) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < 2**31:
        raise CorruptCheckpoint(path, f"has {name} {value!r}, not a number from {lowest} on")
    return value


def _directory_id(path: str, name: str, value: object) -> str:
    try:
        directory_uuid(str(value))
    except ValueError:
        raise CorruptCheckpoint(path, f"has {name} {value!r}, which is no directory id") from None
    return str(value)
