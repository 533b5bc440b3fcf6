"""The file ``meta.properties`` of a log directory: the node and cluster that its data belongs to.

Java properties, version 1: ``node.id``, ``cluster.id``, ``directory.id``. A directory of another
node or cluster is rejected.
"""

from __future__ import annotations

import uuid

import msgspec

from nilometer.runtime import Disk
from nilometer.storage.checkpoints import uuid_to_text
from nilometer.storage.errors import CorruptCheckpoint

VERSION = 1


class MetaProperties(msgspec.Struct, frozen=True):
    node_id: int | None = None
    cluster_id: str | None = None
    directory_id: str | None = None

    def check(self, path: str, node_id: int, cluster_id: str | None) -> None:
        """Raise CorruptCheckpoint if the directory belongs to another node or cluster."""
        if self.node_id is not None and self.node_id != node_id:
            raise CorruptCheckpoint(path, f"belongs to node {self.node_id}, this is node {node_id}")
        if cluster_id is not None and self.cluster_id is not None and self.cluster_id != cluster_id:
            raise CorruptCheckpoint(path, f"belongs to cluster {self.cluster_id}, this is {cluster_id}")


def read(disk: Disk, path: str) -> MetaProperties | None:
    """Read ``meta.properties``; None if there is no file. Raises CorruptCheckpoint."""
    try:
        text = disk.read_file(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "is not text") from None
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not name.startswith("#"):
            values[name.strip()] = value.strip()
    node_id = values.get("node.id", values.get("broker.id"))
    try:
        return MetaProperties(
            int(node_id) if node_id is not None else None,
            values.get("cluster.id"),
            values.get("directory.id"),
        )
    except ValueError:
        raise CorruptCheckpoint(path, f"has node.id {node_id!r}") from None


def write(disk: Disk, path: str, properties: MetaProperties) -> None:
    """Write and sync ``meta.properties``. May block. Raises OSError."""
    values = {
        "cluster.id": properties.cluster_id,
        "directory.id": properties.directory_id,
        "node.id": properties.node_id,
        "version": VERSION,
    }
    lines = [f"{name}={value}\n" for name, value in values.items() if value is not None]
    disk.replace_file(path, "".join(lines).encode())


def new_directory_id(random: uuid.UUID) -> str:
    return uuid_to_text(random)
