"""Which batches do the logs on the machines' disks have, and are they the same on every replica?

Files are read with a separate parser. :func:`compare_cluster` compares the logs of a cluster at rest. For
each partition, from the highest log start offset to the lowest end: the same batches, byte for byte, on every
replica, without gaps, with leader epochs that never decrease; and each replica's epoch checkpoint has for
every batch the epoch in the batch. CRCs are computed from the bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

import crc32c
import msgspec

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.disk import FileNode, FolderNode, HostDisk

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
LOG_SUFFIX = ".log"
FUTURE = re.compile(r"\.[0-9a-f]{32}-future$")
"""End of the name of the folder of a replica that moves here."""


class StoredBatch(msgspec.Struct, frozen=True):
    base_offset: int
    last_offset: int
    epoch: int
    data: bytes

    @property
    def is_sound(self) -> bool:
        (crc,) = struct.unpack_from(">I", self.data, 17)
        return crc32c.crc32c(self.data[_CRC_FROM:]) == crc


class StoredReplica(msgspec.Struct, frozen=True):
    broker_id: int
    batches: tuple[StoredBatch, ...]
    epochs: tuple[tuple[int, int], ...]
    """The epoch checkpoint: (epoch, start offset), ascending."""
    log_start: int = 0
    """Log start offset: below it there may still be batches, but the epoch checkpoint need not have them."""

    @property
    def start(self) -> int:
        return self.batches[0].base_offset if self.batches else 0

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0


def read_replica(disk: HostDisk, folder: str, broker_id: int, log_start: int = 0) -> StoredReplica | None:
    """Read the replica in ``folder``; None if there is no such folder.

    A torn epoch checkpoint has no epochs: it stays beside an empty log until the first record is appended.
    """
    found = disk.find(folder)
    if not isinstance(found, FolderNode):
        return None
    batches = [
        batch for _, file in _log_files(found) for _, batch in batches_with_positions(bytes(file.data))
    ]
    checkpoint = found.entries.get("leader-epoch-checkpoint")
    text = bytes(checkpoint.data).decode() if isinstance(checkpoint, FileNode) else "0\n0\n"
    try:
        lines = [tuple(map(int, line.split())) for line in text.splitlines()[2:] if line]
        epochs = tuple((epoch, start) for epoch, start in lines)
    except ValueError:
        epochs = ()
    return StoredReplica(broker_id, tuple(batches), epochs, log_start)


def read_batches_from(disk: HostDisk, folder: str, offset: int) -> list[StoredBatch]:
    """Return the batches in ``folder`` with records at or above ``offset``; none if there is no such folder.

    Of the files below ``offset`` only the names are read, and of the batches below it only the headers.
    """
    found = disk.find(folder)
    if not isinstance(found, FolderNode):
        return []
    files = _log_files(found)
    first = max((index for index, (base, _) in enumerate(files) if base <= offset), default=0)
    return [batch for _, file in files[first:] for batch in _batches_from(bytes(file.data), offset)]


def _log_files(folder: FolderNode) -> list[tuple[int, FileNode]]:
    """Return (base offset, file) of the segments in ``folder``, ascending."""
    return [
        (int(name.removesuffix(LOG_SUFFIX)), file)
        for name, file in sorted(folder.entries.items())
        if name.endswith(LOG_SUFFIX) and isinstance(file, FileNode)
    ]


def _batches_from(data: bytes, offset: int) -> Iterator[StoredBatch]:
    position = 0
    while position + _HEADER.size <= len(data):
        base, length, _, _, _, _, last_delta, *_ = _HEADER.unpack_from(data, position)
        if length <= 0 or base + last_delta >= offset:
            yield from (batch for _, batch in batches_with_positions(data[position:]))
            return
        position += 12 + length


def batches_with_positions(data: bytes) -> Iterator[tuple[int, StoredBatch]]:
    """Yield (position, batch) of the complete batches of a log file."""
    position = 0
    while position + _HEADER.size <= len(data):
        base, length, epoch, _, _, _, last_delta, *_ = _HEADER.unpack_from(data, position)
        end = position + 12 + length
        if length <= 0 or end > len(data):
            return
        yield position, StoredBatch(base, base + last_delta, epoch, data[position:end])
        position = end


def compare(name: str, replicas: list[StoredReplica]) -> list[str]:
    """Return the errors in the replicas of one partition, and the differences between them."""
    wrong = [violation for replica in replicas for violation in _inside(name, replica)]
    if len(replicas) < 2:
        return wrong
    start = max(replica.start for replica in replicas)
    end = min(replica.end for replica in replicas)
    reference = replicas[0]
    expected = {batch.base_offset: batch for batch in reference.batches if start <= batch.base_offset < end}
    for replica in replicas[1:]:
        found = {batch.base_offset: batch for batch in replica.batches if start <= batch.base_offset < end}
        for offset in sorted(expected.keys() | found.keys()):
            mine, theirs = expected.get(offset), found.get(offset)
            if mine is None or theirs is None or mine.data != theirs.data:
                wrong.append(
                    f"divergence: {name} at {offset}: broker {reference.broker_id} has {_describe(mine)}, "
                    f"broker {replica.broker_id} has {_describe(theirs)}"
                )
                break
    return wrong


def _inside(name: str, replica: StoredReplica) -> Iterator[str]:
    who = f"{name} on broker {replica.broker_id}"
    expected, epoch = replica.start, -1
    for batch in replica.batches:
        if not batch.is_sound:
            yield f"damage: {who}: the CRC of the batch at {batch.base_offset} is wrong"
        if batch.base_offset != expected:
            yield f"hole: {who}: offset {expected} is expected, the batch has {batch.base_offset}"
        if batch.epoch < epoch:
            yield f"epochs: {who}: epoch {batch.epoch} at {batch.base_offset} after epoch {epoch}"
        said = _epoch_at(replica.epochs, batch.base_offset)
        if said != batch.epoch and batch.base_offset >= replica.log_start:
            yield (
                f"epoch chain: {who}: has epoch {said} for {batch.base_offset}, the batch has {batch.epoch} "
                f"(chain {replica.epochs})"
            )
        expected, epoch = batch.last_offset + 1, batch.epoch


def _epoch_at(epochs: tuple[tuple[int, int], ...], offset: int) -> int:
    found = -1
    for epoch, start in epochs:
        if start <= offset:
            found = epoch
    return found


def _describe(batch: StoredBatch | None) -> str:
    if batch is None:
        return "no batch that begins there"
    return f"{batch.base_offset}–{batch.last_offset} of epoch {batch.epoch} ({len(batch.data)} bytes)"


def compare_cluster(cluster: Cluster, partitions: Iterable[TopicPartition]) -> list[str]:
    """Return the errors on the disks of a cluster at rest."""
    wrong: list[str] = []
    image = next(node.image for node in cluster.nodes.values() if node.image is not None)
    for partition in partitions:
        name = f"{partition.topic}-{partition.partition}"
        state = image.partition(*partition)
        assigned = [cluster.nodes[broker_id] for broker_id in (state.replicas if state else ())]
        replicas = [
            read_replica(node.host.disk, place, node.id, node.log_start(name))
            for node in assigned
            for place in node.places_of(name)
        ]
        there = [replica for replica in replicas if replica is not None]
        if (
            sorted(replica.broker_id for replica in there) != sorted(node.id for node in assigned)
            or not there
        ):
            wrong.append(f"{name} is missing on a broker, or is in two of its log directories")
        wrong += compare(name, there)
    return wrong
