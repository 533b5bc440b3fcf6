"""The log directories of this broker: what a starting broker finds in them, how they are opened and closed,
and when one fails.

Also whether the previous incarnation may have lost records: a marker in the first directory has its broker
epoch and the machine's boot id then.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from uuid import UUID

import msgspec

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import NO_BROKER_EPOCH
from nilometer.raft.quorum_state import is_of_others
from nilometer.runtime import Clock, Disk, Runtime
from nilometer.storage import names
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_directory import METADATA_TOPIC, LogDirectory
from nilometer.storage.directories.log_manager import (
    FailureListener,
    LoadingProgress,
    LogManager,
    ManagerOptions,
    NoLogDirectory,
    UnidentifiedLog,
)
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.log import Log
from nilometer.storage.names import FolderKind, TopicPartition
from nilometer.storage.recovery import DamageKind
from nilometer.storage.topic_config import LogConfig

MARKER_NAME = "last-registered-life"  # codespell:ignore
_VERSION = 1


class _Marker(msgspec.Struct):
    version: int
    broker_epoch: int
    boot_id: str


def write_marker(disk: Disk, folder: str, broker_epoch: int, *, may_have_lost_records: bool = False) -> None:
    """Write the marker of ``broker_epoch``. Call it off the event loop. Raises OSError.

    ``may_have_lost_records``: write no boot id, as :func:`mark_possible_loss` does.
    """
    marker = _Marker(_VERSION, broker_epoch, "" if may_have_lost_records else disk.boot_id())
    disk.replace_file(f"{folder}/{MARKER_NAME}", msgspec.json.encode(marker))


def mark_possible_loss(disk: Disk, folder: str) -> None:
    """Remove the boot id from the marker, so that no later start claims that no records were lost.

    Call it off the event loop. Raises OSError; before that it removes the marker, which has the same effect.
    """
    marker = _read_marker(disk, folder)
    if marker is not None:
        marker.boot_id = ""
        try:
            disk.replace_file(f"{folder}/{MARKER_NAME}", msgspec.json.encode(marker))
        except OSError:
            disk.remove(f"{folder}/{MARKER_NAME}")
            raise


def read_lossless_broker_epoch(disk: Disk, folder: str) -> int | None:
    """Return the last registered broker epoch, if the machine has not stopped since; else None.

    Raises OSError.
    """
    boot_id = disk.boot_id()
    marker = _read_marker(disk, folder)
    return marker.broker_epoch if boot_id and marker is not None and marker.boot_id == boot_id else None


def read_broker_epoch(disk: Disk, folder: str) -> int | None:
    """Return the last registered broker epoch, however that incarnation ended; None without a readable
    marker. Raises OSError."""
    marker = _read_marker(disk, folder)
    return None if marker is None else marker.broker_epoch


def _read_marker(disk: Disk, folder: str) -> _Marker | None:
    try:
        marker = msgspec.json.decode(disk.read_file(f"{folder}/{MARKER_NAME}"), type=_Marker)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None  # missing or damaged: assume that records may be lost
    return marker if marker.version == _VERSION else None


KAFKA_METADATA = f"{METADATA_TOPIC}-0"
NAMED_MAX = 3
EMPTY_FOLDER = "To begin with a new broker, set log.dirs to an empty folder"


class FoundLogs(msgspec.Struct, frozen=True):
    directories: Sequence[str]
    """The log directories that have logs."""
    logs: Sequence[str]
    """The names of the partitions."""
    cluster_id: str | None
    """The id in ``meta.properties``; None if no directory has one."""

    def __str__(self) -> str:
        shown = ", ".join(self.logs[:NAMED_MAX]) + (", …" if len(self.logs) > NAMED_MAX else "")
        return f"{', '.join(self.directories)}: has the logs of {len(self.logs)} partitions ({shown})"


def find_logs(disk: Disk, log_dirs: Sequence[str], node_id: int) -> FoundLogs | None:
    """Return the logs in ``log_dirs``; None if there are none. May block; nothing is changed.

    Raises CorruptCheckpoint if the folders are those of another node or of a Kafka broker in KRaft mode, or
    if a ``meta.properties`` cannot be read. A directory that fails is left out: it is found again, and taken
    offline, when it is opened.
    """
    found: dict[str, list[str]] = {}
    cluster_ids: list[str] = []
    of_kafka: list[str] = []
    is_ours = False
    for path in log_dirs:
        try:
            folders = LogDirectory(disk, path).partition_folders()
            identity = log_directory.read_meta_properties(disk, posixpath.join(path, names.META_PROPERTIES))
            is_ours = is_ours or disk.exists(posixpath.join(path, MARKER_NAME))
            if is_of_others(disk, posixpath.join(path, KAFKA_METADATA)):
                of_kafka.append(path)
        except OSError:
            continue
        if identity is not None:
            identity.check(posixpath.join(path, names.META_PROPERTIES), node_id, None)
            cluster_ids += [identity.cluster_id] if identity.cluster_id else []
        if live := [str(each.topic_partition) for each in folders if each.kind is FolderKind.LIVE]:
            found[path] = live
    if of_kafka and not is_ours:
        raise CorruptCheckpoint(
            of_kafka[0],
            f"has {KAFKA_METADATA}, the metadata log of Apache Kafka: this is the data of a Kafka broker. "
            f"Nothing was changed. {EMPTY_FOLDER}; MirrorMaker 2 copies Kafka's topics",
        )
    if not found:
        return None
    logs = sorted(name for several in found.values() for name in several)
    return FoundLogs(tuple(found), logs, cluster_ids[0] if cluster_ids else None)


logger = logging.getLogger("nilometer.broker.replicas")

PROGRESS_EVERY_MS = 1_000


class LogDirectories:
    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        logs: LogManager,
        on_all_failed: Callable[[str], None],
        unidentified: Sequence[UnidentifiedLog] = (),
    ) -> None:
        """``on_all_failed`` is called when no directory is usable any more; ``unidentified``: the logs that
        were made strays.
        """
        self.logs = logs
        self._runtime = runtime
        self._tasks = tasks
        self._on_all_failed = on_all_failed
        self._failure_listeners: list[FailureListener] = []
        self._marking: asyncio.Task[None] | None = None
        """The newest write of the marker; none before this broker is registered."""
        self.lossless_broker_epoch = NO_BROKER_EPOCH
        """The broker epoch whose incarnation is known to have lost no records: the registered one or, until
        then, that of the data found at startup. A clean shutdown records it."""
        self._unidentified = unidentified
        self._marked_epoch: int | None = None
        """The last registered broker epoch before this start, from the marker; None if it cannot be read."""
        logs.add_failure_listener(self._on_failed)

    @classmethod
    async def open(
        cls, config: BrokerConfig, runtime: Runtime, tasks: Tasks, on_all_failed: Callable[[str], None]
    ) -> LogDirectories:
        """Open the directories and all logs in them.

        Raises LockHeld, CorruptCheckpoint, NoLogDirectory.
        """
        defaults = LogConfig.parse({}, config.topic_defaults())
        options = ManagerOptions(
            node_id=config.node_id,
            directories=config.log_dirs,
            entropy=runtime.entropy,
            config_for=lambda _: defaults,
            producer_expiration_ms=config.integer("producer.id.expiration.ms"),
            open_files_max=runtime.open_files_max,
            on_progress=_ProgressLog(runtime.clock).report,
        )
        disk, wall_ms = runtime.disk, runtime.clock.wall_ms()

        def open_logs() -> tuple[LogManager, list[UnidentifiedLog]]:
            logs = LogManager.open(disk, options, wall_ms=wall_ms)
            try:
                return logs, logs.take_out_unidentified()
            except NoLogDirectory:
                logs.abandon()
                raise

        logs, unidentified = await disk.offload(open_logs)
        return cls(runtime, tasks, logs, on_all_failed, unidentified)

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster that the directories belong to; None for new ones."""
        known = (each.identity.cluster_id for each in self.logs.directories)
        return next((cluster_id for cluster_id in known if cluster_id), None)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the directories, except those that cannot be read."""
        known = (each.identity.directory_id for each in self.logs.directories)
        return tuple(directory_id for directory_id in known if directory_id)

    @property
    def failed_count(self) -> int:
        return sum(each.failure is not None for each in self.logs.directories)

    @property
    def _first(self) -> str:
        return self.logs.directories[0].path

    # ── startup ─────────────────────────────────────────────────────────────────────────────────
    def log_findings(self) -> None:
        """Log which directories failed, and the damage found."""
        for directory in self.logs.directories:
            for error in directory.checkpoints.errors:
                logger.warning("Damaged checkpoint file is treated as empty: %s", error)
            if directory.failure is not None:
                logger.error("Log directory %s failed, taken offline: %s", directory.path, directory.failure)
        for damage in (*self.logs.damages, *self._unidentified):
            logger.error("Damage found: %s", damage)

    async def read_broker_epoch(self) -> None:
        """Find the broker epoch of the previous incarnation, and whether it is certain that it lost no
        records."""
        disk, folder, logs = self._runtime.disk, self._first, self.logs
        losses = list(self._possible_losses())

        def look() -> int | None:
            self._marked_epoch = read_broker_epoch(disk, folder)
            if losses:
                # The next start would not notice: the damage is truncated now, and a failed directory may
                # work again.
                mark_possible_loss(disk, folder)
            return read_lossless_broker_epoch(disk, folder)

        try:
            lossless_epoch = await disk.offload(look)
        except OSError as error:  # fail() does nothing if the directory has failed already
            self.fail(folder, error)
            return
        if not losses and lossless_epoch is None and logs.previous_broker_epoch is None:
            losses.append(
                "it was not shut down, and the machine has been started again since, or a log directory had "
                "failed"
            )
        if losses and self.last_registration_number != NO_BROKER_EPOCH:
            logger.info(
                "The previous incarnation of this broker may have lost records: %s", "; ".join(losses)
            )
        if losses:
            return
        known = (logs.previous_broker_epoch, lossless_epoch, NO_BROKER_EPOCH)
        self.lossless_broker_epoch = next(epoch for epoch in known if epoch is not None)

    def _possible_losses(self) -> Iterator[str]:
        """Yield what the logs say of records that the previous incarnation may have lost. A torn tail is not
        among it: a killed process leaves one."""
        logs = self.logs
        if self.failed_count:
            yield "a log directory failed"
        if logs.has_uncertain_duplicates:
            yield "a partition has two folders"
        if self._unidentified:
            yield "a log has lost the id of its topic"
        if any(damage.kind is not DamageKind.TORN for damage in logs.damages):
            yield "a log is damaged"
        if logs.has_gaps:
            yield "a log has a gap"

    async def assign_cluster_id(self, cluster_id: str) -> None:
        """Record the cluster's id in new directories.

        Raises CorruptCheckpoint if the directories belong to another cluster.
        """
        self._fail_all(await self._runtime.disk.offload(lambda: self.logs.assign_cluster_id(cluster_id)))

    async def resolve_duplicates(self, image: ClusterImage) -> None:
        """Resolve partitions with two folders: the older one was in an offline directory, and the partition
        got a new one meanwhile."""

        def topic_id(name: TopicPartition) -> UUID | None:
            topic = image.topic(name.topic)
            return None if topic is None else topic.uuid

        if not self.logs.duplicates:
            return
        wall_ms = self._runtime.clock.wall_ms()
        settled = await self._runtime.disk.offload(
            lambda: self.logs.resolve_duplicates(topic_id, wall_ms=wall_ms)
        )
        for stale in settled.stale_folders:
            logger.warning("%s", stale)
        self._fail_all(settled.failures)
        for damage in self.logs.take_out_unidentified():
            logger.error("Damage found: %s", damage)

    # ── the broker epoch ────────────────────────────────────────────────────────────────────────
    @property
    def last_registration_number(self) -> int:
        """The number of the metadata log's entry that last registered this broker (its broker epoch), as far
        as its log directories show it."""
        known = (self._marked_epoch, self.logs.previous_broker_epoch)
        return max((epoch for epoch in known if epoch is not None), default=NO_BROKER_EPOCH)

    def note_registered(self, broker_epoch: int) -> None:
        """Record that this broker is registered (again): its logs are written under ``broker_epoch``."""
        self.lossless_broker_epoch = broker_epoch
        self._begin_marking()

    async def wait_marked(self) -> None:
        """Wait until the marker of the newest registration is on disk, or its directory is offline."""
        if self._marking is not None:
            await self._marking

    def _begin_marking(self) -> None:
        self._marking = self._tasks.spawn(self._write_marker(self._marking), name="broker epoch marker")

    async def _write_marker(self, earlier: asyncio.Task[None] | None) -> None:
        """Write the marker after the ``earlier`` write, so that an older broker epoch never replaces a newer
        one."""
        if earlier is not None:
            await asyncio.wait([earlier])
        disk, folder, epoch = self._runtime.disk, self._first, self.lossless_broker_epoch
        may_have_lost_records, is_offline = bool(self.failed_count), self.logs.is_offline(folder)

        def write() -> None:
            with suppress(OSError) if is_offline else nullcontext():  # offline: try, but ignore a failure
                write_marker(disk, folder, epoch, may_have_lost_records=may_have_lost_records)

        try:
            await disk.offload(write)
        except OSError as error:
            self.fail(folder, error)

    # ── failures ────────────────────────────────────────────────────────────────────────────────
    def add_failure_listener(self, listener: FailureListener) -> None:
        """Call ``listener`` for each directory that fails from now on."""
        self._failure_listeners.append(listener)

    def fail(self, path: str, error: Exception) -> None:
        """Take a directory offline."""
        self.logs.fail_directory(path, error)

    def fail_directory_of(self, log: Log, error: OSError) -> None:
        """Take the directory of ``log`` offline, unless the log was deleted meanwhile."""
        if self.logs.get(log.topic_partition) is log:
            self.fail(self.logs.directory_of(log.topic_partition), error)

    def _fail_all(self, failures: Mapping[str, OSError]) -> None:
        for path, error in failures.items():
            self.fail(path, error)

    def _on_failed(self, path: str, error: Exception, affected: Sequence[TopicPartition]) -> None:
        logger.error("Log directory %s failed, taken offline: %s", path, error)
        for listener in self._failure_listeners:
            listener(path, error, affected)
        if self._marking is not None:
            self._begin_marking()
        if self.failed_count == len(self.logs.directories):
            self._on_all_failed(f"no log directory is usable any more: {error}")

    # ── shutdown ────────────────────────────────────────────────────────────────────────────────
    async def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Flush and close all logs, with the marker of a clean shutdown."""
        wall_ms = self._runtime.clock.wall_ms()
        failures = await self._runtime.disk.offload(
            lambda: self.logs.close(high_watermarks, broker_epoch=self.lossless_broker_epoch, wall_ms=wall_ms)
        )
        for failure in failures:
            logger.error("A log could not be closed cleanly; the next start recovers it: %s", failure)


class _ProgressLog:
    """Logs the progress of opening logs, about once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = 0

    def report(self, progress: LoadingProgress) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_ms >= PROGRESS_EVERY_MS:
            self._last_ms = now_ms
            logger.info(
                "Opening logs of %s: %d of %d, now %s (segment %d of %d)",
                progress.directory,
                progress.logs_done,
                progress.logs_total,
                progress.log,
                progress.segments_done,
                progress.segments_total,
            )
