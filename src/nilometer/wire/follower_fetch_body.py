"""The follower's side of Fetch, versions 15 to 18, by hand-written code: encode requests, decode responses.

Their cost is part of the latency of every produce with acks=all. The records of a response are copied out of
its frame, once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.wire.body_reader import BodyReader, compact_size
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
_USUAL = struct.Struct(">BihiB16sBihqqqBi")
_USUAL_MARKS = (0, 2, 2, 0)
"""No tags of the header, one topic, one partition, null for aborted transactions."""
_USUAL_END = b"\x00\x00\x00"
"""No tags of the partition, the topic and the response."""
_PARTITION_DATA = struct.Struct(">ihqqq")
_ABORTED_BYTES = 16
_DIVERGING_TAG = 0
_DIVERGING = struct.Struct(">iq").unpack_from
_NO_DIVERGENCE = (NO_LEADER_EPOCH, UNKNOWN_OFFSET)


class FetchedFromLeader(NamedTuple):
    """The leader's response for one partition."""

    topic_id: bytes
    """The bytes of the topic's id."""
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
    wanted: Mapping[bytes, Sequence[bytes]],
    forgotten: Mapping[bytes, Sequence[int]],
) -> bytes:
    """Encode the body of a request, which is the same in all these versions.

    ``limits``: maximum wait (ms), minimum and maximum bytes; ``session``: fetch session id and epoch;
    ``wanted``: by the bytes of a topic's id, its partitions, from :func:`encode_wanted`; ``forgotten``:
    partitions to remove from the fetch session.
    """
    pieces = [_LIMITS_AND_SESSION(*limits, 0, *session), unsigned(len(wanted) + 1)]
    for topic_id, partitions in wanted.items():
        pieces += (topic_id, unsigned(len(partitions) + 1), *partitions, b"\x00")
    pieces.append(unsigned(len(forgotten) + 1))
    for topic_id, indexes in forgotten.items():
        pieces += (topic_id, unsigned(len(indexes) + 1), *map(_INT32, indexes), b"\x00")
    state = _REPLICA_STATE(1, _REPLICA_STATE_TAG, _REPLICA_STATE_BYTES, replica_id, replica_epoch)
    pieces += (_NO_RACK, state)
    return b"".join(pieces)


def decode_leader_answer(frame: memoryview, position: int) -> LeaderAnswer:
    """Decode a response; ``position`` is the end of the correlation id. Raises MalformedResponse."""
    try:
        return _usual_answer(frame, position) or _answer(BodyReader(frame, position, flexible=True))
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedResponse(f"malformed Fetch response: {error}") from None
    except MalformedMessage as error:
        raise MalformedResponse(f"malformed Fetch response: {error.message}") from None


def _usual_answer(frame: memoryview, position: int) -> LeaderAnswer | None:
    """Decode the response for one partition, without tagged fields, as it follows every append; None if this
    is another."""
    if len(frame) - position < _USUAL.size or bytes(frame[-len(_USUAL_END) :]) != _USUAL_END:
        return None
    fields = _USUAL.unpack_from(frame, position)
    if (fields[0], fields[4], fields[6], fields[12]) != _USUAL_MARKS:
        return None
    size, start = compact_size(frame, position + _USUAL.size)
    end = start + max(size, 0)
    if end + len(_USUAL_END) != len(frame):
        return None
    records = bytes(frame[start:end])
    index, error, high_watermark, _last_stable, log_start = fields[7:12]
    found = FetchedFromLeader(
        fields[5], index, _error_of(error), high_watermark, log_start, records, _NO_DIVERGENCE
    )
    return LeaderAnswer(_error_of(fields[2]), fields[3], [found])


def _answer(reader: BodyReader) -> LeaderAnswer:
    reader.skip_tags()  # of the header
    _throttle_ms, code, session_id = reader.fixed(_RESPONSE)
    partitions = [found for _ in range(reader.count()) for found in _topic(reader)]
    reader.skip_tags()
    return LeaderAnswer(_error_of(code), session_id, partitions)


def _error_of(code: int) -> ErrorCode:
    return ErrorCode.none if code == 0 else ErrorCode(code)


def _topic(reader: BodyReader) -> Iterable[FetchedFromLeader]:
    topic_id = reader.raw_uuid()
    partitions = [_partition(reader, topic_id) for _ in range(reader.count())]
    reader.skip_tags()
    return partitions


def _partition(reader: BodyReader, topic_id: bytes) -> FetchedFromLeader:
    index, error, high_watermark, _last_stable, log_start = reader.fixed(_PARTITION_DATA)
    for _ in range(reader.length32()):
        reader.take(_ABORTED_BYTES)
        reader.skip_tags()
    reader.take(4)  # the preferred read replica
    records = bytes(reader.take(max(reader.length32(), 0)))
    diverging = _diverging(reader)
    return FetchedFromLeader(topic_id, index, _error_of(error), high_watermark, log_start, records, diverging)


def _diverging(reader: BodyReader) -> tuple[LeaderEpoch, Offset]:
    value = reader.tagged_field(_DIVERGING_TAG)
    if value is None:
        return _NO_DIVERGENCE
    epoch, end_offset = _DIVERGING(value)
    return epoch, end_offset
