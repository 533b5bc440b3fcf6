"""Creating the folder of a new partition, with the files of an empty log.

Creating and syncing files can be slow; so it is separate from the log and can run off the event loop. It
changes no state in memory. After a crash in between, the folder opens as an empty log.

``partition.metadata`` is durable before the first append: otherwise a power failure could leave records whose
topic is not known, and a later topic of that name would take them for its own.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Sequence

import msgspec

from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import void_checkpoints
from nilometer.storage.names import TopicPartition

_EMPTY_SEGMENT = (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
"""The log file comes first: an index file without one is removed at the next start."""


class NewFolder(msgspec.Struct, frozen=True):
    disk: Disk
    topic_partition: TopicPartition
    topic_id: uuid.UUID
    directory: str
    """Path of the log directory."""
    folder: str
    """Path of the partition's folder."""
    void_marker: str | None = None
    """Name of the void marker, created first; None if the folder needs none (:mod:`void_checkpoints`)."""

    def make(self) -> None:
        """Create the folder and its files, which are not durable. Blocks on the disk. Raises OSError."""
        checkpoints.write_partition_metadata(self.disk, self.folder, self.topic_id)
        if self.void_marker is not None:
            void_checkpoints.write(self.disk, self.folder, self.void_marker)
        for suffix in _EMPTY_SEGMENT:
            path = posixpath.join(self.folder, names.offset_name(0, suffix))
            self.disk.open(path, create=True).close()


def make_durable(folders: Sequence[NewFolder]) -> None:
    """Make all ``folders`` and then their topic ids durable, on any thread, but one at a time for one folder.

    The first sync writes the names in all of them to the file system's journal, so that the others are fast.
    Blocks on the disk. Raises OSError.
    """
    for folder in folders:
        folder.make()
    for folder in folders:
        checkpoints.sync_partition_metadata(folder.disk, folder.folder)
