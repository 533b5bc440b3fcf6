"""One log directory: its lock, its identity, its checkpoints, and how its last user left it.

Knows nothing of the logs inside beyond their offsets in checkpoint files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from nilometer.runtime import Disk, DiskLock, Entropy
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import clean_shutdown, meta_properties
from nilometer.storage.directories.meta_properties import MetaProperties
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import FolderKind, PartitionFolder, TopicPartition

METADATA_TOPIC = "__cluster_metadata"
"""A KRaft controller's log may share a directory with a broker's; it is no partition of ours."""

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Checkpoint files to write, by path. :meth:`run` stalls; it raises the first OSError."""

    disk: Disk
    directory: str
    files: Mapping[str, Mapping[TopicPartition, int]]

    def run(self) -> None:
        for path, offsets in self.files.items():
            checkpoints.write_offsets(self.disk, path, offsets)


class LogDirectory:
    """Invariant: while the lock is held, nobody else writes here."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._lock: DiskLock | None = None
        self.failure: Exception | None = None
        """Why the directory is offline; None while it is in use."""
        self.identity = MetaProperties()
        self.clean_broker_epoch: int | None = None
        """The broker epoch at the last orderly stop (-1: not told); None after any other end."""
        self.recovery_points: Offsets = {}
        self.high_watermarks: Offsets = {}
        self.log_start_offsets: Offsets = {}
        self.problems: list[CorruptCheckpoint] = []
        """Checkpoint files that could not be read and were taken as empty."""

    def lock(self) -> None:
        """Raises LockHeld, OSError."""
        if not self._disk.is_directory(self.path):
            self._disk.make_directories(self.path)
            self._disk.sync_directory(posixpath.dirname(self.path) or ".")
        self._lock = self._disk.lock(self._join(names.LOCK))

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def load(self, node_id: int, cluster_id: str | None, entropy: Entropy) -> None:
        """Read identity, checkpoints and the marker of an orderly stop, which is removed.

        Raises OSError, CorruptCheckpoint (the directory belongs to another node or cluster).
        """
        path = self._join(names.META_PROPERTIES)
        found = meta_properties.read(self._disk, path)
        if found is not None:
            found.check(path, node_id, cluster_id)
            self.identity = found
        else:
            directory_id = meta_properties.new_directory_id(entropy.uuid())
            self.identity = MetaProperties(node_id, cluster_id, directory_id)
            meta_properties.write(self._disk, path, self.identity)
        self.recovery_points = self._read(names.RECOVERY_POINT_CHECKPOINT)
        self.high_watermarks = self._read(names.REPLICATION_OFFSET_CHECKPOINT)
        self.log_start_offsets = self._read(names.LOG_START_OFFSET_CHECKPOINT)
        marker = self._join(names.CLEAN_SHUTDOWN)
        self.clean_broker_epoch = clean_shutdown.read_broker_epoch(self._disk, marker)
        if self.clean_broker_epoch is not None:
            self._disk.remove(marker)
            self._disk.sync_directory(self.path)

    @property
    def is_clean(self) -> bool:
        return self.clean_broker_epoch is not None

    def assign_cluster_id(self, cluster_id: str) -> None:
        """Note which cluster the data belongs to, once that is known. May stall."""
        path = self._join(names.META_PROPERTIES)
        self.identity.check(path, self.identity.node_id or 0, cluster_id)
        if self.identity.cluster_id != cluster_id:
            self.identity = MetaProperties(self.identity.node_id, cluster_id, self.identity.directory_id)
            meta_properties.write(self._disk, path, self.identity)

    def partition_folders(self) -> list[PartitionFolder]:
        """The folders that are partitions, in every state, by name."""
        found = (names.parse_folder_name(name) for name in self._disk.list_directory(self.path))
        return [
            folder
            for folder in found
            if folder is not None
            and folder.topic_partition.topic != METADATA_TOPIC
            and self._disk.is_directory(self._join(folder.name))
        ]

    def folder_of(self, topic_partition: TopicPartition) -> str:
        return self._join(str(topic_partition))

    def plan_checkpoints(
        self,
        *,
        recovery_points: Mapping[TopicPartition, int] | None = None,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        log_start_offsets: Mapping[TopicPartition, int] | None = None,
    ) -> CheckpointPlan:
        given = {
            names.RECOVERY_POINT_CHECKPOINT: recovery_points,
            names.REPLICATION_OFFSET_CHECKPOINT: high_watermarks,
            names.LOG_START_OFFSET_CHECKPOINT: log_start_offsets,
        }
        files = {self._join(name): offsets for name, offsets in given.items() if offsets is not None}
        return CheckpointPlan(self._disk, self.path, files)

    def mark_clean(self, broker_epoch: int) -> None:
        """All logs are closed. May stall."""
        clean_shutdown.write(self._disk, self._join(names.CLEAN_SHUTDOWN), broker_epoch)

    def new_delete_folder(self, topic_partition: TopicPartition, entropy: Entropy) -> str:
        return self._join(names.delete_folder_name(topic_partition, entropy.uuid().hex))

    def leftovers(self) -> list[str]:
        """Folders of partitions deleted by an earlier life, still to be removed."""
        return [
            self._join(folder.name) for folder in self.partition_folders() if folder.kind is FolderKind.DELETE
        ]

    def _read(self, name: str) -> Offsets:
        try:
            return checkpoints.read_offsets(self._disk, self._join(name))
        except CorruptCheckpoint as problem:
            self.problems.append(problem)
            return {}

    def _join(self, name: str) -> str:
        return posixpath.join(self.path, name)
