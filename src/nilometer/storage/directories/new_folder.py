"""The folder of a new partition, with the files that an empty log has.

Creating the files takes time, even more while others sync theirs; so it is separate from the log and can run
off the event loop. Knows names and paths; changes no other state. After a crash in between, the folder opens
as an empty log.
"""

from __future__ import annotations

import posixpath
import uuid
from dataclasses import dataclass

from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import void_checkpoints
from nilometer.storage.names import TopicPartition

_EMPTY_SEGMENT = (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
"""The log file comes first: an index file without one is removed at the next start."""


@dataclass(frozen=True, slots=True)
class NewFolder:
    disk: Disk
    topic_partition: TopicPartition
    topic_id: uuid.UUID
    directory: str
    """The log directory that it was planned for."""
    folder: str
    void_marker: str | None = None
    """Created first, if the checkpoint files may have lines of an earlier folder of this name."""

    def make(self) -> None:
        """On any thread, but one at a time for the same folder. Stalls. Raises OSError."""
        self.disk.make_directories(self.folder)
        if self.void_marker is not None:
            void_checkpoints.write(self.disk, self.folder, self.void_marker)
        for suffix in _EMPTY_SEGMENT:
            path = posixpath.join(self.folder, names.offset_name(0, suffix))
            self.disk.open(path, create=True).close()
        path = posixpath.join(self.folder, names.PARTITION_METADATA)
        checkpoints.write_partition_metadata(self.disk, path, self.topic_id, sync=False)
