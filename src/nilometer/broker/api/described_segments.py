"""The segments of a replica's log, for DescribeReplicas: what is in memory, and when the files were written.

The files' times are read off the event loop, and left out if that would have to wait: a page that shows
segments must neither hang with a disk nor take the threads that others need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.services import Services
from nilometer.identifiers import TopicIdPartition, uuid_from_text
from nilometer.runtime import Disk
from nilometer.storage.segments.segment import LogSegment
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import KafkaError

OFFLOADED_MAX = 2
"""With so much offloaded work under way the files' times are not read."""
TIMES_TIMEOUT_S = 0.5
NOT_KNOWN = -1


async def described_segments(services: Services, key: TopicIdPartition) -> wire.SegmentsState | None:
    """Return the segments of this broker's replica; None if its log cannot be used."""
    try:
        hosted = services.replicas.partition_by_id(uuid_from_text(key.topic_id), key.partition)
    except KafkaError:
        return None
    segments = hosted.log.segments
    newest, count = segments.newest(wire.SEGMENTS_MAX), len(segments)
    times = await _modified_ms(services.runtime.disk, newest)
    described = tuple(_segment(segment, time) for segment, time in zip(newest, times, strict=True))
    return wire.SegmentsState(count=count, newest=described)


async def _modified_ms(disk: Disk, segments: Sequence[LogSegment]) -> Sequence[int]:
    """Return when each segment's file was last written; -1 where that is not known."""
    unknown = [NOT_KNOWN] * len(segments)
    if disk.offloaded >= OFFLOADED_MAX:
        return unknown
    try:
        async with asyncio.timeout(TIMES_TIMEOUT_S):
            return await disk.offload(lambda: [_modified(segment) for segment in segments])
    except TimeoutError:
        return unknown


def _modified(segment: LogSegment) -> int:
    try:
        return segment.modified_ms()
    except OSError:  # deleted meanwhile; a failing disk is found by the log's own reads and writes
        return NOT_KNOWN


def _segment(segment: LogSegment, modified_ms: int) -> wire.SegmentState:
    largest = segment.known_max_timestamp
    return wire.SegmentState(
        base_offset=segment.base_offset,
        size_bytes=segment.size,
        modified_ms=modified_ms,
        largest_timestamp=NOT_KNOWN if largest is None else largest,
    )
