"""Reads partitions backwards from their ends, in growing ranges: the N newest records by timestamp
(``nilometer consume --tail N``), or the newest that a selection takes (the search of the console).

``log_ranges`` says where records begin and end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offset_queries import READ_UNCOMMITTED, list_offsets
from nilometer.client.positions import LATEST_TIMESTAMP


class LogRange(NamedTuple):
    """The offsets of a partition's records: from ``start`` up to, but not including, ``high_watermark``."""

    start: int
    high_watermark: int
    end: int
    """The end of what this reader may read: the high watermark, or the last stable offset."""


async def log_ranges(
    consumer: Consumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogRange]:
    starts = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    latest = dict.fromkeys(partitions, LATEST_TIMESTAMP)
    high = await list_offsets(consumer.client, latest, READ_UNCOMMITTED, consumer.config.api_timeout_ms)
    return {one: LogRange(starts[one], high[one].offset, ends[one]) for one in partitions}


POLL_MS = 1_000
GROWTH = 4
"""By how much each further range of a partition is larger than the one before."""
ROUND_RECORDS_MAX = 20_000
"""How many records a round of a search reads at most, of all partitions together."""
FIRST_RANGE = 500
"""How many records of each partition the first round of a search reads."""
POLL_BYTES_MAX = 16 * 1024 * 1024
"""Of the records that are looked at together, and those of one batch more: small batches may be large when
decompressed."""

Ranges = dict[TopicPartition, tuple[int, int]]
"""The offsets to read of each partition: from the first up to, but not including, the second."""
Select = Callable[[Sequence[ConsumerRecord]], Awaitable[Sequence[ConsumerRecord]]]
"""Returns those records that are searched for, in the same order."""


class Backwards(NamedTuple):
    """What was found of the newest records, when a part of the partitions was read, from the end."""

    records: list[ConsumerRecord]
    """The newest so far, the oldest of them first."""
    read: int
    """How many records were read."""
    before: dict[TopicPartition, int]
    """Where a search for older records goes on in each partition: below this offset."""
    is_done: bool
    """Whether no older record can be among them: there are enough, or all were read."""


async def read_tail(
    consumer: Consumer, partitions: Sequence[TopicPartition], count: int
) -> list[ConsumerRecord]:
    """Return the ``count`` newest records, the oldest of them first; records of a partition are in its order.

    Then the consumer is at the ends from before the call, and no partition is paused. Raises KafkaError.
    """
    logs = await log_ranges(consumer, partitions)
    ends = {one: log.end for one, log in logs.items()}
    records: list[ConsumerRecord] = []
    async for found in read_backwards(consumer, logs, ends, count):
        records = found.records
    for one, log in logs.items():
        consumer.seek(one, log.end)
    consumer.resume(*partitions)
    return records


async def read_backwards(
    consumer: Consumer,
    logs: Mapping[TopicPartition, LogRange],
    ends: Mapping[TopicPartition, int],
    count: int,
    select: Select | None = None,
    *,
    searches: bool | None = None,
) -> AsyncGenerator[Backwards]:
    """Read partitions from ``ends`` backwards; yield what was found after each round, until that is all.

    ``select`` says which records are searched for; a partition is then read on only while its records are not
    older than all ``count`` that were found. ``searches`` is false if it selects all, and only says what is
    kept of them. Of a round no more is kept than can be shown. Raises KafkaError.
    """
    searches = select is not None if searches is None else searches
    found: dict[TopicPartition, list[ConsumerRecord]] = {one: [] for one in logs}
    before, read = dict(ends), 0
    sizes = dict.fromkeys(logs, max(count, FIRST_RANGE) if searches else count)
    unread: list[TopicPartition] = [one for one, log in logs.items() if log.start < before[one]]
    while unread:
        most = max(1, ROUND_RECORDS_MAX // len(unread))
        ranges: Ranges = {
            one: (max(logs[one].start, before[one] - min(sizes[one], most)), before[one]) for one in unread
        }
        earliest: dict[TopicPartition, int] = {}
        for one, part in (await _read(consumer, list(logs), ranges, count, select)).items():
            read += part.read
            if part.earliest is not None:
                earliest[one] = part.earliest
            found[one] = [*part.kept, *found[one]]
            before[one], sizes[one] = ranges[one][0], GROWTH * sizes[one]
        records = newest(found, count)
        oldest = records[0].timestamp if searches and len(records) == count else None
        unread = [
            one
            for one in unread
            if logs[one].start < before[one]
            and len(found[one]) < count
            and not (oldest is not None and earliest.get(one, oldest) < oldest)
        ]
        yield Backwards(records, read, _continued(found, records, before), not unread)


def _continued(
    found: Mapping[TopicPartition, Sequence[ConsumerRecord]],
    shown: Sequence[ConsumerRecord],
    before: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return below which offset older records of each partition are: those found, but not shown, too."""
    left = {one: len(records) for one, records in found.items()}
    for record in shown:
        left[TopicPartition(record.topic, record.partition)] -= 1  # of a partition the last ones are shown
    return {
        one: found[one][left[one] - 1].offset + 1 if left[one] else offset for one, offset in before.items()
    }


def newest(found: Mapping[TopicPartition, Sequence[ConsumerRecord]], count: int) -> list[ConsumerRecord]:
    """Return the ``count`` newest records of several partitions, merged by timestamp.

    A record counts as not older than those before it in its partition: their order is kept even if producers
    set other timestamps.
    """
    timed: list[tuple[int, TopicPartition, int, ConsumerRecord]] = []
    for partition, records in found.items():
        latest = -1
        for record in records:
            latest = max(latest, record.timestamp)
            timed.append((latest, partition, record.offset, record))
    return [record for *_, record in sorted(timed)[-count:]]


class _Part:
    """What a round has read of one partition."""

    __slots__ = ("earliest", "kept", "read")

    def __init__(self, kept_max: int) -> None:
        self.kept = deque[ConsumerRecord](maxlen=kept_max)
        self.read = 0
        self.earliest: int | None = None
        """The timestamp of the first one."""


async def _read(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    ranges: Ranges,
    count: int,
    select: Select | None,
) -> dict[TopicPartition, _Part]:
    # One more than can be shown: it says where older ones go on.
    found = {one: _Part(count + 1) for one in ranges}
    consumer.pause(*(one for one in partitions if one not in ranges))
    for one, (begin, _) in ranges.items():
        consumer.seek(one, begin)
        consumer.resume(one)
    unread = list(ranges)
    while unread:
        polled = await consumer.poll(timeout_ms=POLL_MS, max_bytes=POLL_BYTES_MAX)
        wanted: list[ConsumerRecord] = []
        for record in polled:
            one = TopicPartition(record.topic, record.partition)
            if one in ranges and record.offset < ranges[one][1]:
                part = found[one]
                part.read += 1
                if part.earliest is None:
                    part.earliest = record.timestamp
                wanted.append(record)
        del polled
        for record in wanted if select is None else await select(wanted):
            found[TopicPartition(record.topic, record.partition)].kept.append(record)
        del wanted
        await asyncio.sleep(0)  # a poll that has records does not wait, and decompresses a batch
        unread = [one for one in unread if await consumer.position(one) < ranges[one][1]]
        consumer.pause(*(one for one in ranges if one not in unread))
    return found
