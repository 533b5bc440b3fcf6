"""Where partitions' files are: folders of replicas, on this machine or in a storage of Arrow's, and archives
or the remote storage of tiered topics.

A place is a folder of files, or a partition in remote storage, and is read alike; both are found in places.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from nilometer.identifiers import uuid_to_text
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.storages import (
    each,
    join,
    open_folder,
    parent,
    shown_folder,
    trimmed,
)
from nilometer.pipeline.source.log_folders.tiers import (
    TieredPartition,
    UnreadableManifests,
    is_tiered,
    open_tiered,
    read_tiered,
    shown_tiered,
    tiered_place,
)
from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_directory import METADATA_TOPIC
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import FolderKind, TopicPartition
from nilometer.tier.format import RemoteSegment


def open_place(place: str, segments: Sequence[RemoteSegment] = ()) -> tuple[Disk, str]:
    """Return the disk of a place and the place's path on it.

    Of a place in remote storage these ``segments`` are read; without any, those of its last manifest. Raises
    ValueError for an unknown URI.
    """
    return open_tiered(place, segments) if is_tiered(place) else open_folder(place)


def shown(place: str) -> str:
    """Return a place for messages: without credentials, and without the options of its storage."""
    return shown_tiered(place) if is_tiered(place) else shown_folder(place)


# Finds the replicas in some folders, and reads their checkpoints.
#
# A *place* is a log directory (a broker's, with its checkpoints), a single partition's folder (whose
# checkpoints are in its parent folder), or a folder that contains several of these, such as a data folder of
# brokers. Folders of deleted, future or stray replicas do not count as replicas.
#
# Invariant: checkpoints are read before any log, so that a log contains at least the offsets in them.

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
    cluster_id: str | None = None

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
    segments_in_tier: tuple[RemoteSegment, ...] = ()
    """Of a place in remote storage: what its manifest names."""
    tier: str | None = None
    """Of a folder: the place in remote storage, where the records are that its broker deletes."""
    is_in_tier: bool = False
    """Whether that place has something, and says where the log begins."""

    def open(self) -> tuple[Disk, str]:
        """Return its disk, and its path on it."""
        return open_place(self.place, self.segments_in_tier)

    @property
    def high_watermark(self) -> int | None:
        """The checkpointed high watermark; 0 for a replica without an entry; None without a checkpoint."""
        known = self.directory.high_watermarks
        return None if known is None else known.get(self.part, 0)

    @property
    def cleaned_up_to(self) -> int:
        return self.directory.cleaned.get(self.part, 0)

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction may have rewritten batches, in each replica others."""
        disk, folder = self.open()
        return self.cleaned_up_to > 0 or disk.exists(posixpath.join(folder, names.GAPS_MARKER))

    @property
    def begins_in_tier(self) -> bool:
        """Whether its first records may be in remote storage only."""
        disk, folder = open_place(self.place)
        return disk.exists(posixpath.join(folder, names.TIER_MARKER))

    def segments(self) -> list[int]:
        """Return the base offsets of the present segments. Raises FileNotFoundError."""
        return segment_bases(*self.open())

    def log_start(self, bases: list[int]) -> int:
        """Return the log start offset, which may be inside the first segment after DeleteRecords.

        ``bases`` are the segments' base offsets.
        """
        return max(self.checkpointed_start, bases[0] if bases else 0)

    def only_in_tier(self, bases: list[int]) -> tuple[int, int] | None:
        """Return the offsets [start, end) that cannot be read because they are in remote storage only; None
        if there are none.

        The log start offset may not be checkpointed yet: the leader epochs show where it is, too.
        Raises SourceError for a damaged checkpoint.
        """
        is_whole = not bases or self.checkpointed_start >= bases[0]
        if is_whole or self.is_in_tier or not self.begins_in_tier:
            return None
        disk, folder = open_place(self.place)
        try:
            epochs = checkpoints.read_epochs(disk, posixpath.join(folder, names.LEADER_EPOCH_CHECKPOINT))
        except CorruptCheckpoint as error:
            raise SourceError(str(error)) from error
        start = max([self.checkpointed_start, *(offset for _, offset in epochs[:1])])
        return (start, bases[0]) if start < bases[0] else None

    @property
    def checkpointed_start(self) -> int:
        return self.directory.log_start_offsets.get(self.part, 0)


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
                f"{shown_folder(place)} is neither a partition's folder nor a log directory, "
                "and contains neither"
            )
        found.update((one.place, one) for one in replicas)
    return sorted(found.values(), key=lambda one: (one.part, one.place))


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
        raise SourceError(f"{shown_folder(place)} is not a folder")
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
        identity.cluster_id if identity else None,
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
    return uuid_to_text(found) if found is not None else None


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic by its ids. A cluster that was made with the metadata of another one has its topic ids."""

    topic_id: str
    cluster_id: str | None = None
    """None if it is unknown: an archive does not say it."""

    def may_be(self, other: StoredTopic) -> bool:
        is_open = self.cluster_id is None or other.cluster_id is None
        return self.topic_id == other.topic_id and (is_open or self.cluster_id == other.cluster_id)

    def __str__(self) -> str:
        return self.topic_id if self.cluster_id is None else f"{self.cluster_id}/{self.topic_id}"


_Folder = tuple[str, str, int]
"""Of a partition: the cluster id or the topic, the topic id and the number."""


def find_stored(
    store: str, topics: Collection[str] | None = None, known: Mapping[str, StoredTopic] | None = None
) -> list[TieredPartition]:
    """Return the partitions of these topics, or of all, in an archive or in remote storage; sorted by topic,
    topic id and partition. ``known`` are those of these topics whose ids are known.

    Only manifests tell which topic is in a folder. Raises SourceError if the place is not a folder, or a
    manifest of these topics is damaged.
    """

    def read(folder: _Folder) -> TieredPartition | UnreadableManifests | None:
        try:
            return read_tiered(store, *folder, topics)
        except UnreadableManifests as error:
            return error

    def is_wanted(one: TieredPartition) -> bool:
        return topics is None or one.part.topic in topics

    by_topic = [list(group) for _, group in groupby(_partition_folders(store), key=lambda one: one[:2])]
    firsts = [folders[0] for folders in by_topic]
    first = each(read, firsts)
    others = [
        folder
        for folders, one in zip(by_topic, first, strict=True)
        for folder in folders[1:]
        if one is None or isinstance(one, UnreadableManifests) or is_wanted(one)
    ]
    wanted: list[tuple[_Folder, TieredPartition]] = []
    unreadable: list[tuple[_Folder, UnreadableManifests]] = []
    for folder, one in zip((*firsts, *others), (*first, *each(read, others)), strict=True):
        if isinstance(one, UnreadableManifests):
            unreadable.append((folder, one))
        elif one is not None and is_wanted(one):
            wanted.append((folder, one))
    _require_readable(unreadable, wanted, topics, known or {})
    found = [one for _, one in wanted if one.chain]
    return sorted(found, key=lambda one: (one.part.topic, one.topic_id, one.part.partition))


def _require_readable(
    unreadable: Sequence[tuple[_Folder, UnreadableManifests]],
    wanted: Sequence[tuple[_Folder, TieredPartition]],
    topics: Collection[str] | None,
    known: Mapping[str, StoredTopic],
) -> None:
    """Raise SourceError if something that cannot be read may be of a wanted topic.

    Only a manifest has the name of the topic. Those of a topic that is being deleted are gone before its
    folder is.
    """
    read = {folder[:2] for folder, _ in wanted}
    missing = sorted(set(topics or ()) - known.keys() - {one.part.topic for _, one in wanted})
    for folder, error in unreadable:
        topic = StoredTopic(folder[1], folder[0])
        is_known = folder[:2] in read or any(one.may_be(topic) for one in known.values())
        if is_known or folder[0] in (topics or ()) or (topics is None and not error.are_gone):
            raise error
        if missing:
            raise SourceError(f"no folder that can be read is of topic {missing[0]}; {error}") from error


def in_tier(found: TieredPartition) -> ReplicaFolder:
    """Return what remote storage has as a replica, whose high watermark is its end."""
    part = found.part
    directory = LogDirectoryView(found.store, None, {part: found.end}, {part: found.start}, {}, {})
    return ReplicaFolder(part, found.place, directory, found.topic_id, found.chain)


def place_in_tier(store: str, replica: ReplicaFolder) -> str | None:
    """Return where the records of a folder get if ``store`` is their remote storage; None if its topic id or
    its cluster is unknown."""
    cluster_id, topic_id = replica.directory.cluster_id, replica.topic_id
    return tiered_place(store, cluster_id, topic_id, replica.part) if cluster_id and topic_id else None


def _partition_folders(store: str) -> list[_Folder]:
    """Return the folder of each partition, also of those without a manifest.

    Raises SourceError if the place is not a folder.
    """
    try:
        disk, path = open_folder(store)
    except ValueError as error:
        raise SourceError(str(error)) from error
    if not disk.is_directory(path):
        raise SourceError(f"{shown_folder(store)} is not a folder: nothing was archived there")
    found = [(top, topic_id) for top in _folders(disk, path) for topic_id in _folders(disk, f"{path}/{top}")]
    listed = each(lambda one: _folders(disk, posixpath.join(path, *one)), found)
    return [
        (top, topic_id, int(number))
        for (top, topic_id), numbers in zip(found, listed, strict=True)
        for number in numbers
        if number.isascii() and number.isdecimal() and str(int(number)) == number
    ]


def _folders(disk: Disk, path: str) -> list[str]:
    """Return the names in a folder; none if it is a file or is gone."""
    try:
        return disk.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
