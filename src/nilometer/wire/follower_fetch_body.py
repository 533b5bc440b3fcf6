"""The follower's side of Fetch, versions 15 to 18, by hand-written code: encode requests, decode responses.

Their cost is part of the latency of every produce with acks=all. The records of a response are copied out of
its frame, once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.wire.body_reader import BodyReader
from nilometer.wire.errors import ErrorCode, MalformedMessage, MalformedResponse
from nilometer.wire.primitives import unsigned

VERSION_MIN, VERSION_MAX = 15, 18

_LIMITS_AND_SESSION = struct.Struct(">iiibii").pack
_PARTITION = struct.Struct(">iiqiqix").pack
_REPLICA_STATE = struct.Struct(">bbbiqx").pack
_REPLICA_STATE_TAG, _REPLICA_STATE_BYTES = 1, 13
_INT32 = struct.Struct(">i").pack
_NO_RACK = b"\x01"

_RESPONSE = struct.Struct(">ihi")
_PARTITION_DATA = struct.Struct(">ihqqq")
_ABORTED_BYTES = 16
_DIVERGING_TAG = 0
_DIVERGING = struct.Struct(">iq").unpack_from
_NO_DIVERGENCE = (NO_LEADER_EPOCH, UNKNOWN_OFFSET)


class FetchedFromLeader(NamedTuple):
    """The leader's response for one partition."""

    topic_id: UUID
    partition: int
    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: bytes
    diverging: tuple[LeaderEpoch, Offset]
    """The diverging (epoch, end offset); (-1, -1) if the logs do not diverge."""


class LeaderAnswer(NamedTuple):
    error: ErrorCode
    session_id: int
    partitions: Sequence[FetchedFromLeader]


def encode_wanted(
    partition: int,
    leader_epoch: int,
    fetch_offset: int,
    last_fetched_epoch: int,
    log_start_offset: int,
    max_bytes: int,
) -> bytes:
    """Encode one partition of a request."""
    return _PARTITION(partition, leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, max_bytes)


def encode_follower_fetch(
    replica_id: int,
    replica_epoch: int,
    limits: tuple[int, int, int],
    session: tuple[int, int],
    wanted: Mapping[UUID, Sequence[bytes]],
    forgotten: Mapping[UUID, Sequence[int]],
) -> bytes:
    """Encode the body of a request, which is the same in all these versions.

    ``limits``: maximum wait (ms), minimum and maximum bytes; ``session``: fetch session id and epoch;
    ``wanted``: each topic's partitions, from :func:`encode_wanted`; ``forgotten``: partitions to remove from
    the fetch session.
    """
    pieces = [_LIMITS_AND_SESSION(*limits, 0, *session), unsigned(len(wanted) + 1)]
    for topic_id, partitions in wanted.items():
        pieces += (topic_id.bytes, unsigned(len(partitions) + 1), *partitions, b"\x00")
    pieces.append(unsigned(len(forgotten) + 1))
    for topic_id, indexes in forgotten.items():
        pieces += (topic_id.bytes, unsigned(len(indexes) + 1), *map(_INT32, indexes), b"\x00")
    state = _REPLICA_STATE(1, _REPLICA_STATE_TAG, _REPLICA_STATE_BYTES, replica_id, replica_epoch)
    pieces += (_NO_RACK, state)
    return b"".join(pieces)


def decode_leader_answer(frame: memoryview, position: int) -> LeaderAnswer:
    """Decode a response; ``position`` is the end of the correlation id. Raises MalformedResponse."""
    reader = BodyReader(frame, position, flexible=True)
    try:
        reader.skip_tags()  # of the header
        _throttle_ms, code, session_id = reader.fixed(_RESPONSE)
        partitions = [found for _ in range(reader.count()) for found in _topic(reader)]
        reader.skip_tags()
        return LeaderAnswer(ErrorCode(code), session_id, partitions)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedResponse(f"malformed Fetch response: {error}") from None
    except MalformedMessage as error:
        raise MalformedResponse(f"malformed Fetch response: {error.message}") from None


def _topic(reader: BodyReader) -> Iterable[FetchedFromLeader]:
    topic_id = reader.uuid()
    partitions = [_partition(reader, topic_id) for _ in range(reader.count())]
    reader.skip_tags()
    return partitions


def _partition(reader: BodyReader, topic_id: UUID) -> FetchedFromLeader:
    index, error, high_watermark, _last_stable, log_start = reader.fixed(_PARTITION_DATA)
    for _ in range(reader.length32()):
        reader.take(_ABORTED_BYTES)
        reader.skip_tags()
    reader.take(4)  # the preferred read replica
    records = bytes(reader.take(max(reader.length32(), 0)))
    code = ErrorCode.none if error == 0 else ErrorCode(error)
    diverging = _diverging(reader)
    return FetchedFromLeader(topic_id, index, code, high_watermark, log_start, records, diverging)


def _diverging(reader: BodyReader) -> tuple[LeaderEpoch, Offset]:
    value = reader.tagged_field(_DIVERGING_TAG)
    if value is None:
        return _NO_DIVERGENCE
    epoch, end_offset = _DIVERGING(value)
    return epoch, end_offset
