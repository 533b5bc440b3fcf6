"""Finds the first record at or after a timestamp in a partition's folder, with its time indexes."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.pipeline.source.log_folders.log_slices import plan_slices
from nilometer.pipeline.source.log_folders.replica_folders import ReplicaFolder
from nilometer.pipeline.source.log_folders.slice_reader import SliceReader
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import decode_records

_WHOLE_SEGMENTS = 1 << 62


def offset_for_time(replica: ReplicaFolder, milliseconds: int, start: int, end: int) -> int | None:
    """Return the first offset in [start, end) with a timestamp at or after ``milliseconds``, or None.

    Records need not be in the order of their timestamps: the result is the first in the order of offsets. As
    in brokers, a control record counts too.
    Raises FileNotFoundError if the partition is deleted meanwhile.
    """
    slices = plan_slices(replica, start, end, bytes_per_slice=_WHOLE_SEGMENTS, since_ms=milliseconds)
    for one in slices:
        found = _first_in(replica.place, milliseconds, one.start, one.end)
        if found is not None:
            return found
    replica.segments()  # raises if the partition was deleted: then None would be wrong
    return None


def _first_in(place: str, milliseconds: int, start: int, end: int) -> int | None:
    from nilometer.pipeline.decode import batch_kernels as fields

    for table in SliceReader(place, fail_on_data_loss=False).tables(start, end):
        late = (table.column(fields.MAX_TIMESTAMP) >= milliseconds) & (table.next_offsets > start)
        positions: Sequence[int] = table.column(fields.POSITION)[late].tolist()
        for position in positions:
            header = read_header(table.buffer, position)
            for record in decode_records(table.buffer, position, header):
                if start <= record.offset < end and record.timestamp >= milliseconds:
                    return record.offset
    return None
