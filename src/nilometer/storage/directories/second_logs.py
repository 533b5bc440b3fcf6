"""Partitions with a folder in more than one log directory: the one that is used, and second logs while a
partition is moved to another directory (KIP-113).
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec

from nilometer.runtime import Disk, Entropy
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import checkpoint_files
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig

# Choosing the folder to use if a partition has folders in several log directories.
#
# This happens if, while a directory is offline, the topic is deleted and created again, or the replica is
# moved away and back: the new log is created in another directory. When the old directory can be used again,
# the folder in it is stale. It is renamed to ``…-stray``, Kafka's name for folders that the metadata does not
# assign: it is kept, but never served.
#
# It also happens if the broker stops at the end of a replica's move between directories
# (see `SecondLogs` below). Then the folder that is not used is deleted.
#
# The metadata and the topic id in ``partition.metadata`` show which folder is stale. The functions may block.


class DuplicateFolder(msgspec.Struct, frozen=True):
    """A folder in ``directory`` of a partition that is already open in another directory; not opened yet."""

    directory: LogDirectory
    topic_partition: TopicPartition

    @property
    def path(self) -> str:
        return self.directory.folder_of(self.topic_partition)


class Copy(msgspec.Struct, frozen=True):
    """One folder of the partition, with its log."""

    directory: LogDirectory
    log: Log

    @property
    def has_moved(self) -> bool:
        """Whether it took the place of a folder in another directory, which may still exist."""
        return self.log.topic_partition in self.directory.moved_folders


class StaleFolder(msgspec.Struct, frozen=True):
    """A stale folder and its new name. ``kept`` is the path of the folder in use."""

    folder: str
    renamed_to: str
    topic_id: uuid.UUID | None
    kept: str
    kept_topic_id: uuid.UUID | None

    def __str__(self) -> str:
        return (
            f"{self.folder} (topic id {self.topic_id}) is a stale copy of {self.kept} (topic id "
            f"{self.kept_topic_id}); it was renamed to {self.renamed_to}; remove it if it is not needed"
        )


class ResolvedDuplicates(msgspec.Struct, frozen=True):
    """The result of :func:`resolve`.

    ``failures``: errors of the directories that failed, by path; the caller must take them offline.
    """

    stale_folders: list[StaleFolder]
    failures: dict[str, OSError]
    removable_folders: list[str]
    """The folders that were renamed to ``…-delete``, which the caller removes."""


def choose(copies: Sequence[Copy], topic_id: uuid.UUID | None) -> Copy:
    """Return the copy to use for the topic ``topic_id`` (None: there is no such topic).

    Of two copies of the same topic it is the one that was probably written last: with the later leader epoch,
    then with the higher log end offset. Since that is not certain, a broker that finds duplicates does not
    report a clean shutdown to the controller. Of two that end alike it is the one that was moved last. A log
    ends where it has a gap: a power cut may have left a copy's last segment without the one before it.
    """

    def rank(copy: Copy) -> tuple[bool, bool, int, int, bool]:
        known, log = copy.log.topic_id, copy.log
        matches = known is not None and known == topic_id
        end, epoch = log.log_end_offset, log.epochs.latest_epoch
        if log.gap is not None:
            end, epoch = log.gap.offset, log.epochs.epoch_for_offset(log.gap.offset - 1)
        return matches, known is None, epoch, end, copy.has_moved

    return max(copies, key=rank)


class DuplicateHost(msgspec.Struct, frozen=True):
    """The functions of the log manager that :func:`resolve` calls."""

    disk: Disk
    opened: Callable[[TopicPartition], Copy | None]
    """Returns the copy in use, or None."""
    load: Callable[[DuplicateFolder], Log]
    """Opens the folder's log without putting it in use. Raises OSError."""
    use: Callable[[Copy], None]
    """Puts this copy in use instead of the current one."""


def resolve(
    host: DuplicateHost,
    duplicates: Sequence[DuplicateFolder],
    topic_ids: Callable[[TopicPartition], uuid.UUID | None],
    entropy: Entropy,
    *,
    wall_ms: int,
) -> ResolvedDuplicates:
    """For each partition in ``duplicates``: choose the copy to use, and rename the folders of the others.

    ``topic_ids`` returns the topic id of a partition in the metadata, None if there is no such topic.
    """
    resolved = ResolvedDuplicates([], {}, [])
    for key in dict.fromkeys(each.topic_partition for each in duplicates):
        copies = _copies(host, key, duplicates, resolved.failures)
        if not copies:
            continue
        kept = choose(copies, topic_ids(key))
        host.use(kept)
        is_move = any(copy.has_moved for copy in copies) and kept.log.topic_id is not None
        for copy in copies:
            if copy is kept:
                continue
            try:
                if is_move and copy.log.topic_id == kept.log.topic_id:
                    resolved.removable_folders.append(_rename_moved(host.disk, copy, entropy, wall_ms))
                else:
                    resolved.stale_folders.append(_rename_stale(host.disk, copy, kept, entropy, wall_ms))
            except OSError as error:
                resolved.failures[copy.directory.path] = error
        try:
            _forget_move(host.disk, kept)
        except OSError as error:
            resolved.failures[kept.directory.path] = error
    return resolved


def _forget_move(disk: Disk, kept: Copy) -> None:
    marker = kept.directory.moved_folders.pop(kept.log.topic_partition, None)
    if marker is not None:
        disk.remove(marker)


def _copies(
    host: DuplicateHost,
    key: TopicPartition,
    duplicates: Sequence[DuplicateFolder],
    failures: dict[str, OSError],
) -> list[Copy]:
    opened = host.opened(key)
    copies = [] if opened is None else [opened]
    for each in duplicates:
        path = each.directory.path
        if each.topic_partition == key and each.directory.failure is None and path not in failures:
            try:
                copies.append(Copy(each.directory, host.load(each)))
            except OSError as error:
                failures[path] = error
    return copies


def _rename_moved(disk: Disk, other: Copy, entropy: Entropy, wall_ms: int) -> str:
    """Rename the folder that a move left, for deletion; return its new name."""
    key, folder = other.log.topic_partition, other.log.folder
    target = other.directory.new_delete_folder(key, entropy)
    other.log.close(wall_ms=wall_ms)
    disk.rename(folder, target)
    disk.sync_directory(other.directory.path)
    other.directory.forget(key)
    other.directory.moved_folders.pop(key, None)
    return target


def _rename_stale(disk: Disk, stale: Copy, kept: Copy, entropy: Entropy, wall_ms: int) -> StaleFolder:
    key, folder = stale.log.topic_partition, stale.log.folder
    target = stale.directory.new_stray_folder(key, entropy)
    stale.log.close(wall_ms=wall_ms)
    disk.rename(folder, target)
    disk.sync_directory(stale.directory.path)
    stale.directory.forget(key)
    return StaleFolder(folder, target, stale.log.topic_id, kept.log.folder, kept.log.topic_id)


# The second logs of partitions that are moved to another log directory of their broker (KIP-113).
#
# While a replica moves, its partition has two logs. The second one is first its *future* log: a copy, in a
# folder named ``…-future`` in the target directory, that follows the log in use
# (:mod:`~nilometer.storage.copying`). When both end at the same offset they exchange their files: the folder
# of the copy gets the partition's name, and the second log is from then on the *former* one, in the folder
# that was in use. It stays complete under the partition's name, and takes no more records, until the new
# folder is durable; then it is deleted.
#
# So whenever a crash comes, a complete log is left. What the next start finds, by the state of the folders:
#
# - ``t-0`` in one directory, ``…-future`` in another: the copy is continued;
# - ``t-0`` in both: the crash came after the exchange. The copy has a marker (``names.MOVED_MARKER``). It is
#   used, since it has all records of the former folder, and maybe later ones; the former is deleted. Only a
#   machine that failed may have lost the end of the copy, which was not durable yet: if it ends before the
#   former, the former has all records that had to be durable, is used, and the copy is deleted
#   (`choose`);
# - only ``t-0``, with the marker: the former folder was deleted. The marker is removed.
#
# The log of a second log is used by one job at a time, which may run on another thread; the numbers here are
# those at the end of the last job, for the thread that owns the logs in use.

OPEN_FILES_MAX = 8
"""Of each future log, which has a pool of its own: the pool of the logs in use is not for other threads."""


class NewFuture(msgspec.Struct, frozen=True):
    """A future log that is to be created in ``directory``, by :meth:`make`."""

    disk: Disk
    topic_partition: TopicPartition
    topic_id: uuid.UUID
    directory: LogDirectory
    folder: str
    void_marker: str | None
    config: LogConfig
    options: OpenOptions
    may_have_gaps: bool

    def try_to_make(self) -> Log | OSError:
        """Make it as :meth:`make`; return the error if that fails, and then leave no folder if possible."""
        try:
            return self.make()
        except OSError as error:
            with contextlib.suppress(OSError):
                self.disk.remove_tree(self.folder)
            return error

    def make(self) -> Log:
        """Create the folder and an empty log, whose topic id is not durable. May block. Raises OSError."""
        if self.void_marker is not None:
            checkpoint_files.write_void_marker(self.disk, self.folder, self.void_marker)
        checkpoints.write_partition_metadata(self.disk, self.folder, self.topic_id)
        self.disk.open(posixpath.join(self.folder, names.MOVED_MARKER), create=True).close()
        log = open_future(self.disk, self.folder, self.topic_partition, self.config, self.options)
        if self.may_have_gaps:
            log.allow_gaps()
        return log


def open_future(
    disk: Disk, folder: str, topic_partition: TopicPartition, config: LogConfig, options: OpenOptions
) -> Log:
    """Open the log in the folder of a future log, with a pool of files of its own.

    May block. Raises OSError.
    """
    files = SegmentFiles.on(disk, OPEN_FILES_MAX)
    log = Log.open(files, folder, topic_partition, config, options)
    files.pool.close()
    return log


class SecondLog:
    """One second log. The numbers are those after the last job; ``note_progress`` sets them."""

    __slots__ = (
        "directory",
        "has_start_of_its_own",
        "is_former",
        "log",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "size",
    )

    def __init__(self, directory: LogDirectory, log: Log, *, is_former: bool = False) -> None:
        self.directory = directory
        self.log = log
        self.is_former = is_former
        self.note_progress()

    def note_progress(self) -> None:
        """Take the numbers from the log. Call it when no job uses the log."""
        log = self.log
        self.log_start_offset: int = log.log_start_offset
        self.log_end_offset: int = log.log_end_offset
        self.recovery_point: int = log.recovery_point
        self.size: int = log.size
        self.has_start_of_its_own = (
            log.begins_in_tier or log.log_start_offset > log.segments.first.base_offset
        )
        """Whether the names of its files do not show where the log starts."""


class SecondLogs:
    def __init__(self) -> None:
        self._seconds: dict[TopicPartition, SecondLog] = {}

    def __len__(self) -> int:
        return len(self._seconds)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._seconds

    def get(self, topic_partition: TopicPartition) -> SecondLog | None:
        return self._seconds.get(topic_partition)

    def items(self) -> list[tuple[TopicPartition, SecondLog]]:
        return sorted(self._seconds.items())

    def in_directory(self, directory: LogDirectory) -> Iterator[tuple[TopicPartition, SecondLog]]:
        for key, second in self._seconds.items():
            if second.directory is directory:
                yield key, second

    def add(self, second: SecondLog) -> None:
        self._seconds[second.log.topic_partition] = second

    def remove(self, topic_partition: TopicPartition) -> SecondLog | None:
        return self._seconds.pop(topic_partition, None)
