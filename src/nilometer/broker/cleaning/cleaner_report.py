"""Statistics of the log cleaner: the rounds in progress, the last round of each log, and totals."""

from __future__ import annotations

import msgspec

from nilometer.storage import TopicPartition
from nilometer.storage.cleaning.cleaning_round import RoundStatistics


class RoundReport(msgspec.Struct):
    """One round over one log. Times are those of the monotonic clock."""

    began_ms: int
    dirty_ratio: float
    bytes_total: int
    """The size of the segments that the round reads."""
    statistics: RoundStatistics
    ended_ms: int | None = None
    end_offset: int | None = None
    """The offset up to which the log is clean; None unless the round was completed."""
    failure: str = ""
    """Why the round was not completed."""

    @property
    def progress(self) -> float:
        """The share, from 0 to 1, of the bytes to read: the dirty ones for their keys, then all again."""
        to_read = self.bytes_total * (1 + self.dirty_ratio)
        done = self.statistics.bytes_mapped + self.statistics.bytes_read
        return min(done / to_read, 1.0) if to_read else 0.0


class CleanerReport:
    def __init__(self) -> None:
        self.current: dict[TopicPartition, RoundReport] = {}
        self.last: dict[TopicPartition, RoundReport] = {}
        self.rounds = 0
        """The rounds completed since the broker started."""
        self.rounds_stopped = 0
        self.rounds_that_removed = 0
        """Of ``rounds``, those that removed at least one record."""
        self.records_removed = 0
        self.bytes_removed = 0

    def begin(self, name: TopicPartition, report: RoundReport) -> None:
        self.current[name] = report

    def end(self, name: TopicPartition, now_ms: int) -> RoundReport:
        report = self.current.pop(name)
        report.ended_ms = now_ms
        self.last[name] = report
        if report.end_offset is None:
            self.rounds_stopped += 1
            return report
        statistics = report.statistics
        self.rounds += 1
        removed = statistics.records_read - statistics.records_kept
        self.rounds_that_removed += removed > 0
        self.records_removed += removed
        self.bytes_removed += statistics.bytes_read - statistics.bytes_written
        return report

    def of(self, name: TopicPartition) -> RoundReport | None:
        """Return the round of this log that is in progress, else its last one; None if there was none."""
        return self.current.get(name) or self.last.get(name)

    def forget(self, name: TopicPartition) -> None:
        """Drop the report of a log that is not hosted any more."""
        self.last.pop(name, None)
