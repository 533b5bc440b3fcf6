"""Plans a read on the driver: chooses a replica of each partition and divides its range into slices.

Invariants: nothing at or above a partition's checkpointed high watermark is planned (except with
``highWatermark=logEnd``), and with read_committed nothing at or above its last stable offset; of several
replicas the one that is readable furthest is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.log_folders import log_transactions
from nilometer.pipeline.source.log_folders.log_options import LogOptions
from nilometer.pipeline.source.log_folders.log_slices import LogSlice, plan_slices, total_bytes
from nilometer.pipeline.source.log_folders.log_times import offset_for_time
from nilometer.pipeline.source.log_folders.replica_folders import ReplicaFolder, find_replicas
from nilometer.pipeline.source.log_folders.slice_reader import SliceReader
from nilometer.pipeline.source.pushed_filters import Bounds
from nilometer.pipeline.source.source_options import EARLIEST, LATEST, AtTime, Bound
from nilometer.storage.names import TopicPartition

ATTEMPTS = 20
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """The replica of a partition that is read, its segments' base offsets, and its readable range."""

    replica: ReplicaFolder
    bases: tuple[int, ...]
    start: int
    end: int

    @property
    def part(self) -> TopicPartition:
        return self.replica.part


def plan(options: LogOptions, bounds: Bounds) -> list[LogSlice]:
    """Return the slices to read, one per task. Raises OptionError, SourceError, DataLoss.

    If a broker deletes files meanwhile, the read is planned again.
    """
    missing = None
    for _ in range(ATTEMPTS):
        try:
            return _plan(options, bounds)
        except FileNotFoundError as error:
            missing = error.filename
    raise SourceError(
        f"{missing} was listed and then deleted, {ATTEMPTS} times in a row: run the query again"
    )


def _plan(options: LogOptions, bounds: Bounds) -> list[LogSlice]:
    logs = readable_logs(options)
    starts = _resolved(options, "startingOffsets", options.common.starting, logs)
    ends = _resolved(options, "endingOffsets", options.common.ending, logs)
    wanted: list[tuple[ReadableLog, int, int]] = []
    for part, log in logs.items():
        start = _not_before_the_log(options, log, starts[part])
        start, end = max(start, bounds.first), ends[part]
        if bounds.last is not None:
            end = min(end, bounds.last + 1)
        if start < end and _allows(bounds, part):
            wanted.append((log, start, end))
    size = _bytes_per_slice(options, wanted)
    return [one for log, start, end in wanted for one in _slices(options, bounds, log, start, end, size)]


def readable_logs(options: LogOptions) -> dict[TopicPartition, ReadableLog]:
    """Return the selected partitions, each with the replica that is readable furthest.

    Raises SourceError if a selected topic or partition is not there.
    """
    replicas = [one for one in find_replicas(options.places) if _is_selected(options, one.part)]
    _require_selected(options, {one.part for one in replicas})
    logs: dict[TopicPartition, ReadableLog] = {}
    for part, group in groupby(replicas, key=lambda one: one.part):
        candidates = list(group)
        _require_one_topic_id(part, candidates)
        readable = [log for one in candidates if (log := _readable(options, one)) is not None]
        if readable:
            logs[part] = max(readable, key=lambda log: (log.end, -log.start))
    return logs


def _require_one_topic_id(part: TopicPartition, replicas: Sequence[ReplicaFolder]) -> None:
    """Raise SourceError if replicas have different topic ids: one may be of a deleted topic of that name."""
    first = replicas[0]
    for other in replicas[1:]:
        if first.topic_id and other.topic_id and first.topic_id != other.topic_id:
            raise SourceError(
                f"{first.place} and {other.place} belong to two topics named {part.topic} "
                f"({first.topic_id}, {other.topic_id}): give only the folders of the topic to read"
            )


def _is_selected(options: LogOptions, part: TopicPartition) -> bool:
    selection = options.common.selection
    if selection.assigned is not None:
        return part.partition in selection.assigned.get(part.topic, ())
    if selection.pattern is not None:
        return selection.matches(part.topic) and part.topic not in INTERNAL_TOPICS
    return part.topic in selection.topics


def _require_selected(options: LogOptions, found: set[TopicPartition]) -> None:
    selection, places = options.common.selection, ", ".join(options.places)
    topics = {part.topic for part in found}
    for name in selection.names or ():
        if name not in topics:
            raise SourceError(f"topic {name} has no replica in {places}")
    for topic, numbers in (selection.assigned or {}).items():
        for number in numbers:
            if TopicPartition(topic, number) not in found:
                raise SourceError(f"partition {topic}-{number} has no replica in {places}")


def _readable(options: LogOptions, replica: ReplicaFolder) -> ReadableLog | None:
    try:
        bases = replica.segments()
    except FileNotFoundError:
        return None  # deleted since it was found
    start = replica.log_start(bases)
    end = _log_end(replica, bases) if options.until_log_end else replica.high_watermark
    if end is None:
        raise SourceError(
            f"no high watermark is checkpointed for {replica.place}, so it is unknown which records are "
            "committed. highWatermark=logEnd reads to the end of the log"
        )
    if options.read_committed and bases and start < end:
        end = log_transactions.last_stable_offset(replica.place, bases, start, end)
    return ReadableLog(replica, tuple(bases), start, max(start, end))


def _log_end(replica: ReplicaFolder, bases: Sequence[int]) -> int:
    """Return the offset after the last complete batch."""
    end = bases[-1] if bases else 0
    for table in SliceReader(replica.place, fail_on_data_loss=False).tables(end, 1 << 62):
        end = max(end, int(table.next_offsets[-1]))
    return end


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
        offset = offset_for_time(log.replica, times[part], log.start, log.end)
        if offset is None and not bound.or_latest:
            raise OptionError(
                bound.option,
                str(times[part]),
                f"{part} has no record with this timestamp or a later one. "
                "startingOffsetsByTimestampStrategy=latest starts at its end offset",
            )
        found[part] = log.end if offset is None else offset
    return found


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
        total = sum(total_bytes(log.replica, start, end) for log, start, end in wanted)
        size = max(min(size, total // least), 1)
    return size


def _slices(
    options: LogOptions, bounds: Bounds, log: ReadableLog, start: int, end: int, size: int
) -> list[LogSlice]:
    slices = plan_slices(
        log.replica,
        start,
        end,
        bytes_per_slice=size,
        since_ms=bounds.since_ms,
        records_max=options.common.max_records_per_partition,
    )
    if not options.read_committed:
        return slices
    aborted = log_transactions.find_aborted(log.replica.place, log.bases, start, end)
    return [
        replace(one, aborted=tuple(each for each in aborted if each.overlaps(one.start, one.end)))
        for one in slices
    ]
