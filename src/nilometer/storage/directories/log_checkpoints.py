"""What the checkpoint files say of the logs in use, and which logs wait for them.

After a truncation the files on disk may have higher offsets than the log. A crash could then apply them to
records appended after the truncation, so the log rejects appends until the files are rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.storage import names
from nilometer.storage.directories.checkpoint_files import CheckpointPlan
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.directories.log_table import LogTable
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition


class LogCheckpoints:
    def __init__(self, table: LogTable) -> None:
        self._table = table

    def plan(self, directory: LogDirectory, high_watermarks: Mapping[TopicPartition, int]) -> CheckpointPlan:
        """Return a plan of the directory's checkpoint files. Does not block."""
        logs = self._table.logs_in(directory)
        for key, log in logs.items():
            directory.high_watermarks[key] = high_watermarks.get(
                key, directory.high_watermarks.get(key, log.log_start_offset)
            )
        return directory.plan_checkpoints(
            recovery_points={key: log.state.recovery_point for key, log in logs.items()},
            high_watermarks={key: directory.high_watermarks[key] for key in logs},
            log_start_offsets=_moved_starts(logs),
            cleaned_offsets=_cleaned_offsets(logs),
            cuts={key: log.state.truncations for key, log in logs.items() if log.awaits_checkpoint},
        )

    def note_written(self, plan: CheckpointPlan) -> None:
        """Record that ``plan.run()`` returned True: logs that waited for it accept appends again."""
        plan.owner.note_written(plan)
        for key, truncations in plan.cuts.items():
            log = self._table.logs.get(key)
            if log is not None and log.state.truncations == truncations:
                log.state.checkpoint_written()

    def hold_after_cut(self, log: Log) -> None:
        """Block appends after a truncation if a checkpoint file on disk may have higher offsets."""
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


def _cleaned_offsets(logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Return the offset below which each log is compacted, for all logs that ever were, by partition."""
    return {key: log.state.cleaned_offset for key, log in logs.items() if log.state.cleaned_offset}


def _moved_starts(logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Return the log start offsets that are above the first segment's base offset."""
    return {
        key: log.log_start_offset
        for key, log in logs.items()
        if log.log_start_offset > log.segments.first.base_offset
    }
