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

from nilometer.identifiers import NO_LEADER, BrokerId, LeaderEpoch
from nilometer.raft.control_records import directory_text, directory_uuid
from nilometer.raft.exchange import Election
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Disk
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
_NO_VOTE: Final = -1


def identify(
    disk: Disk, directory: str, node_id: BrokerId, cluster_id: str | None, random: uuid.UUID
) -> VoterKey:
    """Return the voter whose log directory it is. It gets an id made of ``random`` if it has none, or if the
    metadata log that had it was removed. Blocks.

    Raises CorruptCheckpoint if the directory belongs to another node or cluster, if the metadata log in it is
    another's, as one of Apache Kafka, OSError.
    """
    path, folder = posixpath.join(directory, names.META_PROPERTIES), posixpath.join(directory, FOLDER)
    found = read_meta_properties(disk, path) or MetaProperties()
    found.check(path, node_id, cluster_id)
    check_is_ours(disk, directory)
    owner = _owner(disk, folder)
    if owner is None or found.directory_id is None:
        found = MetaProperties(node_id, cluster_id or found.cluster_id, new_directory_id(random))
        claim(disk, directory, found)
    assert found.directory_id is not None, "it was written"
    _directory_id(path, "directory.id", found.directory_id)
    return VoterKey(node_id, found.directory_id)


def check_is_ours(disk: Disk, directory: str) -> None:
    """Raise CorruptCheckpoint if the directory has a metadata log that is not Nilometer's, or another
    directory's; nothing is changed."""
    folder, path = posixpath.join(directory, FOLDER), posixpath.join(directory, names.META_PROPERTIES)
    owner = _owner(disk, folder)
    if owner is None and disk.is_directory(folder) and disk.list_directory(folder):
        raise CorruptCheckpoint(folder, "is not a metadata log of Nilometer, perhaps one of Apache Kafka")
    known = read_meta_properties(disk, path)
    if owner is not None and known is not None and known.directory_id not in (None, owner):
        raise CorruptCheckpoint(
            folder, f"belongs to the directory {owner}, and {path} has directory.id {known.directory_id}"
        )


def claim(disk: Disk, directory: str, properties: MetaProperties) -> None:
    """Write durably which node has the directory and the metadata log in it. Blocks. Raises OSError."""
    folder = posixpath.join(directory, FOLDER)
    disk.make_directories(directory)
    disk.make_directories(folder, private=True)  # the log has the cluster's secret
    write_meta_properties(disk, posixpath.join(directory, names.META_PROPERTIES), properties)
    for parent in (posixpath.dirname(directory) or ".", directory):
        disk.sync_directory(parent)
    content = f"directory.id={properties.directory_id}\nversion={VERSION}\n"
    disk.replace_file(posixpath.join(folder, OWNER), content.encode())


def _owner(disk: Disk, folder: str) -> str | None:
    """Return the directory id of the voter whose metadata log it is; None if no file says so. Raises
    CorruptCheckpoint."""
    path = posixpath.join(folder, OWNER)
    try:
        lines = disk.read_file(path).decode().splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "is not text") from None
    values = {name: value for name, _, value in (line.partition("=") for line in lines)}
    if values.get("version") != str(VERSION):
        raise CorruptCheckpoint(path, f"has version {values.get('version')}, not {VERSION}")
    return _directory_id(path, "directory.id", values.get("directory.id"))


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
