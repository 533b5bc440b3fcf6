"""What the headers of record batches say to a share partition: offsets, and what no member can read.

Records are not decoded: a batch is acquired as its header describes it (KIP-932).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from nilometer.share.partition_events import Acquired, Fetched, OffsetRange
from nilometer.wire.compression import Bytes
from nilometer.wire.record_batch import batches
from nilometer.wire.records import ControlType, read_end_txn_marker

BATCHES_MAX = 500
"""So many batches are looked at; the next fetch looks at the others."""


def fetched(records: Bytes, fetch_offset: int, aborted: Sequence[tuple[int, int]] = ()) -> Fetched:
    """Return what was read at ``fetch_offset``, the first ``BATCHES_MAX`` batches of it.

    ``aborted``: (producer id, first offset) of the aborted transactions among the records, if the group reads
    only what is committed. Raises CorruptBatch.
    """
    ranges: list[OffsetRange] = []
    unreadable: list[OffsetRange] = []
    begins = sorted(aborted, key=lambda one: one[1], reverse=True)
    producers: set[int] = set()
    """Whose transaction is open here, and is aborted later."""
    for position, header in islice(batches(records), BATCHES_MAX):
        span = OffsetRange(header.base_offset, header.last_offset)
        ranges.append(span)
        while begins and begins[-1][1] <= header.last_offset:
            producers.add(begins.pop()[0])
        if header.is_control:
            marker = read_end_txn_marker(records, position, header)
            if marker is not None and marker.control_type is ControlType.ABORT:
                producers.discard(header.producer_id)
            unreadable.append(span)
        elif header.is_transactional and header.producer_id in producers:
            unreadable.append(span)
    return Fetched(fetch_offset, ranges, unreadable)


def batches_of(records: Bytes, acquired: Sequence[Acquired]) -> Bytes:
    """Return the batches from the first to the last one of which records were acquired."""
    if not acquired:
        return b""
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
    start = end = None
    for position, header in batches(records):
        if header.base_offset > last_offset:
            break
        if header.last_offset >= first_offset:
            start = position if start is None else start
            end = position + header.size
    return b"" if start is None else records[start:end]
