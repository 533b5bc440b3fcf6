"""Faults of disks: errors before an operation, errors after it was executed, flipped bits, and damage in
small files.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import msgspec

from nilometer.simulation.checkers.logs import batches_with_positions
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import CHANGES, DiskUser, FileNode, FolderNode, HostDisk
from nilometer.simulation.fault_kinds import Fault, Kind
from nilometer.simulation.plan import Plan
from nilometer.simulation.stores import COORDINATION
from nilometer.simulation.world import Host

# Damage on disk in small files: indexes and some checkpoints, which a broker can rebuild, and topic ids.
#
# Only the damage of a topic id costs records: those of its replica, which the broker must not use any more.
# An index gets a flipped bit, or is truncated, at any time: the broker finds it when it reads the file again,
# for example after a restart. A checkpoint is torn while its broker is down; the rest can be recognised as
# incomplete. So is ``partition.metadata``.

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


# Disk faults: errors before an operation, errors after it was executed, and flipped bits.
#
# The disk calls this module before and after every operation. A bit is flipped in a synced batch of a
# partition with two other replicas: the broker must find it at the next read, and repair it. Damage that was
# not read by the end of a run is repaired here, since a broker does not promise to scan for it.
#
# Invariant: at most one replica of the cluster is damaged at a time.

HEADER_BYTES = 61
_LEADER_EPOCH = range(12, 16)
HEADER_AT = tuple(at for at in range(HEADER_BYTES) if at not in _LEADER_EPOCH)
"""Positions in a batch header where a bit may flip. The CRC covers the bytes after it; the bytes before it
can be compared with the adjacent headers. Only the leader epoch is neither covered nor redundant."""
PLACE_AT = (*range(8), *range(23, 27), *range(35, 43))
"""The positions of the fields by which batches are found: base offset, last offset, largest timestamp."""
HEADER_SHARE = 0.5
"""How often the bit is flipped in the header, which is short, instead of the records."""

GROWS = frozenset({"create", "append", "mkdir", "link"})
"""The operations that need disk space."""

LED_SHARE = 0.8
"""How often the bit is flipped on the leader, where clients read, instead of on any replica."""


class DiskFaults:
    """The current faults of one disk, which calls :meth:`_before` and :meth:`_after` at every operation."""

    def __init__(self, cluster: Cluster, disk: HostDisk) -> None:
        self._chance = cluster.world.chance
        self._disk = disk
        self.active: dict[Fault, str] = {}
        """Fault → the name of the process that it affects ("" for all)."""
        self.folders: dict[Fault, str] = {}
        """Fault → the log directory that it affects."""
        disk.strike = self._before
        disk.aftermath = self._after

    def _before(self, process: DiskUser, verb: str, path: str) -> None:
        for fault, folder in self.folders.items():
            if path == folder or path.startswith(f"{folder}/"):
                if fault.kind is Kind.LOG_DIR_ERROR:
                    raise self._disk.failed(process, errno.EIO, "Input/output error", path)
                if verb in GROWS:
                    raise self._disk.failed(process, errno.ENOSPC, "No space left on device", path)
        for fault, name in self.active.items():
            if name and process.name != name:
                continue
            if fault.kind is Kind.STORE_UNSURE:
                continue
            if fault.kind is Kind.STORE and not path.startswith(COORDINATION):
                continue
            if fault.kind is Kind.DISK_ERROR and (path.startswith(COORDINATION) or verb not in CHANGES):
                continue
            if self._chance.random() < 0.2 + 0.8 * fault.size:
                raise self._disk.failed(process, errno.EIO, "Input/output error", path)

    def _after(self, process: DiskUser, verb: str, path: str) -> None:
        """During a STORE_UNSURE fault, raise an error for a random part of the operations on the coordination
        folder, although they were executed."""
        for fault, name in self.active.items():
            if fault.kind is not Kind.STORE_UNSURE or not path.startswith(COORDINATION):
                continue
            if (not name or process.name == name) and self._chance.random() < 0.2 + 0.8 * fault.size:
                raise self._disk.failed(process, errno.EIO, "Input/output error, after the fact", path)


class FlippedBit(msgspec.Struct, frozen=True):
    host: Host
    path: str
    batch: int
    """The position of the batch in the file."""
    damaged: bytes
    """The whole batch, with the flipped bit."""
    position: int
    bit: int
    at_s: float

    def file(self) -> FileNode | None:
        """Return the file if it still has the damage, else None."""
        node = self.host.disk.find(self.path)
        if not isinstance(node, FileNode):
            return None
        there = bytes(node.data[self.batch : self.batch + len(self.damaged)])
        return node if there == self.damaged else None


class Damage:
    """Flips bits, at most one at a time that is not repaired."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._topics = [topic.name for topic in plan.topics if topic.min_insync_replicas > 1]
        self._flipped: FlippedBit | None = None

    @property
    def host(self) -> Host | None:
        """The machine with the damage that is not repaired yet, or None."""
        if self._flipped is not None and self._flipped.file() is None:
            self._world.trace.note("faults", f"{self._flipped.path} is repaired")
            self._flipped = None
        return self._flipped.host if self._flipped is not None else None

    def flip(self, node: BrokerNode) -> bool:
        """Flip a bit of a replica on ``node``; return False if it has no suitable one."""
        whole = self._whole_partitions(node)
        led = [name for name, leader in whole if leader == node.id]
        read = led if self._world.chance.random() < LED_SHARE else []
        found = [
            batch for name in read or [name for name, _ in whole] for batch in _synced_batches(node, name)
        ]
        if self.host is not None or not found:
            return False
        path, position, data = self._world.chance.choice(found)
        in_header = self._world.chance.random() < HEADER_SHARE or len(data) == HEADER_BYTES
        places = self._world.chance.choice((HEADER_AT, PLACE_AT))
        at = self._world.chance.choice(places if in_header else range(HEADER_BYTES, len(data)))
        bit = self._world.chance.randrange(8)
        node.host.disk.flip_bit(path, position + at, bit)
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        self._flipped = FlippedBit(
            node.host, path, position, bytes(damaged), position + at, bit, self._world.loop.time()
        )
        self._world.trace.note("faults", f"bit {bit} of byte {position + at} of {path} flips")
        return True

    def undo(self, unread_s: float = 0.0) -> None:
        """Repair damage that was not read for ``unread_s`` seconds."""
        flipped = self._flipped
        file = flipped.file() if flipped is not None else None
        if flipped is None or file is None or self._world.loop.time() < flipped.at_s + unread_s:
            return
        self._world.trace.note("faults", f"{flipped.path} was not read: it is restored")
        file.flip_bit(flipped.position, flipped.bit)
        self._flipped = None

    def _whole_partitions(self, node: BrokerNode) -> list[tuple[str, int]]:
        """Return (partition, leader) of the partitions on ``node`` whose replicas are all in sync.

        These are in the newest metadata image of any broker. Partitions with fewer than three replicas, or
        that are being reassigned, are left out.
        """
        images = [each.image for each in self._cluster.nodes.values()]
        newest = max((image for image in images if image is not None), key=lambda i: i.number, default=None)
        if newest is None or not node.is_serving:
            return []
        whole: list[tuple[str, int]] = []
        for key, state in newest.partitions():
            topic = newest.topic_by_id(key.topic_id)
            in_sync = node.id in state.isr and len(state.isr) == len(state.replicas) > 2
            if topic is not None and topic.name in self._topics and in_sync and not state.is_reassigning:
                whole.append((f"{topic.name}-{key.partition}", state.leader))
        return whole


def _synced_batches(node: BrokerNode, partition: str) -> list[tuple[str, int, bytes]]:
    """Return (path, position, bytes) of the partition's batches that are synced."""
    place = node.place_of(partition) or ""
    folder = node.host.disk.find(place)
    found: list[tuple[str, int, bytes]] = []
    for name, file in sorted(folder.entries.items()) if isinstance(folder, FolderNode) else ():
        if name.endswith(".log") and isinstance(file, FileNode) and not file.undo:
            path = f"{place}/{name}"
            whole = batches_with_positions(bytes(file.data[: file.durable_size]))
            found += [(path, position, batch.data) for position, batch in whole]
    return found
