"""All logs of a broker, in one or more log directories.

:class:`LogManager` opens, creates and deletes logs, writes the checkpoint files, and isolates failures: a
directory that fails takes its own logs offline and no others. :class:`NewFolder` makes the folder of a new
log, :class:`LogTable` has the logs in use, and :class:`LogCheckpoints` plans their checkpoint files.

Invariants: a partition has at most one log in use; a directory is used only while its lock is held; the
marker of a clean shutdown exists only while no log of its directory is open.

All methods of the manager may block on the disk, except lookups and methods that say otherwise: call them
off the event loop.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from nilometer.runtime import Disk, Entropy
from nilometer.storage import checkpoints, copying, names
from nilometer.storage.directories import checkpoint_files
from nilometer.storage.directories.checkpoint_files import CheckpointPlan, LogWaiting
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.directories.second_logs import (
    Copy,
    DuplicateFolder,
    DuplicateHost,
    NewFuture,
    ResolvedDuplicates,
    SecondLog,
    SecondLogs,
    open_future,
    resolve,
)
from nilometer.storage.log import Log
from nilometer.storage.names import FolderKind, PartitionFolder, TopicPartition
from nilometer.storage.producers import PRODUCER_ID_EXPIRATION_MS
from nilometer.storage.recovery import Damage, OpenOptions, Progress
from nilometer.storage.removal import Truncation
from nilometer.storage.segments.segment_files import OPEN_FILES_MAX, SegmentFiles
from nilometer.storage.tiering import Epochs, start_in_tier
from nilometer.storage.topic_config import LogConfig

__all__ = ["DirectoryDescription", "LoadingProgress", "LogManager", "ManagerOptions", "NoLogDirectory"]


# Creating the folder of a new partition, with the files of an empty log.
#
# Creating and syncing files can be slow; so it is separate from the log and can run off the event loop. It
# changes no state in memory. After a crash in between, the folder opens as an empty log.
#
# ``partition.metadata`` is durable before the first append: otherwise a power failure could leave records
# whose topic is not known, and a later topic of that name would take them for its own.

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
    """Name of the void marker, created first; None if the folder needs none (see ``checkpoint_files``)."""

    def make(self) -> None:
        """Create the folder and its files, which are not durable. Blocks on the disk. Raises OSError."""
        if self.void_marker is not None:
            checkpoint_files.write_void_marker(self.disk, self.folder, self.void_marker)
        checkpoints.write_partition_metadata(self.disk, self.folder, self.topic_id)
        for suffix in _EMPTY_SEGMENT:
            path = posixpath.join(self.folder, names.offset_name(0, suffix))
            self.disk.open(path, create=True).close()


def make_folders_durable(folders: Sequence[NewFolder]) -> None:
    """Make all ``folders`` and then their topic ids durable, on any thread, but one at a time for one folder.

    The first sync writes the names in all of them to the file system's journal, so that the others are fast.
    Blocks on the disk. Raises OSError.
    """
    for folder in folders:
        folder.make()
    for folder in folders:
        checkpoints.sync_partition_metadata(folder.disk, folder.folder)


# The logs in use, by partition and by log directory. Invariant: a partition has at most one log in use.


class LogTable:
    def __init__(self, paths: Sequence[str]) -> None:
        """``paths`` are those of the log directories."""
        self.logs: dict[TopicPartition, Log] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        self._logs_of: dict[str, dict[TopicPartition, Log]] = {path: {} for path in paths}

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory:
        """Return the directory of a log in use. Raises KeyError."""
        return self._directory_of[topic_partition]

    def logs_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Return the logs in use in ``directory``; a view, not a copy."""
        return self._logs_of[directory.path]

    def add(self, directory: LogDirectory, log: Log) -> None:
        """Put ``log`` in use, instead of a log of the same partition in another directory if there is one."""
        key = log.topic_partition
        if (earlier := self._directory_of.get(key)) is not None:
            del self._logs_of[earlier.path][key]
        self.logs[key] = log
        self._directory_of[key] = directory
        self._logs_of[directory.path][key] = log

    def remove(self, topic_partition: TopicPartition) -> tuple[Log, LogDirectory] | None:
        """Forget the partition's log and return it with its directory; None if there is none."""
        log = self.logs.pop(topic_partition, None)
        if log is None:
            return None
        directory = self._directory_of.pop(topic_partition)
        del self._logs_of[directory.path][topic_partition]
        return log, directory

    def remove_all(self, directory: LogDirectory) -> list[Log]:
        """Forget all logs in ``directory``; return them, sorted by partition."""
        logs = [log for _, log in sorted(self.logs_in(directory).items())]
        for log in logs:
            self.remove(log.topic_partition)
        return logs


# What the checkpoint files say of the logs in use, and which logs wait for them.
#
# After a truncation the files on disk may have higher offsets than the log. A crash could then apply them to
# records appended after the truncation, so the log rejects appends until the files are rewritten, and the
# truncation is durable. So does a new log until its topic id is durable. Both are synced with the files.


class LogCheckpoints:
    def __init__(self, table: LogTable, seconds: SecondLogs) -> None:
        self._table = table
        self._seconds = seconds

    def plan(self, directory: LogDirectory, high_watermarks: Mapping[TopicPartition, int]) -> CheckpointPlan:
        """Return a plan of the directory's checkpoint files. Does not block."""
        known = directory.high_watermarks
        recovery_points: dict[TopicPartition, int] = {}
        checkpointed: dict[TopicPartition, int] = {}
        log_start_offsets: dict[TopicPartition, int] = {}
        cleaned_offsets: dict[TopicPartition, int] = {}
        waiting: list[LogWaiting] = []
        for key, second in self._seconds.in_directory(directory):
            high_watermark = high_watermarks.get(key, known.get(key, 0))
            high_watermark = min(max(high_watermark, second.log_start_offset), second.log_end_offset)
            known[key] = checkpointed[key] = high_watermark
            recovery_points[key] = second.recovery_point
            if second.has_start_of_its_own:
                log_start_offsets[key] = second.log_start_offset
            if second.log.awaits_checkpoint:
                waiting.append(_waiting(second.log))
        # One pass: with tens of thousands of logs, the event loop waits for it.
        for key, log in self._table.logs_in(directory).items():
            high_watermark = high_watermarks.get(key)
            if high_watermark is None:
                high_watermark = known.get(key, log.log_start_offset)
            known[key] = checkpointed[key] = high_watermark
            recovery_points[key] = log.recovery_point
            if log.begins_in_tier or log.log_start_offset > log.segments.first.base_offset:
                log_start_offsets[key] = log.log_start_offset  # otherwise the files' names say it
            if log.cleaned_offset:
                cleaned_offsets[key] = log.cleaned_offset
            if log.awaits_checkpoint:
                waiting.append(_waiting(log))
        return directory.plan_checkpoints(
            recovery_points=recovery_points,
            high_watermarks=checkpointed,
            log_start_offsets=log_start_offsets,
            cleaned_offsets=cleaned_offsets,
            waiting=waiting,
        )

    def note_written(self, plan: CheckpointPlan) -> None:
        """Record that ``plan.run()`` returned True: logs that waited for it accept appends again."""
        plan.owner.note_written(plan)
        for waiting in plan.waiting:
            if waiting.log.truncations == waiting.truncations:
                waiting.log.accept_appends()

    def initial_high_watermark(self, key: TopicPartition) -> int:
        """Return the checkpointed high watermark, limited to the log's offset range (KAFKA-16452)."""
        log = self._table.logs[key]
        saved = self._table.directory_of(key).high_watermarks.get(key, 0)
        return min(max(saved, log.log_start_offset), log.log_end_offset)

    def lower(self, directory: LogDirectory, *, writes: bool) -> None:
        """Rewrite the checkpoint files if one has a higher offset than a log in use. Raises OSError.

        The last process may have ended between a truncation and its checkpoint. Unless it ``writes``, such a
        log only waits. Call it before the first plan runs.
        """
        logs = self._table.logs_in(directory)
        held = [*logs.values(), *(second.log for _, second in self._seconds.in_directory(directory))]
        for log in held:
            self.hold_if_exceeded(log)
        if writes and any(log.awaits_checkpoint for log in held):
            plan = self.plan(directory, {key: self.initial_high_watermark(key) for key in logs})
            if plan.run():
                self.note_written(plan)

    def hold_truncated(self, log: Log) -> None:
        """Block appends to a log that was truncated until no checkpoint file on disk has a higher offset, and
        the truncation is durable.

        Otherwise a power failure could leave records that were removed before ones that were appended later:
        the replica would differ from its leader below its end, where nothing compares them.
        """
        log.await_checkpoint(syncs=posixpath.basename(log.segments.active.log_path))

    def hold_if_exceeded(self, log: Log) -> None:
        """Block appends if a checkpoint file on disk may have higher offsets: when a log is opened, or starts
        again at another offset."""
        key = log.topic_partition
        second = self._seconds.get(key)
        if self._table.logs.get(key) is log:
            directory = self._table.directory_of(key)
        elif second is not None and second.log is log:
            directory = second.directory
        else:
            return  # deleted, or offline: it accepts no appends
        bounds = (
            (names.RECOVERY_POINT_CHECKPOINT, log.recovery_point),
            (names.REPLICATION_OFFSET_CHECKPOINT, log.log_end_offset),
            (names.LOG_START_OFFSET_CHECKPOINT, log.log_start_offset),
            (names.CLEANER_OFFSET_CHECKPOINT, log.cleaned_offset),
        )
        if any(directory.checkpoints.may_exceed(key, *bound) for bound in bounds):
            log.await_checkpoint()


def _waiting(log: Log) -> LogWaiting:
    unsynced = tuple(posixpath.join(log.folder, name) for name in log.unsynced_names)
    return LogWaiting(log, log.truncations, unsynced)


# The data types of :class:`LogManager`: options, loading progress, what was found in directories.

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


class NoLogDirectory(Exception):
    """Every log directory is offline: the broker cannot run."""


PREFERRED_MAX = 20_000
"""For so many partitions without a log an operator's choice of a directory is remembered."""


class LogManager:
    def __init__(self, disk: Disk, options: ManagerOptions) -> None:
        self._disk = disk
        self._options = options
        self._files = SegmentFiles.on(disk, options.open_files_max)
        self.directories = [LogDirectory(disk, path) for path in options.directories]
        self._table = LogTable(options.directories)
        self.seconds = SecondLogs()
        """The second logs of the partitions that are moved between directories."""
        self._checkpoints = LogCheckpoints(self._table, self.seconds)
        self.logs = self._table.logs
        self._preferred: dict[TopicPartition, str] = {}
        """By partition without a log: the path of the directory that an operator has chosen for it."""
        self._failure_listeners: list[FailureListener] = []
        self.removable_folders: list[str] = []
        """Folders of deleted partitions that were found at the start; the broker removes them later."""
        self.duplicates: list[DuplicateFolder] = []
        """Further folders of open partitions, until :meth:`resolve_duplicates` decides which to use."""

    @classmethod
    def open(cls, disk: Disk, options: ManagerOptions, *, wall_ms: int) -> LogManager:
        """Lock the directories and open every log in them; recover those not cleanly shut down.

        Raises LockHeld (another process uses a directory), CorruptCheckpoint (a directory belongs to
        another node or cluster, or a later version wrote it), NoLogDirectory.
        """
        manager = cls(disk, options)
        try:
            for directory in manager.directories:
                directory.check_versions()
            # First every check that may refuse the start: until then nothing in a directory is changed.
            for directory in manager.directories:
                manager._lock_directory(directory)
            for directory in manager._online():
                manager._open_directory(directory, wall_ms)
            manager._remove_moved_markers()
            manager._check_usable()
        except BaseException:
            manager.abandon()
            raise
        return manager

    # -- lookups (do not block)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self.logs.get(topic_partition)

    def directory_of(self, topic_partition: TopicPartition) -> str:
        return self._table.directory_of(topic_partition).path

    def is_offline(self, directory: str) -> bool:
        return any(each.path == directory and each.failure is not None for each in self.directories)

    @property
    def damages(self) -> list[Damage]:
        """The damage that recovery found when the logs were opened."""
        return [damage for _, log in sorted(self.logs.items()) for damage in log.damages]

    @property
    def has_gaps(self) -> bool:
        """Whether some log has a gap of which it is not decided yet if it is a loss of records."""
        return any(log.gap is not None for log in self.logs.values())

    @property
    def has_uncertain_duplicates(self) -> bool:
        """Whether a partition has two folders of which the better one may lack records: none of them is the
        copy that took the place of the other."""
        return any(
            duplicate.topic_partition not in duplicate.directory.moved_folders
            and duplicate.topic_partition
            not in self._table.directory_of(duplicate.topic_partition).moved_folders
            for duplicate in self.duplicates
            if duplicate.topic_partition in self.logs
        )

    @property
    def previous_broker_epoch(self) -> int | None:
        """The broker epoch of the last clean shutdown; None if any directory in use was not shut down
        cleanly."""
        epochs = [each.clean_broker_epoch for each in self.directories if each.failure is None]
        known = [epoch for epoch in epochs if epoch is not None]
        return max(known) if known and len(known) == len(epochs) else None

    def initial_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the checkpointed high watermark, limited to the log's offset range (KAFKA-16452)."""
        return self._checkpoints.initial_high_watermark(topic_partition)

    def durable_recovery_point(self, topic_partition: TopicPartition) -> int:
        """Return the least recovery point that the checkpoint file on disk may have for this partition."""
        files = self._table.directory_of(topic_partition).checkpoints
        return files.least(topic_partition, names.RECOVERY_POINT_CHECKPOINT)

    # -- creating and deleting

    def plan_folders(self, wanted: Sequence[tuple[TopicPartition, uuid.UUID]]) -> list[NewFolder]:
        """Choose a directory for each new partition (with its topic id); return plans to create the folders.

        Pass the plans to :func:`make_folders_durable`, then each to :meth:`create`. Does not block.
        Raises NoLogDirectory.
        """
        counts = {each.path: len(self._table.logs_in(each)) for each in self._online()}
        if not counts:
            raise NoLogDirectory("every log directory is offline")
        plans: list[NewFolder] = []
        for topic_partition, topic_id in wanted:
            path = self._preferred.get(topic_partition, "")
            if path not in counts:  # none is preferred, or that is offline
                path = min(counts, key=counts.__getitem__)
            counts[path] += 1
            directory = next(each for each in self.directories if each.path == path)
            folder = directory.folder_of(topic_partition)
            marker = directory.prepare_folder(topic_partition, self._options.entropy)
            plans.append(NewFolder(self._disk, topic_partition, topic_id, path, folder, marker))
        return plans

    def create(
        self,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        wall_ms: int,
        topic_id: uuid.UUID | None = None,
        folder: NewFolder | None = None,
        sync: bool = True,
    ) -> Log:
        """Create a log in ``folder``, which was made durable, by default in the directory with the fewest
        logs; return it, or the existing log of the partition.

        Without ``folder``, the topic id is durable on return; or, without ``sync``, the log accepts no
        appends before the next checkpoint of its directory is recorded (``awaits_checkpoint``). Raises
        OSError (the directory is then offline), NoLogDirectory.
        """
        existing = self.logs.get(topic_partition)
        if existing is not None:
            return existing
        preferred = self._preferred.pop(topic_partition, None)
        if preferred is not None and self.is_offline(preferred):
            preferred = None
        target = self._choose_directory(preferred if folder is None else folder.directory)
        path = target.folder_of(topic_partition)
        new_id = topic_id if folder is None else None
        try:
            self._mark_void(target, topic_partition, path)
            if new_id is not None:
                checkpoints.write_partition_metadata(self._disk, path, new_id)
                if sync:
                    checkpoints.sync_partition_metadata(self._disk, path)
            options = self._options.open_options(clean=True, wall_ms=wall_ms, is_new=True)
            log = Log.open(self._files, path, topic_partition, config, options)
        except OSError as error:
            self.fail_directory(target.path, error)
            raise
        self._table.add(target, log)
        if new_id is not None and not sync:
            log.await_checkpoint(syncs=names.PARTITION_METADATA)
        return log

    def delete(self, topic_partition: TopicPartition) -> str | None:
        """Forget and fence a log and rename its folder to ``…-delete``.

        Returns the folder, which the caller removes (``Disk.remove_tree``); None if there is no such log.
        Raises OSError.
        """
        return self._take_out(topic_partition, LogDirectory.new_delete_folder, "the partition was deleted")

    def make_stray(self, topic_partition: TopicPartition) -> str | None:
        """Forget and fence a log and rename its folder to ``…-stray``: it is kept, and never used again.

        Returns the folder; None if there is no such log. Raises OSError.
        """
        return self._take_out(topic_partition, LogDirectory.new_stray_folder, "the log is a stray")

    def take_out_unidentified(self) -> list[UnidentifiedLog]:
        """Take all logs without a topic id out of use; return those that had records.

        Their ``partition.metadata`` is missing or damaged, so that it cannot be told of which topic of that
        name their records are. The folder of a log that never had a record is deleted: its creation was
        interrupted. Directories that fail are taken offline. Raises NoLogDirectory if none is left.
        """
        found: list[UnidentifiedLog] = []
        for key in sorted(key for key, log in self.logs.items() if log.topic_id is None):
            log = self.logs.get(key)
            if log is None:
                continue  # its directory has failed meanwhile
            folder = log.folder
            with contextlib.suppress(OSError):  # the directory is offline now
                if log.log_end_offset:
                    if (target := self.make_stray(key)) is not None:
                        found.append(UnidentifiedLog(folder, target, log.log_end_offset))
                elif (target := self.delete(key)) is not None:
                    self.removable_folders.append(target)
        self._check_usable()
        return found

    def _take_out(
        self, key: TopicPartition, rename_to: Callable[[LogDirectory, TopicPartition, Entropy], str], why: str
    ) -> str | None:
        removed = self._table.remove(key)
        if removed is None:
            return None
        log, directory = removed
        directory.forget(key)
        target = rename_to(directory, key, self._options.entropy)
        self._files.pool.forget_folder(log.folder)
        try:
            self._disk.rename(log.folder, target)
        except OSError as error:
            self.fail_directory(directory.path, error)
            raise
        log.move_to(target)
        log.fence(OSError(why))
        return target

    # -- moving to another directory (KIP-113): see ``second_logs``

    def directory(self, path: str) -> LogDirectory | None:
        """Return the configured directory with this path. Does not block."""
        return next((each for each in self.directories if each.path == path), None)

    def prefer_directory(self, topic_partition: TopicPartition, path: str) -> None:
        """Let the partition's log, which does not exist yet, be created in the directory ``path``.

        Only the last :data:`PREFERRED_MAX` are remembered, and none after a restart. Does not block.
        """
        self._preferred.pop(topic_partition, None)
        self._preferred[topic_partition] = path
        if len(self._preferred) > PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]

    def plan_future(self, topic_partition: TopicPartition, path: str, *, wall_ms: int) -> NewFuture:
        """Return a plan of a future log of the partition in the directory ``path``, to be made on any thread.

        Does not block. Raises KeyError if the partition has no log here.
        """
        log, directory = self.logs[topic_partition], self.directory(path)
        assert directory is not None, "a replica is moved to a configured directory"
        assert log.topic_id is not None, "a log in use belongs to a topic"
        name = names.future_folder_name(topic_partition, self._options.entropy.uuid().hex)
        assert name is not None, "the name of a topic that is moved is short enough"
        # If records are in remote storage only, the first step of the copying begins behind them.
        start = 0 if log.begins_in_tier else log.local_start_offset
        return NewFuture(
            self._disk,
            topic_partition,
            log.topic_id,
            directory,
            posixpath.join(directory.path, name),
            directory.prepare_folder(topic_partition, self._options.entropy),
            log.config,
            self._options.open_options(clean=True, wall_ms=wall_ms, is_new=True, log_start_offset=start),
            log.may_have_gaps,
        )

    def add_future(self, plan: NewFuture, log: Log) -> SecondLog:
        """Add the future ``log`` that ``plan`` has made; it accepts no appends before the next checkpoint of
        its directory is recorded. Does not block."""
        if plan.void_marker is not None:
            marker = posixpath.join(plan.folder, plan.void_marker)
            plan.directory.checkpoints.void_markers[plan.topic_partition] = (marker,)
        second = SecondLog(plan.directory, log)
        self.seconds.add(second)
        log.await_checkpoint(syncs=names.PARTITION_METADATA)
        return second

    def hold_future(self, second: SecondLog) -> None:
        """Let a future log that was truncated accept no appends before the next checkpoint, if checkpointed
        offsets may be above its own. Does not block."""
        second.note_progress()
        self._checkpoints.hold_if_exceeded(second.log)

    def replace_by_future(self, topic_partition: TopicPartition) -> SecondLog:
        """Let the partition's log and its future log, which end at the same offset, exchange their files.

        Returns the second log, which is the former one then: :meth:`remove_second` it once the log is
        durable. Renames a folder. Raises OSError (the target directory is then offline).
        """
        log, second = self.logs[topic_partition], self.seconds.get(topic_partition)
        assert second is not None, "a future log takes the place of the log in use"
        source, target = self._table.directory_of(topic_partition), second.directory
        folder = target.folder_of(topic_partition)
        try:
            self._disk.rename(second.log.folder, folder)
            second.log.move_to(folder, self._files)
            log.exchange_with(second.log)
        except OSError as error:
            self.fail_directory(target.path, error)
            raise
        self._table.add(target, log)
        target.high_watermarks[topic_partition] = source.high_watermarks.get(topic_partition, 0)
        former = SecondLog(source, second.log, is_former=True)
        self.seconds.add(former)
        return former

    def remove_second(self, topic_partition: TopicPartition) -> str | None:
        """Forget the partition's second log, and rename its folder to ``…-delete``.

        Returns the folder, which the caller removes; None if there is no second log, or its directory has
        failed now.
        """
        second = self.seconds.remove(topic_partition)
        if second is None:
            return None
        second.directory.forget(topic_partition)
        folder = second.log.folder
        target = second.directory.new_delete_folder(topic_partition, self._options.entropy)
        second.log.fence(OSError("the log is not needed any more"))
        if second.is_former:
            self._files.pool.forget_folder(folder)
        try:
            self._disk.rename(folder, target)
        except OSError as error:
            self.fail_directory(second.directory.path, error)
            return None
        return target

    def finish_move(self, log: Log, former: SecondLog) -> Callable[[], None]:
        """Return the work that makes durable that the ``former`` log's folder was renamed, and then removes
        the marker of the move. It may run on any thread, and raises OSError."""
        path, marker = former.directory.path, posixpath.join(log.folder, names.MOVED_MARKER)

        def finish() -> None:
            self._disk.sync_directory(path)
            with contextlib.suppress(FileNotFoundError):  # the replica was deleted meanwhile
                self._disk.remove(marker)

        return finish

    def truncate_to(self, log: Log, offset: int, *, wall_ms: int) -> Truncation:
        """Truncate ``log`` to ``offset``. Raises LogFenced.

        If records were removed, it rejects appends until the next checkpoint is recorded as written
        (``log.awaits_checkpoint``), which makes the truncation durable.
        """
        end_offset = log.log_end_offset
        truncation = log.truncate_to(offset, wall_ms=wall_ms)
        if truncation.log_end_offset < end_offset:
            self._checkpoints.hold_truncated(log)
        return truncation

    def truncate_fully_and_start_at(self, log: Log, offset: int, *, wall_ms: int) -> Truncation:
        truncation = log.truncate_fully_and_start_at(offset, wall_ms=wall_ms)
        self._checkpoints.hold_if_exceeded(log)
        return truncation

    def start_in_tier(
        self,
        log: Log,
        offset: int,
        *,
        log_start_offset: int,
        epochs: Epochs,
        producers: bytes,
        wall_ms: int,
    ) -> Truncation:
        """Let ``log`` go on at ``offset`` behind records in remote storage: see
        :func:`~nilometer.storage.tiering.start_in_tier`."""
        truncation = start_in_tier(
            log,
            offset,
            log_start_offset=log_start_offset,
            epochs=epochs,
            producers=producers,
            wall_ms=wall_ms,
        )
        self._checkpoints.hold_if_exceeded(log)
        return truncation

    def resolve_gap(self, log: Log, *, wall_ms: int) -> Damage | None:
        """Cut the log at its gap, if any: see :meth:`Log.resolve_gap`. Raises LogFenced.

        Call it when the topic's settings are known.
        """
        damage = log.resolve_gap(wall_ms=wall_ms)
        if damage is not None:
            self._checkpoints.hold_truncated(log)
        return damage

    # -- checkpoints

    def plan_checkpoints(
        self, high_watermarks: Mapping[TopicPartition, int], directory_path: str | None = None
    ) -> list[CheckpointPlan]:
        """Return a plan of the checkpoint files for each online directory, or only for the given one.

        Run the plans on any thread, one at a time. If ``run`` returns True call :meth:`note_checkpoint`, if
        it raises OSError :meth:`fail_directory`. Does not block.
        """
        return [
            self._checkpoints.plan(directory, high_watermarks)
            for directory in self._online()
            if directory_path in (None, directory.path)
        ]

    def note_checkpoint(self, plan: CheckpointPlan) -> None:
        """Record that ``plan.run()`` returned True: logs that waited for it accept appends again.

        Does not block.
        """
        self._checkpoints.note_written(plan)

    def assign_cluster_id(self, cluster_id: str) -> dict[str, OSError]:
        """Write the cluster id to every online directory; return the errors of those that failed, by path.

        The caller must take these offline. Raises CorruptCheckpoint if one belongs to another cluster.
        """
        failures: dict[str, OSError] = {}
        for directory in self._online():
            try:
                directory.assign_cluster_id(cluster_id)
            except OSError as error:
                failures[directory.path] = error
        return failures

    # -- duplicates

    def resolve_duplicates(
        self, topic_ids: Callable[[TopicPartition], uuid.UUID | None], *, wall_ms: int
    ) -> ResolvedDuplicates:
        """Put one folder of each partition in use, rename the others, and lower the checkpoint files.

        ``topic_ids`` returns a partition's topic id in the metadata, None if there is no such topic. Call it
        before the first plan of checkpoints runs.
        """
        found, self.duplicates = self.duplicates, []
        host = DuplicateHost(
            self._disk,
            opened=lambda key: (
                Copy(self._table.directory_of(key), self.logs[key]) if key in self.logs else None
            ),
            load=lambda each: self._load_log(each.directory, each.topic_partition, wall_ms),
            use=lambda copy: self._table.add(copy.directory, copy.log),
        )
        resolved = resolve(host, found, topic_ids, self._options.entropy, wall_ms=wall_ms)
        self.removable_folders += resolved.removable_folders
        for directory in {each.directory.path: each.directory for each in found}.values():
            if directory.failure is None and directory.path not in resolved.failures:
                try:
                    self._checkpoints.lower(directory, writes=True)
                except OSError as error:
                    resolved.failures[directory.path] = error
        return resolved

    # -- failures

    def add_failure_listener(self, listener: FailureListener) -> None:
        """Call ``listener`` for each directory that fails from now on."""
        self._failure_listeners.append(listener)

    def fail_directory(self, path: str, reason: Exception) -> list[TopicPartition]:
        """Take a directory offline: fence and forget its logs, and call the failure listeners.

        Returns the affected partitions; empty if the directory is offline already.
        """
        directory = next(each for each in self.directories if each.path == path)
        if directory.failure is not None:
            return []
        directory.failure = reason
        logs = self._table.remove_all(directory)
        for log in logs:
            log.fence(reason if isinstance(reason, OSError) else OSError(str(reason)))
            self._files.pool.forget_folder(log.folder)
        for key, second in list(self.seconds.in_directory(directory)):
            self.seconds.remove(key)  # its folder stays: the next start continues, or removes it
            second.log.fence(reason if isinstance(reason, OSError) else OSError(str(reason)))
        affected = [log.topic_partition for log in logs]
        directory.release()
        for listener in self._failure_listeners:
            listener(path, reason, affected)
        return affected

    def describe(self) -> Generator[int, None, list[DirectoryDescription]]:
        """Describe all directories; yields after each log how many segments it has."""
        descriptions: list[DirectoryDescription] = []
        for directory in self.directories:
            sizes: dict[TopicPartition, int] = {}
            for key, log in list(self._table.logs_in(directory).items()):
                sizes[key] = log.segments.size
                yield len(log.segments)
            try:
                total = self._disk.total_bytes(directory.path) if directory.failure is None else -1
                usable = self._disk.free_bytes(directory.path) if directory.failure is None else -1
            except OSError as error:
                self.fail_directory(directory.path, error)
                total, usable, sizes = -1, -1, {}
            failure = None if directory.failure is None else str(directory.failure)
            descriptions.append(DirectoryDescription(directory.path, failure, sizes, total, usable))
        return descriptions

    # -- stopping

    def close(
        self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int, wall_ms: int
    ) -> list[Exception]:
        """Flush and close every log, write the checkpoints, then the marker of a clean shutdown.

        A directory in which a step fails gets no marker, and so its logs are recovered when it is opened
        again. Returns the errors. A directory with unresolved duplicates is only released, because
        checkpoints of the logs in use would lack the duplicates' offsets.
        """
        failures: list[Exception] = []
        for key, second in self.seconds.items():
            if second.is_former and key in self.logs:
                try:
                    self._close_moved(self.logs[key], second, wall_ms)
                except OSError as error:
                    failures.append(error)  # the next start finds both folders
        unsettled = [duplicate.directory for duplicate in self.duplicates]
        for directory in self._online():
            if directory in unsettled:
                directory.release()
                continue
            try:
                seconds = [second for _, second in self.seconds.in_directory(directory)]
                logs = [log for _, log in sorted(self._table.logs_in(directory).items())]
                logs += [second.log for second in seconds]
                for log in logs:
                    log.close(wall_ms=wall_ms)
                for second in seconds:
                    second.note_progress()
                plans = {plan.directory: plan for plan in self.plan_checkpoints(high_watermarks)}
                plans[directory.path].run()
                if all(log.is_in_order for log in logs):
                    directory.mark_clean(broker_epoch)
            except OSError as error:
                failures.append(error)
            directory.release()
        self._files.pool.close()
        return failures

    def _close_moved(self, log: Log, former: SecondLog, wall_ms: int) -> None:
        """Flush a log in its new folder, and rename the former one, which the next start deletes.

        Raises OSError.
        """
        log.close(wall_ms=wall_ms)
        if log.is_in_order and former.directory.failure is None:
            key = log.topic_partition
            target = former.directory.new_delete_folder(key, self._options.entropy)
            self._disk.rename(former.log.folder, target)
            self.seconds.remove(key)
            former.directory.forget(key)
            self.finish_move(log, former)()

    def abandon(self) -> None:
        """Close files and release locks without writing anything."""
        self._files.pool.close()
        for directory in self.directories:
            directory.release()

    # -- helpers

    def _check_usable(self) -> None:
        if all(directory.failure is not None for directory in self.directories):
            reasons = "; ".join(f"{each.path}: {each.failure}" for each in self.directories)
            raise NoLogDirectory(f"no log directory can be used: {reasons}")

    def _lock_directory(self, directory: LogDirectory) -> None:
        """Raises LockHeld, CorruptCheckpoint."""
        try:
            directory.lock()
            directory.check_identity(self._options.node_id, self._options.cluster_id)
        except OSError as error:
            self.fail_directory(directory.path, error)

    def _open_directory(self, directory: LogDirectory, wall_ms: int) -> None:
        options = self._options
        try:
            directory.load(options.node_id, options.cluster_id, options.entropy)
            folders = directory.partition_folders()
            live = [folder for folder in folders if folder.kind is FolderKind.LIVE]
            for done, folder in enumerate(live):
                self._open_log(directory, folder.topic_partition, wall_ms, done, len(live))
            for folder in folders:
                if folder.kind is FolderKind.FUTURE:
                    self._open_future(directory, folder, wall_ms)
            # The files may have lines of duplicates: then resolve_duplicates lowers them, and logs wait.
            self._sync_topic_ids(directory)
            is_unsettled = any(duplicate.directory is directory for duplicate in self.duplicates)
            self._checkpoints.lower(directory, writes=not is_unsettled)
            self.removable_folders += directory.leftovers()
        except OSError as error:
            self.fail_directory(directory.path, error)

    def _open_future(self, directory: LogDirectory, folder: PartitionFolder, wall_ms: int) -> None:
        """Open a future log. Of several of a partition only one is used.

        One in the directory of the log in use is deleted, and one whose creation was interrupted."""
        path, key = posixpath.join(directory.path, folder.name), folder.topic_partition
        if key in self.seconds or key in self._table.logs_in(directory):
            self.removable_folders.append(path)
            return
        options = self._open_options(directory, key, wall_ms, None)
        log = open_future(self._disk, path, key, self._options.config_for(key), options)
        if log.topic_id is None:
            self.removable_folders.append(path)
            return
        if (gap := log.take_gap()) is not None:  # its end was not durable: it is copied again
            copying.truncate(log, gap.offset, wall_ms=wall_ms)
        self.seconds.add(SecondLog(directory, log))

    def _remove_moved_markers(self) -> None:
        """Remove the markers of moves that ended: only one folder has the partition's name."""
        if any(directory.failure is not None for directory in self.directories):
            return  # the other folder may be there
        duplicates = {duplicate.topic_partition for duplicate in self.duplicates}
        for directory in self._online():
            try:
                for key in [key for key in directory.moved_folders if key not in duplicates]:
                    self._disk.remove(directory.moved_folders.pop(key))
            except OSError as error:
                self.fail_directory(directory.path, error)

    def _sync_topic_ids(self, directory: LogDirectory) -> None:
        """Make the topic ids of empty logs durable: a killed process may have made their folders, and not
        synced them. So may one that was made while another thread closed the directory: its log has no line
        in the checkpoints. Raises OSError."""
        empty = [log for _, log in sorted(self._table.logs_in(directory).items()) if log.log_end_offset == 0]
        empty += [second.log for _, second in sorted(self.seconds.in_directory(directory)) if not second.size]
        for log in empty:
            is_known = directory.is_clean and log.topic_partition in directory.recovery_points
            if log.topic_id is not None and not is_known:
                checkpoints.sync_partition_metadata(self._disk, log.folder)

    def _open_log(
        self, directory: LogDirectory, key: TopicPartition, wall_ms: int, done: int, total: int
    ) -> None:
        if key in self.logs:
            self.duplicates.append(DuplicateFolder(directory, key))
            return

        def report(segments_done: int, segments_total: int) -> None:
            if self._options.on_progress is not None:
                self._options.on_progress(
                    LoadingProgress(directory.path, str(key), done, total, segments_done, segments_total)
                )

        report(0, 0)
        self._table.add(directory, self._load_log(directory, key, wall_ms, report))

    def _load_log(
        self, directory: LogDirectory, key: TopicPartition, wall_ms: int, report: Progress | None = None
    ) -> Log:
        options = self._open_options(directory, key, wall_ms, report)
        folder = directory.folder_of(key)
        log = Log.open(self._files, folder, key, self._options.config_for(key), options)
        self._files.pool.forget_folder(folder)
        return log

    def _open_options(
        self, directory: LogDirectory, key: TopicPartition, wall_ms: int, report: Progress | None
    ) -> OpenOptions:
        return self._options.open_options(
            clean=directory.is_clean,
            wall_ms=wall_ms,
            recovery_point=directory.recovery_points.get(key, 0),
            log_start_offset=directory.log_start_offsets.get(key, 0),
            cleaned_offset=directory.cleaned_offsets.get(key, 0),
            on_progress=report,
        )

    def _mark_void(self, directory: LogDirectory, key: TopicPartition, folder: str) -> None:
        """Mark a new folder if the checkpoint files may have lines of an earlier folder of the same name."""
        markers = checkpoint_files.void_markers(self._disk, folder)
        if not markers and (name := directory.prepare_folder(key, self._options.entropy)) is not None:
            checkpoint_files.write_void_marker(self._disk, folder, name)
            markers = checkpoint_files.void_markers(self._disk, folder)
        if markers:
            directory.checkpoints.void_markers[key] = markers

    def _choose_directory(self, path: str | None) -> LogDirectory:
        online = [each for each in self._online() if path is None or each.path == path]
        if not online:
            raise NoLogDirectory(path or "every log directory is offline")
        return min(online, key=lambda directory: len(self._table.logs_in(directory)))

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.failure is None]
