"""Finding the first record that is not older than a time, in remote storage and here."""

from __future__ import annotations

from nilometer.broker.connection import Origin
from nilometer.broker.replicas.readable_partition import MAX_TIMESTAMP, ReadablePartition
from nilometer.broker.replicas.record_reading import RecordReading
from nilometer.broker.replicas.remote_reading import RemoteReads
from nilometer.storage.time_search import TimestampOffset


async def find_by_time(
    remote: RemoteReads,
    reading: RecordReading,
    origin: Origin,
    partition: ReadablePartition,
    timestamp: int,
    bound: int,
    ends_s: float,
) -> TimestampOffset | None:
    """Return as :meth:`ReadablePartition.find_by_time`, wherever the record is; the one with the largest
    timestamp only if it is here, as in Kafka. ``origin``: for whose request. ``ends_s``: until when (time of
    the event loop) it may wait for remote storage.

    Raises KafkaError, OSError.
    """
    log = partition.log
    while True:
        start = log.local_start_offset
        if start > log.log_start_offset and timestamp != MAX_TIMESTAMP:
            found = await remote.offset_for_timestamp(origin, partition, timestamp, ends_s)
            if found is not None and found.offset < log.local_start_offset:
                return found
        found = await reading.run(origin, partition.find_by_time(timestamp, bound))
        if log.local_start_offset == start or not log.begins_in_tier:
            return found
        # Segments were copied and deleted here meanwhile: it may be in one that neither search has seen.
