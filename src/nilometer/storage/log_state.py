"""The state of one replica's log, and the few steps that all its operations share.

The state is offsets, segments, leader epochs, producers and the fence; the operations (append, read,
truncate, delete, flush, recover) are separate modules that work on it. They change the state through the
methods here, which keep the invariants; no other module assigns its fields. :class:`~.log.Log` adds
the operations; the roles of a replica read it as their ``ReplicaLog``.

Invariants, checked at each transition (:class:`~nilometer.invariants.InvariantBroken`):
``log_start_offset <= log_end_offset``; ``flushed_offset <= log_end_offset``; there is always an
active segment; no segment contains an offset at or above ``log_end_offset``; after the first failed write
nothing more is written (KAFKA-10778).
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.invariants import InvariantBroken, check
from nilometer.runtime import Entropy
from nilometer.storage import names
from nilometer.storage.errors import LogFenced
from nilometer.storage.leader_epoch_cache import LeaderEpochCache
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import DeferredSnapshot, ProducerStateManager
from nilometer.storage.recovery import Damage, SegmentGap
from nilometer.storage.segments.segment import LogSegment, LogSegments
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, KafkaError

# The batches of an append, kept in memory while the fetches that wait for them are answered.
#
# They are the bytes that were checked and written; so these fetches need not read them back.


class KeptRecords(NamedTuple):
    """Batches from ``first_offset`` to ``next_offset``, at byte ``position`` of ``segment``."""

    first_offset: int
    next_offset: int
    records: Bytes
    segment: LogSegment
    position: int


LOG_START_IN_ORDER = "log start offset <= log end offset"
FLUSHED_IN_ORDER = "flushed offset <= log end offset"
CLEANED_IN_ORDER = "cleaned offset <= log end offset"
SEGMENTS_RISE = "a new segment starts above the one before it"
APPENDS_EXTEND = "an append does not shorten the log"
SAME_END = "logs that exchange their files end at the same offset"
TRUNCATIONS_SHORTEN = "a truncation does not extend the log"


class LogState:
    __slots__ = (
        "_entropy",
        "awaits_checkpoint",
        "begins_in_tier",
        "cleaned_offset",
        "config",
        "damages",
        "epoch_writes",
        "epoch_writes_durable",
        "epochs",
        "failure",
        "files",
        "first_unflushed_ms",
        "flushed_offset",
        "folder",
        "gap",
        "kept",
        "log_end_offset",
        "log_start_offset",
        "may_have_gaps",
        "name_changes",
        "name_changes_durable",
        "producers",
        "read_hints",
        "replacements",
        "segments",
        "tiered_offset",
        "topic_id",
        "topic_partition",
        "truncations",
        "unsynced_names",
        "unsynced_sealed",
    )

    def __init__(
        self,
        files: SegmentFiles,
        folder: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        segments: LogSegments,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        topic_id: uuid.UUID | None = None,
        gap: SegmentGap | None = None,
        cleaned_offset: int = 0,
        damages: Sequence[Damage] = (),
        begins_in_tier: bool = False,
        entropy: Entropy | None = None,
    ) -> None:
        self.files = files
        self.folder = folder
        self.topic_partition = topic_partition
        self.config = config
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.flushed_offset = recovery_point
        """Every record below this offset is durable. Never above the log end offset."""
        self.first_unflushed_ms: int | None = None
        """Wall clock time (ms) at which the oldest record that is not durable was appended."""
        self.topic_id: uuid.UUID | None = topic_id
        self.failure: OSError | None = None
        self.gap = gap
        """A gap between two segments found when the log was opened; not decided yet whether it is damage."""
        self.damages = tuple(damages)
        """The damage found when the log was opened."""
        self.awaits_checkpoint = False
        """True after a truncation, and in a new log whose topic id is not durable: no append until the
        checkpoint files are rewritten, and ``unsynced_names`` with them."""
        self.unsynced_names: tuple[str, ...] = ()
        """The files in the folder that must be durable before the next append."""
        self.cleaned_offset = cleaned_offset
        """Compaction has processed all records below this offset; 0 if the log was never compacted."""
        self.may_have_gaps = False
        """Whether the log was ever compacted, on this broker or on a leader that it was copied from."""
        self.begins_in_tier = begins_in_tier
        """Whether the log start offset may be below the first segment: the records between are in remote
        storage. A marker file in the folder says so after a restart."""
        self.tiered_offset = 0
        """The records below are in remote storage, according to what was last read there; 0 if not known."""
        self.replacements = 0
        """Incremented at the start and at the end of each replacement of segments: odd during one."""
        self.truncations = 0
        """How often the log was truncated. A flush planned before a truncation is ignored when it ends."""
        self.name_changes: int = 0
        self.name_changes_durable: int = 0
        """How often files were created or renamed, and the value of this count that a folder sync covers."""
        self.epoch_writes: int = 0
        self.epoch_writes_durable: int = 0
        """How often the epoch checkpoint was written, and the value of this count that a sync covers."""
        self.unsynced_sealed: dict[int, LogSegment] = {}
        """Sealed segments, by base offset, whose indexes may not be durable."""
        self.read_hints: dict[int, tuple[LogSegment, int]] = {}
        """Offset -> (segment, byte position) of the batch that contains it: the positions at which the latest
        reads ended and the next ones probably begin."""
        self.kept: KeptRecords | None = None
        """The batches of the append whose waiting fetches are being answered."""
        self._entropy = entropy
        check(log_start_offset <= log_end_offset, LOG_START_IN_ORDER, log_start_offset, log_end_offset)
        check(recovery_point <= log_end_offset, FLUSHED_IN_ORDER, recovery_point, log_end_offset)
        check(cleaned_offset <= log_end_offset, CLEANED_IN_ORDER, cleaned_offset, log_end_offset)

    @property
    def name(self) -> str:
        return str(self.topic_partition)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self.segments.size

    @property
    def local_start_offset(self) -> Offset:
        """The first offset that can be read from the segments: above the log start offset, if the first
        records are in remote storage only."""
        return Offset(max(self.log_start_offset, self.segments.first.base_offset))

    @property
    def is_empty(self) -> bool:
        return self.log_start_offset == self.log_end_offset

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The latest leader epoch; -1 if none is known."""
        return self.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch not above ``epoch`` and its end offset; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    @property
    def recovery_point(self) -> int:
        """The offset below which records and indexes are durable: an unclean restart checks from here on.

        A flush does not sync the transaction index of the active segment, so while that has changes this is
        not in the segment: after a roll the restart would take the index as it is.
        """
        active = self.segments.active
        durable = min(self.flushed_offset, min(self.unsynced_sealed, default=self.flushed_offset))
        return min(durable, active.base_offset) if active.has_unsynced_aborted else durable

    @property
    def is_in_order(self) -> bool:
        """Whether the log may count as cleanly shut down: neither fenced nor with an undecided gap."""
        return self.failure is None and self.gap is None

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: no transaction is open below it; at most ``high_watermark``.

        Never below the log start offset, which may have passed the first record of an open transaction.
        """
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        return min(max(unstable, self.log_start_offset), high_watermark)

    def fence(self, reason: OSError) -> None:
        """Reject all further writes: the disk failed, and the content above the flushed offset is unknown."""
        if self.failure is None:
            self.failure = reason

    def check_writable(self) -> None:
        if self.failure is not None:
            raise LogFenced(self.name, self.failure) from self.failure

    def has_lost(self, segments: Iterable[LogSegment]) -> bool:
        """Return whether one of ``segments`` was removed meanwhile. For a reader that did not find a file.

        Safe on any thread. Raises LogFenced if the whole log was deleted or its log directory failed.
        """
        self.check_writable()
        return any(self.segments.floor(one.base_offset) is not one for one in segments)

    def allow_gaps(self) -> None:
        """Record in memory and, with a marker file, on disk that offsets may be missing in the log.

        The marker's name reaches the disk before the name of any later segment. Raises OSError.
        """
        if not self.may_have_gaps:
            path = posixpath.join(self.folder, names.GAPS_MARKER)
            if not self.files.disk.exists(path):
                self.files.disk.open(path, create=True).close()
                self.name_changes += 1
            self.may_have_gaps = True

    def check_may_grow(self) -> None:
        """Check that appends are allowed. Raises LogFenced, or KafkaError, which the client retries."""
        if self.failure is not None:
            self.check_writable()
        if self.awaits_checkpoint:
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"{self.name} was truncated or created, and its checkpoint is being written",
            )

    def new_segment(self, base_offset: int, wall_ms: int) -> LogSegment:
        """Create an empty segment and make it the active one."""
        segment = LogSegment.create(
            self.files,
            self.folder,
            base_offset,
            created_ms=wall_ms,
            index_interval_bytes=self.config.indexed_bytes,
            jitter_ms=self._jitter_ms(),
        )
        self.name_changes += 1
        self.segments.add(segment)
        return segment

    def roll(self, wall_ms: int, base_offset: int | None = None) -> LogSegment:
        """Seal the active segment and start a new one at ``base_offset`` (default: the log end offset).

        Returns the active segment unchanged if it is empty and starts there. Raises OSError.
        """
        active = self.segments.active
        base_offset = self.log_end_offset if base_offset is None else base_offset
        if active.base_offset == base_offset and active.size == 0:
            return active
        check(base_offset > active.base_offset, SEGMENTS_RISE, base_offset, active.base_offset)
        active.seal()
        self.files.pool.forget(active.log_path)
        self.note_sealed(active)
        self.producers.map_end_offset = max(self.producers.map_end_offset, base_offset)
        self.producers.on_roll()
        self.name_changes += 1
        return self.new_segment(base_offset, wall_ms)

    def roll_now(self, wall_ms: int) -> None:
        """Roll, whether the active segment is full or not. Raises LogFenced."""
        self.check_writable()
        try:
            self.roll(wall_ms)
        except OSError as error:
            self.fence(error)
            raise LogFenced(self.name, error) from error

    def enter_epoch(self, epoch: int, start_offset: int) -> None:
        if self.epochs.assign(epoch, start_offset):
            self.epoch_writes += 1

    def move_log_start(self, offset: int) -> None:
        """Raise the log start offset to ``offset``: records below are no longer readable. Never lowers it."""
        check(offset <= self.log_end_offset, LOG_START_IN_ORDER, offset, self.log_end_offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
            self.epoch_writes += 1
            self.producers.on_high_watermark(offset)

    def configure(self, config: LogConfig) -> None:
        """Apply the topic's current settings."""
        self.config = config
        if not config.remote_storage_enable:
            self.tiered_offset = 0  # if it is tiered again, what is there now counts

    def take_gap(self) -> SegmentGap | None:
        """Return the undecided gap, if any; it counts as decided from now on."""
        gap, self.gap = self.gap, None
        return gap

    def note_damage(self, damage: Damage) -> None:
        self.damages = (*self.damages, damage)

    # -- the doors of the operations

    def extend_to(self, next_offset: int, wall_ms: int) -> None:
        """Raise the log end offset: records up to ``next_offset`` were appended."""
        if next_offset < self.log_end_offset:
            raise InvariantBroken(APPENDS_EXTEND, (next_offset, self.log_end_offset))
        self.log_end_offset = next_offset
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = wall_ms

    def note_names_changed(self) -> None:
        """Note that files were created, renamed or removed: the folder must be synced to be durable."""
        self.name_changes += 1

    def note_epochs_written(self) -> None:
        """Note that the epoch checkpoint was written, and must be synced to be durable."""
        self.epoch_writes += 1

    def keep_records(self, kept: KeptRecords | None) -> None:
        """Keep the batches of the last append in memory; with None, forget them."""
        self.kept = kept

    def begin_truncation(self) -> None:
        """Make running flushes and cached read positions invalid: the end of the log is about to change."""
        self.kept = None
        self.truncations += 1
        self.note_names_changed()
        self.note_epochs_written()
        self.read_hints = {}

    def shorten_to(self, end_offset: int) -> None:
        """Lower the log end offset to ``end_offset``: the records from there on were removed."""
        check(end_offset <= self.log_end_offset, TRUNCATIONS_SHORTEN, end_offset, self.log_end_offset)
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)
        self.tiered_offset = min(self.tiered_offset, end_offset)

    def begin_in_tier(self) -> None:
        """Let the log start offset stay where it is when the first segments are deleted.

        The marker file needs no sync: names in one folder reach the disk in the order of their changes.
        Raises OSError.
        """
        if not self.begins_in_tier:
            self.files.disk.open(self._tier_marker, create=True).close()
            self.note_names_changed()
            self.begins_in_tier = True

    def leave_tier(self) -> None:
        """Let the log begin with its first segment: what is in remote storage is no part of it any more.

        Raises OSError.
        """
        self.tiered_offset = 0
        if self.begins_in_tier:
            self.move_log_start(self.local_start_offset)
            self.files.disk.remove(self._tier_marker)
            self.note_names_changed()
            self.begins_in_tier = False

    @property
    def _tier_marker(self) -> str:
        return posixpath.join(self.folder, names.TIER_MARKER)

    def note_tiered(self, offset: int) -> None:
        """Note that the log's records below ``offset`` are in remote storage, so that their segments may be
        deleted; 0: it is not known which are."""
        self.tiered_offset = offset

    def empty_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Restart at ``offset``, which the next record gets: all records were removed.

        ``log_start_offset``: where the log begins, if its first records are in remote storage.
        """
        start = offset if log_start_offset is None else log_start_offset
        check(start <= offset, LOG_START_IN_ORDER, start, offset)
        self.unsynced_sealed.clear()
        self.log_end_offset = self.flushed_offset = offset
        self.log_start_offset = start
        self.tiered_offset = 0
        self.cleaned_offset = 0
        self.first_unflushed_ms = None

    def note_sealed(self, segment: LogSegment) -> None:
        """Note that nothing is appended to ``segment`` any more; its indexes are not durable yet."""
        self.unsynced_sealed[segment.base_offset] = segment

    def publish_snapshot(self, snapshot: DeferredSnapshot, *, is_wanted: bool) -> None:
        """Use the snapshot of producers that a flush has written. Raises OSError."""
        if self.producers.publish(snapshot, is_wanted=is_wanted):
            self.name_changes += 1

    def note_synced(self, base_offsets: Iterable[int]) -> None:
        """Note that the indexes of these segments are durable, or the segments not sealed any more."""
        for base_offset in base_offsets:
            self.unsynced_sealed.pop(base_offset, None)

    def advance_flushed(self, offset: int, *, name_changes: int, epoch_writes: int, wall_ms: int) -> None:
        """Raise the flushed offset after a flush; the counts are those that it has made durable."""
        check(offset <= self.log_end_offset, FLUSHED_IN_ORDER, offset, self.log_end_offset)
        self.flushed_offset = max(self.flushed_offset, offset)
        self.name_changes_durable = max(self.name_changes_durable, name_changes)
        self.epoch_writes_durable = max(self.epoch_writes_durable, epoch_writes)
        self.first_unflushed_ms = None if self.flushed_offset == self.log_end_offset else wall_ms

    def forget_deleted(self, segments: Iterable[LogSegment]) -> None:
        """Forget these segments, which retention has removed."""
        self.read_hints = {}
        self.note_names_changed()
        self.note_synced(segment.base_offset for segment in segments)

    def halve_read_hints(self) -> dict[int, tuple[LogSegment, int]]:
        """Keep the newer half of the read positions, in a new table; return it.

        A reader on another thread may use the table meanwhile.
        """
        kept = list(self.read_hints.items())[len(self.read_hints) // 2 :]
        self.read_hints = dict(kept)
        return self.read_hints

    def begin_replacement(self) -> None:
        """Let concurrent readers read again: compaction is about to replace segments."""
        check(not self.replacements % 2, "one replacement of segments at a time", self.replacements)
        self.replacements += 1

    def end_replacement(self) -> None:
        """End the replacement of segments, which has succeeded or failed."""
        check(self.replacements % 2 == 1, "a replacement of segments has begun", self.replacements)
        self.replacements += 1
        self.read_hints = {}
        self.note_names_changed()

    def advance_cleaned(self, offset: int) -> None:
        """Raise the cleaned offset: compaction has processed all records below ``offset``."""
        check(offset <= self.log_end_offset, CLEANED_IN_ORDER, offset, self.log_end_offset)
        self.cleaned_offset = offset

    def await_checkpoint(self, *, syncs: str | None = None) -> None:
        """Refuse appends until :meth:`accept_appends`.

        That write makes the file ``syncs`` in the log's folder durable, too.
        """
        self.awaits_checkpoint = True
        if syncs is not None and syncs not in self.unsynced_names:
            self.unsynced_names = (*self.unsynced_names, syncs)

    def accept_appends(self) -> None:
        """Accept appends: no checkpoint file has an offset above this log's, and its topic id and its last
        truncation are durable."""
        self.awaits_checkpoint = False
        self.unsynced_names = ()

    def move_to(self, folder: str, files: SegmentFiles | None = None) -> None:
        """Adopt ``folder`` as the new path of the partition's folder, which has been renamed.

        With ``files`` the log uses that pool of open files from now on.
        """
        self.files.pool.forget_folder(self.folder)
        self.folder = folder
        self.files = self.files if files is None else files
        for segment in self.segments:
            segment.moved_to(folder, self.files)
        self.epochs.moved_to(posixpath.join(folder, names.LEADER_EPOCH_CHECKPOINT))
        self.producers.moved_to(folder)

    def exchange_with(self, other: LogState) -> None:
        """Exchange the files with ``other``, which has the same records in another folder.

        So all that holds this log goes on with it. Readers on other threads read again; flushes in progress,
        of either log, are ignored when they end. This log is durable in its new folder once a flush has ended
        that was planned after this call. Raises OSError.
        """
        check(
            self.log_end_offset == other.log_end_offset, SAME_END, self.log_end_offset, other.log_end_offset
        )
        other.move_log_start(self.log_start_offset)
        if other.epochs.take_entries(self.epochs):
            other.note_epochs_written()
        if self.begins_in_tier:
            other.begin_in_tier()
            marker = self.files.disk.read_file(self._tier_marker)
            other.files.disk.replace_file(other._tier_marker, marker)
        self.begin_replacement()
        self.folder, other.folder = other.folder, self.folder
        self.files, other.files = other.files, self.files
        self.segments, other.segments = other.segments, self.segments
        self.epochs, other.epochs = other.epochs, self.epochs
        self.producers, other.producers = other.producers, self.producers
        self.producers.exchange_state(other.producers)
        self.unsynced_sealed, other.unsynced_sealed = other.unsynced_sealed, self.unsynced_sealed
        self.flushed_offset, other.flushed_offset = other.flushed_offset, self.flushed_offset
        self.may_have_gaps, other.may_have_gaps = other.may_have_gaps, self.may_have_gaps
        self.first_unflushed_ms, other.first_unflushed_ms = other.first_unflushed_ms, self.first_unflushed_ms
        name_changes = self.name_changes, self.name_changes_durable
        self.name_changes, self.name_changes_durable = other.name_changes + 1, 0  # the folder's own name, too
        other.name_changes, other.name_changes_durable = name_changes
        epoch_writes = self.epoch_writes, self.epoch_writes_durable
        self.epoch_writes, self.epoch_writes_durable = other.epoch_writes, other.epoch_writes_durable
        other.epoch_writes, other.epoch_writes_durable = epoch_writes
        other.cleaned_offset = self.cleaned_offset
        self.kept = None
        self.truncations += 1
        other.truncations += 1
        self.end_replacement()

    def _jitter_ms(self) -> int:
        bound = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._entropy.below(bound) if self._entropy is not None and bound > 0 else 0
