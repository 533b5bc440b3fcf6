"""The offsets that partitions have records at, and their N newest records, by timestamp: ``nilometer consume
--tail N``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.offset_queries import READ_UNCOMMITTED, list_offsets
from nilometer.client.offsets.positions import LATEST_TIMESTAMP


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

Ranges = dict[TopicPartition, tuple[int, int]]
"""The offsets to read of each partition: from the first up to, but not including, the second."""


async def read_tail(
    consumer: Consumer, partitions: Sequence[TopicPartition], count: int
) -> list[ConsumerRecord]:
    """Return the ``count`` newest records, the oldest of them first; records of a partition are in its order.

    Then the consumer is at the ends from before the call, and no partition is paused. Raises KafkaError.
    """
    logs = await log_ranges(consumer, partitions)
    found: dict[TopicPartition, list[ConsumerRecord]] = {one: [] for one in partitions}
    ranges: Ranges = {one: (max(log.start, log.end - count), log.end) for one, log in logs.items()}
    while ranges := {one: (begin, end) for one, (begin, end) in ranges.items() if begin < end}:
        for one, records in (await _read(consumer, partitions, ranges)).items():
            found[one] = [*records, *found[one]][-count:]
        ranges = {
            one: (max(logs[one].start, begin - GROWTH * (end - begin)), begin)
            for one, (begin, end) in ranges.items()
            if len(found[one]) < count
        }
    for one, log in logs.items():
        consumer.seek(one, log.end)
    consumer.resume(*partitions)
    return newest(found, count)


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


async def _read(
    consumer: Consumer, partitions: Sequence[TopicPartition], ranges: Ranges
) -> dict[TopicPartition, list[ConsumerRecord]]:
    found: dict[TopicPartition, list[ConsumerRecord]] = {one: [] for one in ranges}
    consumer.pause(*(one for one in partitions if one not in ranges))
    for one, (begin, _) in ranges.items():
        consumer.seek(one, begin)
        consumer.resume(one)
    unread = list(ranges)
    while unread:
        for record in await consumer.poll(timeout_ms=POLL_MS):
            one = TopicPartition(record.topic, record.partition)
            if one in ranges and record.offset < ranges[one][1]:
                found[one].append(record)
        unread = [one for one in unread if await consumer.position(one) < ranges[one][1]]
        consumer.pause(*(one for one in ranges if one not in unread))
    return found
