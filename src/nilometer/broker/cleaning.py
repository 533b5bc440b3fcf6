"""The log cleaner of a broker: compacts the logs hosted here, the dirtiest first, while the broker serves
requests.

It limits its speed, handles failures, and reports the rounds in progress, the last round of each log, and
totals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from nilometer.broker.replicas.file_work import CheckpointWriter, LogDisposal
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks, run_to_end
from nilometer.broker.turns import LongWork, Turns
from nilometer.runtime import Runtime
from nilometer.storage.cleaning.cleaning_plan import CleanableView, CleaningPlan, plan_cleaning
from nilometer.storage.cleaning.cleaning_round import (
    LogCleaning,
    ReadyGroup,
    RoundOptions,
    RoundOvertaken,
    RoundStatistics,
)
from nilometer.storage.errors import CorruptRecordFound, LogFenced
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LONG_MAX
from nilometer.wire.errors import KafkaError

BURST_MS = 300
"""Unused capacity is saved for at most this time."""
WAIT_MS_MAX = 60_000
REST_SHARE_MIN, REST_SHARE_MAX = 0.1, 0.5
"""How long a cleaner rests after a slice, as a share of the slice's duration."""
IDLE_LAG_MS = 0.25
"""An event loop that has nothing else to do notices the end of a slice within this time."""
REST_PER_LAG = 4.0
"""How long it rests in addition for each millisecond that the event loop noticed it later."""
REST_MS_MAX = 250
"""A slice that took longer waited for the disk: it used no CPU time that requests would have needed."""


def rest_ms(took_ms: float, lag_ms: float) -> float:
    """Return how long (ms) a cleaner rests after a slice that took ``took_ms``, and whose end the event loop
    noticed ``lag_ms`` later."""
    wanted = REST_SHARE_MIN * took_ms + REST_PER_LAG * max(lag_ms - IDLE_LAG_MS, 0)
    return min(wanted, REST_SHARE_MAX * took_ms, REST_MS_MAX)


class CleanerThrottle:
    def __init__(self, bytes_per_second: float, now_ms: int) -> None:
        self._bytes_per_ms = bytes_per_second / 1000
        self._paid_until_ms = float(now_ms)
        """When, at the full rate, the bytes read and written so far would be done."""

    def wait_ms(self, byte_count: int, now_ms: int) -> float:
        """Count ``byte_count`` bytes read or written; return how long (ms) the cleaner must wait."""
        start = max(self._paid_until_ms, now_ms - BURST_MS)
        self._paid_until_ms = start + byte_count / self._bytes_per_ms
        return min(max(self._paid_until_ms - now_ms, 0.0), WAIT_MS_MAX)


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
        """How much of the round is done, from 0 to 1, by bytes: it reads the dirty ones for their keys, then
        all of them."""
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


T = TypeVar("T")
logger = logging.getLogger("nilometer.broker.cleaning")

BUFFER_BYTES_MIN = 1 << 20
"""The least memory for the offset map of each service."""
RETRY_MS = 300_000
"""How long a log is not cleaned after a failed round: reading the same damage again does not help."""
_WORK = "compaction"
_DONE = "done"


class LogCleaner:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        replicas: ReplicaManager,
        disposal: LogDisposal,
        checkpoints: CheckpointWriter,
        turns: Turns,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._replicas = replicas
        self._disposal = disposal
        self._checkpoints = checkpoints
        self._turns = turns
        self._threads = config.integer("log.cleaner.threads")
        rate = config.real("log.cleaner.io.max.bytes.per.second")
        self._throttle = CleanerThrottle(rate, runtime.clock.monotonic_ms())
        self._in_progress: dict[Log, None] = {}
        self._not_before_ms: dict[Log, int] = {}
        """Logs whose round failed, and when (monotonic time) they may be cleaned again."""
        self.report = CleanerReport()

    def start(self, tasks: Tasks) -> None:
        if not self._config.boolean("log.cleaner.enable"):
            return
        for number in range(self._threads):
            interval_ms = self._config.integer("log.cleaner.backoff.ms")
            tasks.periodic(f"log cleaner {number}", interval_ms, self.clean_all)

    async def clean_all(self) -> None:
        """Check all logs once, and clean those that are dirty enough, the dirtiest first."""
        self._forget_removed()
        plans = await self._plan(list(self._replicas), self._may_clean)
        for partition, plan in sorted(plans, key=lambda found: -found[1].dirty_ratio):
            if not plan.is_worth_it(partition.log.config) or not self._may_clean(partition):
                continue
            self._in_progress[partition.log] = None
            try:
                # The log may have changed while others were cleaned.
                again = await self._plan([partition], self._is_hosted)
                if again and again[0][1].is_worth_it(partition.log.config):
                    await self._clean(partition, again[0][1])
            finally:
                del self._in_progress[partition.log]

    # -- choosing

    def _may_clean(self, partition: Partition) -> bool:
        log = partition.log
        if not log.config.is_compacted or not log.is_in_order or log in self._in_progress:
            return False
        if not self._is_hosted(partition) or self._replicas.damaged.is_in_repair(partition):
            return False
        if log.topic_partition in self._replicas.logs.seconds:
            return False  # its copy must not miss what a round would remove
        return self._not_before_ms.get(log, 0) <= self._runtime.clock.monotonic_ms()

    def _is_hosted(self, partition: Partition) -> bool:
        """Whether the log is in use: not deleted, and its log directory not offline."""
        return self._replicas.logs.get(partition.log.topic_partition) is partition.log

    def _forget_removed(self) -> None:
        hosted = self._replicas.logs.logs
        self._not_before_ms = {
            log: at_ms for log, at_ms in self._not_before_ms.items() if hosted.get(log.topic_partition) is log
        }
        for name in [name for name in self.report.last if name not in hosted]:
            self.report.forget(name)

    async def _plan(
        self, partitions: Sequence[Partition], may_clean: Callable[[Partition], bool]
    ) -> list[tuple[Partition, CleaningPlan]]:
        """Return the cleaning plans of those ``partitions`` that have segments to clean.

        Slice by slice: thousands of logs may have to be rolled, and each begins a segment then.
        """
        wall_ms = self._runtime.clock.wall_ms()
        views: list[tuple[Partition, CleanableView]] = []
        slices = LongWork(self._turns)
        for partition in partitions:
            await slices.step(1)
            if not may_clean(partition):
                continue
            try:
                view = self._view(partition, wall_ms)
            except (OSError, LogFenced) as error:
                partition.on_failure(_WORK, error)
                continue
            if view.is_promising:
                views.append((partition, view))
        if not views:
            return []

        def plan() -> list[CleaningPlan | OSError | None]:
            return [_plan_one(view, wall_ms) for _, view in views]

        found: list[tuple[Partition, CleaningPlan]] = []
        for (partition, _), outcome in zip(views, await self._offload(plan), strict=True):
            if isinstance(outcome, CleaningPlan):
                found.append((partition, outcome))
            elif isinstance(outcome, OSError) and not partition.log.has_lost(partition.log.segments):
                partition.on_failure(_WORK, outcome)
        return found

    def _view(self, partition: Partition, wall_ms: int) -> CleanableView:
        """Roll the log if that is due, and return the segments and offsets that bound its cleaning.

        Raises OSError, LogFenced.
        """
        log = partition.log
        self._maybe_roll(log, wall_ms)
        if log.unsynced_sealed:
            partition.request_flush()  # only segments below the recovery point are cleaned
        return log.cleanable_view(
            high_watermark=partition.replica.high_watermark,
            durable_recovery_point=self._replicas.logs.durable_recovery_point(log.topic_partition),
        )

    def _maybe_roll(self, log: Log, wall_ms: int) -> None:
        """Roll the active segment, which is never cleaned, if its oldest record has stayed uncompacted for
        longer than ``max.compaction.lag.ms``."""
        lag_ms, active = log.config.max_compaction_lag_ms, log.segments.active
        if lag_ms >= LONG_MAX or not active.size:
            return
        oldest = active.first_batch_timestamp()
        if oldest is not None and 0 <= oldest < wall_ms - lag_ms:
            log.roll_now(wall_ms)

    # -- one round

    async def _clean(self, partition: Partition, plan: CleaningPlan) -> None:
        log = partition.log
        name = log.topic_partition
        options = RoundOptions(
            wall_ms=self._runtime.clock.wall_ms(),
            buffer_bytes=max(
                self._config.integer("log.cleaner.dedupe.buffer.size") // self._threads, BUFFER_BYTES_MIN
            ),
            load_factor=self._config.real("log.cleaner.io.buffer.load.factor"),
            slice_bytes=max(self._config.integer("log.cleaner.io.buffer.size") // self._threads, 1),
        )
        cleaning: LogCleaning | None = None
        try:
            cleaning = LogCleaning(log, plan, options)
            began_ms = self._runtime.clock.monotonic_ms()
            total = sum(segment.size for segment in plan.segments)
            self.report.begin(name, RoundReport(began_ms, plan.dirty_ratio, total, cleaning.round.statistics))
            await self._run(partition, cleaning)
            self.report.current[name].end_offset = cleaning.round.end_offset
            partition.on_success(_WORK)
            self._checkpoints.request(self._replicas.logs.directory_of(name))
        except (RoundOvertaken, KafkaError, OSError) as error:
            self._report_failure(partition, cleaning, error)
        finally:
            self._end_report(name)

    async def _run(self, partition: Partition, cleaning: LogCleaning) -> None:
        """Run the round to its end. Raises RoundOvertaken, KafkaError, OSError."""
        clock = self._runtime.clock
        steps = cleaning.round.steps()
        processed = 0
        try:
            while True:
                began_us = clock.monotonic_us()
                step, ended_us = await self._offload(lambda: (next(steps, _DONE), clock.monotonic_us()))
                if step == _DONE:
                    break
                lag_us = clock.monotonic_us() - ended_us
                self._check(partition, cleaning)
                if isinstance(step, ReadyGroup):
                    self._replace(partition, cleaning, step)
                before, processed = processed, cleaning.round.statistics.bytes_processed
                throttled_ms = self._throttle.wait_ms(processed - before, clock.monotonic_ms())
                rested_ms = rest_ms((ended_us - began_us) / 1000, lag_us / 1000)
                await asyncio.sleep(max(throttled_ms, rested_ms) / 1000)
        finally:
            steps.close()
            await self._discard(partition.log.name, cleaning)
        self._check(partition, cleaning)
        cleaning.finish()

    async def _discard(self, log_name: str, cleaning: LogCleaning) -> None:
        """Remove the files that the round wrote and that have not replaced segments of the log.

        Raises OSError. If the task is being cancelled, the error is logged instead, since it would replace
        the cancellation; the broker removes the files at its next start.
        """
        task = asyncio.current_task()
        try:
            await self._offload(cleaning.round.discard)
        except OSError as error:
            if task is None or not task.cancelling():
                raise
            logger.warning("Files of the compaction of %s cannot be removed: %s", log_name, error)

    def _check(self, partition: Partition, cleaning: LogCleaning) -> None:
        if not self._is_hosted(partition):
            raise RoundOvertaken("the log was deleted, or is offline")
        if partition.log.topic_partition in self._replicas.logs.seconds:
            raise RoundOvertaken("the log is moved to another log directory")
        cleaning.check()

    def _replace(self, partition: Partition, cleaning: LogCleaning, group: ReadyGroup) -> None:
        removable = cleaning.replace(group, wall_ms=self._runtime.clock.wall_ms())
        self._disposal.remove_files(removable, partition.log.config.file_delete_delay_ms)
        partition.request_flush()  # names changed

    async def _offload(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the disk's threads."""
        return await run_to_end(self._runtime.disk.offload(work))

    def _report_failure(
        self,
        partition: Partition,
        cleaning: LogCleaning | None,
        error: RoundOvertaken | KafkaError | OSError,
    ) -> None:
        """Report why a round was not completed; after an error, the log is cleaned again only later.

        An error that a change of the log explains, such as its deletion, is not a failure of the disk.
        """
        log = partition.log
        if not isinstance(error, RoundOvertaken | LogFenced) and cleaning is not None:
            try:
                self._check(partition, cleaning)
                if isinstance(error, FileNotFoundError) and log.has_lost(cleaning.plan.segments):
                    raise RoundOvertaken("its segments no longer exist")
            except (RoundOvertaken, LogFenced) as overtaken:
                error = overtaken if isinstance(overtaken, RoundOvertaken) else RoundOvertaken(str(overtaken))
        if (report := self.report.current.get(log.topic_partition)) is not None:
            report.failure = str(error)
        if isinstance(error, RoundOvertaken):
            logger.info("The compaction of %s was stopped: %s", log.name, error)
            return
        self._not_before_ms[log] = self._runtime.clock.monotonic_ms() + RETRY_MS
        if isinstance(error, CorruptRecordFound):
            self._replicas.damaged.report(error)
        partition.on_failure(_WORK, error)

    def _end_report(self, name: TopicPartition) -> None:
        if name not in self.report.current:
            return
        report = self.report.end(name, self._runtime.clock.monotonic_ms())
        if report.end_offset is None or report.ended_ms is None:
            return
        statistics = report.statistics
        logger.info(
            "Compacted %s up to offset %d: %d of %d records remain, %d of %d bytes, in %d ms",
            name,
            report.end_offset,
            statistics.records_kept,
            statistics.records_read,
            statistics.bytes_written,
            statistics.bytes_read,
            report.ended_ms - report.began_ms,
        )


def _plan_one(view: CleanableView, wall_ms: int) -> CleaningPlan | OSError | None:
    try:
        return plan_cleaning(view, wall_ms)
    except OSError as error:
        return error
