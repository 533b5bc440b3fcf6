"""The records of one partition of ``__consumer_offsets``, from its beginning to its end, slice by slice.

Reading and decoding happen away from the event loop; what was read is handed over in small pieces, between
which others have their turn. Damage ends the reading: a state with a hole in it would be served as whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from nilometer.broker.replicas.partition import Partition
from nilometer.groups.record_format import decode_record
from nilometer.groups.records import CoordinatorRecord
from nilometer.runtime import Runtime
from nilometer.wire.compression import Bytes
from nilometer.wire.record_batch import batches
from nilometer.wire.records import decode_records

logger = logging.getLogger("nilometer.broker")

SLICE_BYTES_MAX = 256 * 1024
PIECE_RECORDS_MAX = 500
PROGRESS_EVERY_MS = 1_000


class _Slice(NamedTuple):
    records: Sequence[CoordinatorRecord]
    next_offset: int
    unreadable: int
    """Records whose key says a type that is not known here: of a newer Kafka, or of transactions."""


async def read_records(
    partition: Partition, runtime: Runtime, slice_bytes: int
) -> AsyncGenerator[Sequence[CoordinatorRecord], None]:
    """Everything up to where the log ends when that is reached. Raises KafkaError, OSError."""
    clock, log = runtime.clock, partition.log
    started_ms = told_ms = clock.monotonic_ms()
    offset = first = log.log_start_offset
    unreadable = 0
    while offset < log.log_end_offset:
        found = await runtime.disk.offload(
            lambda offset=offset, end=log.log_end_offset: _read_slice(
                partition, offset, end, min(slice_bytes, SLICE_BYTES_MAX)
            )
        )
        for start in range(0, len(found.records), PIECE_RECORDS_MAX):
            yield found.records[start : start + PIECE_RECORDS_MAX]
            await asyncio.sleep(0)
        if found.next_offset <= offset:
            break  # whole batches end here: what follows is not there yet
        offset = found.next_offset
        unreadable += found.unreadable
        now_ms = clock.monotonic_ms()
        if now_ms - told_ms >= PROGRESS_EVERY_MS:
            told_ms = now_ms
            end = log.log_end_offset
            logger.info(
                "Loading groups from %s: %d %% (offset %d of %d)",
                partition,
                100 * (offset - first) // max(1, end - first),
                offset,
                end,
            )
    if unreadable:
        logger.warning("%d records of %s are of no kind that is known here", unreadable, partition)
    if offset > first:
        took_ms = clock.monotonic_ms() - started_ms
        logger.info("Loaded groups from %s: offsets %d to %d in %d ms", partition, first, offset, took_ms)


def _read_slice(partition: Partition, offset: int, end: int, max_bytes: int) -> _Slice:
    found = partition.log.read(offset, max_bytes, end, min_one=True)
    assert found is not None, "only a read from memory may find nothing to say"
    records, unreadable = _decode(found.records)
    return _Slice(records, found.next_offset, unreadable)


def _decode(data: Bytes) -> tuple[list[CoordinatorRecord], int]:
    decoded: list[CoordinatorRecord] = []
    unreadable = 0
    for position, header in batches(data):
        if header.is_control:
            continue
        for record in decode_records(data, position, header):
            known = None if record.key is None else decode_record(record.key, record.value)
            if known is None:
                unreadable += 1
            else:
                decoded.append(known)
    return decoded, unreadable
