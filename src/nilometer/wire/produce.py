"""Produce, versions 3 to 13, by hand-written code: requests are decoded without copying their batches,
responses are encoded fast, because they are very frequent.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from nilometer.wire.body_reader import SLICE_ELEMENTS, BodyReader, begin, compact_size, uuid_of
from nilometer.wire.errors import NONE, ErrorCode, MalformedRequest
from nilometer.wire.primitives import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    array_size,
    node_endpoints,
    string,
    tagged_fields,
    topic,
)

# Decoding the body of a Produce request, versions 3 to 13, by hand-written code, without copying batches.
#
# The general reader copies every record set once; here they are views of the frame. Any bytes decode to a
# value or raise MalformedRequest; memory is not allocated according to a count in the request.
#
# Version notes: 9 flexible, 13 topic ids.

VERSION_MIN, VERSION_MAX = 3, 13

_FIRST_FLEXIBLE = 9
_FIRST_WITH_TOPIC_ID = 13
_ACKS_AND_TIMEOUT = struct.Struct(">hi")

# The layouts of a usual request: no transaction, no tagged fields, one partition of one topic.
_ONE = 2
"""An array of one element, as a compact size."""
_NAMED = struct.Struct(">BBhiBB")
"""Tags of the header, transactional id, acks, timeout, topics, size of the topic's name: versions 9 to 12."""
_NAMED_PARTITION = struct.Struct(">Bi")
"""Partitions, partition."""
_BY_ID = struct.Struct(">BBhiB16sBi")
"""As these two, with a topic id in place of the name: version 13."""
_LEGACY = struct.Struct(">hhiih")
"""Transactional id, acks, timeout, topics, size of the topic's name: versions 3 to 8."""
_LEGACY_PARTITION = struct.Struct(">iii")
"""Partitions, partition, size of the records."""
_NO_TAGS = b"\x00\x00\x00"
"""Of the partition, the topic and the request."""


class ProducedRecords(msgspec.Struct, frozen=True, gc=False):
    partition: int
    records: memoryview | None


class ProducedToTopic(msgspec.Struct, frozen=True, gc=False):
    topic: str | UUID
    """The topic's name, or from version 13 on its id."""
    partitions: list[ProducedRecords]


class ProduceBody(msgspec.Struct, frozen=True, gc=False):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProducedToTopic]


Slices = Generator[int, None, ProduceBody]


def begin_produce_body(version: int, frame: memoryview, position: int) -> ProduceBody | Slices:
    """Decode the body of a request, or the first slice of one with many partitions.

    Raises MalformedRequest, as the slices do.
    """
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ValueError(f"Produce version {version}")
    flexible, by_id = version >= _FIRST_FLEXIBLE, version >= _FIRST_WITH_TOPIC_ID
    usual = _usual_by_id if by_id else _usual_named if flexible else _usual_legacy
    try:
        body = usual(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(error) from None
    return body or begin(_checked(BodyReader(frame, position, flexible=flexible), by_id))


def _checked(reader: BodyReader, by_id: bool) -> Slices:
    try:
        return (yield from _body(reader, by_id))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> MalformedRequest:
    if isinstance(error, UnicodeDecodeError):
        return MalformedRequest("a string is not UTF-8")
    return MalformedRequest(f"the Produce request ends too early: {error}")


def _usual_named(frame: memoryview, position: int) -> ProduceBody | None:
    """Decode a usual request of versions 9 to 12; None if this is another."""
    start = position + _NAMED.size
    if len(frame) < start:
        return None
    tags, transactional_id, acks, timeout_ms, topics, name_size = _NAMED.unpack_from(frame, position)
    name_end = start + name_size - 1
    if tags or transactional_id or topics != _ONE or not 0 < name_size < 0x80:
        return None
    if len(frame) - name_end < _NAMED_PARTITION.size:
        return None
    partitions, index = _NAMED_PARTITION.unpack_from(frame, name_end)
    if partitions != _ONE:
        return None
    records = _last_records(frame, name_end + _NAMED_PARTITION.size)
    if records is None:
        return None
    return _of_one(acks, timeout_ms, str(frame[start:name_end], "utf-8"), index, records)


def _usual_by_id(frame: memoryview, position: int) -> ProduceBody | None:
    """Decode a usual request of version 13; None if this is another."""
    end = position + _BY_ID.size
    if len(frame) < end:
        return None
    tags, transactional_id, acks, timeout_ms, topics, topic_id, partitions, index = _BY_ID.unpack_from(
        frame, position
    )
    if tags or transactional_id or topics != _ONE or partitions != _ONE:
        return None
    records = _last_records(frame, end)
    return None if records is None else _of_one(acks, timeout_ms, uuid_of(topic_id), index, records)


def _usual_legacy(frame: memoryview, position: int) -> ProduceBody | None:
    """Decode a usual request of versions 3 to 8; None if this is another."""
    start = position + _LEGACY.size
    if len(frame) < start:
        return None
    transactional_id, acks, timeout_ms, topics, name_size = _LEGACY.unpack_from(frame, position)
    name_end = start + name_size
    records_at = name_end + _LEGACY_PARTITION.size
    if transactional_id != -1 or topics != 1 or name_size < 0 or len(frame) < records_at:
        return None
    partitions, index, size = _LEGACY_PARTITION.unpack_from(frame, name_end)
    if partitions != 1 or size < 0 or records_at + size != len(frame):
        return None
    return _of_one(acks, timeout_ms, str(frame[start:name_end], "utf-8"), index, frame[records_at:])


def _last_records(frame: memoryview, position: int) -> memoryview | None:
    """Return the records at ``position``, if nothing but sections without tagged fields follows them."""
    size, start = compact_size(frame, position)
    end = start + size
    if size < 0 or end + len(_NO_TAGS) != len(frame) or bytes(frame[end:]) != _NO_TAGS:
        return None
    return frame[start:end]


def _of_one(
    acks: int, timeout_ms: int, topic: str | UUID, partition: int, records: memoryview
) -> ProduceBody:
    return ProduceBody(
        None, acks, timeout_ms, [ProducedToTopic(topic, [ProducedRecords(partition, records)])]
    )


def _body(reader: BodyReader, by_id: bool) -> Slices:
    reader.skip_tags()  # of the header
    transactional_id = reader.nullable_string()
    acks, timeout_ms = reader.fixed(_ACKS_AND_TIMEOUT)
    topics: list[ProducedToTopic] = []
    for _ in range(reader.count()):
        name = reader.uuid() if by_id else reader.string()
        partitions: list[ProducedRecords] = []
        for _ in range(reader.count()):
            partitions.append(_partition(reader))
            if reader.ends_slice():
                yield SLICE_ELEMENTS
        reader.skip_tags()
        topics.append(ProducedToTopic(name, partitions))
        if reader.ends_slice():
            yield SLICE_ELEMENTS
    reader.skip_tags()
    return ProduceBody(transactional_id, acks, timeout_ms, topics)


def _partition(reader: BodyReader) -> ProducedRecords:
    index = reader.int32()
    length = reader.length32()
    records = None if length < 0 else reader.take(length)
    reader.skip_tags()
    return ProducedRecords(index, records)


# Encoding Produce responses, versions 3 to 13, by hand-written code, because they are very frequent.
#
# Version notes: 5 log start offset, 8 record errors (KIP-467), 9 flexible, 10 current leader and node
# endpoints (KIP-951), 13 topic ids.

RESPONSE_VERSION_MIN, RESPONSE_VERSION_MAX = 3, 13

_FIRST_WITH_LOG_START = 5
_FIRST_WITH_RECORD_ERRORS = 8
_RESPONSE_FIRST_FLEXIBLE = 9
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
_RESPONSE_ONE, _NONE = 2, 1
"""Compact sizes of an array."""
_RESPONSE_INT32 = struct.Struct(">i").pack
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
    if not RESPONSE_VERSION_MIN <= version <= RESPONSE_VERSION_MAX:
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
    flexible = version >= _RESPONSE_FIRST_FLEXIBLE
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
        return (
            _START.pack(size, correlation_id, _RESPONSE_ONE)
            + named
            + _END.pack(_RESPONSE_ONE, *fields, _NONE, throttle_ms)
        )
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
    flexible = version >= _RESPONSE_FIRST_FLEXIBLE
    pieces: list[bytes] = [
        _RESPONSE_INT32(correlation_id) + (b"\x00" if flexible else b"") + array_size(len(topics), flexible)
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
    pieces.append(_RESPONSE_INT32(throttle_ms))
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
    flexible = version >= _RESPONSE_FIRST_FLEXIBLE
    if flexible and partition.has_nothing_rare:
        pieces.append(_WITH_NOTHING_RARE(*fields, 1, 0, 0))
        return
    pieces.append(_PARTITION(*fields))
    if version < _FIRST_WITH_RECORD_ERRORS:
        return
    pieces.append(array_size(len(partition.record_errors), flexible))
    for batch_index, message in partition.record_errors:
        pieces.append(
            _RESPONSE_INT32(batch_index) + string(message, flexible) + (b"\x00" if flexible else b"")
        )
    pieces.append(string(partition.message, flexible))
    if flexible:
        leader = partition.current_leader if version >= _FIRST_WITH_LEADER else None
        pieces.append(b"\x00" if leader is None else tagged_fields([(0, _LEADER(*leader))]))
