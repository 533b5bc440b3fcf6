"""What can be wrong with disks: errors before an operation, errors after it was done, and bits that flip.

Errors are asked for by the disk before and after every operation. A flipped bit lies in a batch that was
synced, of a partition that two other replicas hold: it is the product's to find, on the next read, and to
repair. What was not read by the end of a run is repaired: the product does not promise to scan for it.

Invariant: at most one replica of the cluster is damaged at a time.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from nilometer.simulation.checkers.disks import batches_with_positions
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.fault_kinds import Fault, Kind
from nilometer.simulation.file_tree import FileNode, FolderNode
from nilometer.simulation.host_disk import CHANGES, DiskUser, HostDisk
from nilometer.simulation.plan import Plan
from nilometer.simulation.stores import COORDINATION
from nilometer.simulation.world import Host

HEADER_BYTES = 61
_LEADER_EPOCH = range(12, 16)
HEADER_AT = tuple(at for at in range(HEADER_BYTES) if at not in _LEADER_EPOCH)
"""The bytes of a header that may rot: places are found by what they say. The checksum covers those behind it;
those in front of it must agree with the headers around. The leader epoch alone is said once, and covered by
nothing."""
PLACE_AT = (*range(8), *range(23, 27), *range(35, 43))
"""Of these, what look-ups go by: the base offset, the last offset, the largest timestamp."""
HEADER_SHARE = 0.5
"""How often the bit flips in the header, which is short, rather than in the records."""

GROWS = frozenset({"create", "append", "mkdir", "link"})
"""What needs room."""

LED_SHARE = 0.8
"""How often the bit flips where clients read, rather than anywhere."""


class DiskFaults:
    """What is wrong with one disk at the moment; asked before and after every operation."""

    def __init__(self, cluster: Cluster, disk: HostDisk) -> None:
        self._chance = cluster.world.chance
        self._disk = disk
        self.active: dict[Fault, str] = {}
        """Fault to the name of the process that it hits ("" for all)."""
        self.folders: dict[Fault, str] = {}
        """Fault to the log directory that it hits."""
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
        """The operation was done, but its caller gets an error."""
        for fault, name in self.active.items():
            if fault.kind is not Kind.STORE_UNSURE or not path.startswith(COORDINATION):
                continue
            if (not name or process.name == name) and self._chance.random() < 0.2 + 0.8 * fault.size:
                raise self._disk.failed(process, errno.EIO, "Input/output error, after the fact", path)


@dataclass(frozen=True, slots=True)
class FlippedBit:
    host: Host
    path: str
    batch: int
    """Where the batch begins."""
    damaged: bytes
    """The whole batch, with the wrong bit."""
    position: int
    bit: int
    at_s: float

    def file(self) -> FileNode | None:
        """The file, if the damage is still in it."""
        node = self.host.disk.find(self.path)
        if not isinstance(node, FileNode):
            return None
        there = bytes(node.data[self.batch : self.batch + len(self.damaged)])
        return node if there == self.damaged else None


class Damage:
    """The bits that flipped and were not repaired."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._topics = [topic.name for topic in plan.topics if topic.min_insync_replicas > 1]
        self._flipped: FlippedBit | None = None

    @property
    def host(self) -> Host | None:
        """The machine with damage that is still there."""
        if self._flipped is not None and self._flipped.file() is None:
            self._world.trace.note("faults", f"{self._flipped.path} is repaired")
            self._flipped = None
        return self._flipped.host if self._flipped is not None else None

    def flip(self, node: BrokerNode) -> bool:
        """Flip a bit of a replica on ``node``; whether there was one that could take it."""
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
        self._world.trace.note("faults", f"{flipped.path} was not read: it is put right")
        file.flip_bit(flipped.position, flipped.bit)
        self._flipped = None

    def _whole_partitions(self, node: BrokerNode) -> list[tuple[str, int]]:
        """Those that ``node`` and all their other replicas hold in sync, as the newest metadata says, and
        who leads each."""
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
    """(path, position, bytes) of the batches that a loss of power would leave."""
    place = next(iter(node.places_of(partition)), "")
    folder = node.host.disk.find(place)
    found: list[tuple[str, int, bytes]] = []
    for name, file in sorted(folder.entries.items()) if isinstance(folder, FolderNode) else ():
        if name.endswith(".log") and isinstance(file, FileNode) and not file.undo:
            path = f"{place}/{name}"
            whole = batches_with_positions(bytes(file.data[: file.durable_size]))
            found += [(path, position, batch.data) for position, batch in whole]
    return found
