"""One replica's log: the facade that partitions, tools and tests use.

Offsets never change and always increase; an append is written completely or not at all. All methods are
called from one thread, the log owner's, except for :meth:`Log.read` without ``only_cached``,
:meth:`Log.offset_for_timestamp`, :meth:`Log.offset_of_max_timestamp` and ``FlushPlan.run``: these may block
on the disk and may run on another thread at the same time.

Time and randomness are arguments: a log has no clock, and does not know its leader or other replicas.
``wall_ms`` is everywhere the current wall clock time in milliseconds.
"""

from __future__ import annotations

import posixpath
import uuid

from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.storage import appending, checkpoints, flushing, names, reading, retention, time_search
from nilometer.storage import truncation as cuts
from nilometer.storage.appending import AppendInfo
from nilometer.storage.errors import LogFenced
from nilometer.storage.flushing import FlushPlan
from nilometer.storage.local_log import LocalLog
from nilometer.storage.log_config import LogConfig
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers.producer_updates import AppendOrigin
from nilometer.storage.reading import LogSlice
from nilometer.storage.recovery import LogLoader, OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.tail_damage import Damage
from nilometer.storage.time_search import TimestampOffset
from nilometer.storage.truncation import Truncation
from nilometer.wire.compression import Bytes


class Log(LocalLog):
    __slots__ = ("damages",)

    damages: tuple[Damage, ...]
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
        log = cls(
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
        log.damages = tuple(loaded.damages)
        if loaded.may_have_gaps:
            log.allow_gaps()
        for segment in loaded.recovered:
            if segment is not loaded.segments.active and segment in tuple(loaded.segments):
                log.unsynced_sealed[segment.base_offset] = segment
        if loaded.is_changed:
            log.files_changed()
            log.epochs_written()
        return log

    # -- writing

    def append_as_leader(
        self,
        records: Bytes,
        *,
        leader_epoch: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Assign offsets and ``leader_epoch`` to the batches in ``records`` and append them.

        Raises KafkaError, with nothing changed, if a batch is rejected; LogFenced after a failed write.
        """
        return appending.append_as_leader(
            self, records, leader_epoch=leader_epoch, wall_ms=wall_ms, origin=origin
        )

    def append_as_follower(self, records: Bytes, *, wall_ms: int) -> AppendInfo | None:
        """Append batches fetched from the leader, unchanged; None if ``records`` has no complete batch.

        Raises UnexpectedAppendOffset, CorruptBatch, LogFenced.
        """
        return appending.append_as_follower(self, records, wall_ms=wall_ms)

    def assign_epoch_start(self, epoch: int, offset: int) -> None:
        """Record, on becoming leader, that leader epoch ``epoch`` starts at ``offset``, the log end offset.

        Only in memory: the first append in the epoch writes the checkpoint.
        """
        self.epochs.begin(epoch, offset)

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write ``partition.metadata``, unless it has this id already.

        Raises ValueError if the log belongs to another topic id.
        """
        known = self.topic_id
        if known is not None:
            if known != topic_id:
                raise ValueError(f"{self.name} belongs to topic id {known}, not {topic_id}")
            return
        path = posixpath.join(self.folder, names.PARTITION_METADATA)
        checkpoints.write_partition_metadata(self.files.disk, path, topic_id, sync=False)
        self.name_changes += 1
        self.topic_id = topic_id

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
            self, offset, max_bytes, upper_bound_offset, min_one=min_one, only_cached=only_cached
        )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record with a timestamp of at least ``timestamp``, or None. May block."""
        return time_search.offset_for_timestamp(self, timestamp)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp; None if no record has one. May block."""
        return time_search.offset_of_max_timestamp(self)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The latest leader epoch; -1 if none is known."""
        return self.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch not above ``epoch`` and its end offset; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: no transaction is open below it; at most ``high_watermark``.

        Never below the log start offset, which may have passed the first record of an open transaction.
        """
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        return min(max(unstable, self.log_start_offset), high_watermark)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is below the new high watermark."""
        self.producers.on_high_watermark(high_watermark)

    def aborted_transactions(self, from_offset: int, upper_bound_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap ``[from_offset, upper_bound_offset)``."""
        return reading.aborted_transactions(self, from_offset, upper_bound_offset)

    def has_ongoing_transaction(self, producer_id: int) -> bool:
        return producer_id in self.producers.ongoing.values()

    def roll_now(self, wall_ms: int) -> None:
        """Roll: seal the active segment, full or not, and start a new one. Raises LogFenced."""
        self.check_writable()
        try:
            self.roll(wall_ms)
        except OSError as error:
            self.fence(error)
            raise LogFenced(self.name, error) from error

    # -- cutting and deleting

    def truncate_to(self, offset: int, *, wall_ms: int) -> Truncation:
        """Remove the records at or above ``offset``; :mod:`truncation` says what the caller must do next."""
        return cuts.truncate_to(self, offset, wall_ms)

    def truncate_fully_and_start_at(
        self, offset: int, *, wall_ms: int, log_start_offset: int | None = None
    ) -> Truncation:
        """Remove all records; the next record gets ``offset``, also the log start unless another is given."""
        return cuts.truncate_fully_and_start_at(self, offset, log_start_offset, wall_ms)

    def resolve_gap(self, *, wall_ms: int) -> Damage | None:
        """End the log before the gap that was found when it was opened; return the damage, None without gap.

        Called when the caller has decided that the gap is a loss of data. Raises LogFenced.
        """
        gap, self.gap = self.gap, None
        if gap is None:
            return None
        self.damages = (*self.damages, damage := gap.as_damage(cuts.cut_at_gap(self, gap, wall_ms)))
        return damage

    def advance_log_start_offset(self, offset: int, high_watermark: int) -> bool:
        """Make records below ``offset`` unreadable; return whether the log start offset moved.

        Raises KafkaError if ``offset`` is above the high watermark, LogFenced.
        """
        return retention.advance_log_start_offset(self, offset, high_watermark)

    def delete_old_segments(self, high_watermark: int, wall_ms: int) -> list[str]:
        """Apply retention; return the renamed files, which the caller removes later (``Disk.remove``)."""
        return retention.delete_old_segments(self, high_watermark, wall_ms)

    def remove_expired_producers(self, wall_ms: int) -> int:
        return self.producers.remove_expired(wall_ms)

    # -- durability

    def flush_plan(self) -> FlushPlan:
        """Return the files to sync now and the offset below which the log is then durable. Raises OSError."""
        return flushing.plan_flush(self)

    def mark_flushed(self, plan: FlushPlan, *, wall_ms: int) -> None:
        """Advance the flushed offset after ``plan.run()``. If that raised, call :meth:`fence` instead."""
        flushing.mark_flushed(self, plan, wall_ms)

    def is_flush_due(self, wall_ms: int) -> bool:
        """Return whether ``flush.messages`` or ``flush.ms`` requires a sync now."""
        config = self.config
        if self.log_end_offset - self.flushed_offset >= config.flush_messages:
            return True
        return self.first_unflushed_ms is not None and wall_ms - self.first_unflushed_ms >= config.flush_ms

    def close(self, *, wall_ms: int) -> None:
        """Flush and close all files. A log that is fenced, or that has a gap, is not flushed.

        Blocks on the disk. Raises OSError.
        """
        try:
            if self.is_in_order:
                self._settle(wall_ms)
        finally:
            self.files.pool.forget_folder(self.folder)

    def _settle(self, wall_ms: int) -> None:
        active = self.segments.active
        if self._is_settled() or not self.log_end_offset:
            return  # nothing was written since the log was opened, or it never had a record
        active.complete_indexes()
        if self.log_end_offset and self.log_end_offset not in self.producers.snapshot_offsets:
            self.producers.map_end_offset = self.log_end_offset
            self.producers.take_snapshot(sync=True)
        self.unsynced_sealed[active.base_offset] = active
        plan = self.flush_plan()
        plan.run()
        self.mark_flushed(plan, wall_ms=wall_ms)
        self.unsynced_sealed.pop(active.base_offset, None)

    def _is_settled(self) -> bool:
        return (
            self.recovery_point == self.log_end_offset
            and self.log_end_offset in self.producers.snapshot_offsets
            and self.name_changes == self.name_changes_durable
            and self.epoch_writes == self.epoch_writes_durable
        )
