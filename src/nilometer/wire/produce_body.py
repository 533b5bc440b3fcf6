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

from nilometer.wire.body_reader import BodyReader
from nilometer.wire.errors import MalformedRequest

VERSION_MIN, VERSION_MAX = 3, 13

_FIRST_FLEXIBLE = 9
_FIRST_WITH_TOPIC_ID = 13
_ACKS_AND_TIMEOUT = struct.Struct(">hi")


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
    reader = BodyReader(frame, position, flexible=version >= _FIRST_FLEXIBLE)
    try:
        reader.skip_tags()  # of the header
        transactional_id = reader.nullable_string()
        acks, timeout_ms = reader.fixed(_ACKS_AND_TIMEOUT)
        by_id = version >= _FIRST_WITH_TOPIC_ID
        topics = [_topic(reader, by_id) for _ in range(reader.count())]
        reader.skip_tags()
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"the Produce request ends too early: {error}") from None
    except UnicodeDecodeError:
        raise MalformedRequest("a string is not UTF-8") from None
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
