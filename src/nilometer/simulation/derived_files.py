"""Damage on disk in small files: indexes and some checkpoints, which a broker can rebuild, and topic ids.

Only the damage of a topic id costs records: those of its replica, which the broker must not use any more. An
index gets a flipped bit, or is truncated, at any time: the broker finds it when it reads the file again,
for example after a restart. A checkpoint is torn while its broker is down; the rest can be recognised as
incomplete. So is ``partition.metadata``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from nilometer.simulation.cluster import BrokerNode
from nilometer.simulation.file_tree import FileNode, FolderNode

INDEXES = (".index", ".timeindex")
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "leader-epoch-checkpoint")
"""Not the checkpoint of log start offsets: without it deleted records come back, as with Kafka."""
PARTITION_METADATA = "partition.metadata"
FLIP_SHARE = 0.7


def damage_index(node: BrokerNode, chance: random.Random) -> str | None:
    """Damage an index of a sealed segment; return a description, None if there is no such index."""
    found = [
        (path, file)
        for place in _partition_folders(node)
        for path, file in _sealed_indexes(node, place)
        if file.data and not file.undo and file.durable_size == len(file.data)
    ]
    if not found:
        return None
    path, file = chance.choice(found)
    if chance.random() < FLIP_SHARE:
        position, bit = chance.randrange(len(file.data)), chance.randrange(8)
        file.flip_bit(position, bit)
        return f"bit {bit} of byte {position} of {path} flips"
    size = chance.randrange(len(file.data))
    file.truncate(size)
    file.sync()
    return f"{path} is cut to {size} bytes"


def tear_checkpoint(node: BrokerNode, chance: random.Random) -> str | None:
    """Truncate a checkpoint of a broker that is down, at least by its last newline; return a description."""
    folders = (*node.folders, *_partition_folders(node))
    return _tear(node, chance, [f"{folder}/{name}" for folder in folders for name in CHECKPOINTS])


def tear_topic_id(node: BrokerNode, chance: random.Random) -> str | None:
    """Truncate the topic id of a replica of a broker that is down; return a description, None without one.

    Its records are lost with it.
    """
    return _tear(node, chance, [f"{folder}/{PARTITION_METADATA}" for folder in _partition_folders(node)])


def _tear(node: BrokerNode, chance: random.Random, paths: list[str]) -> str | None:
    files = [(path, file) for path in paths if isinstance(file := node.host.disk.find(path), FileNode)]
    files = [(path, file) for path, file in files if len(file.data) > 1]
    if not files:
        return None
    path, file = chance.choice(files)
    size = chance.randrange(1, len(file.data))
    while file.data[:size].endswith(b"\n"):
        size -= 1
    file.truncate(size)
    file.sync()
    return f"{path} is torn to {size} bytes"


def _partition_folders(node: BrokerNode) -> list[str]:
    found: list[str] = []
    for path in node.folders:
        folder = node.host.disk.find(path)
        entries = folder.entries if isinstance(folder, FolderNode) else {}
        found += [f"{path}/{name}" for name in sorted(entries) if isinstance(entries[name], FolderNode)]
    return found


def _sealed_indexes(node: BrokerNode, place: str) -> Iterator[tuple[str, FileNode]]:
    folder = node.host.disk.find(place)
    entries = folder.entries if isinstance(folder, FolderNode) else {}
    logs = sorted(name for name in entries if name.endswith(".log"))
    for log in logs[:-1]:
        for suffix in INDEXES:
            name = log.replace(".log", suffix)
            file = entries.get(name)
            if isinstance(file, FileNode):
                yield f"{place}/{name}", file
