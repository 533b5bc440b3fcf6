"""The lag of a group per partition, and the offsets that a reset would commit. Sends ListOffsets requests.

*Lag* is the number of offsets from the committed offset to the high watermark; for a ``read_committed``
reader, to the last stable offset. A partition without a leader (or of a deleted topic) has unknown log
offsets: they are None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.topic_lookup import no_such_topic, topic_exists
from nilometer.client.offsets.offset_queries import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_offsets,
)
from nilometer.wire.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class PartitionLag:
    partition: TopicPartition
    committed: int | None
    leader_epoch: int
    log_start_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        return _behind(self.committed, self.high_watermark)

    @property
    def stable_lag(self) -> int | None:
        return _behind(self.committed, self.last_stable_offset)


def _behind(committed: int | None, end: int | None) -> int | None:
    return None if committed is None or end is None else max(end - committed, 0)


async def lags(
    client: Client,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    also: Iterable[TopicPartition],
    timeout_ms: int,
) -> list[PartitionLag]:
    """Return the lag of each partition of ``committed`` and ``also``, sorted. Raises KafkaError."""
    wanted = sorted({*committed, *also})
    there = await reachable(client, wanted)
    starts = await _ends(client, there, EARLIEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    high = await _ends(client, there, LATEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    stable = await _ends(client, there, LATEST_TIMESTAMP, READ_COMMITTED, timeout_ms)
    found: list[PartitionLag] = []
    for partition in wanted:
        one = committed.get(partition)
        found.append(
            PartitionLag(
                partition,
                one.offset if one is not None else None,
                one.leader_epoch if one is not None else -1,
                starts.get(partition),
                high.get(partition),
                stable.get(partition),
                one.metadata if one is not None else "",
            )
        )
    return found


async def reachable(client: Client, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Refresh the metadata and return those of ``partitions`` that exist and have a leader."""
    client.watch_topics(sorted({partition.topic for partition in partitions}))
    metadata = await client.refresh()
    return [partition for partition in partitions if metadata.leader(partition) is not None]


async def partitions_of(
    client: Client, topic: str, numbers: Sequence[int], timeout_ms: int
) -> list[TopicPartition]:
    """Return the partitions of ``topic`` with ``numbers``, or all if ``numbers`` is empty.

    Raises KafkaError if the topic or one of the partitions does not exist.
    """
    if not await topic_exists(client, topic, timeout_ms):
        raise no_such_topic(topic)
    found = await client.topic(topic, timeout_ms)
    count = len(found.partitions)
    for number in numbers:
        if number >= count:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {count} partitions; there is no partition {number}",
            )
    return [TopicPartition(topic, number) for number in (sorted(set(numbers)) or range(count))]


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The target of an offset reset: exactly one field is set.

    ``shift_by`` is relative to the committed offset; ``timestamp_ms`` means the first record at or after it.
    """

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    shift_by: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedReset:
    partition: TopicPartition
    before: int | None
    after: int
    note: str = ""
    """Why ``after`` differs from the requested offset; empty if it does not."""


async def plan_reset(
    client: Client,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    to: ResetTo,
    timeout_ms: int,
) -> list[PlannedReset]:
    """Return the offset that a reset would commit for each partition, without committing it.

    An offset outside the log is replaced by the log start offset or the high watermark, whichever is nearer.
    Raises KafkaError.
    """
    starts = await _ends(client, partitions, EARLIEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    ends = await _ends(client, partitions, LATEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    times: Mapping[TopicPartition, int] = {}
    if to.timestamp_ms is not None:
        times = await _ends(client, partitions, to.timestamp_ms, READ_UNCOMMITTED, timeout_ms)
    return [
        planned(
            partition, committed.get(partition), to, starts[partition], ends[partition], times.get(partition)
        )
        for partition in partitions
    ]


def planned(
    partition: TopicPartition,
    committed: OffsetAndMetadata | None,
    to: ResetTo,
    start: int,
    end: int,
    by_time: int | None,
) -> PlannedReset:
    """Return the reset of one partition whose log is ``[start, end)``.

    ``by_time`` is the offset found for ``to.timestamp_ms``; negative or None if no record is that late.
    Raises KafkaError for a shift without a committed offset.
    """
    before = committed.offset if committed is not None else None
    if to.earliest:
        return PlannedReset(partition, before, start)
    if to.latest:
        return PlannedReset(partition, before, end)
    if to.timestamp_ms is not None:
        if by_time is None or by_time < 0:
            return PlannedReset(
                partition, before, end, "no record with this timestamp or a later one: end of the log"
            )
        return PlannedReset(partition, before, by_time)
    if to.current:
        note = "" if before is not None else "no committed offset: end of the log"
        return PlannedReset(partition, before, end if before is None else before, note)
    if to.shift_by is not None:
        if before is None:
            raise KafkaError(ErrorCode.invalid_request, f"{partition}: there is no committed offset to shift")
        wanted = before + to.shift_by
    else:
        assert to.offset is not None
        wanted = to.offset
    after = min(max(wanted, start), end)
    if after == wanted:
        return PlannedReset(partition, before, after)
    return PlannedReset(partition, before, after, f"{wanted} is outside the log [{start}, {end}]")


async def _ends(
    client: Client,
    partitions: Sequence[TopicPartition],
    timestamp: int,
    isolation_level: int,
    timeout_ms: int,
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    found = await list_offsets(client, dict.fromkeys(partitions, timestamp), isolation_level, timeout_ms)
    return {partition: one.offset for partition, one in found.items()}
