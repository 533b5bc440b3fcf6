"""Reads an archive again: every file against its manifest, every batch of every segment, and files of no
manifest.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from crc32c import crc32c

from nilometer.pipeline.archive.archive_target import ArchiveTarget, explained
from nilometer.pipeline.archive.archiver import CHUNK_BYTES, examine
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.archive_manifest import ArchivedSegment, StoredFile
from nilometer.pipeline.source.log_folders.places import (
    ArchivedPartition,
    named_files,
    open_folder,
    partition_folders,
    read_partition,
    shown_folder,
)
from nilometer.runtime import Disk
from nilometer.storage import names


@dataclass(slots=True)
class CheckedArchive:
    """The result for some partitions."""

    segments: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list[str])
    unnamed_files: int = 0
    """Files that no manifest names: an interrupted run left them, or another one writes them."""
    unnamed_bytes: int = 0


def check(
    target: ArchiveTarget,
    archived: list[ArchivedPartition],
    say: Callable[[str], None] = lambda what: None,
) -> CheckedArchive:
    """Read every file of these partitions. Raises TargetError if the storage cannot be read."""
    checked = CheckedArchive()
    for one in archived:
        with explained(target.place):
            _check_partition(target, one, checked, say)
    return checked


def _check_partition(
    target: ArchiveTarget, archived: ArchivedPartition, checked: CheckedArchive, say: Callable[[str], None]
) -> None:
    disk, folder = open_folder(archived.folder)
    for segment in archived.manifest.segments:
        say(f"{archived.part} offset {segment.base_offset:,}")
        checked.problems += _problems(disk, folder, shown_folder(archived.folder), segment)
        checked.segments += 1
        checked.bytes += segment.bytes
    manifest = archived.manifest
    files = target.files(f"{manifest.topic}/{manifest.topic_id}/{manifest.partition}")
    unnamed = [one.bytes for name, one in files.items() if name not in named_files(archived)]
    checked.unnamed_files += len(unnamed)
    checked.unnamed_bytes += sum(unnamed)


def _problems(disk: Disk, folder: str, where: str, segment: ArchivedSegment) -> Iterator[str]:
    """Yield what is wrong with a segment, at most one problem per file."""
    for suffix, stored in segment.files.items():
        path = f"{where}/{stored.name}"
        try:
            what = _difference(disk, posixpath.join(folder, stored.name), stored)
        except FileNotFoundError:
            what = "is missing"
        if what is None and suffix == names.LOG_SUFFIX:
            what = _difference_of_batches(disk, posixpath.join(folder, stored.name), segment)
        if what is not None:
            yield f"{path} {what}"


def _difference(disk: Disk, path: str, stored: StoredFile) -> str | None:
    file = disk.open(path, writable=False)
    try:
        size, checksum, position = file.size(), 0, 0
        if size != stored.bytes:
            return f"has {size} bytes, not {stored.bytes}"
        while piece := file.read_at(position, CHUNK_BYTES):
            checksum = crc32c(piece, checksum)
            position += len(piece)
    finally:
        file.close()
    return None if checksum == stored.crc32c else "is damaged: its checksum does not match the manifest"


def _difference_of_batches(disk: Disk, path: str, segment: ArchivedSegment) -> str | None:
    file = disk.open(path, writable=False)
    try:
        log = examine(file, segment.base_offset)
    except SourceError as error:
        return f"is damaged: {error}"
    finally:
        file.close()
    found = (log.end_offset, log.records, tuple(log.epochs))
    if found != (segment.end_offset, segment.records, segment.epochs):
        return "has other offsets, records or leader epochs than its manifest says"
    return None


# Finds and removes what an interrupted run left in an archive: files that no manifest names.
#
# Invariants: a file that a manifest names is no orphan; an orphan has a name that ``archive`` gives, and is
# older than a limit. A run that has not ended writes a file before the manifest that names it, so the limit
# is to be longer than a run takes between two manifests.

_WRITTEN_BY_ARCHIVE = re.compile(r"\d{20}-[0-9a-f]{8}-[0-9a-f]{8}\.[a-z]+|\..+\.tmp")


@dataclass(frozen=True, slots=True)
class Orphan:
    path: str
    """Relative to the archive."""
    bytes: int
    modified_s: float
    """The time when it was written, in seconds since 1970."""


def find_orphans(
    target: ArchiveTarget, topics: Collection[str] | None, written_before_s: float
) -> list[Orphan]:
    """Return the orphans of these topics, or of all, that were written before a time.

    Raises SourceError if the place is not a folder or a manifest is damaged, TargetError.
    """
    orphans: list[Orphan] = []
    with explained(target.place):
        for topic, topic_id, partition in partition_folders(target.place, topics):
            folder = f"{topic}/{topic_id}/{partition}"
            files = target.files(folder)  # before the manifests, which name what is added meanwhile
            archived = read_partition(target.place, topic, topic_id, partition)
            named = named_files(archived) if archived is not None else set[str]()
            orphans += [
                Orphan(f"{folder}/{name}", one.bytes, one.modified_s)
                for name, one in sorted(files.items())
                if name not in named
                and _WRITTEN_BY_ARCHIVE.fullmatch(name)
                and one.modified_s < written_before_s
            ]
    return orphans
