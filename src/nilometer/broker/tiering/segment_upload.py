"""Copies a sealed segment to the store: it is checked, then written, and its indexes behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from nilometer.broker.tiering.parts import RemoteParts
from nilometer.storage.log import Log
from nilometer.storage.segments.indexes import CorruptIndex
from nilometer.storage.tiering import (
    IndexesOfBatches,
    SealedSegment,
    check_records,
    read_side_files,
    telling_crc,
)
from nilometer.tier.format import DamagedObject, IndexSections, RemoteSegment, encode_index
from nilometer.wire.record_batch import BatchHeader

PART_BYTES = 1 << 20
"""A segment is read and uploaded in parts of this size."""
CHECK_BYTES = 4 << 20
"""So many bytes of a segment are checked on a thread before others use it."""


async def upload(parts: RemoteParts, log: Log, sealed: SealedSegment, folder: str) -> RemoteSegment:
    """Check the segment, and write it and its index to a folder of the store; return its entry.

    Raises CorruptRecordFound, DamagedObject, OSError, ObjectStoreError.
    """
    disk, clock = parts.runtime.disk, parts.runtime.clock
    indexes = IndexesOfBatches(sealed)
    checking = check_records(log, sealed, indexes)
    last: BatchHeader | None = None
    try:
        while (header := await disk.offload(lambda: _check_some(checking))) is not None:
            last = header
    except CorruptIndex as error:  # what nothing could read would stay so when the segment is deleted here
        raise DamagedObject(str(error)) from error
    side = await disk.offload(lambda: read_side_files(disk, sealed, indexes, wall_ms=clock.wall_ms()))
    sections = IndexSections(side.offset_index, side.time_index, side.transaction_index, side.producers)
    index = encode_index(sections)
    entry = RemoteSegment(
        sealed.base_offset,
        sealed.end_offset - 1,
        await disk.offload(indexes.largest_timestamp),
        sealed.size,
        len(index),
        bool(side.transaction_index),
        parts.runtime.entropy.bytes(8).hex(),
        tuple(sealed.epochs),
        None if last is None else telling_crc(log, last),
    )
    if sealed.size:
        async with aclosing(_parts_of(parts, sealed)) as content:
            await parts.store.upload(folder + entry.log_name, content)
    else:
        await parts.store.put(folder + entry.log_name, b"")
    await parts.before_copy(len(index))
    await parts.store.put(folder + entry.index_name, index)
    return entry


async def _parts_of(parts: RemoteParts, sealed: SealedSegment) -> AsyncGenerator[bytes, None]:
    disk = parts.runtime.disk
    file = await disk.offload(lambda: disk.open(sealed.log_path, writable=False))
    try:
        for position in range(0, sealed.size, PART_BYTES):
            length = min(PART_BYTES, sealed.size - position)
            await parts.before_copy(length)
            yield await disk.offload(lambda at=position, length=length: file.read_at(at, length))
    finally:
        file.close()


def _check_some(checking: Iterator[BatchHeader]) -> BatchHeader | None:
    """Check some batches; return the header of the last one, None if none was left."""
    checked, header = 0, None
    for header in checking:
        checked += header.size
        if checked >= CHECK_BYTES:
            break
    return header
