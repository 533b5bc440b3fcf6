"""One log directory: its lock, ``meta.properties``, checkpoints, and whether it was shut down cleanly.

The logs themselves are not managed here, only their offsets in checkpoint files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence

from nilometer.runtime import Disk, DiskLock, Entropy
from nilometer.storage import names
from nilometer.storage.directories import (
    clean_shutdown,
    format_versions,
    meta_properties,
    void_checkpoints,
)
from nilometer.storage.directories.checkpoint_files import CheckpointFiles, CheckpointPlan, LogWaiting
from nilometer.storage.directories.meta_properties import MetaProperties
from nilometer.storage.names import FolderKind, PartitionFolder, TopicPartition

METADATA_TOPIC = "__cluster_metadata"
"""A KRaft controller's log may be in the same directory; it is not a partition of the broker."""

Offsets = dict[TopicPartition, int]


class LogDirectory:
    """Invariant: while the lock is held, no other process writes here."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._lock: DiskLock | None = None
        self.failure: Exception | None = None
        """The error that took the directory offline; None while it is in use."""
        self.identity = MetaProperties()
        self._is_new = True
        """Whether it has no ``meta.properties``."""
        self.clean_broker_epoch: int | None = None
        """The broker epoch at the last shutdown (-1: unknown); None if that was not clean."""
        self.recovery_points: Offsets = {}
        self.high_watermarks: Offsets = {}
        self.log_start_offsets: Offsets = {}
        self.cleaned_offsets: Offsets = {}
        self.checkpoints = CheckpointFiles(disk, path)
        self.stray_folders: dict[str, None] = {}
        """The paths of the folders that were renamed to ``…-stray``."""

    def lock(self) -> None:
        """Lock the directory, creating it if it is missing. Raises LockHeld, OSError."""
        if not self._disk.is_directory(self.path):
            self._disk.make_directories(self.path)
            self._disk.sync_directory(posixpath.dirname(self.path) or ".")
        self._lock = self._disk.lock(self._join(names.LOCK))

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def check_versions(self) -> None:
        """Raise CorruptCheckpoint if a later version wrote the directory's files; nothing is changed."""
        format_versions.check_versions(self._disk, self.path)

    def check_identity(self, node_id: int, cluster_id: str | None) -> None:
        """Raise CorruptCheckpoint if the directory belongs to another node or cluster; nothing is changed.

        Raises OSError.
        """
        path = self._join(names.META_PROPERTIES)
        found = meta_properties.read(self._disk, path)
        self._is_new = found is None
        if found is not None:
            found.check(path, node_id, cluster_id)
            self.identity = found

    def load(self, node_id: int, cluster_id: str | None, entropy: Entropy) -> None:
        """Read the checkpoints and the clean shutdown marker, which is removed; write ``meta.properties`` if
        it is missing.

        Call :meth:`check_identity` before. Raises OSError.
        """
        if self._is_new:
            path = self._join(names.META_PROPERTIES)
            directory_id = meta_properties.new_directory_id(entropy.uuid())
            self.identity = MetaProperties(node_id, cluster_id, directory_id)
            meta_properties.write(self._disk, path, self.identity)
        self._remove_temporaries()
        self.stray_folders = dict.fromkeys(self.find_strays())
        self._load_checkpoints()
        marker = self._join(names.CLEAN_SHUTDOWN)
        self.clean_broker_epoch = clean_shutdown.read_broker_epoch(self._disk, marker)
        if self.clean_broker_epoch is not None:
            self._disk.remove(marker)
            self._disk.sync_directory(self.path)

    def _remove_temporaries(self) -> None:
        """Remove the temporary files of replacements that a crash interrupted."""
        for name in self._disk.list_directory(self.path):
            path = self._join(name)
            if name.endswith(names.TEMPORARY_SUFFIX) and not self._disk.is_directory(path):
                self._disk.remove(path)

    def _load_checkpoints(self) -> None:
        """Read the checkpoint files, ignoring the lines of partitions with a void marker.

        Such a line may belong to an earlier folder of the same name (:mod:`void_checkpoints`).
        """
        for folder in self.partition_folders():
            markers = void_checkpoints.find(self._disk, self._join(folder.name))
            if markers and folder.kind is FolderKind.LIVE:
                self.checkpoints.void_markers[folder.topic_partition] = markers
        self.checkpoints.load()
        self.recovery_points = self.checkpoints.trusted(names.RECOVERY_POINT_CHECKPOINT)
        self.high_watermarks = self.checkpoints.trusted(names.REPLICATION_OFFSET_CHECKPOINT)
        self.log_start_offsets = self.checkpoints.trusted(names.LOG_START_OFFSET_CHECKPOINT)
        self.cleaned_offsets = self.checkpoints.trusted(names.CLEANER_OFFSET_CHECKPOINT)

    @property
    def is_clean(self) -> bool:
        return self.clean_broker_epoch is not None

    def assign_cluster_id(self, cluster_id: str) -> None:
        """Write the cluster id to ``meta.properties``. May block.

        Raises CorruptCheckpoint if the directory belongs to another cluster, OSError.
        """
        path = self._join(names.META_PROPERTIES)
        self.identity.check(path, self.identity.node_id or 0, cluster_id)
        if self.identity.cluster_id != cluster_id:
            identity = MetaProperties(self.identity.node_id, cluster_id, self.identity.directory_id)
            meta_properties.write(self._disk, path, identity)
            self.identity = identity

    def partition_folders(self) -> list[PartitionFolder]:
        """Return the partitions' folders, including deleted, future and stray ones."""
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
        recovery_points: Mapping[TopicPartition, int],
        high_watermarks: Mapping[TopicPartition, int],
        log_start_offsets: Mapping[TopicPartition, int],
        cleaned_offsets: Mapping[TopicPartition, int],
        waiting: Sequence[LogWaiting],
    ) -> CheckpointPlan:
        content = {
            names.RECOVERY_POINT_CHECKPOINT: recovery_points,
            names.REPLICATION_OFFSET_CHECKPOINT: high_watermarks,
            names.LOG_START_OFFSET_CHECKPOINT: log_start_offsets,
            names.CLEANER_OFFSET_CHECKPOINT: cleaned_offsets,
        }
        return self.checkpoints.plan(content, waiting)

    def prepare_folder(self, topic_partition: TopicPartition, entropy: Entropy) -> str | None:
        """Return the name of the void marker that a new folder of this partition needs, or None.

        It needs one if a checkpoint file may still have a line of an earlier folder. Does not block.
        """
        if self.checkpoints.may_have_line(topic_partition):
            return void_checkpoints.file_name(entropy.uuid().hex)
        return None

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a deleted log's offsets. Its lines stay on disk until the next write of the checkpoints."""
        known = (self.recovery_points, self.high_watermarks, self.log_start_offsets, self.cleaned_offsets)
        for offsets in known:
            offsets.pop(topic_partition, None)
        self.checkpoints.void_markers.pop(topic_partition, None)

    def mark_clean(self, broker_epoch: int) -> None:
        """Write the clean shutdown marker after all logs are closed. May block. Raises OSError."""
        clean_shutdown.write(self._disk, self._join(names.CLEAN_SHUTDOWN), broker_epoch)

    def new_delete_folder(self, topic_partition: TopicPartition, entropy: Entropy) -> str:
        return self._join(names.delete_folder_name(topic_partition, entropy.uuid().hex))

    def new_stray_folder(self, topic_partition: TopicPartition, entropy: Entropy) -> str:
        folder = self._join(names.stray_folder_name(topic_partition, entropy.uuid().hex))
        self.stray_folders[folder] = None
        return folder

    def leftovers(self) -> list[str]:
        """Return the paths of folders marked as deleted (``…-delete``) that are still to be removed."""
        return [
            self._join(folder.name) for folder in self.partition_folders() if folder.kind is FolderKind.DELETE
        ]

    def find_strays(self) -> list[str]:
        """Return the paths of the stray folders on the disk. May block. Raises OSError."""
        parsed = map(names.parse_folder_name, self._disk.list_directory(self.path))
        strays = [self._join(each.name) for each in parsed if each and each.kind is FolderKind.STRAY]
        return [path for path in strays if self._disk.is_directory(path)]

    def forget_strays(self, folders: Iterable[str]) -> None:
        """Forget stray folders that were deleted."""
        for folder in folders:
            self.stray_folders.pop(folder, None)

    def _join(self, name: str) -> str:
        return posixpath.join(self.path, name)
