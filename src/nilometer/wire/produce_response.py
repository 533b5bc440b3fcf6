"""Encoding Produce responses, versions 3 to 13, by hand-written code, because they are very frequent.

Version notes: 5 log start offset, 8 record errors (KIP-467), 9 flexible, 10 current leader and node endpoints
(KIP-951), 13 topic ids.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

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
_INT32 = struct.Struct(">i").pack
_LEADER = struct.Struct(">iix").pack


class RecordError(NamedTuple):
    batch_index: int
    message: str | None = None


class ProducedPartition(NamedTuple):
    """The outcome for one partition."""

    partition_index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


class ProducedTopic(NamedTuple):
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
    flexible = version >= _FIRST_FLEXIBLE
    pieces: list[bytes] = [
        _INT32(correlation_id) + (b"\x00" if flexible else b"") + array_size(len(topics), flexible)
    ]
    for name, partitions in topics:
        pieces.append(topic(name, flexible))
        pieces.append(array_size(len(partitions), flexible))
        for partition in partitions:
            _write_partition(pieces, partition, version)
        if flexible:
            pieces.append(b"\x00")
    pieces.append(_INT32(throttle_ms))
    if flexible:
        with_endpoints = version >= _FIRST_WITH_LEADER and endpoints
        pieces.append(tagged_fields([(0, node_endpoints(endpoints))]) if with_endpoints else b"\x00")
    body = b"".join(pieces)
    return len(body).to_bytes(4, "big") + body


def _write_partition(pieces: list[bytes], partition: ProducedPartition, version: int) -> None:
    if version < _FIRST_WITH_LOG_START:
        pieces.append(_OLD_PARTITION(*partition[:4]))
        return
    flexible = version >= _FIRST_FLEXIBLE
    if flexible and partition[_FIRST_RARE:] == _NOTHING_RARE:
        pieces.append(_WITH_NOTHING_RARE(*partition[:5], 1, 0, 0))
        return
    pieces.append(_PARTITION(*partition[:5]))
    if version < _FIRST_WITH_RECORD_ERRORS:
        return
    pieces.append(array_size(len(partition.record_errors), flexible))
    for batch_index, message in partition.record_errors:
        pieces.append(_INT32(batch_index) + string(message, flexible) + (b"\x00" if flexible else b""))
    pieces.append(string(partition.error_message, flexible))
    if flexible:
        leader = partition.current_leader if version >= _FIRST_WITH_LEADER else None
        pieces.append(b"\x00" if leader is None else tagged_fields([(0, _LEADER(*leader))]))


_FIRST_RARE = ProducedPartition._fields.index("record_errors")
_NOTHING_RARE = ((), None, None)
