"""Partitions in archives and in the remote storage of tiered topics, which have one format: found through
their manifests, read as folders of segments. Both are called remote storage here.

A partition in remote storage has a place of its own,
``tier:<topic>/<cluster id>/<topic id>/<partition>@<remote storage>``. Opened, it looks like the folder of a
replica. Remote storage is read through Arrow, as every place with a URI is: so executors need no other
package than for folders.

Only manifests say what there is; an object is opened when it is read. A segment's indexes are one object,
which is read when one of them is asked for.
"""

from __future__ import annotations

import errno
import io
import posixpath
from collections.abc import Collection, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn, cast
from urllib.parse import quote, unquote

from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.storages import join, open_folder, shown_folder
from nilometer.runtime import Disk, File
from nilometer.runtime.object_store import Listed, ObjectNotFound, ObjectStore, ObjectStoreError
from nilometer.steps import without_waiting
from nilometer.storage import names
from nilometer.storage.names import TopicPartition
from nilometer.tier.chain import Chain, ManifestsGone
from nilometer.tier.earlier_archives import read_earlier
from nilometer.tier.format import (
    DamagedObject,
    IndexSections,
    Manifest,
    RemoteSegment,
    TopicFacts,
    partition_folder,
)

_PREFIX = "tier:"
UNKNOWN_CLUSTER = "unknown"
"""The folder in an archive for what was copied from a log directory that does not tell its cluster's id."""


def is_tiered(place: str) -> bool:
    return place.startswith(_PREFIX)


def tiered_place(store: str, cluster_id: str, topic_id: str, part: TopicPartition) -> str:
    ids = "/".join(quote(one, "") for one in (part.topic, cluster_id, topic_id))
    return f"{_PREFIX}{ids}/{part.partition}@{store}"


def _parsed(place: str) -> tuple[str, str, str, str, int]:
    """Return the remote storage of a place, the topic, the cluster id, the topic id and the partition."""
    partition_path, _, store = place.removeprefix(_PREFIX).partition("@")
    topic, cluster_id, topic_id, partition = (unquote(one) for one in partition_path.split("/"))
    return store, topic, cluster_id, topic_id, int(partition)


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """What remote storage has of a partition. ``chain`` are the segments that are read."""

    store: str
    """The place of the remote storage."""
    folder: str
    """The folder of its cluster there; of its topic, in an archive of format 1."""
    facts: TopicFacts
    log_start: int
    """The first offset of the whole log, as of the manifest."""
    chain: tuple[RemoteSegment, ...]
    is_archive: bool
    """Whether it is an archive, in which records stay that were deleted from the log."""

    @property
    def part(self) -> TopicPartition:
        return TopicPartition(self.facts.topic, self.facts.partition)

    @property
    def topic_id(self) -> str:
        return self.facts.topic_id

    @property
    def cluster_id(self) -> str | None:
        """None if an archive does not tell it."""
        return None if self.facts.cluster_id in ("", UNKNOWN_CLUSTER) else self.facts.cluster_id

    @property
    def place(self) -> str:
        return tiered_place(self.store, self.folder, self.topic_id, self.part)

    @property
    def start(self) -> int:
        return max(self.log_start, self.chain[0].base_offset) if self.chain else self.log_start

    @property
    def end(self) -> int:
        return self.chain[-1].end_offset if self.chain else self.log_start


class UnreadableManifests(SourceError):
    """Of one partition in remote storage a manifest is damaged, or all of them are gone."""

    are_gone = False


def read_tiered(
    store: str, folder: str, topic_id: str, partition: int, topics: Collection[str] | None = None
) -> TieredPartition | None:
    """Read a partition's chain of manifests to its end; None if it has none, or its topic was deleted.

    An archive of format 1 is read, too, if its topic is one of ``topics``. What a deposed leader wrote does
    not count. Raises UnreadableManifests, SourceError.
    """
    manifest = _last_manifest(store, folder, topic_id, partition, topics)
    if manifest is None or manifest.is_deleted:
        return None
    facts, start = manifest.topic, manifest.log_start_offset
    if (facts.cluster_id or facts.topic, facts.topic_id, facts.partition) != (folder, topic_id, partition):
        raise UnreadableManifests(
            f"{_shown(store, folder, topic_id, partition)} has a manifest of {facts.topic}-"
            f"{facts.partition} ({facts.topic_id}), and not of the partition whose folder this is"
        )
    kept = tuple(one for one in manifest.segments if one.end_offset > start)
    return TieredPartition(store, folder, facts, start, kept, manifest.is_archive)


def _last_manifest(
    store: str, folder: str, topic_id: str, partition: int, topics: Collection[str] | None
) -> Manifest | None:
    try:
        disk, path = open_folder(store)
    except ValueError as error:
        raise SourceError(str(error)) from error
    objects = cast(ObjectStore, ReadableObjects(disk, path))
    chain = Chain(objects, partition_folder(folder, topic_id, partition), "")
    try:
        manifest = without_waiting(chain.read())
        if manifest is not None or (topics is not None and folder not in topics):
            return manifest
        return without_waiting(read_earlier(objects, folder, topic_id, partition))
    except DamagedObject as error:
        unreadable = UnreadableManifests(f"{_shown(store, folder, topic_id, partition)}: {error}")
        unreadable.are_gone = isinstance(error, ManifestsGone)
        raise unreadable from error
    except ObjectStoreError as error:
        raise SourceError(f"{shown_folder(store)}: {error}") from error


class ReadableObjects:
    """What a reader of chains needs of an ``ObjectStore``, over the files below a folder. It blocks."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = posixpath.join(self._root, name)
        with _explained(name):
            try:
                if length is None:
                    return self._disk.read_file(path)[start:]
                with closing(self._disk.open(path, writable=False)) as file:
                    return file.read_at(start, length)
            except FileNotFoundError:
                raise ObjectNotFound(name) from None

    async def names(self, prefix: str) -> list[str]:
        folder, _, beginning = prefix.rpartition("/")
        with _explained(prefix or self._root):
            try:
                listed = self._disk.list_directory(posixpath.join(self._root, folder))
            except (FileNotFoundError, NotADirectoryError):
                if not self._disk.is_directory(self._root):
                    raise ObjectStoreError(f"{self._root}: no such folder") from None
                return []
        return [posixpath.join(folder, name) for name in listed if name.startswith(beginning)]

    async def remove(self, name: str) -> None:
        raise ObjectStoreError(f"{name} is in a storage that is only read here: remove it there")

    async def listed(self, prefix: str) -> dict[str, Listed]:
        found = dict[str, Listed]()
        for name in await self.names(prefix):
            path = posixpath.join(self._root, name)
            with _explained(name), suppress(FileNotFoundError):  # others have removed it meanwhile
                found[name] = Listed(self._disk.file_size(path), self._disk.modified_ms(path))
        return found

    async def folders(self, folder: str) -> list[str]:
        names = await self.names(folder)
        with _explained(folder or self._root):
            return [f"{name}/" for name in names if self._disk.is_directory(posixpath.join(self._root, name))]

    def __getattr__(self, name: str) -> NoReturn:
        raise io.UnsupportedOperation(f"{name}: remote storage is only read here")


@contextmanager
def _explained(name: str) -> Generator[None]:
    """Raise ObjectStoreError for what the storage refuses."""
    try:
        yield
    except OSError as error:
        raise ObjectStoreError(f"{name}: {error.strerror or error}") from error


# --- as a folder


def open_tiered(place: str, segments: Sequence[RemoteSegment] = ()) -> tuple[Disk, str]:
    """Return a read-only disk on which these segments have the names of a log, and its folder.

    Without ``segments`` they are those of the last manifest; none if the topic was deleted. Raises
    SourceError.
    """
    store, _, cluster_id, topic_id, partition = _parsed(place)
    if not segments:
        found = read_tiered(store, cluster_id, topic_id, partition)
        segments = () if found is None else found.chain
    disk, path = open_folder(join(store, cluster_id, topic_id, str(partition)))
    return cast(Disk, TieredFolder(disk, path, segments)), path


def shown_tiered(place: str) -> str:
    """Return a place for messages: without credentials, and without the options of its storage."""
    store, topic, cluster_id, topic_id, partition = _parsed(place)
    return f"{topic}-{partition} in remote storage, {_shown(store, cluster_id, topic_id, partition)}"


def _shown(store: str, cluster_id: str, topic_id: str, partition: int) -> str:
    return shown_folder(join(store, cluster_id, topic_id, str(partition)))


_SECTIONS = {
    names.INDEX_SUFFIX: "offsets",
    names.TIME_INDEX_SUFFIX: "times",
    names.TXN_INDEX_SUFFIX: "aborted",
    names.SNAPSHOT_SUFFIX: "producers",
}


class TieredFolder:
    """A ``Disk`` with one folder, whose files have the names that a broker gives them."""

    def __init__(self, disk: Disk, path: str, segments: Sequence[RemoteSegment]) -> None:
        self._disk = disk
        self._path = path
        self._by_base = {one.base_offset: one for one in segments}
        self._by_end = {one.end_offset: one for one in segments}
        self._sections: tuple[str, IndexSections] | None = None
        """Those that were read last, by the name of their object."""

    @property
    def ends(self) -> dict[int, int]:
        """The end of each segment by its base offset. A compacted one may have no record below its end."""
        return {base: one.end_offset for base, one in self._by_base.items()}

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if create or writable:
            raise io.UnsupportedOperation("remote storage is only read here")
        segment, _ = self._found(path)
        stored = posixpath.join(self._path, segment.log_name)
        file = self._disk.open(stored, writable=False)
        if (size := file.size()) != segment.log_bytes:
            file.close()
            raise SourceError(f"{stored} has {size} bytes, and its manifest says {segment.log_bytes}")
        return file

    def exists(self, path: str) -> bool:
        try:
            self._found(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        return path == self._path

    def file_size(self, path: str) -> int:
        return self._found(path)[0].log_bytes

    def list_directory(self, path: str) -> list[str]:
        logs = [names.offset_name(base, names.LOG_SUFFIX) for base in self._by_base]
        return logs + [names.offset_name(end, names.SNAPSHOT_SUFFIX) for end in self._by_end]

    def read_file(self, path: str) -> bytes:
        segment, suffix = self._found(path)
        return getattr(self._sections_of(segment), _SECTIONS[suffix])

    def __getattr__(self, name: str) -> NoReturn:
        raise io.UnsupportedOperation(f"{name}: remote storage is only read here")

    def _sections_of(self, segment: RemoteSegment) -> IndexSections:
        name = segment.index_name
        if self._sections is None or self._sections[0] != name:
            objects, path = list[bytes](), ""
            try:
                for path in (posixpath.join(self._path, one) for one in segment.index_names):
                    objects.append(self._disk.read_file(path))
                self._sections = name, segment.sections(objects, f"{self._path}/")
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, "no such object in remote storage", path) from None
            except DamagedObject as error:
                raise SourceError(str(error)) from error
        return self._sections[1]

    def _found(self, path: str) -> tuple[RemoteSegment, str]:
        parsed = names.parse_offset_name(posixpath.basename(path))
        if parsed is not None:
            offset, suffix = parsed
            segment = (self._by_end if suffix == names.SNAPSHOT_SUFFIX else self._by_base).get(offset)
            if segment is not None and (suffix != names.TXN_INDEX_SUFFIX or segment.has_aborted):
                return segment, suffix
        raise FileNotFoundError(errno.ENOENT, "no such file in remote storage", path)
