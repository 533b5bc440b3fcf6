"""Encoding Fetch responses, versions 4 to 18, by hand-written code.

The general encoder is not used because the record sets of a response must not be copied, and because
a follower's fetch may have thousands of partitions.

Version notes: 5 log start offset, 7 sessions, 11 preferred read replica, 12 flexible and the tagged fields of
KIP-595 (diverging epoch, current leader, snapshot id), 13 topic ids, 16 node endpoints.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple
from uuid import UUID

from nilometer.wire.compression import Bytes
from nilometer.wire.pieces import FrameWriter
from nilometer.wire.primitives import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    array_size,
    bytes_size,
    node_endpoints,
    null_array,
    tagged_fields,
    topic,
)

VERSION_MIN, VERSION_MAX = 4, 18

_FIRST_WITH_LOG_START = 5
_FIRST_WITH_SESSION = 7
_FIRST_WITH_PREFERRED_REPLICA = 11
_FIRST_FLEXIBLE = 12
_FIRST_WITH_NODE_ENDPOINTS = 16

_OLD_PARTITION = struct.Struct(">ihqq").pack
_PARTITION = struct.Struct(">ihqqq").pack
_WITHOUT_ABORTED = struct.Struct(">ihqqqBi").pack
_INT32 = struct.Struct(">i").pack
_SESSION = struct.Struct(">hi").pack
_ABORTED = struct.Struct(">qq").pack
_EPOCH_END = struct.Struct(">iqx").pack
_LEADER = struct.Struct(">iix").pack
_SNAPSHOT = struct.Struct(">qix").pack


SLICE_PIECES = 1024
"""A slice of a response ends after so many pieces, some of a partition each."""


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    end_offset: int
    epoch: int


class FetchedPartition(NamedTuple):
    partition_index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Bytes] = ()
    """Complete batches, in one or several buffers."""
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    """None for a fetch with isolation level READ_UNCOMMITTED."""
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None


class FetchedTopic(NamedTuple):
    name: str | UUID | bytes
    """The id from version 13 on, perhaps as bytes; the name before."""
    partitions: Sequence[FetchedPartition]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[FetchedTopic],
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Bytes]:
    """Return the frame, with its length, as a list of buffers to send in order."""
    slices = fetch_response_slices(version, correlation_id, throttle_ms, error, session_id, topics, endpoints)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return done.value


def fetch_response_slices(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[FetchedTopic],
    endpoints: Sequence[NodeEndpoint] = (),
) -> Generator[int, None, list[Bytes]]:
    """Encode a response slice by slice: yields the number of partitions of each slice but the last, and
    returns the frame, with its length, as a list of buffers to send in order."""
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ValueError(f"Fetch version {version}")
    flexible = version >= _FIRST_FLEXIBLE
    frame = FrameWriter()
    small = frame.small
    small.append(_INT32(correlation_id) + (b"\x00" if flexible else b"") + _INT32(throttle_ms))
    if version >= _FIRST_WITH_SESSION:
        small.append(_SESSION(error, session_id))
    small.append(array_size(len(topics), flexible))
    write_partition = _flexible_partition if flexible else _legacy_partition
    for name, partitions in topics:
        small.append(topic(name, flexible))
        small.append(array_size(len(partitions), flexible))
        for partition in partitions:
            write_partition(frame, partition, version)
            if len(small) >= SLICE_PIECES:
                yield frame.end_slice()
        if flexible:
            small.append(b"\x00")
        if len(small) >= SLICE_PIECES:
            yield frame.end_slice()
    if flexible:
        small.append(_response_tags(version, endpoints))
    return frame.finish()


def _flexible_partition(frame: FrameWriter, partition: FetchedPartition, version: int) -> None:
    small = frame.small
    records = partition.records
    if partition.aborted_transactions is None:
        small.append(_WITHOUT_ABORTED(*partition[:5], 0, partition.preferred_read_replica))
    else:
        small.append(_PARTITION(*partition[:5]))
        small.append(_aborted(partition.aborted_transactions, flexible=True))
        small.append(_INT32(partition.preferred_read_replica))
    small.append(bytes_size(sum(map(len, records)), True))
    for buffer in records:
        frame.add_records(buffer)
    if partition[_FIRST_TAGGED:] == _NO_TAGS:
        small.append(b"\x00")
    else:
        small.append(_partition_tags(partition))


def _legacy_partition(frame: FrameWriter, partition: FetchedPartition, version: int) -> None:
    small = frame.small
    if version >= _FIRST_WITH_LOG_START:
        small.append(_PARTITION(*partition[:5]))
    else:
        small.append(_OLD_PARTITION(*partition[:4]))
    small.append(_aborted(partition.aborted_transactions, flexible=False))
    if version >= _FIRST_WITH_PREFERRED_REPLICA:
        small.append(_INT32(partition.preferred_read_replica))
    small.append(bytes_size(sum(map(len, partition.records)), False))
    for buffer in partition.records:
        frame.add_records(buffer)


def _aborted(transactions: Sequence[AbortedTransaction] | None, *, flexible: bool) -> bytes:
    if transactions is None:
        return null_array(flexible)
    end = b"\x00" if flexible else b""
    return array_size(len(transactions), flexible) + b"".join(_ABORTED(*item) + end for item in transactions)


_FIRST_TAGGED = FetchedPartition._fields.index("diverging_epoch")
_NO_TAGS = (None, None, None)


def _partition_tags(partition: FetchedPartition) -> bytes:
    fields: list[tuple[int, bytes]] = []
    if partition.diverging_epoch is not None:
        fields.append((0, _EPOCH_END(*partition.diverging_epoch)))
    if partition.current_leader is not None:
        fields.append((1, _LEADER(*partition.current_leader)))
    if partition.snapshot_id is not None:
        fields.append((2, _SNAPSHOT(*partition.snapshot_id)))
    return tagged_fields(fields)


def _response_tags(version: int, endpoints: Sequence[NodeEndpoint]) -> bytes:
    if version < _FIRST_WITH_NODE_ENDPOINTS or not endpoints:
        return b"\x00"
    return tagged_fields([(0, node_endpoints(endpoints))])
