"""Produce requests, versions 3 to 13, encoded and decoded at once. 9 is flexible, 13 has topic ids."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

from nilometer.wire.body_reader import end
from nilometer.wire.compression import Bytes
from nilometer.wire.frames import FrameWriter
from nilometer.wire.primitives import array_size, bytes_size, string, topic
from nilometer.wire.produce import ProduceBody, begin_produce_body

REQUEST_VERSION_MIN, REQUEST_VERSION_MAX = 3, 13

_REQUEST_FIRST_FLEXIBLE = 9

_PRODUCE = 0
_REQUEST_INT32 = struct.Struct(">i").pack
_HEADER = struct.Struct(">hhi").pack
_ACKS = struct.Struct(">hi").pack


def encode_produce_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[tuple[str | UUID, Sequence[tuple[int, Bytes]]]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[Bytes]:
    """Return the frame, with its length, as a list of buffers to send in order.

    ``topics``: name (id from version 13 on) and, for each partition, its index and record batches.
    """
    if not REQUEST_VERSION_MIN <= version <= REQUEST_VERSION_MAX:
        raise ValueError(f"Produce version {version}")
    flexible = version >= _REQUEST_FIRST_FLEXIBLE
    frame = FrameWriter()
    small = frame.small
    small.append(_HEADER(_PRODUCE, version, correlation_id) + string(client_id, False))
    small.append(
        (b"\x00" if flexible else b"") + string(transactional_id, flexible) + _ACKS(acks, timeout_ms)
    )
    small.append(array_size(len(topics), flexible))
    for name, partitions in topics:
        small.append(topic(name, flexible))
        small.append(array_size(len(partitions), flexible))
        for index, records in partitions:
            small.append(_REQUEST_INT32(index) + bytes_size(len(records), flexible))
            frame.add_records(records)
            if flexible:
                small.append(b"\x00")
        if flexible:
            small.append(b"\x00")
    if flexible:
        small.append(b"\x00")
    return frame.finish()


def decode_produce_body(version: int, frame: memoryview, position: int) -> ProduceBody:
    """Decode the body of a request; ``position`` is the end of the client id in the header.

    Raises MalformedRequest.
    """
    return end(begin_produce_body(version, frame, position))
