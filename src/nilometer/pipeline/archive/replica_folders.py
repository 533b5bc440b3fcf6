"""The replicas of brokers that do not run: opened as a broker opens them, filled, or emptied again.

Only a replica that has never had a record is filled. A directory whose broker runs, or did not stop in order,
is not opened.
"""

from __future__ import annotations

import os
import posixpath
import signal
import threading
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from nilometer.identifiers import LeaderEpoch
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.places import ReplicaFolder, find_replicas
from nilometer.pipeline.source.log_folders.storages import is_uri, shown_folder
from nilometer.runtime import LockHeld, Runtime
from nilometer.storage import names
from nilometer.storage.directories.log_directory import (
    UNKNOWN_BROKER_EPOCH,
    read_broker_epoch,
    read_meta_properties,
)
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, NoLogDirectory
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.flushing import flush_all
from nilometer.storage.names import TopicPartition
from nilometer.wire.errors import KafkaError

if TYPE_CHECKING:
    from nilometer.storage.log import Log

LEADER_EPOCH = 0
"""That of all restored batches: no leader of the new partition had a lower one."""


def local_replicas(places: Sequence[str]) -> list[ReplicaFolder]:
    """Return the replicas in ``places``, folders of this machine. Raises SourceError."""
    if uri := next((one for one in places if is_uri(one)), None):
        raise SourceError(f"{shown_folder(uri)} is no folder of this machine, where brokers have theirs")
    return find_replicas(dict.fromkeys(map(os.path.realpath, places)))


class ReplicaFolders:
    def __init__(self, places: Sequence[str], parts: set[TopicPartition], opened: ExitStack) -> None:
        """Open the directories that have replicas of ``parts``; ``opened`` closes them. Raises SourceError.

        Nothing is changed in a directory whose broker runs, or did not stop in order.
        """
        self._runtime = Runtime.system()
        self._ends: dict[TopicPartition, int] = {}
        self._written: list[EmptyReplica] = []
        found = local_replicas(places)
        directories = {one.directory.place: one.directory for one in found if one.part in parts}
        for place, view in sorted(directories.items()):
            if read_broker_epoch(self._runtime.disk, posixpath.join(place, names.CLEAN_SHUTDOWN)) is None:
                raise SourceError(
                    f"the broker of {place} runs, or it did not stop in order: stop it, after another start "
                    "if it was killed"
                )
            if view.node_id is None:
                raise SourceError(f"{place} has no readable {names.META_PROPERTIES}: it is of no broker")
        self._found = found
        self._directories = [
            _Directory(self._runtime, place, view.node_id or 0) for place, view in sorted(directories.items())
        ]
        for directory in self._directories:
            directory.open()
            opened.callback(directory.close, self._ends)

    def identity(self, part: TopicPartition) -> tuple[str, str]:
        """Return the ids of the cluster and of the topic of a partition's replicas. Raises SourceError."""
        disk, found = self._runtime.disk, dict[tuple[str | None, str | None], str]()
        for one in self._found:
            if one.part == part:
                path = posixpath.join(one.directory.place, names.META_PROPERTIES)
                properties = read_meta_properties(disk, path)
                found[None if properties is None else properties.cluster_id, one.topic_id] = one.place
        (cluster_id, topic_id), place = next(iter(found.items()))
        if len(found) > 1:
            raise SourceError(f"{' and '.join(found.values())} are not of one topic of one cluster")
        if cluster_id is None or topic_id is None:
            raise SourceError(f"{place} does not tell its cluster's id and its topic's")
        return cluster_id, topic_id

    def partitions_of(self, topic: str) -> set[int]:
        """Return the partitions of a topic that have replicas here."""
        return {one.part.partition for one in self._found if one.part.topic == topic}

    def empty_replicas(self, part: TopicPartition, *, may_begin_in_tier: bool = False) -> list[EmptyReplica]:
        """Return the replicas of a partition that has never had a record. Raises SourceError for another.

        ``may_begin_in_tier``: also of one that has its records in remote storage only.
        """
        replicas = [EmptyReplica(one, part) for one in self._directories if part in one.manager.logs]
        for one in replicas:
            is_in_tier = may_begin_in_tier and one.log.begins_in_tier
            if one.log.size or (one.log.log_end_offset and not is_in_tier):
                raise SourceError(
                    f"{one.log.folder} is not empty: its next offset is {one.log.log_end_offset}. "
                    "Only a new topic is restored; --as gives it another name"
                )
        return replicas

    @contextmanager
    def undone_on_error(self) -> Generator[None]:
        """Empty all that was written if an error occurs."""
        try:
            yield
        except BaseException as error:
            failed = [one.folder for one in self._written if one.log.failure is not None]
            self._ends.update(dict.fromkeys(self._ends, 0))
            with _uninterrupted():
                left = self._undo()
            if left:
                raise SourceError(
                    f"{error}. What was restored could not be removed from {', '.join(left)}: delete the "
                    "topic, and create it again"
                ) from error
            if isinstance(error, (KafkaError, OSError)):
                place = ", ".join(failed) or "a log"
                raise SourceError(f"{place} could not be written: {error}") from error
            raise

    def _undo(self) -> list[str]:
        """Empty all that was written; return the folders of the logs for which that failed."""
        left: list[str] = []
        # First those that could not be written: that makes room on a full disk, which the others need.
        for replica in sorted(self._written, key=lambda one: one.log.failure is None):
            try:
                replica.empty()
            except (SourceError, KafkaError, OSError):
                left.append(replica.folder)
        return left

    def finish(self) -> None:
        """Note in the checkpoints what was written. Raises OSError."""
        for directory in self._directories:
            directory.write_checkpoints(self._ends)

    async def write(
        self, part: TopicPartition, replicas: Sequence[EmptyReplica], start: int, pieces: AsyncIterator[bytes]
    ) -> None:
        """Write all replicas of a partition. Raises SourceError, KafkaError, OSError."""
        for replica in replicas:
            self._written.append(replica)
            replica.begin(start)
        async for records in pieces:
            for replica in replicas:
                replica.append(records)
        for replica in replicas:
            replica.flush()

    def begin_in_tier(
        self, part: TopicPartition, replicas: Sequence[EmptyReplica], start: int, end: int, producers: bytes
    ) -> None:
        """Let all replicas of a partition begin behind records [start, end) that remote storage has.

        Raises SourceError, KafkaError, OSError.
        """
        for replica in replicas:
            self._written.append(replica)
            replica.begin_in_tier(start, end, producers)
        self.note_end(part, end)

    def note_end(self, part: TopicPartition, end: int) -> None:
        """Note the high watermark of a partition that was written."""
        self._ends[part] = end


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Ignore further signals to end: a user may press Ctrl-C twice. Other threads than the first get none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _Directory:
    """A log directory of a stopped broker."""

    def __init__(self, runtime: Runtime, place: str, node_id: int) -> None:
        self._runtime = runtime
        self._options = ManagerOptions(node_id=node_id, directories=[place], entropy=runtime.entropy)
        self._place = place
        self._broker_epoch = UNKNOWN_BROKER_EPOCH
        self._manager: LogManager | None = None

    @property
    def manager(self) -> LogManager:
        """Raises SourceError if it could not be opened again."""
        if self._manager is None:
            raise SourceError(f"{self._place} is closed")
        return self._manager

    @property
    def wall_ms(self) -> int:
        return self._runtime.clock.wall_ms()

    def open(self) -> None:
        """Raises SourceError; then it stays closed."""
        manager = self._open()
        if manager.previous_broker_epoch is not None:
            self._broker_epoch = manager.previous_broker_epoch
        if manager.has_gaps or manager.duplicates or any(manager.seconds.items()):
            self.close({})
            raise SourceError(
                f"{self._place} has logs that are damaged, or being moved: start its broker, and stop it "
                "when `nilometer status` shows no such replica"
            )

    def _open(self) -> LogManager:
        try:
            self._manager = LogManager.open(self._runtime.disk, self._options, wall_ms=self.wall_ms)
        except (LockHeld, CorruptCheckpoint, NoLogDirectory) as error:
            raise SourceError(f"{self._place} cannot be opened: {error}") from error
        return self._manager

    def open_without(self, folder: str) -> None:
        """Open it again after a write has failed, without the records in ``folder``. Raises SourceError,
        OSError; then the next start of its broker recovers it."""
        manager, self._manager = self.manager, None
        manager.abandon()
        disk = self._runtime.disk
        for name in disk.list_directory(folder):
            if name != names.PARTITION_METADATA:
                disk.remove(posixpath.join(folder, name))
        self._open()

    def close(self, ends: Mapping[TopicPartition, int]) -> None:
        """``ends``: the high watermarks of restored partitions. Raises SourceError."""
        if self._manager is None:
            return
        if errors := self.manager.close(ends, broker_epoch=self._broker_epoch, wall_ms=self.wall_ms):
            raise SourceError(
                f"{self._place} could not be closed in order: {errors[0]}. Its broker recovers it at the "
                "next start"
            )

    def write_checkpoints(self, ends: Mapping[TopicPartition, int]) -> None:
        """Raises OSError."""
        for plan in self.manager.plan_checkpoints(ends):
            if plan.run():
                self.manager.note_checkpoint(plan)


class EmptyReplica:
    def __init__(self, directory: _Directory, part: TopicPartition) -> None:
        self._directory = directory
        self._part = part
        self.folder = self.log.folder

    @property
    def log(self) -> Log:
        return self._directory.manager.logs[self._part]

    def begin(self, offset: int) -> None:
        """Let the empty log start at ``offset``, without the epochs of those who have led it."""
        manager, log = self._directory.manager, self.log
        truncation = manager.truncate_fully_and_start_at(log, offset, wall_ms=self._directory.wall_ms)
        for path in truncation.removable:
            log.files.disk.remove(path)
        self._directory.write_checkpoints({})  # until then a truncated log accepts nothing

    def begin_in_tier(self, start: int, end: int, producers: bytes) -> None:
        """Let the empty log go on at ``end`` behind the records from ``start`` on that remote storage has."""
        manager, log = self._directory.manager, self.log
        truncation = manager.start_in_tier(
            log,
            end,
            log_start_offset=start,
            epochs=[(LeaderEpoch(LEADER_EPOCH), start)] if end > start else [],
            producers=producers,
            wall_ms=self._directory.wall_ms,
        )
        for path in truncation.removable:
            log.files.disk.remove(path)
        self._directory.write_checkpoints({})  # until then a truncated log accepts nothing

    def append(self, records: bytes) -> None:
        """Raises KafkaError."""
        self.log.append_as_follower(records, wall_ms=self._directory.wall_ms)

    def flush(self) -> None:
        """Raises OSError."""
        flush_all(self.log, self._directory.wall_ms)

    def empty(self) -> None:
        """Remove what was appended. Raises SourceError, OSError."""
        if self.log.failure is not None:  # it cannot be written any more
            self._directory.open_without(self.folder)
        self.begin(0)
