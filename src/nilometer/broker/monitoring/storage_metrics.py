"""Metrics of the work on logs: group commits, and the log cleaner."""

from __future__ import annotations

from collections.abc import Iterator

from nilometer.broker.cleaning.cleaner_report import CleanerReport
from nilometer.broker.replicas.group_commit import GroupCommit
from nilometer.metrics import Family, Kind, Measured
from nilometer.runtime import Clock

FLUSH_TIME = Family(
    "kafka_log_logflushstats_logflushrateandtimems",
    Kind.SUMMARY,
    "Milliseconds of a group commit, which flushes all logs that need it at that time.",
)
LOGS_FLUSHED = Family("nilometer_logs_flushed_total", Kind.COUNTER, "Logs flushed by group commits.")
CLEANER_ROUNDS = Family(
    "nilometer_cleaner_rounds_total",
    Kind.COUNTER,
    "Compactions of a log that ended: completed, or stopped before their end.",
    ("outcome",),
)
CLEANER_ACTIVE = Family("nilometer_cleaner_active", Kind.GAUGE, "Logs that are being compacted.")
RECORDS_REMOVED = Family(
    "nilometer_cleaner_records_removed_total", Kind.COUNTER, "Records removed by compaction."
)
BYTES_REMOVED = Family("nilometer_cleaner_bytes_removed_total", Kind.COUNTER, "Bytes removed by compaction.")
FAMILIES = (FLUSH_TIME, LOGS_FLUSHED, CLEANER_ROUNDS, CLEANER_ACTIVE, RECORDS_REMOVED, BYTES_REMOVED)


class StorageMetrics:
    def __init__(self, commit: GroupCommit, cleaner: CleanerReport, clock: Clock) -> None:
        self._commit = commit
        self._cleaner = cleaner
        self._clock = clock

    def collect(self) -> Iterator[Measured]:
        commit, cleaner = self._commit, self._cleaner
        yield Measured(FLUSH_TIME, [((), commit.durations.reading(self._clock.monotonic_us()))])
        yield Measured(LOGS_FLUSHED, [((), commit.logs_flushed)])
        rounds = [(("completed",), cleaner.rounds), (("stopped",), cleaner.rounds_stopped)]
        yield Measured(CLEANER_ROUNDS, rounds)
        yield Measured(CLEANER_ACTIVE, [((), len(cleaner.current))])
        yield Measured(RECORDS_REMOVED, [((), cleaner.records_removed)])
        yield Measured(BYTES_REMOVED, [((), cleaner.bytes_removed)])
