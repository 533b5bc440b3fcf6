"""Damage at rest of files that a broker can make again: indexes, and some checkpoints. Nothing is lost by it.

An index has a bit flipped, or its end cut off, at any time: it is met when it is read again, after a restart
say. A checkpoint is torn while its broker is down: what is left of it shows that it is not whole.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from nilometer.simulation.cluster import BrokerNode
from nilometer.simulation.file_tree import FileNode, FolderNode

INDEXES = (".index", ".timeindex")
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "leader-epoch-checkpoint")
"""Not the one of log starts: without it deleted records come back, as with Kafka. Nor the topic id of a
folder, which only the metadata of the cluster could replace."""
FLIP_SHARE = 0.7


def damage_index(node: BrokerNode, chance: random.Random) -> str | None:
    """Of a segment that is not appended to; says what was done, if there was one to be damaged."""
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
    """Its broker must be down. The last newline at least is lost."""
    folders = (*node.folders, *_partition_folders(node))
    paths = [f"{folder}/{name}" for folder in folders for name in CHECKPOINTS]
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
