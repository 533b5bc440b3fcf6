"""Archives and the remote storage of tiered topics: opened, listed, checked, and what runs left in them.

Folders of this machine and buckets of S3 are opened as brokers open their remote storage. Other places that
Arrow supports are only read: an archive of format 1 may be there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.storages import is_uri, open_folder, shown_folder
from nilometer.pipeline.source.log_folders.tiers import ReadableObjects
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import Listed, ListedStore, ObjectStore, ObjectStoreError, folder_of
from nilometer.runtime.runtime import open_object_store
from nilometer.tier.catalogue import StoredPartition, find_partitions
from nilometer.tier.format import DamagedObject, Manifest, manifest_number
from nilometer.tier.transfer import check_partition

T = TypeVar("T")

_WRITTEN_BY_RUNS = re.compile(r"[0-9]{20}-[0-9a-f-]+\.[a-z]+|.+\.unfinished|\..+\.tmp")
_NEVER_MS = 1 << 62


def open_stored(place: str, *, creates: bool = False) -> ListedStore:
    """Open an archive or remote storage: a path or a URI. ``creates``: its folder, but not those above it.

    Raises SourceError.
    """
    uri = place if is_uri(place) else Path(place).absolute().as_uri()
    runtime = Runtime.system()
    if not uri.startswith(("file:", "s3:")) and not creates:
        try:
            return cast(ListedStore, ReadableObjects(*open_folder(uri)))
        except ValueError as error:
            raise SourceError(str(error)) from error
    try:
        folder = folder_of(uri)
        if creates and folder is not None:
            above = posixpath.dirname(folder)
            if not runtime.disk.is_directory(above):
                raise SourceError(f"{shown_folder(place)}: the folder {above} does not exist")
            runtime.disk.make_directories(folder)
        return open_object_store(uri, runtime.entropy.uuid().hex)
    except (ValueError, OSError) as error:
        raise SourceError(f"{shown_folder(place)}: {error}") from error


async def explained(work: Coroutine[Any, Any, T]) -> T:
    """Raises SourceError for what the store, or an object in it, refuses."""
    try:
        return await work
    except (ObjectStoreError, DamagedObject) as error:
        raise SourceError(str(error)) from error


class Orphan(NamedTuple):
    """An object that a run has left, and no reader needs."""

    name: str
    listed: Listed


async def find_orphans(
    store: ListedStore, folder: str, manifest: Manifest | None, before_ms: int
) -> list[Orphan]:
    """Return the objects in a partition's folder that ``manifest`` does not name, written before a time; and
    those that it has dropped before.

    A run that has not ended writes an object before the manifest that names it: so the time that has passed
    is to be longer than a run takes between two manifests. Raises ObjectStoreError.
    """
    listed = await store.listed(folder)
    segments, dropped = ((), ()) if manifest is None else (manifest.segments, manifest.dropped)
    kept = {name for one in segments for name in one.object_names}
    since = {one.name: one.since_ms for one in dropped}
    found = {path.removeprefix(folder): one for path, one in listed.items()}
    return [
        Orphan(folder + name, one)
        for name, one in found.items()
        if name not in kept
        and _WRITTEN_BY_RUNS.fullmatch(name)
        and max(one.written_ms, since.get(name, 0)) < before_ms
    ]


async def find_left(store: ListedStore, topics: Sequence[str], before_ms: int) -> list[Orphan]:
    """Return the orphans in an archive, of these topics or of all. Raises SourceError, ObjectStoreError."""
    found = await find_partitions(store)
    for one in found:
        if one.problem or (one.manifest is not None and not one.is_archive):
            reason = one.problem or "it is written by brokers, which remove what is left there"
            raise SourceError(f"{one.folder}: {reason}")
    wanted = [one for one in found if not topics or one.topic in topics]
    return [
        orphan for one in wanted for orphan in await find_orphans(store, one.folder, one.manifest, before_ms)
    ]


@dataclass(slots=True)
class Checked:
    """The result for some partitions."""

    segments: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list[str])
    unnamed: int = 0
    """Objects in archives that no manifest names: a run left them, or has not ended."""
    unnamed_bytes: int = 0


async def find_stored(store: ObjectStore, topics: Sequence[str]) -> list[StoredPartition]:
    """Return what a store has of these topics, or of all. Raises SourceError if it has nothing of a topic, or
    is only a part of a store; ObjectStoreError."""
    found = await find_partitions(store, topics)
    if not found:
        for name in await store.names(""):
            folder, _, own = name.rpartition("/")
            if manifest_number(own) is not None and folder.count("/") != 2:
                raise SourceError(
                    f"the store has a manifest in the folder {folder!r}, and that is no CLUSTER/TOPIC "
                    "ID/PARTITION: name the folder that has those of the clusters"
                )
    if missing := sorted(set(topics) - {one.topic for one in found}):
        absent = f"the store has nothing of topic {', '.join(missing)}: without --topic all are listed"
        raise SourceError("\n".join((absent, *unreadable(found))))
    return found


def unreadable(partitions: Sequence[StoredPartition]) -> list[str]:
    """Return which of these partitions cannot be read, and why."""
    return [f"{one.folder}: {one.problem}" for one in partitions if one.problem]


async def check(
    store: ListedStore, partitions: Sequence[StoredPartition], say: Callable[[str], None] = lambda what: None
) -> Checked:
    """Read every object of these partitions. Raises ObjectStoreError."""
    checked = Checked(problems=unreadable(partitions))
    for one in partitions:
        checked.problems += await check_partition(store, one, say)
        if one.manifest is not None:
            checked.segments += len(one.manifest.segments)
            checked.bytes += sum(segment.log_bytes + segment.index_bytes for segment in one.manifest.segments)
        if one.is_archive:
            left = await find_orphans(store, one.folder, one.manifest, _NEVER_MS)
            checked.unnamed += len(left)
            checked.unnamed_bytes += sum(orphan.listed.bytes for orphan in left)
    return checked
