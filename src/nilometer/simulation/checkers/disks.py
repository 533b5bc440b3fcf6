"""Is what the machines' disks have as promised, also on a disk that fails?

:func:`compare_cluster` compares the logs of a cluster at rest. :class:`CheckpointFiles` checks each append
against the checkpoint files beside it. :class:`FailedDisks` checks that a broker takes a failed log directory
offline, and :func:`not_converged` that the cluster then trusts no replica in it. Files are read with separate
parsers.
"""

from __future__ import annotations

import errno
import functools
import posixpath
import re
import struct
from collections.abc import Iterable, Iterator

import crc32c
import msgspec

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.identifiers import BrokerId
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import FileNode, FolderNode, HostDisk, PlayedError
from nilometer.simulation.world import Process

# Comparing the logs on the machines' disks, read with a separate parser.
#
# For each partition, from the highest log start offset to the lowest end: the same batches, byte for byte, on
# every replica, without gaps, with leader epochs that never decrease; and each replica's epoch checkpoint has
# for every batch the epoch in the batch. CRCs are computed from the bytes.

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
LOG_SUFFIX = ".log"


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
    """Read the replica in ``folder``; None if there is no such folder."""
    found = disk.find(folder)
    if not isinstance(found, FolderNode):
        return None
    batches = [
        batch for _, file in _log_files(found) for _, batch in batches_with_positions(bytes(file.data))
    ]
    checkpoint = found.entries.get("leader-epoch-checkpoint")
    text = bytes(checkpoint.data).decode() if isinstance(checkpoint, FileNode) else "0\n0\n"
    epochs = [tuple(map(int, line.split())) for line in text.splitlines()[2:] if line]
    return StoredReplica(broker_id, tuple(batches), tuple((each[0], each[1]) for each in epochs), log_start)


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


# Checking what brokers write to their disks, and what they do when a disk fails.

# Checking each append against the checkpoint files of its log directory, and the topic id of its folder.
#
# No record may be appended at an offset below one that a checkpoint file has for its partition. After a crash
# that offset would apply to the record: recovery would take it for flushed, or the replica for committed. So
# a log that was truncated below a checkpointed offset accepts no appends until the file has been rewritten.
# An offset at the log's start, or below it, says nothing of its records: the first batch of an empty log may
# begin there, if the leader's log starts within it.
#
# ``partition.metadata`` must be whole after a power loss: otherwise it is not known whose records they are,
# and a later topic of the same name could take them for its own.
#
# The files are read with a separate parser, as a killed process leaves them and as a power loss may do.

FILES = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
VOID_MARKER = "checkpoints-void."
"""Start of the name of a file in a partition's folder: its lines are those of an earlier folder."""
SEGMENT = re.compile(r"/\d{20}\.log$")
FUTURE = re.compile(r"\.[0-9a-f]{32}-future$")
"""End of the name of the folder of a replica that moves here: the lines of its partition apply to it."""
PARTITION_METADATA = "partition.metadata"
BASE_OFFSET_BYTES = 8
LAST_DELTA = slice(23, 27)
"""Where a batch has the distance of its last offset from its base offset."""
PARSED_MAX = 256
VIOLATIONS_MAX = 10


class CheckpointFiles:
    """Checks appends on the disks of all machines; ``violations`` are the findings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []
        self.checked = 0
        """How many appends were compared with a line of a checkpoint file."""
        self.look()

    def look(self) -> None:
        """Observe the appends on machines that were added."""
        for host in self._cluster.machines:
            host.disk.on_append = functools.partial(self._on_append, host.name, host.disk)

    def _on_append(self, machine: str, disk: HostDisk, path: str, data: bytes) -> None:
        if not SEGMENT.search(path):
            return
        base_offset = int.from_bytes(data[:BASE_OFFSET_BYTES], "big")
        folder = posixpath.dirname(path)
        found = disk.find(folder)
        if isinstance(found, FolderNode) and not _has_durable_topic_id(found):
            self._add_violation(
                f"topic id: {machine} appends at {base_offset} to {folder}, although a power loss may "
                f"damage its {PARTITION_METADATA}"
            )
        if not isinstance(found, FolderNode) or any(name.startswith(VOID_MARKER) for name in found.entries):
            return
        directory, partition = posixpath.split(folder)
        for name, offset in _lines(disk, directory, partition):
            self.checked += 1
            if offset > base_offset and offset > self._log_start(disk, folder, data):
                self._add_violation(
                    f"checkpoint: {machine} appends at {base_offset} to {folder}, although {name} has "
                    f"{offset}"
                )

    def _log_start(self, disk: HostDisk, folder: str, batch: bytes) -> int:
        """Return the log start offset of the replica whose folder, or whose future folder, this is.

        A log may begin within a batch. A broker that starts does not show its logs yet, but its fetchers
        append already: then it is said to begin at the end of ``batch``.
        """
        partition = FUTURE.sub("", posixpath.basename(folder))
        nodes = (each for each in self._cluster.known.values() if each.host.disk is disk)
        node = next((each for each in nodes if _directory_of(each, folder)), None)
        if node is None:
            return 0
        if node.broker is None:
            return int.from_bytes(batch[:BASE_OFFSET_BYTES], "big") + int.from_bytes(batch[LAST_DELTA], "big")
        return node.log_start(partition)

    def _add_violation(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what)


def _has_durable_topic_id(folder: FolderNode) -> bool:
    file = folder.durable(PARTITION_METADATA)
    return isinstance(file, FileNode) and file.durable() == bytes(file.data) and b"topic_id" in file.data


def _lines(disk: HostDisk, directory: str, partition: str) -> Iterator[tuple[str, int]]:
    """Yield (file name, offset) for each line of the partition that may be there after a crash."""
    found = disk.find(directory)
    assert isinstance(found, FolderNode), "it contains the partition's folder"
    topic, _, index = FUTURE.sub("", partition).rpartition("-")
    for name in FILES:
        now, durable = found.entries.get(name), found.durable(name)
        for content in {
            *((bytes(now.data),) if isinstance(now, FileNode) else ()),
            *((durable.durable(),) if isinstance(durable, FileNode) else ()),
        }:
            offset = _parse(content).get(f"{topic} {index}")
            if offset is not None:
                yield name, offset


@functools.lru_cache(PARSED_MAX)
def _parse(content: bytes) -> dict[str, int]:
    """Return the offsets by "topic partition"; none if the file is incomplete, as for the broker."""
    lines = content.decode(errors="replace").split("\n")
    if len(lines) < 3 or lines[-1] or not lines[1].isdigit() or int(lines[1]) != len(lines) - 3:
        return {}
    pairs = (line.rpartition(" ") for line in lines[2:-1])
    return {partition: int(offset) for partition, _, offset in pairs}


# Checking the effect of a disk error: the broker takes that log directory offline, and nothing else.
#
# When an operation in a log directory fails, the broker must take that directory offline, or end. No request,
# service or other log may fail because of it, so an error of a log directory that is logged with a traceback
# was not handled. Errors of the coordination store's disk are excused; other checkers check their effects.
#
# A broker that starts looks into its directories before it opens them. One that fails then, and works when it
# is opened, may be used.

LOCK = ".lock"
SETTLE_S = 2.0
"""Seconds after an error within which its log directory must be offline."""


class _Failure(msgspec.Struct, frozen=True):
    node: BrokerNode
    process: Process
    directory: str
    error: PlayedError
    at_s: float
    was_open: bool
    """Whether the process had the directory's lock."""


class FailedDisks:
    """Checks that failed log directories are taken offline; ``violations`` are the findings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[tuple[Process, str], _Failure] = {}
        """The first failure of each directory that its broker has not taken offline yet."""
        self.violations: list[str] = []

    def look(self) -> None:
        for key, failure in list(self._open.items()):
            node = failure.node
            if node.process is not failure.process or failure.directory in node.failed_folders:
                del self._open[key]
            elif node.broker is not None and self._now_s >= failure.at_s + SETTLE_S:
                del self._open[key]
                if failure.was_open or not _has_lock(node, failure.directory):
                    self._note(
                        f"failed disk: {node.name} continues to use {failure.directory} after {failure.error}"
                    )

    def on_error(self, error: PlayedError) -> None:
        if error.errno == errno.ENOSPC and FUTURE.search(posixpath.dirname(error.path)):
            return  # a copy that has no room is given up; its directory goes on
        for node in self._cluster.known.values():
            directory = _directory_of(node, error.path)
            if node.process is not None and node.process is error.process and directory is not None:
                is_open = _has_lock(node, directory)
                failure = _Failure(node, node.process, directory, error, self._now_s, is_open)
                self._open.setdefault((node.process, directory), failure)

    def excuses(self, error: BaseException | None) -> bool:
        """Return whether ``error`` or its cause is an injected error of the coordination store's disk."""
        while error is not None and not isinstance(error, PlayedError):
            error = error.__cause__
        return error is not None and not any(
            _directory_of(node, error.path) for node in self._cluster.known.values()
        )

    @property
    def _now_s(self) -> float:
        return self._cluster.world.loop.time()

    def _note(self, violation: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(violation)


def _directory_of(node: BrokerNode, path: str) -> str | None:
    return next((each for each in node.folders if f"{path}/".startswith(f"{each}/")), None)


def _has_lock(node: BrokerNode, directory: str) -> bool:
    """Whether the broker's process has opened the directory."""
    disk = node.host.disk
    found = disk.find(posixpath.join(directory, LOCK))
    return isinstance(found, FileNode) and disk.locks.get(found) is node.process


# Checking replicas whose log directory failed while their broker continues with its other ones.
#
# This is checked while only log directories are broken: each such replica must have lost the leadership and
# be removed from the ISR, unless it is the only member. The location of replicas is read from the virtual
# disks.


def not_converged(cluster: Cluster) -> list[str]:
    """Return the brokers that do not serve although they have another directory, and the failed replicas that
    still lead or are in the ISR."""
    down = [
        f"failed log directory: {node.name} does not serve, although its other log directories work"
        for node in cluster.nodes.values()
        if len(node.folders) > 1 and not node.is_serving
    ]
    return down or [
        violation for node in cluster.nodes.values() for violation in _still_trusted(cluster, node)
    ]


def _still_trusted(cluster: Cluster, node: BrokerNode) -> Iterator[str]:
    image, failed = cluster.newest_image, tuple(node.failed_folders)
    if image is None or not failed:
        return
    for key, state in image.partitions_on(BrokerId(node.id)):
        topic = image.topic_by_id(key.topic_id)
        places = node.places_of(f"{topic.name}-{key.partition}") if topic is not None else []
        if not places or not all(
            place.startswith(tuple(f"{folder}/" for folder in failed)) for place in places
        ):
            continue
        if state.leader == node.id:
            yield f"failed log directory: {key} is led by {node.id}, whose log is in one of {failed}"
        elif node.id in state.isr and len(state.isr) > 1:
            yield f"failed log directory: {node.id}, whose log of {key} failed, is in the ISR {state.isr}"
