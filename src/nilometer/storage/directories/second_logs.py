"""The second logs of partitions that are moved to another log directory of their broker (KIP-113).

While a replica moves, its partition has two logs. The second one is first its *future* log: a copy, in a
folder named ``…-future`` in the target directory, that follows the log in use
(:mod:`~nilometer.storage.copying`). When both end at the same offset they exchange their files: the folder of
the copy gets the partition's name, and the second log is from then on the *former* one, in the folder that
was in use. It stays complete under the partition's name, and takes no more records, until the new folder is
durable; then it is deleted.

So whenever a crash comes, a complete log is left. What the next start finds, by the state of the folders:

- ``t-0`` in one directory, ``…-future`` in another: the copy is continued;
- ``t-0`` in both: the crash came after the exchange. The copy has a marker (``names.MOVED_MARKER``). It is
  used, since it has all records of the former folder, and maybe later ones; the former is deleted. Only a
  machine that failed may have lost the end of the copy, which was not durable yet: if it ends before the
  former, the former has all records that had to be durable, is used, and the copy is deleted
  (:func:`~nilometer.storage.directories.duplicate_folders.choose`);
- only ``t-0``, with the marker: the former folder was deleted. The marker is removed.

The log of a second log is used by one job at a time, which may run on another thread; the numbers here are
those at the end of the last job, for the thread that owns the logs in use.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Iterator

import msgspec

from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import checkpoint_files
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig

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
        checkpoints.write_partition_metadata(self.disk, self.folder, self.topic_id)
        if self.void_marker is not None:
            checkpoint_files.write_void_marker(self.disk, self.folder, self.void_marker)
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
        self.has_start_of_its_own = log.log_start_offset > log.segments.first.base_offset
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
