"""The offsets that partitions have records at, as a consumer may read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.offset_queries import LATEST_TIMESTAMP, READ_UNCOMMITTED, list_offsets


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
