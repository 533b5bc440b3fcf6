"""Which lines are in the topic already: the topic itself is asked.

Between an acknowledgement and the state that tells of it a process may die, and a batch may be in the log
though its acknowledgement never arrived. The records themselves say which line of which source they are.
What is in a leader's log and not committed yet is waited for.
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
"""Counted from 1; all pieces of a line have the same ``line`` header."""


def checksum(value: bytes, piece: bytes = b"") -> int:
    """Tells a record from others with the same line number: pieces, or those of a file written again."""
    return zlib.crc32(value, zlib.crc32(piece))


async def read_back(
    runtime: Runtime, config: GivenConfig, state: IngestState
) -> tuple[LinesThere, dict[int, int]]:
    """What the topic holds from the state's offsets on, and the end of each partition. Raises KafkaError.

    Waits until everything that the leaders' logs hold is committed.
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
