"""Decoding the body of a Produce request, versions 3 to 13, by hand-written code, without copying batches.

The general reader copies every record set once; here they are views of the frame. Any bytes decode to a value
or raise MalformedRequest; memory is not allocated according to a count in the request.

Version notes: 9 flexible, 13 topic ids.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from nilometer.wire.body_reader import BodyReader, compact_size
from nilometer.wire.errors import MalformedRequest

VERSION_MIN, VERSION_MAX = 3, 13

_FIRST_FLEXIBLE = 9
_FIRST_WITH_TOPIC_ID = 13
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_ONE = 2
"""An array of one element, as a compact size."""
_USUAL_START = struct.Struct(">BBhiBB")
_USUAL_START_MARKS = (0, 0, _ONE)
"""No tags of the header, no transactional id, one topic."""
_USUAL_PARTITION = struct.Struct(">Bi")
_USUAL_END = b"\x00\x00\x00"
"""No tags of the partition, the topic and the request."""


class ProducedRecords(NamedTuple):
    partition: int
    records: memoryview | None


class ProducedToTopic(NamedTuple):
    topic: str | UUID
    """The topic's name, or from version 13 on its id."""
    partitions: Sequence[ProducedRecords]


class ProduceBody(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[ProducedToTopic]


def decode_produce_body(version: int, frame: memoryview, position: int) -> ProduceBody:
    """Decode the body of a request; ``position`` is the end of the client id in the header.

    Raises MalformedRequest.
    """
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ValueError(f"Produce version {version}")
    flexible, by_id = version >= _FIRST_FLEXIBLE, version >= _FIRST_WITH_TOPIC_ID
    try:
        usual = _usual_body(frame, position) if flexible and not by_id else None
        return usual or _body(BodyReader(frame, position, flexible=flexible), by_id)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"the Produce request ends too early: {error}") from None
    except UnicodeDecodeError:
        raise MalformedRequest("a string is not UTF-8") from None


def _usual_body(frame: memoryview, position: int) -> ProduceBody | None:
    """Decode a request for one partition of one topic, by name, without transaction and tagged fields; None
    if this is another."""
    if len(frame) - position < _USUAL_START.size:
        return None
    *marks, acks, timeout_ms, topics, name_size = _USUAL_START.unpack_from(frame, position)
    name_end = position + _USUAL_START.size + name_size - 1
    if (*marks, topics) != _USUAL_START_MARKS or not 0 < name_size < 0x80:
        return None
    if len(frame) - name_end < _USUAL_PARTITION.size:
        return None
    partitions, index = _USUAL_PARTITION.unpack_from(frame, name_end)
    if partitions != _ONE or bytes(frame[-len(_USUAL_END) :]) != _USUAL_END:
        return None
    size, start = compact_size(frame, name_end + _USUAL_PARTITION.size)
    if size < 0 or start + size + len(_USUAL_END) != len(frame):
        return None
    name = str(frame[position + _USUAL_START.size : name_end], "utf-8")
    topic = ProducedToTopic(name, [ProducedRecords(index, frame[start : start + size])])
    return ProduceBody(None, acks, timeout_ms, [topic])


def _body(reader: BodyReader, by_id: bool) -> ProduceBody:
    reader.skip_tags()  # of the header
    transactional_id = reader.nullable_string()
    acks, timeout_ms = reader.fixed(_ACKS_AND_TIMEOUT)
    topics = [_topic(reader, by_id) for _ in range(reader.count())]
    reader.skip_tags()
    return ProduceBody(transactional_id, acks, timeout_ms, topics)


def _topic(reader: BodyReader, by_id: bool) -> ProducedToTopic:
    name = reader.uuid() if by_id else reader.string()
    partitions = [_partition(reader) for _ in range(reader.count())]
    reader.skip_tags()
    return ProducedToTopic(name, partitions)


def _partition(reader: BodyReader) -> ProducedRecords:
    index = reader.int32()
    length = reader.length32()
    records = None if length < 0 else reader.take(length)
    reader.skip_tags()
    return ProducedRecords(index, records)
