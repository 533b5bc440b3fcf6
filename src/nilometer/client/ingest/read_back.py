"""Reads the topic to find the lines that are in it already but not counted in the state.

A process may die after an acknowledgement and before the state is saved, and a batch may be in the log though
its acknowledgement never arrived. The headers of a record name its source and line. Records in a leader's log
that are not committed yet are waited for.
"""

from __future__ import annotations

import zlib

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetched_records import ConsumerRecord
from nilometer.client.ingest.committed_ends import wait_committed_ends
from nilometer.client.ingest.state_file import IngestState, LinesThere
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.settings.client_settings import GivenConfig
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

POLL_TIMEOUT_MS = 30_000
SOURCE_HEADER = "source"
PATH_HEADER = "path"
LINE_HEADER = "line"
PIECE_HEADER = "piece"
"""The header with the number of a piece of a long line, from 1; its pieces have the same ``line`` header."""


def checksum(value: bytes, piece: bytes = b"") -> int:
    """Return a checksum of a record's value and piece number.

    It distinguishes records with the same line number: pieces, and lines of a file that was rewritten.
    """
    return zlib.crc32(value, zlib.crc32(piece))


async def read_back(
    runtime: Runtime, config: GivenConfig, state: IngestState
) -> tuple[LinesThere, dict[int, int]]:
    """Return the uncounted lines in the topic from the state's offsets on, and the end of each partition.

    First waits until all records of the leaders' logs are committed. Raises KafkaError.
    """
    there: LinesThere = {}
    settings = {**config, "auto.offset.reset": "earliest", "max.poll.records": 5000}
    async with Consumer(runtime, settings) as consumer:
        partitions = await consumer.partitions_for(state.topic)
        if not state.sources:  # nothing was ever sent from it
            ends = await consumer.end_offsets(partitions)
            return there, {one.partition: end for one, end in ends.items()}
        ends = await wait_committed_ends(consumer.client, partitions, after_crash=not state.closed)
        starts = await consumer.beginning_offsets(partitions)
        begins = {one: max(state.partitions.get(one.partition, 0), starts[one]) for one in partitions}
        left = {one: ends[one] for one in partitions if begins[one] < ends[one]}
        consumer.assign(left)
        for partition in left:
            consumer.seek(partition, begins[partition])
        while left:
            records = await consumer.poll(timeout_ms=POLL_TIMEOUT_MS)
            if not records:
                raise _stuck(left)
            for record in records:
                _note(there, state, record)
            for partition in list(left):
                if await consumer.position(partition) >= left[partition]:
                    del left[partition]
    return there, {one.partition: end for one, end in ends.items()}


def _note(there: LinesThere, state: IngestState, record: ConsumerRecord) -> None:
    named = dict(record.headers)
    tag, line = named.get(SOURCE_HEADER), named.get(LINE_HEADER)
    if tag is None or line is None or not line.isdigit():
        return
    number = state.number_of(tag)
    source = state.sources.get(number) if number is not None else None
    if source is not None and int(line) > source.lines:
        check = checksum(record.value or b"", named.get(PIECE_HEADER) or b"")
        there.setdefault(source.number, {}).setdefault(int(line), set()).add(check)


def _stuck(left: dict[TopicPartition, int]) -> KafkaError:
    names = ", ".join(str(partition) for partition in left)
    return KafkaError(
        ErrorCode.request_timed_out,
        f"no records of {names} in {POLL_TIMEOUT_MS // 1000} s, although there should be some",
    )
