"""Finds and removes what an interrupted run left in an archive: files that no manifest names.

Invariants: a file that a manifest names is no orphan; an orphan has a name that ``archive`` gives, and is
older than a limit. A run that has not ended writes a file before the manifest that names it, so the limit is
to be longer than a run takes between two manifests.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from nilometer.pipeline.archive.archive_target import ArchiveTarget, explained
from nilometer.pipeline.source.log_folders.archived_partition import (
    named_files,
    partition_folders,
    read_partition,
)

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
