"""One log directory: its lock, ``meta.properties``, checkpoints, and whether it was shut down cleanly.

The logs themselves are not managed here, only their offsets in checkpoint files.
"""

from __future__ import annotations

import json
import posixpath
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nilometer.identifiers import uuid_to_text
from nilometer.runtime import Disk, DiskLock, Entropy
from nilometer.runtime.disk import sync_ancestors
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import checkpoint_files
from nilometer.storage.directories.checkpoint_files import FILES, CheckpointFiles, CheckpointPlan, LogWaiting
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import FolderKind, PartitionFolder, TopicPartition

# The marker file of a clean shutdown of a log directory (``.kafka_cleanshutdown``).
#
# The marker is written after every log was flushed and closed, and removed before the first log is
# opened again: while it exists, all files can be trusted. It contains the broker epoch, from which the
# controller knows whether a returning broker has all records that it acknowledged (KIP-966).

CLEAN_SHUTDOWN_VERSION = 0
UNKNOWN_BROKER_EPOCH = -1


def write_clean_shutdown(disk: Disk, path: str, broker_epoch: int) -> None:
    """Write and sync the marker. May block. Raises OSError."""
    content = {"version": CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
    disk.replace_file(path, json.dumps(content, separators=(",", ":")).encode())


def read_broker_epoch(disk: Disk, path: str) -> int | None:
    """Return the broker epoch in the marker; -1 if the marker has none, None if there is no marker."""
    try:
        content = disk.read_file(path)
    except FileNotFoundError:
        return None
    try:
        fields: dict[str, Any] = json.loads(content)
        return int(fields["brokerEpoch"])
    except (ValueError, TypeError, KeyError):
        return UNKNOWN_BROKER_EPOCH


# The file ``meta.properties`` of a log directory: the node and cluster that its data belongs to.
#
# Java properties, version 1: ``node.id``, ``cluster.id``, ``directory.id``, and ``quorum.node``, which Kafka
# does not know. A directory of another node or cluster is rejected.

META_PROPERTIES_VERSION = 1


class MetaProperties(msgspec.Struct, frozen=True):
    node_id: int | None = None
    cluster_id: str | None = None
    directory_id: str | None = None
    is_quorum_node: bool = False
    """Whether a node of a metadata quorum has had this directory: its id may have voted."""

    def check(self, path: str, node_id: int, cluster_id: str | None) -> None:
        """Raise CorruptCheckpoint if the directory belongs to another node or cluster."""
        if self.node_id is not None and self.node_id != node_id:
            raise CorruptCheckpoint(path, f"belongs to node {self.node_id}, this is node {node_id}")
        if cluster_id is not None and self.cluster_id is not None and self.cluster_id != cluster_id:
            raise CorruptCheckpoint(path, f"belongs to cluster {self.cluster_id}, this is {cluster_id}")


def read_meta_properties(disk: Disk, path: str) -> MetaProperties | None:
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
            values.get("quorum.node") == "true",
        )
    except ValueError:
        raise CorruptCheckpoint(path, f"has node.id {node_id!r}") from None


def write_meta_properties(disk: Disk, path: str, properties: MetaProperties) -> None:
    """Write and sync ``meta.properties``. May block. Raises OSError."""
    values = {
        "cluster.id": properties.cluster_id,
        "directory.id": properties.directory_id,
        "node.id": properties.node_id,
        "quorum.node": "true" if properties.is_quorum_node else None,
        "version": META_PROPERTIES_VERSION,
    }
    lines = [f"{name}={value}\n" for name, value in values.items() if value is not None]
    disk.replace_file(path, "".join(lines).encode())


def new_directory_id(random: uuid.UUID) -> str:
    return uuid_to_text(random)


# Whether this version can read the files of a log directory: checked before anything in it is written.
#
# A later version may write files of a later format. They are no damage: a broker that took them for that
# would recover what is in order, or forget offsets. So a broker refuses to start with them, and names the
# file. Files of single partitions are not checked: what an unknown version of them says is in the log, too.


def check_versions(disk: Disk, directory: str) -> None:
    """Raise CorruptCheckpoint if a file in ``directory`` has a later version; nothing is changed. May block.

    A file that cannot be read, or whose version is no number, is left to what reads it later.
    """
    for name, newest in (
        (names.META_PROPERTIES, META_PROPERTIES_VERSION),
        (names.CLEAN_SHUTDOWN, CLEAN_SHUTDOWN_VERSION),
        *((name, checkpoints.VERSION) for name in FILES),
    ):
        path = posixpath.join(directory, name)
        version = _version(disk, path, name)
        if version is not None and version > newest:
            raise CorruptCheckpoint(
                path,
                f"has version {version}, but this version of the broker reads versions up to {newest}. "
                "Nothing was changed: start a version that can read it",
            )


def _version(disk: Disk, path: str, name: str) -> int | None:
    try:
        text = disk.read_file(path).decode()
        if name == names.META_PROPERTIES:
            lines = (line.partition("=") for line in text.splitlines())
            return next((int(value) for key, _, value in lines if key.strip() == "version"), None)
        if name == names.CLEAN_SHUTDOWN:
            fields: dict[str, Any] = json.loads(text)
            return int(fields["version"])
        return int(text.partition("\n")[0])
    except (OSError, ValueError, TypeError, KeyError):
        return None


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
        self.moved_folders: dict[TopicPartition, str] = {}
        """The markers of folders that took the place of one in another directory, which may still exist."""
        self.stray_folders: dict[str, None] = {}
        """The paths of the folders that were renamed to ``…-stray``."""

    def lock(self) -> None:
        """Lock the directory, creating it if it is missing. Raises LockHeld, OSError."""
        if not self._disk.is_directory(self.path):
            self._disk.make_directories(self.path)
        sync_ancestors(self._disk, self.path)
        self._lock = self._disk.lock(self._join(names.LOCK))

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def check_versions(self) -> None:
        """Raise CorruptCheckpoint if a later version wrote the directory's files; nothing is changed."""
        check_versions(self._disk, self.path)

    def check_identity(self, node_id: int, cluster_id: str | None) -> None:
        """Raise CorruptCheckpoint if the directory belongs to another node or cluster; nothing is changed.

        Raises OSError.
        """
        path = self._join(names.META_PROPERTIES)
        found = read_meta_properties(self._disk, path)
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
            directory_id = new_directory_id(entropy.uuid())
            self.identity = MetaProperties(node_id, cluster_id, directory_id)
            write_meta_properties(self._disk, path, self.identity)
        self._remove_temporaries()
        self.stray_folders = dict.fromkeys(self.find_strays())
        self._load_checkpoints()
        marker = self._join(names.CLEAN_SHUTDOWN)
        self.clean_broker_epoch = read_broker_epoch(self._disk, marker)
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

        Such a line may belong to an earlier folder of the same name (see ``checkpoint_files``).
        """
        for folder in self.partition_folders():
            if folder.kind not in (FolderKind.LIVE, FolderKind.FUTURE):
                continue
            path = self._join(folder.name)
            if markers := checkpoint_files.void_markers(self._disk, path):
                self.checkpoints.void_markers[folder.topic_partition] = markers
            marker = posixpath.join(path, names.MOVED_MARKER)
            if folder.kind is FolderKind.LIVE and self._disk.exists(marker):
                self.moved_folders[folder.topic_partition] = marker
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
            identity = msgspec.structs.replace(self.identity, cluster_id=cluster_id)
            write_meta_properties(self._disk, path, identity)
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
            return checkpoint_files.void_marker_name(entropy.uuid().hex)
        return None

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a deleted log's offsets. Its lines stay on disk until the next write of the checkpoints."""
        known = (self.recovery_points, self.high_watermarks, self.log_start_offsets, self.cleaned_offsets)
        for offsets in known:
            offsets.pop(topic_partition, None)
        self.checkpoints.void_markers.pop(topic_partition, None)

    def mark_clean(self, broker_epoch: int) -> None:
        """Write the clean shutdown marker after all logs are closed. May block. Raises OSError."""
        write_clean_shutdown(self._disk, self._join(names.CLEAN_SHUTDOWN), broker_epoch)

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
