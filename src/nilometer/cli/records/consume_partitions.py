"""``nilometer consume`` without a group: reads chosen partitions of a topic, and prints their records."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nilometer.cli.cluster_options import stop_on_signals
from nilometer.cli.records.record_format import Formatter
from nilometer.cli.records.start_positions import Start, seek_to_start
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetched_records import ConsumerRecord
from nilometer.client.consumer.tail import read_tail
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.topic_lookup import no_such_topic, topic_exists
from nilometer.client.settings.client_settings import GivenConfig
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

POLL_MS = 60_000
RECORDS_PER_POLL = 2_000


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read of one topic, and how to print it."""

    topic: str
    partitions: tuple[int, ...]
    """The partitions by number; empty: all."""
    start: Start
    tail: int | None
    """Begin with this many newest records, instead of at ``start``."""
    count: int | None
    until_end: bool
    render: Formatter


async def consume_partitions(reading: Reading, config: GivenConfig) -> None:
    """Print the records of ``reading`` until its end, or until Ctrl-C. Raises KafkaError."""
    async with Consumer(Runtime.system(), config) as consumer:
        if not reading.until_end:
            # Ctrl-C is the normal end of following, so close the consumer.
            closing: list[asyncio.Task[None]] = []
            stop_on_signals(lambda: closing.append(asyncio.ensure_future(consumer.close())))
        try:
            await _read(consumer, reading)
        except KafkaError:
            if not consumer.closed:
                raise


async def _read(consumer: Consumer, reading: Reading) -> None:
    partitions = await _partitions(consumer, reading.topic, reading.partitions)
    consumer.assign(partitions)
    if reading.tail is not None:
        _write(await read_tail(consumer, partitions, reading.tail), reading.render)
        if reading.until_end:
            return
    else:
        await seek_to_start(consumer, partitions, reading.start)
    if reading.until_end:
        await _read_to_end(consumer, partitions, reading)
    else:
        await _follow(consumer, reading)


async def _follow(consumer: Consumer, reading: Reading) -> None:
    left = reading.count
    while left is None or left > 0:
        records = await consumer.poll(_limit(left), timeout_ms=POLL_MS)
        if not records and consumer.closed:
            return
        _write(records, reading.render)
        if left is not None:
            left -= len(records)


async def _read_to_end(consumer: Consumer, partitions: Sequence[TopicPartition], reading: Reading) -> None:
    left = reading.count
    ends = await consumer.end_offsets(partitions)
    unfinished = [one for one in partitions if await consumer.position(one) < ends[one]]
    consumer.pause(*(one for one in partitions if one not in unfinished))
    while unfinished and (left is None or left > 0):
        polled = await consumer.poll(_limit(left), timeout_ms=POLL_MS)
        records = [one for one in polled if one.offset < ends[TopicPartition(one.topic, one.partition)]]
        _write(records, reading.render)
        if left is not None:
            left -= len(records)
        unfinished = [one for one in unfinished if await consumer.position(one) < ends[one]]
        consumer.pause(*(one for one in partitions if one not in unfinished))


def _limit(left: int | None) -> int:
    return RECORDS_PER_POLL if left is None else min(left, RECORDS_PER_POLL)


def _write(records: Sequence[ConsumerRecord], render: Formatter) -> None:
    sys.stdout.buffer.write(b"".join(map(render, records)))
    sys.stdout.buffer.flush()


async def _partitions(consumer: Consumer, topic: str, wanted: tuple[int, ...]) -> list[TopicPartition]:
    if not await topic_exists(consumer.client, topic, consumer.config.api_timeout_ms):
        raise no_such_topic(topic)
    partitions = await consumer.partitions_for(topic)
    for number in wanted:
        if number >= len(partitions):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {len(partitions)} partitions and none is number {number}",
            )
    return [one for one in partitions if one.partition in wanted] if wanted else partitions
