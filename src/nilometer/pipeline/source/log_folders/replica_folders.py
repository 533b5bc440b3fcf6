"""Finds the replicas in some folders, and reads their checkpoints.

A *place* is a log directory (a broker's, with its checkpoints), a single partition's folder (whose
checkpoints are in its parent folder), or a folder that contains several of these, such as a data folder of
brokers. Folders of deleted, future or stray replicas do not count as replicas.

Invariant: checkpoints are read before any log, so that a log contains at least the offsets in them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.places import open_place
from nilometer.pipeline.source.log_folders.stored_files import join, parent, shown, trimmed
from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_directory import METADATA_TOPIC
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import FolderKind, TopicPartition

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
"""The log cleaner's checkpoint of the offset up to which each partition was compacted, as in Kafka."""
DEPTH_MAX = 2
"""How many levels below a place log directories are searched: ``data/broker-1/logs``."""


@dataclass(frozen=True, slots=True)
class LogDirectoryView:
    """One log directory and the contents of its checkpoints.

    ``node_id`` and ``high_watermarks`` are None if the directory has no such file.
    """

    place: str
    node_id: int | None
    high_watermarks: dict[TopicPartition, int] | None
    log_start_offsets: dict[TopicPartition, int]
    recovery_points: dict[TopicPartition, int]
    cleaned: dict[TopicPartition, int]
    errors: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"broker {self.node_id}" if self.node_id is not None else self.place


@dataclass(frozen=True, slots=True)
class ReplicaFolder:
    """One replica of a partition: its folder, and the checkpoints of its log directory."""

    part: TopicPartition
    place: str
    directory: LogDirectoryView
    topic_id: str | None

    @property
    def high_watermark(self) -> int | None:
        """The checkpointed high watermark; 0 for a replica without an entry; None without a checkpoint."""
        known = self.directory.high_watermarks
        return None if known is None else known.get(self.part, 0)

    @property
    def cleaned_up_to(self) -> int:
        return self.directory.cleaned.get(self.part, 0)

    def segments(self) -> list[int]:
        """Return the base offsets of the present segments. Raises FileNotFoundError."""
        disk, folder = open_place(self.place)
        return segment_bases(disk, folder)

    def log_start(self, bases: list[int]) -> int:
        """Return the log start offset, which may be inside the first segment after DeleteRecords.

        ``bases`` are the segments' base offsets.
        """
        return max(self.directory.log_start_offsets.get(self.part, 0), bases[0] if bases else 0)


def segment_bases(disk: Disk, folder: str) -> list[int]:
    """Return the base offsets of the segments in a partition's folder. Raises FileNotFoundError."""
    return bases_among(disk.list_directory(folder))


def bases_among(listing: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments among file names, sorted."""
    parsed = (names.parse_offset_name(name) for name in listing)
    return sorted(found[0] for found in parsed if found and found[1] == names.LOG_SUFFIX)


def find_replicas(places: Iterable[str]) -> list[ReplicaFolder]:
    """Return all replicas in ``places``, sorted by partition and folder.

    Raises SourceError for a place that contains no log.
    """
    found: dict[str, ReplicaFolder] = {}
    for place in places:
        replicas = _replicas_of(trimmed(place))
        if replicas is None:
            raise SourceError(
                f"{shown(place)} is neither a partition's folder nor a log directory, and contains neither"
            )
        found.update((one.place, one) for one in replicas)
    return sorted(found.values(), key=lambda one: (one.part, one.place))


def find_directories(places: Iterable[str]) -> list[str]:
    """Return the log directories at or below ``places``."""
    found: list[str] = []
    for place in places:
        disk, path = _open(place)
        found += [join(place, *below) for below in _directories_below(disk, path, (), 0)]
    return found


def _replicas_of(place: str) -> list[ReplicaFolder] | None:
    disk, path = _open(place)
    parsed = names.parse_folder_name(posixpath.basename(path))
    if parsed is not None and _is_replica(disk, posixpath.dirname(path), posixpath.basename(path)):
        directory = view_directory(parent(place))
        return [ReplicaFolder(parsed.topic_partition, place, directory, _topic_id(disk, path))]
    below = _directories_below(disk, path, (), 0)
    found = [one for folders in below for one in replicas_in(view_directory(join(place, *folders)))]
    return found if below else None


def _open(place: str) -> tuple[Disk, str]:
    try:
        disk, path = open_place(place)
    except ValueError as error:
        raise SourceError(str(error)) from error
    if not disk.is_directory(path):
        raise SourceError(f"{shown(place)} is not a folder")
    return disk, path


def _directories_below(disk: Disk, path: str, below: tuple[str, ...], depth: int) -> list[tuple[str, ...]]:
    """Return ``below`` if ``path`` is a log directory, else the log directories under it.

    ``below`` are the names of the folders from the place. Returns nothing for a deleted folder.
    """
    try:
        listing = disk.list_directory(path)
    except FileNotFoundError:
        return []
    if names.META_PROPERTIES in listing or names.REPLICATION_OFFSET_CHECKPOINT in listing:
        return [below]
    if any(_is_replica(disk, path, name) for name in listing):
        return [below]
    if depth == DEPTH_MAX:
        return []
    folders = [name for name in listing if disk.is_directory(posixpath.join(path, name))]
    return [
        found
        for name in folders
        for found in _directories_below(disk, posixpath.join(path, name), (*below, name), depth + 1)
    ]


def _is_replica(disk: Disk, path: str, name: str) -> bool:
    parsed = names.parse_folder_name(name)
    folder = posixpath.join(path, name)
    if parsed is None or parsed.kind is not FolderKind.LIVE or not disk.is_directory(folder):
        return False
    try:
        return bool(segment_bases(disk, folder))
    except FileNotFoundError:
        return False  # deleted meanwhile


def view_directory(place: str) -> LogDirectoryView:
    """Read the checkpoints of a log directory; an unreadable one is empty and listed in ``errors``."""
    disk, path = open_place(place)
    errors: list[str] = []

    def read(name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(disk, posixpath.join(path, name))
        except CorruptCheckpoint as error:
            errors.append(str(error))
            return {}

    has_watermarks = disk.exists(posixpath.join(path, names.REPLICATION_OFFSET_CHECKPOINT))
    watermarks = read(names.REPLICATION_OFFSET_CHECKPOINT)
    try:
        identity = log_directory.read_meta_properties(disk, posixpath.join(path, names.META_PROPERTIES))
    except CorruptCheckpoint as error:
        errors.append(str(error))
        identity = None
    return LogDirectoryView(
        place,
        identity.node_id if identity else None,
        watermarks if has_watermarks else None,
        read(names.LOG_START_OFFSET_CHECKPOINT),
        read(names.RECOVERY_POINT_CHECKPOINT),
        read(CLEANER_CHECKPOINT),
        tuple(errors),
    )


def replicas_in(directory: LogDirectoryView) -> list[ReplicaFolder]:
    disk, path = open_place(directory.place)
    found: list[ReplicaFolder] = []
    try:
        listing = disk.list_directory(path)
    except FileNotFoundError:
        return []
    for name in listing:
        parsed = names.parse_folder_name(name)
        if parsed is None or parsed.kind is not FolderKind.LIVE:
            continue
        folder = posixpath.join(path, name)
        if parsed.topic_partition.topic != METADATA_TOPIC and disk.is_directory(folder):
            topic_id = _topic_id(disk, folder)
            found.append(
                ReplicaFolder(parsed.topic_partition, join(directory.place, name), directory, topic_id)
            )
    return found


def _topic_id(disk: Disk, folder: str) -> str | None:
    try:
        found = checkpoints.read_partition_metadata(disk, posixpath.join(folder, names.PARTITION_METADATA))
    except CorruptCheckpoint:
        return None
    return checkpoints.uuid_to_text(found) if found is not None else None
