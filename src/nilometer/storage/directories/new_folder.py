"""The folder of a partition that is new here, as the log that will be opened in it would make it.

To make the files is what takes time, all the more while others sync theirs; so it can be done apart from the
log and away from the event loop. Knows names and paths; touches nobody's state. What a crash leaves of it
opens as an empty log.
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
"""The log file first: an index without one belongs to nothing."""


@dataclass(frozen=True, slots=True)
class NewFolder:
    disk: Disk
    topic_partition: TopicPartition
    topic_id: uuid.UUID
    directory: str
    """The log directory that it was planned for."""
    folder: str
    void_marker: str | None = None
    """Made first, where the checkpoint files may have lines of an earlier folder of this name."""

    def make(self) -> None:
        """On any thread, unless another makes the same folder. Stalls. Raises OSError."""
        self.disk.make_directories(self.folder)
        if self.void_marker is not None:
            void_checkpoints.write(self.disk, self.folder, self.void_marker)
        for suffix in _EMPTY_SEGMENT:
            path = posixpath.join(self.folder, names.offset_name(0, suffix))
            self.disk.open(path, create=True).close()
        path = posixpath.join(self.folder, names.PARTITION_METADATA)
        checkpoints.write_partition_metadata(self.disk, path, self.topic_id, sync=False)
