"""Reads the records of one partition of a coordinator's topic, from log start to log end, slice by slice.

Slices are read and decoded off the event loop, and yielded in small pieces, between which other tasks run. A
damaged record ends the loading with an error: a state with a gap would be taken for the complete one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias

from nilometer.broker.coordinators.kind import CoordinatorKind, RecordT
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.coordinators.turn import TransactionalRecord, TransactionEnd
from nilometer.runtime import Runtime
from nilometer.wire.compression import Bytes
from nilometer.wire.record_batch import batches
from nilometer.wire.records import ControlType, decode_records, read_end_txn_marker

logger = logging.getLogger("nilometer.broker.coordinators")

SLICE_BYTES_MAX = 256 * 1024
PIECE_RECORDS_MAX = 500
PROGRESS_EVERY_MS = 1_000


Decode: TypeAlias = Callable[[bytes, bytes | None], RecordT | None]


Loaded: TypeAlias = RecordT | TransactionalRecord[RecordT] | TransactionEnd
"""An entry of the log: a record, a record of a transaction, or the end of a transaction."""


class _Slice(NamedTuple, Generic[RecordT]):
    records: Sequence[Loaded[RecordT]]
    next_offset: int
    unreadable: int
    """How many records are of an unknown type, written by a newer Kafka."""


async def read_records(
    partition: Partition, runtime: Runtime, kind: CoordinatorKind[Any, Any, RecordT, Any]
) -> AsyncGenerator[Sequence[Loaded[RecordT]], None]:
    """Yield the records up to the log end offset, also those appended meanwhile. Raises KafkaError,
    OSError."""
    clock, log = runtime.clock, partition.log
    started_ms = reported_ms = clock.monotonic_ms()
    offset = first = log.log_start_offset
    unreadable = 0
    while offset < log.log_end_offset:
        found = await runtime.disk.offload(
            lambda offset=offset, end=log.log_end_offset: _read_slice(
                partition, offset, end, min(kind.load_buffer_bytes, SLICE_BYTES_MAX), kind.decode
            )
        )
        for start in range(0, len(found.records), PIECE_RECORDS_MAX):
            yield found.records[start : start + PIECE_RECORDS_MAX]
            await asyncio.sleep(0)
        if found.next_offset <= offset:
            break  # the last whole batch was read
        offset = found.next_offset
        unreadable += found.unreadable
        now_ms = clock.monotonic_ms()
        if now_ms - reported_ms >= PROGRESS_EVERY_MS:
            reported_ms = now_ms
            end = log.log_end_offset
            logger.info(
                "Loading %s from %s: %d %% (offset %d of %d)",
                kind.subject,
                partition,
                100 * (offset - first) // max(1, end - first),
                offset,
                end,
            )
    if unreadable:
        logger.warning("%d records of %s have an unknown type and were skipped", unreadable, partition)
    if offset > first:
        took_ms = clock.monotonic_ms() - started_ms
        logger.info(
            "Loaded %s from %s: offsets %d to %d in %d ms", kind.subject, partition, first, offset, took_ms
        )


def _read_slice(
    partition: Partition, offset: int, end: int, max_bytes: int, decode: Decode[RecordT]
) -> _Slice[RecordT]:
    found = partition.log.read(offset, max_bytes, end, min_one=True)
    assert found is not None, "only a read from memory may return None"
    records, unreadable = _decode(found.records, decode)
    return _Slice(records, found.next_offset, unreadable)


def _decode(data: Bytes, decode: Decode[RecordT]) -> tuple[list[Loaded[RecordT]], int]:
    decoded: list[Loaded[RecordT]] = []
    unreadable = 0
    for position, header in batches(data):
        if header.is_control:
            if (marker := read_end_txn_marker(data, position, header)) is not None:
                committed = marker.control_type is ControlType.COMMIT
                decoded.append(TransactionEnd(header.producer_id, committed))
            continue
        for record in decode_records(data, position, header):
            known = None if record.key is None else decode(record.key, record.value)
            if known is None:
                unreadable += 1
            elif header.is_transactional:
                decoded.append(TransactionalRecord(header.producer_id, known))
            else:
                decoded.append(known)
    return decoded, unreadable
