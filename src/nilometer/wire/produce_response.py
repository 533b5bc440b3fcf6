"""Encoding Produce responses, versions 3 to 13, by hand-written code, because they are very frequent.

Version notes: 5 log start offset, 8 record errors (KIP-467), 9 flexible, 10 current leader and node endpoints
(KIP-951), 13 topic ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from nilometer.wire.errors import NONE, ErrorCode
from nilometer.wire.primitives import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    array_size,
    node_endpoints,
    string,
    tagged_fields,
    topic,
)

VERSION_MIN, VERSION_MAX = 3, 13

_FIRST_WITH_LOG_START = 5
_FIRST_WITH_RECORD_ERRORS = 8
_FIRST_FLEXIBLE = 9
_FIRST_WITH_LEADER = 10

_OLD_PARTITION = struct.Struct(">ihqq").pack
_PARTITION = struct.Struct(">ihqqq").pack
_WITH_NOTHING_RARE = struct.Struct(">ihqqqBBB").pack
_START = struct.Struct(">iixB")
"""Of a usual response of version 9 or newer: size, correlation id, topics."""
_END = struct.Struct(">BihqqqBxxxix")
"""Its end, after the topic: partitions, the partition, record errors, throttle time."""
_OLD_START = struct.Struct(">iii")
_OLD_END = struct.Struct(">iihqqqi")
_OLD_END_WITH_ERRORS = struct.Struct(">iihqqqihi")
_ONE, _NONE = 2, 1
"""Compact sizes of an array."""
_INT32 = struct.Struct(">i").pack
_LEADER = struct.Struct(">iix").pack


SLICE_PIECES = 1024
"""A slice of a response ends after so many pieces, some of a partition each."""


class RecordError(NamedTuple):
    batch_index: int
    message: str | None = None


class ProducedPartition(msgspec.Struct):
    """The outcome for one partition."""

    index: int
    error: ErrorCode = NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None

    @property
    def has_nothing_rare(self) -> bool:
        return not self.record_errors and self.message is None and self.current_leader is None


class ProducedTopic(msgspec.Struct, frozen=True):
    name: str | UUID
    """The topic's name, or from version 13 on its id."""
    partitions: Sequence[ProducedPartition]


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[ProducedTopic],
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """Return the frame, with its length."""
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ValueError(f"Produce version {version}")
    if len(topics) == 1 and len(topics[0].partitions) == 1 and version >= _FIRST_WITH_LOG_START:
        partition = topics[0].partitions[0]
        if not endpoints and partition.has_nothing_rare:
            return _usual_response(version, correlation_id, topics[0].name, partition, throttle_ms)
    return _response(version, correlation_id, topics, throttle_ms, endpoints)


def _usual_response(
    version: int, correlation_id: int, name: str | UUID, partition: ProducedPartition, throttle_ms: int
) -> bytes:
    """Return the frame for one partition with nothing rare, with two `struct` calls."""
    flexible = version >= _FIRST_FLEXIBLE
    named = topic(name, flexible)
    fields = (
        partition.index,
        partition.error,
        partition.base_offset,
        partition.log_append_time_ms,
        partition.log_start_offset,
    )
    if flexible:
        size = _START.size - 4 + len(named) + _END.size
        return _START.pack(size, correlation_id, _ONE) + named + _END.pack(_ONE, *fields, _NONE, throttle_ms)
    if version >= _FIRST_WITH_RECORD_ERRORS:
        end = _OLD_END_WITH_ERRORS.pack(1, *fields, 0, -1, throttle_ms)
    else:
        end = _OLD_END.pack(1, *fields, throttle_ms)
    return _OLD_START.pack(_OLD_START.size - 4 + len(named) + len(end), correlation_id, 1) + named + end


def _response(
    version: int,
    correlation_id: int,
    topics: Sequence[ProducedTopic],
    throttle_ms: int,
    endpoints: Sequence[NodeEndpoint],
) -> bytes:
    body = b"".join(produce_response_slices(version, correlation_id, topics, throttle_ms, endpoints))
    return len(body).to_bytes(4, "big") + body


def produce_response_slices(
    version: int,
    correlation_id: int,
    topics: Sequence[ProducedTopic],
    throttle_ms: int,
    endpoints: Sequence[NodeEndpoint],
) -> Iterator[bytes]:
    """Yield the response, without its length, slice by slice."""
    flexible = version >= _FIRST_FLEXIBLE
    pieces: list[bytes] = [
        _INT32(correlation_id) + (b"\x00" if flexible else b"") + array_size(len(topics), flexible)
    ]
    for produced in topics:
        pieces.append(topic(produced.name, flexible))
        pieces.append(array_size(len(produced.partitions), flexible))
        for partition in produced.partitions:
            _write_partition(pieces, partition, version)
            if len(pieces) >= SLICE_PIECES:
                yield b"".join(pieces)
                pieces.clear()
        if flexible:
            pieces.append(b"\x00")
        if len(pieces) >= SLICE_PIECES:
            yield b"".join(pieces)
            pieces.clear()
    pieces.append(_INT32(throttle_ms))
    if flexible:
        with_endpoints = version >= _FIRST_WITH_LEADER and endpoints
        pieces.append(tagged_fields([(0, node_endpoints(endpoints))]) if with_endpoints else b"\x00")
    yield b"".join(pieces)


def _write_partition(pieces: list[bytes], partition: ProducedPartition, version: int) -> None:
    fields = (
        partition.index,
        partition.error,
        partition.base_offset,
        partition.log_append_time_ms,
        partition.log_start_offset,
    )
    if version < _FIRST_WITH_LOG_START:
        pieces.append(_OLD_PARTITION(*fields[:4]))
        return
    flexible = version >= _FIRST_FLEXIBLE
    if flexible and partition.has_nothing_rare:
        pieces.append(_WITH_NOTHING_RARE(*fields, 1, 0, 0))
        return
    pieces.append(_PARTITION(*fields))
    if version < _FIRST_WITH_RECORD_ERRORS:
        return
    pieces.append(array_size(len(partition.record_errors), flexible))
    for batch_index, message in partition.record_errors:
        pieces.append(_INT32(batch_index) + string(message, flexible) + (b"\x00" if flexible else b""))
    pieces.append(string(partition.message, flexible))
    if flexible:
        leader = partition.current_leader if version >= _FIRST_WITH_LEADER else None
        pieces.append(b"\x00" if leader is None else tagged_fields([(0, _LEADER(*leader))]))
