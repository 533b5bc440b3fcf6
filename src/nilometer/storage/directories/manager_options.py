"""The data types of :class:`LogManager`: options, loading progress, what was found in directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from nilometer.runtime import Entropy
from nilometer.storage.log_config import LogConfig
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers.producer_state import PRODUCER_ID_EXPIRATION_MS
from nilometer.storage.recovery import OpenOptions, Progress
from nilometer.storage.segments.file_pool import OPEN_FILES_MAX

FailureListener = Callable[[str, Exception, Sequence[TopicPartition]], None]
"""Is passed the path of a log directory that failed, the error, and the partitions that were in it."""


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    directories: Sequence[str]
    entropy: Entropy
    config_for: Callable[[TopicPartition], LogConfig] = lambda _: LogConfig()
    """Returns the configuration of a log that is found on disk."""
    cluster_id: str | None = None
    producer_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    open_files_max: int = OPEN_FILES_MAX
    on_progress: Callable[[LoadingProgress], None] | None = None

    def open_options(
        self,
        *,
        clean: bool,
        wall_ms: int,
        is_new: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        cleaned_offset: int = 0,
        on_progress: Progress | None = None,
    ) -> OpenOptions:
        """Return the options for opening one log."""
        return OpenOptions(
            clean=clean,
            wall_ms=wall_ms,
            is_new=is_new,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            cleaned_offset=cleaned_offset,
            producer_expiration_ms=self.producer_expiration_ms,
            entropy=self.entropy,
            on_progress=on_progress,
        )


class LoadingProgress(msgspec.Struct, frozen=True):
    """Progress of opening a directory's logs. ``segments_*`` count the segments of ``log`` in recovery."""

    directory: str
    log: str
    logs_done: int
    logs_total: int
    segments_done: int = 0
    segments_total: int = 0


class UnidentifiedLog(msgspec.Struct, frozen=True):
    """A folder that had records, but no topic id, and its new name. It is kept, and not used any more."""

    folder: str
    renamed_to: str
    log_end_offset: int

    def __str__(self) -> str:
        return (
            f"{self.folder} has records below offset {self.log_end_offset}, but its partition.metadata is "
            f"missing or damaged, so that it cannot be told of which topic of that name they are; it was "
            f"renamed to {self.renamed_to} and is kept. The replica is fetched from its leader again"
        )


class DirectoryDescription(msgspec.Struct, frozen=True):
    """One directory, for DescribeLogDirs. ``sizes`` are bytes; the totals are -1 if it is offline."""

    path: str
    failure: str | None
    sizes: Mapping[TopicPartition, int]
    total_bytes: int
    usable_bytes: int
