"""Is each append to a log permitted by the checkpoint files beside it, and by the topic id of its folder?

No record may be appended at an offset below one that a checkpoint file has for its partition. After a crash
that offset would apply to the record: recovery would take it for flushed, or the replica for committed. So a
log that was truncated below a checkpointed offset accepts no appends until the file has been rewritten. An
offset at the log's start, or below it, says nothing of its records: the first batch of an empty log may begin
there, if the leader's log starts within it. The lines of a partition also apply to the folder of a replica
that moves here.

``partition.metadata`` must be whole after a power loss: otherwise it is not known whose records they are, and
a later topic of the same name could take them for its own.

The files are read with a separate parser, as a killed process leaves them and as a power loss may do.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator

from nilometer.simulation.checkers.logs import FUTURE
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.disk import FileNode, FolderNode, HostDisk

FILES = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
VOID_MARKER = "checkpoints-void."
"""Start of the name of a file in a partition's folder: its lines are those of an earlier folder."""
SEGMENT = re.compile(r"/\d{20}\.log$")
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
        node = next((each for each in nodes if each.directory_of(folder)), None)
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
