"""Decoding the body of a Produce request, versions 3 to 13, by hand-written code, without copying batches.

The general reader copies every record set once; here they are views of the frame. Any bytes decode to a value
or raise MalformedRequest; memory is not allocated according to a count in the request.

Version notes: 9 flexible, 13 topic ids.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from uuid import UUID

import msgspec

from nilometer.wire.body_reader import SLICE_ELEMENTS, BodyReader, begin, compact_size, end, uuid_of
from nilometer.wire.errors import MalformedRequest

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


def decode_produce_body(version: int, frame: memoryview, position: int) -> ProduceBody:
    """Decode the body of a request; ``position`` is the end of the client id in the header.

    Raises MalformedRequest.
    """
    return end(begin_produce_body(version, frame, position))


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
