"""What the checkpoint files say of the logs in use, and which logs wait for them.

After a truncation the files on disk may have higher offsets than the log. A crash could then apply them to
records appended after the truncation, so the log rejects appends until the files are rewritten. So does a new
log until its topic id is durable, which is synced with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.storage import names
from nilometer.storage.directories.checkpoint_files import CheckpointPlan, LogWaiting
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.directories.log_table import LogTable
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition


class LogCheckpoints:
    def __init__(self, table: LogTable) -> None:
        self._table = table

    def plan(self, directory: LogDirectory, high_watermarks: Mapping[TopicPartition, int]) -> CheckpointPlan:
        """Return a plan of the directory's checkpoint files. Does not block."""
        known = directory.high_watermarks
        recovery_points: dict[TopicPartition, int] = {}
        checkpointed: dict[TopicPartition, int] = {}
        log_start_offsets: dict[TopicPartition, int] = {}
        cleaned_offsets: dict[TopicPartition, int] = {}
        waiting: list[LogWaiting] = []
        # One pass: with tens of thousands of logs, the event loop waits for it.
        for key, log in self._table.logs_in(directory).items():
            state = log.state
            high_watermark = high_watermarks.get(key)
            if high_watermark is None:
                high_watermark = known.get(key, state.log_start_offset)
            known[key] = checkpointed[key] = high_watermark
            recovery_points[key] = state.recovery_point
            if state.log_start_offset > state.segments.first.base_offset:
                log_start_offsets[key] = state.log_start_offset  # otherwise the files' names say it
            if state.cleaned_offset:
                cleaned_offsets[key] = state.cleaned_offset
            if state.awaits_checkpoint:
                folder = None if state.has_durable_topic_id else state.folder
                waiting.append(LogWaiting(state, state.truncations, folder))
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
        for log in plan.waiting:
            if log.state.truncations == log.truncations:
                log.state.checkpoint_written()

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
        for log in logs.values():
            self.hold_if_exceeded(log)
        if writes and any(log.awaits_checkpoint for log in logs.values()):
            plan = self.plan(directory, {key: self.initial_high_watermark(key) for key in logs})
            if plan.run():
                self.note_written(plan)

    def hold_if_exceeded(self, log: Log) -> None:
        """Block appends if a checkpoint file on disk may have higher offsets: after a truncation, and when a
        log is opened."""
        key = log.topic_partition
        if self._table.logs.get(key) is not log:
            return  # deleted, or offline: it accepts no appends
        bounds = (
            (names.RECOVERY_POINT_CHECKPOINT, log.state.recovery_point),
            (names.REPLICATION_OFFSET_CHECKPOINT, log.log_end_offset),
            (names.LOG_START_OFFSET_CHECKPOINT, log.log_start_offset),
            (names.CLEANER_OFFSET_CHECKPOINT, log.state.cleaned_offset),
        )
        files = self._table.directory_of(key).checkpoints
        if any(files.may_exceed(key, *bound) for bound in bounds):
            log.state.await_checkpoint()
