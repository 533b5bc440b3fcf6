"""All logs of a broker, in one or more log directories.

The manager opens, creates and deletes logs, writes the checkpoint files, and isolates failures: a
directory that fails takes its own logs offline and no others.

Invariants: a partition has at most one log in use; a directory is used only while its lock is held; the
marker of a clean shutdown exists only while no log of its directory is open.

All methods may block on the disk, except lookups and methods that say otherwise: call them off the event
loop.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence

from nilometer.runtime import Disk, Entropy
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import void_checkpoints
from nilometer.storage.directories.checkpoint_files import CheckpointPlan
from nilometer.storage.directories.duplicate_folders import (
    Copy,
    DuplicateFolder,
    DuplicateHost,
    ResolvedDuplicates,
    resolve,
)
from nilometer.storage.directories.log_checkpoints import LogCheckpoints
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.directories.log_table import LogTable
from nilometer.storage.directories.manager_options import (
    DirectoryDescription,
    FailureListener,
    LoadingProgress,
    ManagerOptions,
    UnidentifiedLog,
)
from nilometer.storage.directories.new_folder import NewFolder
from nilometer.storage.log import Log
from nilometer.storage.log_config import LogConfig
from nilometer.storage.names import FolderKind, TopicPartition
from nilometer.storage.recovery import Progress
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.tail_damage import Damage
from nilometer.storage.truncation import Truncation

__all__ = ["DirectoryDescription", "LoadingProgress", "LogManager", "ManagerOptions", "NoLogDirectory"]


class NoLogDirectory(Exception):
    """Every log directory is offline: the broker cannot run."""


class LogManager:
    def __init__(self, disk: Disk, options: ManagerOptions) -> None:
        self._disk = disk
        self._options = options
        self._files = SegmentFiles.on(disk, options.open_files_max)
        self.directories = [LogDirectory(disk, path) for path in options.directories]
        self._table = LogTable(options.directories)
        self._checkpoints = LogCheckpoints(self._table)
        self.logs = self._table.logs
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
        return any(log.state.gap is not None for log in self.logs.values())

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

        Pass the plans to :func:`~.new_folder.make_durable`, then each to :meth:`create`. Does not block.
        Raises NoLogDirectory.
        """
        counts = {each.path: len(self._table.logs_in(each)) for each in self._online()}
        if not counts:
            raise NoLogDirectory("every log directory is offline")
        plans: list[NewFolder] = []
        for topic_partition, topic_id in wanted:
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
        target = self._choose_directory(None if folder is None else folder.directory)
        path = target.folder_of(topic_partition)
        new_id = topic_id if folder is None else None
        try:
            if new_id is not None:
                checkpoints.write_partition_metadata(self._disk, path, new_id)
                if sync:
                    checkpoints.sync_partition_metadata(self._disk, path)
            self._mark_void(target, topic_partition, path)
            options = self._options.open_options(clean=True, wall_ms=wall_ms, is_new=True)
            log = Log.open(self._files, path, topic_partition, config, options)
        except OSError as error:
            self.fail_directory(target.path, error)
            raise
        self._table.add(target, log)
        if new_id is not None and not sync:
            log.state.await_checkpoint(syncs_topic_id=True)
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
        log.state.moved_to(target)
        log.fence(OSError(why))
        return target

    def truncate_to(self, log: Log, offset: int, *, wall_ms: int) -> Truncation:
        """Truncate ``log`` to ``offset``. Raises LogFenced.

        If checkpointed offsets are then above the log's, it rejects appends until the next checkpoint is
        recorded as written (``log.awaits_checkpoint``).
        """
        truncation = log.truncate_to(offset, wall_ms=wall_ms)
        self._checkpoints.hold_if_exceeded(log)
        return truncation

    def truncate_fully_and_start_at(self, log: Log, offset: int, *, wall_ms: int) -> Truncation:
        truncation = log.truncate_fully_and_start_at(offset, wall_ms=wall_ms)
        self._checkpoints.hold_if_exceeded(log)
        return truncation

    def resolve_gap(self, log: Log, *, wall_ms: int) -> Damage | None:
        """Cut the log at its gap, if any: see :meth:`Log.resolve_gap`. Raises LogFenced.

        Call it when the topic's settings are known.
        """
        damage = log.resolve_gap(wall_ms=wall_ms)
        if damage is not None:
            self._checkpoints.hold_if_exceeded(log)
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
        affected = [log.topic_partition for log in logs]
        directory.release()
        for listener in self._failure_listeners:
            listener(path, reason, affected)
        return affected

    def describe(self) -> list[DirectoryDescription]:
        descriptions: list[DirectoryDescription] = []
        for directory in self.directories:
            sizes = {key: log.segments.size for key, log in sorted(self._table.logs_in(directory).items())}
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
        unsettled = [duplicate.directory for duplicate in self.duplicates]
        for directory in self._online():
            if directory in unsettled:
                directory.release()
                continue
            try:
                logs = self._table.logs_in(directory)
                for _, log in sorted(logs.items()):
                    log.close(wall_ms=wall_ms)
                plans = {plan.directory: plan for plan in self.plan_checkpoints(high_watermarks)}
                plans[directory.path].run()
                if all(log.is_in_order for log in logs.values()):
                    directory.mark_clean(broker_epoch)
            except OSError as error:
                failures.append(error)
            directory.release()
        self._files.pool.close()
        return failures

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
            # The files may have lines of duplicates: then resolve_duplicates lowers them, and logs wait.
            self._sync_topic_ids(directory)
            is_unsettled = any(duplicate.directory is directory for duplicate in self.duplicates)
            self._checkpoints.lower(directory, writes=not is_unsettled)
            self.removable_folders += directory.leftovers()
        except OSError as error:
            self.fail_directory(directory.path, error)

    def _sync_topic_ids(self, directory: LogDirectory) -> None:
        """Make the topic ids of empty logs durable: a killed process may have made their folders, and not
        synced them. Raises OSError."""
        if not directory.is_clean:
            for _, log in sorted(self._table.logs_in(directory).items()):
                if log.log_end_offset == 0 and log.topic_id is not None:
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
        options = self._options.open_options(
            clean=directory.is_clean,
            wall_ms=wall_ms,
            recovery_point=directory.recovery_points.get(key, 0),
            log_start_offset=directory.log_start_offsets.get(key, 0),
            cleaned_offset=directory.cleaned_offsets.get(key, 0),
            on_progress=report,
        )
        folder = directory.folder_of(key)
        log = Log.open(self._files, folder, key, self._options.config_for(key), options)
        self._files.pool.forget_folder(folder)
        return log

    def _mark_void(self, directory: LogDirectory, key: TopicPartition, folder: str) -> None:
        """Mark a new folder if the checkpoint files may have lines of an earlier folder of the same name."""
        markers = void_checkpoints.find(self._disk, folder)
        if not markers and (name := directory.prepare_folder(key, self._options.entropy)) is not None:
            void_checkpoints.write(self._disk, folder, name)
            markers = void_checkpoints.find(self._disk, folder)
        if markers:
            directory.checkpoints.void_markers[key] = markers

    def _choose_directory(self, path: str | None) -> LogDirectory:
        online = [each for each in self._online() if path is None or each.path == path]
        if not online:
            raise NoLogDirectory(path or "every log directory is offline")
        return min(online, key=lambda directory: len(self._table.logs_in(directory)))

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.failure is None]
