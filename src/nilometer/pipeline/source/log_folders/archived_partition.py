"""Archived partitions: found in a place, read from their manifests, shown as folders of segments.

Reads manifests only; the segments are read through the folder that ``view`` returns, by the code that reads
the folders of replicas.
"""

from __future__ import annotations

import errno
import io
import posixpath
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NoReturn, cast

from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders import archive_manifest
from nilometer.pipeline.source.log_folders.archive_manifest import ArchivedSegment, Manifest, StoredFile
from nilometer.pipeline.source.log_folders.places import archived_place
from nilometer.pipeline.source.log_folders.replica_folders import LogDirectoryView, ReplicaFolder
from nilometer.pipeline.source.log_folders.stored_files import join, open_place, shown
from nilometer.runtime import Disk, File
from nilometer.storage import names
from nilometer.storage.names import TopicPartition

ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """One partition in an archive. ``chain`` are the segments that are read."""

    archive: str
    """The place of the archive."""
    manifest: Manifest
    chain: tuple[ArchivedSegment, ...]
    manifest_names: tuple[str, ...] = field(default=())

    @property
    def part(self) -> TopicPartition:
        return self.manifest.part

    @property
    def topic_id(self) -> str:
        return self.manifest.topic_id

    @property
    def folder(self) -> str:
        """The place of its folder."""
        manifest = self.manifest
        return join(self.archive, manifest.topic, manifest.topic_id, str(manifest.partition))

    @property
    def start(self) -> int:
        return min((one.start_offset for one in self.chain), default=0)

    @property
    def end(self) -> int:
        return self.chain[-1].end_offset if self.chain else 0

    @property
    def gaps(self) -> list[tuple[int, int]]:
        return archive_manifest.gaps(self.chain)

    def as_replica(self) -> ReplicaFolder:
        """Return the archive as a replica, whose high watermark is the end of the archive."""
        part, manifest = self.part, self.manifest
        place = archived_place(self.archive, manifest.topic, manifest.topic_id, manifest.partition)
        directory = LogDirectoryView(self.archive, None, {part: self.end}, {part: self.start}, {}, {})
        return ReplicaFolder(part, place, directory, manifest.topic_id)


def find_archived(archive: str, topics: Collection[str] | None = None) -> list[ArchivedPartition]:
    """Return the archived partitions of these topics, or of all, sorted by topic, topic id and partition.

    Raises SourceError if the place is not a folder, or a manifest is damaged.
    """
    found = [read_partition(archive, *one) for one in partition_folders(archive, topics)]
    kept = [one for one in found if one is not None and one.chain]
    return sorted(kept, key=lambda one: (one.part.topic, one.topic_id, one.part.partition))


def partition_folders(archive: str, topics: Collection[str] | None = None) -> list[tuple[str, str, int]]:
    """Return topic, topic id and partition of each folder, also of those without a manifest.

    Raises SourceError if the place is not a folder.
    """
    try:
        disk, path = open_place(archive)
    except ValueError as error:
        raise SourceError(str(error)) from error
    if not disk.is_directory(path):
        raise SourceError(f"{shown(archive)} is not a folder: nothing was archived there")
    return [
        (topic, topic_id, int(number))
        for topic in _folders(disk, path)
        if topics is None or topic in topics
        for topic_id in _folders(disk, posixpath.join(path, topic))
        for number in _folders(disk, posixpath.join(path, topic, topic_id))
        if number.isascii() and number.isdecimal() and str(int(number)) == number
    ]


def read_partition(archive: str, topic: str, topic_id: str, partition: int) -> ArchivedPartition | None:
    """Read all manifests of a partition; None if it has none. Raises SourceError for a damaged one."""
    folder = join(archive, topic, topic_id, str(partition))
    disk, path = open_place(folder)
    for _ in range(ATTEMPTS):
        listed = [name for name in _folders(disk, path) if archive_manifest.sequence_of(name) is not None]
        if not listed:
            return None
        try:
            texts = [(name, disk.read_file(posixpath.join(path, name))) for name in listed]
        except FileNotFoundError:
            continue  # it was replaced by one that names its segments too
        manifest = Manifest(topic, topic_id, partition, ())
        for name, text in texts:
            read = archive_manifest.decode(text, shown(join(folder, name)))
            if (read.topic, read.topic_id, read.partition) != (topic, topic_id, partition):
                raise SourceError(f"{shown(join(folder, name))} belongs to {read.part} ({read.topic_id})")
            manifest = manifest.with_segments(read.segments)
        linked = tuple(archive_manifest.chain(manifest.segments))
        return ArchivedPartition(archive, manifest, linked, tuple(listed))
    raise SourceError(f"the manifest in {shown(folder)} was replaced {ATTEMPTS} times in a row: try again")


def named_files(archived: ArchivedPartition) -> set[str]:
    """Return the names of the files that belong to a partition's archive: manifests and what they name."""
    segments = archived.manifest.segments
    return {file.name for one in segments for file in one.files.values()} | set(archived.manifest_names)


def _folders(disk: Disk, path: str) -> list[str]:
    """Return the names in a folder; none if it is a file or is gone."""
    try:
        return disk.list_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


# --- as a folder


def view(archived: ArchivedPartition) -> tuple[Disk, str]:
    """Return a read-only disk on which the archived segments have the names of a log, and its folder."""
    disk, path = open_place(archived.folder)
    return cast(Disk, ArchivedFolder(disk, path, archived.chain)), path


class ArchivedFolder:
    """A ``Disk`` with one folder, whose files have the names that a broker gives them."""

    def __init__(self, disk: Disk, path: str, linked: Collection[ArchivedSegment]) -> None:
        self._disk = disk
        self._path = path
        self._files: dict[str, StoredFile] = {}
        for one in linked:
            for suffix, file in one.files.items():
                offset = one.end_offset if suffix == names.SNAPSHOT_SUFFIX else one.base_offset
                self._files[names.offset_name(offset, suffix)] = file

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if create or writable:
            raise io.UnsupportedOperation("an archive is read-only here")
        stored = self._stored(path)
        try:
            return self._disk.open(stored, writable=False)
        except FileNotFoundError:
            raise self._missing(stored) from None

    def exists(self, path: str) -> bool:
        return posixpath.basename(path) in self._files

    def is_directory(self, path: str) -> bool:
        return path == self._path

    def file_size(self, path: str) -> int:
        return self._file(path).bytes

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._files)

    def read_file(self, path: str) -> bytes:
        stored = self._stored(path)
        try:
            return self._disk.read_file(stored)
        except FileNotFoundError:
            raise self._missing(stored) from None

    def __getattr__(self, name: str) -> NoReturn:
        raise io.UnsupportedOperation(f"{name}: an archive is read-only here")

    def _missing(self, stored: str) -> SourceError:
        """Readers go on without an index that a folder does not have; one that was archived must be there."""
        return SourceError(
            f"{stored} is missing in the archive: `nilometer archive --verify` copies it again if the log "
            "still has it, and shows what else is missing"
        )

    def _stored(self, path: str) -> str:
        return posixpath.join(self._path, self._file(path).name)

    def _file(self, path: str) -> StoredFile:
        found = self._files.get(posixpath.basename(path))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file in the archive", path)
        return found
