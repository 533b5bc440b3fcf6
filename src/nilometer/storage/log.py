"""One replica's log: its state, and what a partition does with it.

:class:`Log` is its :class:`~.log_state.LogState` with the operations on it; each operation is a function of a
module of its own, and a method here. ``segments``, ``epochs`` and ``producers`` have reading interfaces of
their own.

Offsets never change and always increase; an append is written completely or not at all. All methods are
called from one thread, the log owner's, except for :meth:`Log.read` without ``only_cached``,
:meth:`Log.offset_for_timestamp`, :meth:`Log.offset_of_max_timestamp` and ``FlushPlan.run``: these may block
on the disk and may run on another thread at the same time.

Time and randomness are arguments: a log has no clock, and does not know its leader or other replicas.
``wall_ms`` is everywhere the current wall clock time in milliseconds.
"""

from __future__ import annotations

from nilometer.storage import appending, flushing, reading, removal, time_search
from nilometer.storage.cleaning.cleaning_plan import CleanableView
from nilometer.storage.log_state import LogState
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import LogLoader, OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig


class Log(LogState):
    __slots__ = ()

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
            damages=loaded.damages,
            begins_in_tier=loaded.begins_in_tier,
            entropy=options.entropy,
        )
        if loaded.may_have_gaps:
            log.allow_gaps()
        for segment in loaded.recovered:
            if segment is not loaded.segments.active and segment in tuple(loaded.segments):
                log.note_sealed(segment)
        if loaded.is_changed:
            log.note_names_changed()
            log.note_epochs_written()
        return log

    append_as_leader = appending.append_as_leader
    append_as_follower = appending.append_as_follower

    read = reading.read
    aborted_transactions = reading.aborted_transactions
    offset_for_timestamp = time_search.offset_for_timestamp
    offset_of_max_timestamp = time_search.offset_of_max_timestamp

    truncate_to = removal.truncate_to
    truncate_fully_and_start_at = removal.truncate_fully_and_start_at
    resolve_gap = removal.resolve_gap
    advance_log_start_offset = removal.advance_log_start_offset
    delete_old_segments = removal.delete_old_segments

    flush_plan = flushing.plan_flush
    mark_flushed = flushing.mark_flushed
    is_flush_due = flushing.is_flush_due
    close = flushing.close

    def cleanable_view(self, *, high_watermark: int, durable_recovery_point: int) -> CleanableView:
        """Return what a compaction is planned from; the recovery point is the one in the checkpoint file."""
        return CleanableView.of(
            self,
            last_stable_offset=self.last_stable_offset(high_watermark),
            durable_recovery_point=durable_recovery_point,
        )
