"""Resolves the options to positions, on the driver: the selected partitions, their start and end offsets.

Reads metadata and offsets through ``cluster_reader``. Does not depend on Spark.

Invariant: a position contains every partition that is read, with an offset that is at most its end offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.pipeline.errors import OptionError, SourceError
from nilometer.pipeline.source.cluster.cluster_reader import ClusterReader
from nilometer.pipeline.source.positions import Position
from nilometer.pipeline.source.source_options import (
    EARLIEST,
    LATEST,
    AtTime,
    Bound,
    PartitionOffsets,
    SourceOptions,
)

NOT_FOUND = -1
"""The offset returned for a timestamp if no record is that late."""


def find_latest(options: SourceOptions, known: Position | None = None) -> Position:
    """Return the end offsets of all selected partitions.

    ``known`` is the position read so far: a topic in it may be missing. Raises SourceError.
    """
    reader = ClusterReader.shared(options.consumer)
    while True:
        topics = _described(options, known)
        parts = _parts(options, topics)
        ends = reader.offsets(dict.fromkeys(parts, LATEST))
        if reader.are_known(topics):
            return Position(ends, _topic_ids(topics))
        # A topic was deleted and created again meanwhile, so these may be the ends of either: repeat.


def find_start(options: SourceOptions) -> tuple[Position, Position]:
    """Return the position where a new stream begins, and the end offsets at that moment."""
    latest = find_latest(options)
    start = Position(_resolved(options, "startingOffsets", options.starting, latest), latest.topic_ids)
    return start, latest


def find_bounds(options: SourceOptions) -> tuple[Position, Position]:
    """Return the positions where a batch begins and ends."""
    latest = find_latest(options)
    start = _resolved(options, "startingOffsets", options.starting, latest)
    end = _resolved(options, "endingOffsets", options.ending, latest)
    return Position(start, latest.topic_ids), Position(end, latest.topic_ids)


def find_times(options: SourceOptions, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return, per partition, the first offset at or after a timestamp (ms); NOT_FOUND if there is none."""
    return ClusterReader.shared(options.consumer).offsets(times)


def _described(options: SourceOptions, known: Position | None) -> dict[str, TopicMetadata]:
    """Return the selected topics. Raises SourceError for a missing one, unless it is in ``known``."""
    topics = ClusterReader.shared(options.consumer).topics(options.selection)
    names = options.selection.names or ()
    read_before = {part.topic for part in known.offsets} if known is not None else set[str]()
    for name in names:
        if name not in topics and name not in read_before:
            raise SourceError(f"topic {name} does not exist at {options.bootstrap_servers}")
    return topics


def _parts(options: SourceOptions, topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    assigned = options.selection.assigned
    if assigned is None:
        return [
            TopicPartition(name, one.partition) for name in sorted(topics) for one in topics[name].partitions
        ]
    parts: list[TopicPartition] = []
    for name, numbers in assigned.items():
        count = len(topics[name].partitions) if name in topics else 0
        if count and numbers[-1] >= count:
            raise SourceError(
                f"partition {name}-{numbers[-1]} does not exist: the topic has {count} partitions"
            )
        parts += [TopicPartition(name, number) for number in numbers if number < count]
    return parts


def _topic_ids(topics: Mapping[str, TopicMetadata]) -> dict[str, str]:
    """Return the topic ids by name; brokers without topic ids return none, or only zeros."""
    return {
        name: str(topic.topic_id) for name, topic in topics.items() if topic.topic_id and topic.topic_id.int
    }


def _resolved(options: SourceOptions, name: str, bound: Bound, latest: Position) -> dict[TopicPartition, int]:
    """Return the offset of each partition for option ``name``, whose value is ``bound``.

    Raises OptionError for an offset above the end offset.
    """
    parts = sorted(latest.offsets)
    if isinstance(bound, AtTime):
        return _at_time(options, bound, parts, latest)
    wanted = _for_each(name, bound, parts)
    earliest = ClusterReader.shared(options.consumer).offsets(
        {part: EARLIEST for part, offset in wanted.items() if offset == EARLIEST}
    )
    found = {
        part: {EARLIEST: earliest.get(part, 0), LATEST: latest.offsets[part]}.get(at, at)
        for part, at in wanted.items()
    }
    for part, offset in sorted(found.items()):
        end = latest.offsets[part]
        if offset > end:
            raise OptionError(name, None, f"offset {offset} of {part} is beyond its end offset, {end}")
    return found


def _at_time(
    options: SourceOptions, bound: AtTime, parts: Sequence[TopicPartition], latest: Position
) -> dict[TopicPartition, int]:
    times = _for_each(bound.option, bound.milliseconds, parts)
    found = find_times(options, times)
    for part in parts:
        if found[part] == NOT_FOUND and not bound.or_latest:
            raise OptionError(
                bound.option,
                str(times[part]),
                f"{part} has no record with this timestamp or a later one. "
                "startingOffsetsByTimestampStrategy=latest starts at its end offset",
            )
    return {part: latest.offsets[part] if at == NOT_FOUND else at for part, at in found.items()}


def _for_each(
    name: str, bound: int | PartitionOffsets, parts: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    if isinstance(bound, int):
        return dict.fromkeys(parts, bound)
    wanted = {
        TopicPartition(topic, number): at
        for topic, numbers in bound.items()
        for number, at in numbers.items()
    }
    missing, unknown = sorted(set(parts) - set(wanted)), sorted(set(wanted) - set(parts))
    if missing or unknown:
        reason = f"{missing[0]} has none" if missing else f"{unknown[0]} is not read"
        what = "a time" if "Timestamp" in name else "an offset"
        raise OptionError(name, None, f"must have {what} for each partition that is read: {reason}")
    return wanted
