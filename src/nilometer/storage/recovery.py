"""Opening the log in a partition's folder: trusted after a clean shutdown, recovered otherwise.

After a clean shutdown the files are used as they are. Otherwise every batch, from the segment that contains
the recovery point on, is read and checked; indexes, epochs and producer state are rebuilt from the valid
batches. The log ends before the first invalid byte: a torn tail is cut off; if valid batches follow the
damage, the rest is kept in ``.corrupt`` files as evidence and never served. No valid record before the first
damage is lost, however the process or machine failed.

A gap between two segments may be damage or not (:class:`SegmentGap`). It is only
recorded here.

A half-done swap or deletion of segments is completed first. Missing or unusable indexes of older
segments are rebuilt.
"""

from __future__ import annotations

import enum
import posixpath
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.invariants import check
from nilometer.runtime import Entropy, File
from nilometer.storage import checkpoints, names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.leader_epoch_cache import LeaderEpochCache
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import PRODUCER_ID_EXPIRATION_MS, ProducerStateManager
from nilometer.storage.segments.batch_scan import in_offset_order, scan
from nilometer.storage.segments.indexes import CorruptIndex
from nilometer.storage.segments.segment import BatchMark, LogSegment, LogSegments
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.swapping import complete_interrupted_swaps
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import CorruptBatch, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, MAGIC, check_batch, read_header

# The damage at which recovery ended a log: its position, reason, and the bytes kept as evidence; and gaps.
#
# A tail is *torn* if no valid batch follows the first bad byte: the usual result of a process or
# machine that failed while writing. It is *damaged* if a valid batch follows: bytes that were once
# valid have changed. Damaged bytes are kept as evidence in the folder (``<base>.log.<position>.corrupt``).

SEARCH_BYTES_MAX = 16 << 20
"""Within how many bytes after the first bad byte a valid batch is searched for."""

_MAGIC_AT = 16
_MAGIC_BYTE = bytes([MAGIC])
_COPY_BYTES = 1 << 20


class DamageKind(enum.Enum):
    TORN = "torn tail"
    DAMAGED = "damaged"

    @classmethod
    def classify(cls, file: File, position: int, size: int, next_offset: int) -> DamageKind:
        rest = file.read_at(position, min(size - position, SEARCH_BYTES_MAX))
        return cls.DAMAGED if _holds_valid_batch(rest, next_offset) else cls.TORN


@dataclass(frozen=True, slots=True)
class Damage:
    """The log was ended at ``offset``, because the file ``path`` is invalid from byte ``position`` on."""

    path: str
    position: int
    offset: int
    reason: str
    kind: DamageKind
    evidence: tuple[str, ...] = ()
    """Paths of the files to which the bytes after the damage were moved or copied."""

    def with_evidence(self, paths: list[str]) -> Damage:
        return replace(self, evidence=(*self.evidence, *paths))

    def __str__(self) -> str:
        return f"{self.path}: {self.kind.value} at byte {self.position}, offset {self.offset}: {self.reason}"


def cut_off_damage(files: SegmentFiles, segment: LogSegment, damage: Damage) -> list[str]:
    """Truncate the segment at the damage; return the paths of the evidence.

    Unless it is a torn tail, the bytes after the damage are copied to a file first.
    """
    evidence: list[str] = []
    file = segment.open_log()
    if damage.kind is DamageKind.DAMAGED:
        path = f"{segment.log_path}.{damage.position}{names.CORRUPT_SUFFIX}"
        copy = files.disk.open(path, create=True)
        try:
            copy.truncate(0)
            for position in range(damage.position, segment.size, _COPY_BYTES):
                copy.append([file.read_at(position, min(_COPY_BYTES, segment.size - position))])
        finally:
            copy.close()
        evidence.append(path)
    file.truncate(damage.position)
    segment.size = damage.position
    return evidence


def _holds_valid_batch(data: bytes, next_offset: int) -> bool:
    """Whether a complete, valid batch with a base offset of ``next_offset`` or more starts in ``data``."""
    magic_at = data.find(_MAGIC_BYTE, _MAGIC_AT)
    while magic_at >= 0:
        position = magic_at - _MAGIC_AT
        if len(data) - position < HEADER_BYTES:
            return False
        try:
            header = read_header(data, position)
            if header.base_offset >= next_offset and header.size <= len(data) - position:
                check_batch(data, position, header)
                return True
        except KafkaError:
            pass
        magic_at = data.find(_MAGIC_BYTE, magic_at + 1)
    return False


# A gap between two segments of a log that was not cleanly shut down and was never compacted.
#
# Compaction may remove the records at the end of a segment, which leaves a gap before the next one. A power
# failure may leave one, too: the end of a segment is lost, the segment after it is not. The files look the
# same. So a marker file in the folder (``LogState.may_have_gaps``) is created before the first record is
# removed, whether by this replica or by the leader that it follows, and it stays when the topic's policy
# changes. With the marker gaps are valid. Without it a gap is a loss of data: the log is ended before it, and
# the segments after it are kept as ``.corrupt`` files, since readers would not notice the missing records.
#
# Until the log is cut at the gap it has all its segments, and must not count as cleanly shut down.


class SegmentGap(NamedTuple):
    path: str
    """The log file after the gap."""
    offset: int
    """The offset at which the segment before the gap ends."""
    next_offset: int
    """The base offset of the segment after the gap."""

    def as_damage(self, evidence: list[str]) -> Damage:
        reason = f"segment begins at offset {self.next_offset}, the one before ended at {self.offset}"
        return Damage(self.path, 0, self.offset, reason, DamageKind.DAMAGED, tuple(evidence))


# Before the segments in a partition's folder are found, interrupted replacements of segments must have been
# completed or undone (:mod:`nilometer.storage.swapping`).


def find_segments(
    files: SegmentFiles, folder: str, file_names: Iterable[str], config: LogConfig, wall_ms: int
) -> list[LogSegment]:
    """Return the segments among the files of a folder, by base offset; remove index files that have no log
    file."""
    disk = files.disk
    found = [parsed for name in file_names if (parsed := names.parse_offset_name(name))]
    bases = {offset for offset, suffix in found if suffix == names.LOG_SUFFIX}
    for offset, suffix in found:
        if offset not in bases and suffix in names.SEGMENT_SUFFIXES:
            disk.remove(posixpath.join(folder, names.offset_name(offset, suffix)))
    return [
        LogSegment(
            files,
            folder,
            base_offset,
            size=disk.file_size(posixpath.join(folder, names.offset_name(base_offset, names.LOG_SUFFIX))),
            created_ms=wall_ms,
            index_interval_bytes=config.indexed_bytes,
        )
        for base_offset in sorted(bases)
    ]


Progress = Callable[[int, int], None]
"""Called with the segments checked so far and their total."""


class OpenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options with which a log is opened."""

    clean: bool
    """Whether the last shutdown was clean."""
    wall_ms: int
    is_new: bool = False
    """Whether the log is new: its folder has just been created."""
    recovery_point: int = 0
    log_start_offset: int = 0
    cleaned_offset: int = 0
    """The offset below which the log is compacted, from the checkpoint."""
    producer_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    entropy: Entropy | None = None
    on_progress: Progress | None = None


class LoadedLog(msgspec.Struct):
    """The checked parts of a log, and the results of its recovery."""

    segments: LogSegments
    epochs: LeaderEpochCache
    producers: ProducerStateManager
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    topic_id: uuid.UUID | None = None
    recovered: list[LogSegment] = msgspec.field(default_factory=list[LogSegment])
    """Segments whose indexes were rebuilt."""
    damages: list[Damage] = msgspec.field(default_factory=list[Damage])
    gap: SegmentGap | None = None
    may_have_gaps: bool = False
    """Whether the log was compacted once, according to its folder: offsets may be missing."""
    begins_in_tier: bool = False
    """Whether its first records may be in remote storage only, according to its folder."""
    bytes_checked: int = 0
    is_changed: bool = False
    """Whether files were created or rewritten that may not be durable yet."""


class LogLoader:
    def __init__(
        self,
        files: SegmentFiles,
        folder: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        options: OpenOptions,
    ) -> None:
        self._files = files
        self._folder = folder
        self._name = str(topic_partition)
        self._config = config
        self._options = options
        self._least_start = options.log_start_offset
        """The log starts here; with its first segment, if that is above and none is in remote storage."""

    def load(self) -> LoadedLog:
        """Load and, if the shutdown was not clean, recover the log. Blocks on the disk. Raises OSError."""
        disk, options = self._files.disk, self._options
        is_cleaned = complete_interrupted_swaps(disk, self._folder) or options.cleaned_offset > 0
        file_names = disk.list_directory(self._folder)
        segments = LogSegments(
            find_segments(self._files, self._folder, file_names, self._config, options.wall_ms)
        )
        producers = ProducerStateManager(disk, self._folder, options.producer_expiration_ms)
        producers.find_snapshots(file_names)
        begins_in_tier = names.TIER_MARKER in file_names
        epochs = self._load_epochs(segments, begins_in_tier)
        loaded = LoadedLog(segments, epochs, producers, begins_in_tier=begins_in_tier)
        loaded.topic_id = self._load_topic_id()
        loaded.may_have_gaps = is_cleaned or names.GAPS_MARKER in file_names
        self._check_sealed(loaded)
        if not options.clean and len(segments):
            self._recover(loaded, options.recovery_point)
        self._find_end(loaded)
        self._fold_epochs_and_producers(loaded)
        loaded.is_changed |= options.is_new or not options.clean or bool(loaded.recovered)
        return loaded

    # -- steps of every load

    def _load_epochs(self, segments: LogSegments, begins_in_tier: bool) -> LeaderEpochCache:
        """Load the epoch checkpoint; if it is torn or missing, read the epochs from the batches.

        The batches also supply epochs missing at the checkpoint's start: its first entries are removed as
        soon as the log start offset moves, but that is checkpointed later, so a crash may restore an older
        log start offset. Of a log whose first records are in remote storage they show where it begins.
        """
        path = posixpath.join(self._folder, names.LEADER_EPOCH_CHECKPOINT)
        try:
            epochs = LeaderEpochCache.load(self._files.disk, path)
        except (CorruptCheckpoint, ValueError):
            epochs = LeaderEpochCache(self._files.disk, path)
        known = epochs.entries
        if begins_in_tier:
            self._begin_with_epochs(known)
        if not segments.size:
            return epochs
        end_offset = known[0][1] if known else None
        if end_offset is None or end_offset > max(self._least_start, segments.first.base_offset):
            missing = self._epochs_of_batches(segments, end_offset)
            if missing:
                rest = [entry for entry in known if entry[0] > missing[-1][0]]
                epochs = LeaderEpochCache(self._files.disk, path, [*missing, *rest])
                epochs.write(sync=True)  # synced, since the next start would trust a half-written file
        return epochs

    def _begin_with_epochs(self, known: Sequence[tuple[int, int]]) -> None:
        """Begin where the epochs of a log do whose first records are in remote storage, if they are complete.

        If the file was lost, the epochs of these records are nowhere here: those of the local batches begin
        later than the log. That is noted before they are written, for every later start.
        """
        disk, marker = self._files.disk, posixpath.join(self._folder, names.TIER_MARKER)
        if not known:
            disk.replace_file(marker, names.EPOCHS_LOST, sync=True)
        elif disk.read_file(marker) != names.EPOCHS_LOST:
            self._least_start = max(self._least_start, known[0][1])

    @staticmethod
    def _epochs_of_batches(segments: LogSegments, end_offset: int | None) -> list[tuple[int, int]]:
        """Return (epoch, start offset) entries from the batches below ``end_offset`` (None: all batches)."""
        found: list[tuple[int, int]] = []
        for segment in segments:
            try:
                for batch in scan(segment.open_log(), 0, segment.size):
                    if end_offset is not None and batch.header.base_offset >= end_offset:
                        return found
                    epoch = batch.header.partition_leader_epoch
                    if epoch > (found[-1][0] if found else NO_LEADER_EPOCH):
                        found.append((epoch, batch.header.base_offset))
            except KafkaError:
                break  # damage: recovery or a read finds it again and reports it
        return found

    def _load_topic_id(self) -> uuid.UUID | None:
        """Read the topic id; None if the file is missing or torn. Records beside it then belong to no topic:
        :meth:`~.log_manager.LogManager.take_out_unidentified`."""
        try:
            path = posixpath.join(self._folder, names.PARTITION_METADATA)
            return checkpoints.read_partition_metadata(self._files.disk, path)
        except CorruptCheckpoint:
            return None

    def _check_sealed(self, loaded: LoadedLog) -> None:
        """Rebuild missing or unusable indexes of the sealed segments that will not be recovered.

        After a clean shutdown only the existence and length of the index files are checked; damage inside
        them is found when they are read.
        """
        if not len(loaded.segments):
            return
        for segment in tuple(loaded.segments)[:-1]:
            if not self._options.clean and segment.base_offset >= self._options.recovery_point:
                break
            try:
                if self._options.clean:
                    segment.check_files_exist()
                else:
                    segment.indexes()
            except (CorruptIndex, FileNotFoundError):
                segment.rebuild_indexes()
                segment.seal()
                loaded.recovered.append(segment)

    def _find_end(self, loaded: LoadedLog) -> None:
        """Make the last segment active and set the log's start and end offsets and recovery point."""
        options, segments = self._options, loaded.segments
        if len(segments):
            active = segments.active
            try:
                loaded.log_end_offset, is_whole = active.activate(verify=True)
            except (CorruptIndex, FileNotFoundError, KafkaError):
                is_whole = False
            if not is_whole:
                self._recover(loaded, active.base_offset)
                loaded.log_end_offset, is_whole = segments.active.activate()
                check(is_whole, "a recovered segment ends with a complete batch", active.log_path)
        if not len(segments) or loaded.log_end_offset < self._least_start:
            self._start_empty(loaded)
        loaded.log_start_offset = self._least_start
        if not loaded.begins_in_tier:
            loaded.log_start_offset = max(self._least_start, segments.first.base_offset)
        trusted = loaded.log_end_offset if options.clean else options.recovery_point
        loaded.recovery_point = min(
            [trusted, loaded.log_end_offset, *(segment.base_offset for segment in loaded.recovered)]
        )

    def _start_empty(self, loaded: LoadedLog) -> None:
        """Make the log empty, starting at the log start offset: it has no record at or above that."""
        had_segments = len(loaded.segments) > 0
        start = self._least_start
        if loaded.segments.size:
            self._rename_all_corrupt(loaded, start)
        for segment in tuple(loaded.segments):
            loaded.segments.remove([segment])
            for path in segment.mark_deleted():
                self._files.disk.remove(path)
        loaded.is_changed = True
        if loaded.log_end_offset < start:
            loaded.epochs.clear()
        loaded.producers.truncate_fully(start)
        loaded.segments.add(
            LogSegment.create(
                self._files,
                self._folder,
                start,
                created_ms=self._options.wall_ms,
                index_interval_bytes=self._config.indexed_bytes,
            )
        )
        loaded.log_end_offset = start
        if had_segments or start:
            self._files.disk.sync_directory(self._folder)  # or a crash could bring the old segments back

    def _rename_all_corrupt(self, loaded: LoadedLog, start: int) -> None:
        """Remove all segments from the log and keep their files as ``.corrupt``, reported as one damage.

        The log has records but ends below its log start offset: records were lost, or that offset is wrong.
        """
        reason = f"the log ends at offset {loaded.log_end_offset}, below its log start {start}"
        path = loaded.segments.first.log_path
        evidence: list[str] = []
        for segment in tuple(loaded.segments):
            loaded.segments.remove([segment])
            evidence += segment.mark_deleted(names.CORRUPT_SUFFIX)
        damage = Damage(path, 0, loaded.log_end_offset, reason, DamageKind.DAMAGED, tuple(evidence))
        loaded.damages.append(damage)

    def _fold_epochs_and_producers(self, loaded: LoadedLog) -> None:
        loaded.epochs.truncate_from_end(loaded.log_end_offset)
        loaded.epochs.truncate_from_start(loaded.log_start_offset)
        if loaded.recovered and loaded.producers.map_end_offset == loaded.log_end_offset:
            return
        loaded.producers.remove_stray_snapshots(segment.base_offset for segment in loaded.segments)
        self._replay(loaded, loaded.log_start_offset, loaded.log_end_offset)

    def _replay(self, loaded: LoadedLog, log_start_offset: int, end_offset: int) -> None:
        """Rebuild the producer state at ``end_offset``: newest valid snapshot, then the batches after it."""
        producers = loaded.producers
        producers.load_latest(log_start_offset, end_offset, self._options.wall_ms)
        start = producers.map_end_offset
        for segment in loaded.segments.from_offset(start) if start < end_offset else ():
            if segment.base_offset >= end_offset:
                break
            try:
                for batch in scan(segment.open_log(), segment.position_near(start), segment.size):
                    if start <= batch.header.last_offset < end_offset:
                        producers.replay(batch.buffer, batch.at, batch.header)
            except KafkaError:
                break  # damage below the recovery point: reads will report it
        producers.map_end_offset = end_offset

    # -- recovery after an unclean shutdown

    def _recover(self, loaded: LoadedLog, recovery_point: int) -> None:
        """Check all batches from the segment of the recovery point on; end the log at the first damage."""
        suspects = loaded.segments.from_offset(recovery_point)
        start = suspects[0].base_offset
        self._replay(loaded, min(self._least_start, start), start)
        # The epoch checkpoint may be older than a truncation: above this offset only the batches are trusted.
        # In the compacted part the checkpoint is kept: the first batches of an epoch may have been removed,
        # and its entries were durable before the compaction.
        loaded.epochs.truncate_from_end(max(start, self._options.cleaned_offset))
        next_offset = start
        for done, segment in enumerate(suspects):
            if self._options.on_progress is not None:
                self._options.on_progress(done, len(suspects))
            damage = self._overlap(segment, next_offset) if done else None
            if damage is None:
                if done:
                    self._note_gap(loaded, segment, next_offset, recovery_point)
                    loaded.producers.take_snapshot(sync=False)
                next_offset, damage = self._recover_segment(loaded, segment)
                loaded.recovered.append(segment)
            if damage is not None:
                self._drop(loaded, suspects[done:], damage)
                break
            if segment is not suspects[-1]:
                segment.seal()

    @staticmethod
    def _overlap(segment: LogSegment, next_offset: int) -> Damage | None:
        if segment.base_offset >= next_offset:
            return None
        reason = f"segment begins at offset {segment.base_offset}, the one before ended at {next_offset}"
        return Damage(segment.log_path, 0, next_offset, reason, DamageKind.DAMAGED)

    def _note_gap(
        self, loaded: LoadedLog, segment: LogSegment, next_offset: int, recovery_point: int
    ) -> None:
        """Record a gap before ``segment`` if it may be a loss of data that readers would notice.

        A gap below the recovery point cannot be a loss, and records below the log start offset are not read.
        """
        if loaded.may_have_gaps:
            return
        is_possible_loss = recovery_point <= next_offset < segment.base_offset
        is_readable = segment.base_offset > self._least_start
        if is_possible_loss and is_readable and loaded.gap is None:
            loaded.gap = SegmentGap(segment.log_path, next_offset, segment.base_offset)

    def _recover_segment(self, loaded: LoadedLog, segment: LogSegment) -> tuple[int, Damage | None]:
        """Check every batch of a segment and rebuild its indexes, epochs and producer state.

        Returns the offset after the last valid batch, and the damage that follows it (None: no damage).
        """
        segment.reset_indexes()
        end, next_offset = 0, segment.base_offset
        reason = "incomplete batch"
        try:
            found = scan(segment.open_log(), 0, segment.size)
            for position, header, buffer, at in in_offset_order(found, next_offset):
                check_batch(buffer, at, header)
                if not segment.can_hold(header.last_offset):
                    raise CorruptBatch(
                        f"batch with base offset {header.base_offset}, but {next_offset} is expected"
                    )
                if header.partition_leader_epoch > loaded.epochs.latest_epoch:
                    loaded.epochs.assign(header.partition_leader_epoch, header.base_offset)
                aborted = loaded.producers.replay(buffer, at, header)
                if aborted:
                    segment.append_aborted(aborted)
                segment.index_batch(
                    position, BatchMark(header.last_offset, header.max_timestamp, header.size)
                )
                end, next_offset = position + header.size, header.next_offset
        except KafkaError as error:
            reason = str(error)
        loaded.bytes_checked += segment.size
        if end == segment.size:
            return next_offset, None
        kind = DamageKind.classify(segment.open_log(), end, segment.size, next_offset)
        return next_offset, Damage(segment.log_path, end, next_offset, reason, kind)

    def _drop(self, loaded: LoadedLog, suspects: tuple[LogSegment, ...], damage: Damage) -> None:
        """End the log at the damage, in the first of ``suspects``; later segments become ``.corrupt``."""
        first, *rest = suspects
        if damage.position == 0 and first not in loaded.recovered:
            rest = list(suspects)
        else:
            evidence = cut_off_damage(self._files, first, damage)
            damage = damage.with_evidence(evidence)
        for segment in reversed(rest):
            loaded.segments.remove([segment])
            moved = segment.mark_deleted(names.CORRUPT_SUFFIX)
            damage = damage.with_evidence(moved)
        loaded.damages.append(damage)
        if len(loaded.segments):  # or the next crash could bring the dropped bytes back, after new records
            checkpoints.make_durable(self._files.disk, loaded.segments.active.log_path)
