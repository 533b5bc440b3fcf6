"""One replica's log: what a partition does with it, and the part of its state that others read.

:class:`Log` has a :class:`~.local_log.LocalLog`, its ``state``, and offers the operations on it; each is a
module of its own. Its few properties are what partitions read: identity, offsets, whether it may be written.
The parts with a reading interface of their own are handed out: ``segments``, ``epochs``, ``producers``; and
``state`` to the replica's roles and to :mod:`~.directories`, which writes the checkpoints.

Offsets never change and always increase; an append is written completely or not at all. All methods are
called from one thread, the log owner's, except for :meth:`Log.read` without ``only_cached``,
:meth:`Log.offset_for_timestamp`, :meth:`Log.offset_of_max_timestamp` and ``FlushPlan.run``: these may block
on the disk and may run on another thread at the same time.

Time and randomness are arguments: a log has no clock, and does not know its leader or other replicas.
``wall_ms`` is everywhere the current wall clock time in milliseconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

from nilometer.storage import appending, flushing, reading, retention, time_search
from nilometer.storage import truncation as cuts
from nilometer.storage.appending import AppendInfo
from nilometer.storage.cleaning.cleaning_plan import CleanableView, CleaningPlan
from nilometer.storage.cleaning.cleaning_round import RoundOptions
from nilometer.storage.cleaning.log_cleaning import LogCleaning
from nilometer.storage.damage import Damage
from nilometer.storage.errors import LogFenced
from nilometer.storage.flushing import FlushPlan
from nilometer.storage.leader_epoch_cache import LeaderEpochCache
from nilometer.storage.local_log import LocalLog
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin, ProducerStateManager
from nilometer.storage.reading import LogSlice
from nilometer.storage.record_validation import ReadingAllowance, ValidatedBatch
from nilometer.storage.recovery import LogLoader, OpenOptions
from nilometer.storage.segments.segment import LogSegment, LogSegments
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.time_search import SearchSteps
from nilometer.storage.topic_config import LogConfig
from nilometer.storage.truncation import Truncation
from nilometer.wire.compression import Bytes


class Log:
    __slots__ = ("damages", "epochs", "producers", "segments", "state")

    def __init__(self, state: LocalLog, damages: Sequence[Damage] = ()) -> None:
        self.state = state
        self.segments: LogSegments = state.segments
        self.epochs: LeaderEpochCache = state.epochs
        self.producers: ProducerStateManager = state.producers
        self.damages = tuple(damages)
        """The damage found when the log was opened."""

    @classmethod
    def open(
        cls,
        files: SegmentFiles,
        folder: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        options: OpenOptions,
    ) -> Log:
        """Open the log in ``folder``, creating missing files; recover it after an unclean shutdown.

        Blocks on the disk. Raises OSError.
        """
        files.disk.make_directories(folder)
        loaded = LogLoader(files, folder, topic_partition, config, options).load()
        state = LocalLog(
            files,
            folder,
            topic_partition,
            config,
            segments=loaded.segments,
            epochs=loaded.epochs,
            producers=loaded.producers,
            log_start_offset=loaded.log_start_offset,
            log_end_offset=loaded.log_end_offset,
            recovery_point=loaded.recovery_point,
            topic_id=loaded.topic_id,
            gap=loaded.gap,
            # Above the log end offset, the compacted part of the log was lost.
            cleaned_offset=options.cleaned_offset if options.cleaned_offset <= loaded.log_end_offset else 0,
            entropy=options.entropy,
        )
        if loaded.may_have_gaps:
            state.allow_gaps()
        for segment in loaded.recovered:
            if segment is not loaded.segments.active and segment in tuple(loaded.segments):
                state.segment_sealed(segment)
        if loaded.is_changed:
            state.files_changed()
            state.epochs_written()
        return cls(state, loaded.damages)

    # -- the state that others read

    @property
    def topic_partition(self) -> TopicPartition:
        return self.state.topic_partition

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def folder(self) -> str:
        return self.state.folder

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self.state.topic_id

    @property
    def config(self) -> LogConfig:
        return self.state.config

    @property
    def log_start_offset(self) -> int:
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.state.log_end_offset

    @property
    def flushed_offset(self) -> int:
        """Every record below this offset is durable. Never above the log end offset."""
        return self.state.flushed_offset

    @property
    def failure(self) -> OSError | None:
        """Why the log is fenced; None while it is not."""
        return self.state.failure

    @property
    def is_in_order(self) -> bool:
        """Whether the log may count as cleanly shut down: neither fenced nor with an undecided gap."""
        return self.state.is_in_order

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether appends are refused until the checkpoint files are rewritten, after a truncation."""
        return self.state.awaits_checkpoint

    def has_lost(self, segments: Iterable[LogSegment]) -> bool:
        """Return whether one of ``segments`` was removed meanwhile; see :meth:`LocalLog.has_lost`."""
        return self.state.has_lost(segments)

    # -- settings and health

    def configure(self, config: LogConfig) -> None:
        """Apply the topic's current settings."""
        self.state.configure(config)

    def allow_gaps(self) -> None:
        """Record in memory and, with a marker file, on disk that offsets may be missing. Raises OSError."""
        self.state.allow_gaps()

    def fence(self, reason: OSError) -> None:
        """Reject all further writes: the disk failed, and the content above the flushed offset is unknown."""
        self.state.fence(reason)

    # -- writing

    def append_as_leader(
        self,
        records: Bytes,
        *,
        leader_epoch: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        keeps: bool = False,
        allowance: ReadingAllowance | None = None,
        validated: Sequence[ValidatedBatch] | None = None,
    ) -> AppendInfo:
        """Assign offsets and ``leader_epoch`` to the batches in ``records`` and append them.

        With ``keeps`` they stay in memory for reads, until :meth:`forget_kept`. ``allowance``: how much may
        be read of records before they are appended, None for all. Where it is not enough, UnreadRecords is
        raised, and the batches that its steps return are to be passed as ``validated``. Raises KafkaError,
        with nothing changed, if a batch is rejected; LogFenced after a failed write.
        """
        return appending.append_as_leader(
            self.state,
            records,
            leader_epoch=leader_epoch,
            wall_ms=wall_ms,
            origin=origin,
            keeps=keeps,
            allowance=allowance,
            validated=validated,
        )

    def forget_kept(self) -> None:
        """Read the batches of the last append from its file from now on."""
        self.state.keep_records(None)

    def append_as_follower(self, records: Bytes, *, wall_ms: int) -> AppendInfo | None:
        """Append batches fetched from the leader, unchanged; None if ``records`` has no complete batch.

        Raises UnexpectedAppendOffset, CorruptBatch, LogFenced.
        """
        return appending.append_as_follower(self.state, records, wall_ms=wall_ms)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Record, on becoming leader, that leader epoch ``epoch`` starts at ``offset``, the log end offset.

        Only in memory: the first append in the epoch writes the checkpoint.
        """
        self.epochs.begin(epoch, offset)

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper_bound_offset: int,
        min_one: bool = True,
        only_cached: bool = False,
    ) -> LogSlice | None:
        """Return complete batches, from the one that contains ``offset``, all below ``upper_bound_offset``.

        With ``min_one`` the first batch may exceed ``max_bytes``. With ``only_cached`` the result is None if
        the bytes are not in memory. Raises OffsetOutOfRange, CorruptRecordFound.
        """
        return reading.read(
            self.state, offset, max_bytes, upper_bound_offset, min_one=min_one, only_cached=only_cached
        )

    def offset_for_timestamp(self, timestamp: int) -> SearchSteps:
        """Find the first record with a timestamp of at least ``timestamp``. Each step may block."""
        return time_search.offset_for_timestamp(self.state, timestamp)

    def offset_of_max_timestamp(self) -> SearchSteps:
        """Find the first record with the largest timestamp; None if no record has one. Each step may
        block."""
        return time_search.offset_of_max_timestamp(self.state)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: no transaction is open below it; at most ``high_watermark``.

        Never below the log start offset, which may have passed the first record of an open transaction.
        """
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        return min(max(unstable, self.state.log_start_offset), high_watermark)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is below the new high watermark."""
        self.producers.on_high_watermark(high_watermark)

    def aborted_transactions(self, from_offset: int, upper_bound_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap ``[from_offset, upper_bound_offset)``."""
        return reading.aborted_transactions(self.state, from_offset, upper_bound_offset)

    # -- cutting and deleting

    def truncate_to(self, offset: int, *, wall_ms: int) -> Truncation:
        """Remove the records at or above ``offset``; :mod:`truncation` says what the caller must do next."""
        return cuts.truncate_to(self.state, offset, wall_ms)

    def truncate_fully_and_start_at(self, offset: int, *, wall_ms: int) -> Truncation:
        """Remove all records; the next record gets ``offset``, which is the log start offset, too."""
        return cuts.truncate_fully_and_start_at(self.state, offset, wall_ms)

    def resolve_gap(self, *, wall_ms: int) -> Damage | None:
        """End the log before the gap that was found when it was opened; return the damage, None without gap.

        Called when the caller has decided that the gap is a loss of data. Raises LogFenced.
        """
        gap = self.state.take_gap()
        if gap is None:
            return None
        damage = gap.as_damage(cuts.cut_at_gap(self.state, gap, wall_ms))
        self.damages = (*self.damages, damage)
        return damage

    def advance_log_start_offset(self, offset: int, high_watermark: int) -> bool:
        """Make records below ``offset`` unreadable; return whether the log start offset moved.

        Raises KafkaError if ``offset`` is above the high watermark, LogFenced.
        """
        return retention.advance_log_start_offset(self.state, offset, high_watermark)

    def delete_old_segments(self, high_watermark: int, wall_ms: int) -> list[str]:
        """Apply retention; return the renamed files, which the caller removes later (``Disk.remove``)."""
        return retention.delete_old_segments(self.state, high_watermark, wall_ms)

    def remove_expired_producers(self, wall_ms: int) -> Iterator[int]:
        """See :meth:`ProducerStateManager.remove_expired`."""
        return self.producers.remove_expired(wall_ms)

    # -- compaction

    def cleanable_view(self, *, high_watermark: int, durable_recovery_point: int) -> CleanableView:
        """Return what a compaction is planned from; the recovery point is the one in the checkpoint file."""
        return CleanableView.of(
            self.state,
            last_stable_offset=self.last_stable_offset(high_watermark),
            durable_recovery_point=durable_recovery_point,
        )

    def start_cleaning(self, plan: CleaningPlan, options: RoundOptions) -> LogCleaning:
        """Start a compaction round, and mark the log as one that may have gaps.

        Raises OSError, RoundOvertaken.
        """
        return LogCleaning(self.state, plan, options)

    def roll_now(self, wall_ms: int) -> None:
        """Roll: seal the active segment, full or not, and start a new one. Raises LogFenced."""
        state = self.state
        state.check_writable()
        try:
            state.roll(wall_ms)
        except OSError as error:
            state.fence(error)
            raise LogFenced(state.name, error) from error

    # -- durability

    def flush_plan(self) -> FlushPlan:
        """Return the files to sync now and the offset below which the log is then durable. Raises OSError."""
        return flushing.plan_flush(self.state)

    def mark_flushed(self, plan: FlushPlan, *, wall_ms: int) -> None:
        """Advance the flushed offset after ``plan.run()``. If that raised, call :meth:`fence` instead."""
        flushing.mark_flushed(self.state, plan, wall_ms)

    def is_flush_due(self, wall_ms: int) -> bool:
        """Return whether ``flush.messages`` or ``flush.ms`` requires a sync now."""
        return flushing.is_flush_due(self.state, wall_ms)

    def close(self, *, wall_ms: int) -> None:
        """Flush and close all files. A log that is fenced, or that has a gap, is not flushed.

        Blocks on the disk. Raises OSError.
        """
        state = self.state
        try:
            if state.is_in_order:
                flushing.flush_all(state, wall_ms)
        finally:
            state.files.pool.forget_folder(state.folder)
