"""Plans a read on the driver: the range of each partition (``readable_logs``), divided into slices.

Invariants: nothing at or above a partition's checkpointed high watermark is planned (except with
``highWatermark=logEnd``), and with read_committed nothing at or above its last stable offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.log_folders import log_transactions
from nilometer.pipeline.source.log_folders.log_options import LogOptions
from nilometer.pipeline.source.log_folders.log_parts import ReadableLog
from nilometer.pipeline.source.log_folders.log_slices import LogSlice, plan_slices, total_bytes
from nilometer.pipeline.source.log_folders.log_times import offset_for_time
from nilometer.pipeline.source.log_folders.readable_logs import readable_logs
from nilometer.pipeline.source.pushed_filters import Bounds
from nilometer.pipeline.source.source_options import EARLIEST, LATEST, AtTime, Bound
from nilometer.storage.names import TopicPartition

ATTEMPTS = 20

Begin = Callable[[Mapping[TopicPartition, ReadableLog]], Mapping[TopicPartition, int] | None]
"""Returns the offset at which to begin in each of the logs; None: as the options say."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    slices: tuple[LogSlice, ...]
    ranges: Mapping[TopicPartition, tuple[int, int]]
    """The offsets [start, end) of each selected partition; end is at least start."""
    topic_ids: Mapping[str, str]
    """The topic ids that are known, by the topic's name."""


def plan(options: LogOptions, bounds: Bounds) -> list[LogSlice]:
    """Return the slices to read, one per task. Raises OptionError, SourceError, DataLoss.

    If a broker deletes files meanwhile, the read is planned again.
    """
    return list(plan_from(options, bounds).slices)


def plan_from(options: LogOptions, bounds: Bounds, begin: Begin = lambda _: None) -> LogPlan:
    """Return slices and ranges of a read that begins where ``begin`` says. Raises as ``plan``."""
    missing = None
    for _ in range(ATTEMPTS):
        try:
            return _plan(options, bounds, begin)
        except FileNotFoundError as error:
            missing = error.filename
    raise SourceError(
        f"{missing} was listed and then deleted, {ATTEMPTS} times in a row: run the query again"
    )


def _plan(options: LogOptions, bounds: Bounds, begin: Begin) -> LogPlan:
    logs = readable_logs(options)
    starts = begin(logs) or _resolved(options, "startingOffsets", options.common.starting, logs)
    ends = _resolved(options, "endingOffsets", options.common.ending, logs)
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for part, log in logs.items():
        start = max(_not_before_the_log(options, log, starts[part]), bounds.first)
        end = ends[part] if bounds.last is None else min(ends[part], bounds.last + 1)
        ranges[part] = (start, max(start, end))
    wanted = [
        (logs[part], start, end)
        for part, (start, end) in ranges.items()
        if start < end and _allows(bounds, part)
    ]
    for log, start, end in wanted:
        _require_no_gap(options, log, start, end)
    size = _bytes_per_slice(options, wanted)
    slices = [one for log, start, end in wanted for one in _slices(options, bounds, log, start, end, size)]
    ids = {log.part.topic: log.parts[-1].replica.topic_id for log in logs.values()}
    return LogPlan(tuple(slices), ranges, {topic: known for topic, known in ids.items() if known})


def _allows(bounds: Bounds, part: TopicPartition) -> bool:
    number = part.partition
    return (
        (bounds.topics is None or part.topic in bounds.topics)
        and (bounds.partitions is None or number in bounds.partitions)
        and bounds.partition_first <= number
        and (bounds.partition_last is None or number <= bounds.partition_last)
    )


def _not_before_the_log(options: LogOptions, log: ReadableLog, start: int) -> int:
    if start >= log.start:
        return start
    if options.common.fail_on_data_loss:
        raise DataLoss(
            f"offsets {start} to {log.start - 1} of {log.part} are no longer available: "
            f"its log starts at {log.start}"
        )
    return log.start


def _require_no_gap(options: LogOptions, log: ReadableLog, start: int, end: int) -> None:
    """Raise DataLoss if offsets of the range are neither in the archive nor in the log."""
    missing = log.missing(start, end)
    if missing and options.common.fail_on_data_loss:
        ranges = ", ".join(f"{low} to {high - 1}" for low, high in missing)
        raise DataLoss(f"offsets {ranges} of {log.part} are neither in the archive nor in the log")


def _resolved(
    options: LogOptions, name: str, bound: Bound, logs: Mapping[TopicPartition, ReadableLog]
) -> dict[TopicPartition, int]:
    if isinstance(bound, int):
        return {part: log.start if bound == EARLIEST else log.end for part, log in logs.items()}
    if isinstance(bound, AtTime):
        return _at_times(bound, logs)
    given = _for_each(name, bound, logs)
    found: dict[TopicPartition, int] = {}
    for part, log in logs.items():
        found[part] = {EARLIEST: log.start, LATEST: log.end}.get(given[part], given[part])
        if found[part] > log.end:
            raise OptionError(
                name, None, f"offset {found[part]} of {part} is beyond its end offset, {log.end}"
            )
    return found


def _at_times(bound: AtTime, logs: Mapping[TopicPartition, ReadableLog]) -> dict[TopicPartition, int]:
    times = (
        dict.fromkeys(logs, bound.milliseconds)
        if isinstance(bound.milliseconds, int)
        else _for_each(bound.option, bound.milliseconds, logs)
    )
    found: dict[TopicPartition, int] = {}
    for part, log in logs.items():
        offset = _first_at(log, times[part])
        if offset is None and not bound.or_latest:
            raise OptionError(
                bound.option,
                str(times[part]),
                f"{part} has no record with this timestamp or a later one. "
                "startingOffsetsByTimestampStrategy=latest starts at its end offset",
            )
        found[part] = log.end if offset is None else offset
    return found


def _first_at(log: ReadableLog, milliseconds: int) -> int | None:
    for one in log.parts:
        offset = offset_for_time(one.replica, milliseconds, one.start, min(one.end, log.end))
        if offset is not None:
            return offset
    return None


def _for_each(
    name: str, given: Mapping[str, Mapping[int, int]], logs: Mapping[TopicPartition, ReadableLog]
) -> dict[TopicPartition, int]:
    wanted = {
        TopicPartition(topic, number): value
        for topic, numbers in given.items()
        for number, value in numbers.items()
    }
    missing, unknown = sorted(set(logs) - set(wanted)), sorted(set(wanted) - set(logs))
    if missing or unknown:
        reason = f"{missing[0]} has none" if missing else f"{unknown[0]} is not read"
        raise OptionError(name, None, f"must have a value for each partition that is read: {reason}")
    return wanted


def _bytes_per_slice(options: LogOptions, wanted: Sequence[tuple[ReadableLog, int, int]]) -> int:
    size, least = options.bytes_per_partition, options.common.min_partitions
    if least is not None:
        total = sum(
            total_bytes(part.replica, low, high)
            for log, start, end in wanted
            for part, low, high in log.within(start, end)
        )
        size = max(min(size, total // least), 1)
    return size


def _slices(
    options: LogOptions, bounds: Bounds, log: ReadableLog, start: int, end: int, size: int
) -> list[LogSlice]:
    slices = [
        one
        for part, low, high in log.within(start, end)
        for one in plan_slices(
            part.replica,
            low,
            high,
            bytes_per_slice=size,
            since_ms=bounds.since_ms,
            records_max=options.common.max_records_per_partition,
        )
    ]
    if not options.read_committed:
        return slices
    aborted = [
        *log_transactions.find_aborted(log.parts, start, end),
        *(one for part in log.parts_before_gaps() for one in log_transactions.cut_off(part)),
    ]
    return [
        replace(one, aborted=tuple(each for each in aborted if each.overlaps(one.start, one.end)))
        for one in slices
    ]
