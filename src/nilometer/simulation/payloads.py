"""Stand-ins for what users wrote: records without their keys and values, of the same sizes.

All that brokers decide by stays: offsets, timestamps, sizes, counts, producers, control records, and which
records have equal keys, or no value. A value, and that of a header, has zero bytes in its place; a key has
other bytes, equal keys the same ones, and different keys different ones. Compressed records are zero bytes:
where a broker decompresses them, it is not the same.

Records of internal topics stay: they are the state of groups and transactions.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.identifiers import TopicId, topic_id_of
from nilometer.wire import messages
from nilometer.wire.errors import (
    CorruptBatch,
    KafkaError,
    MalformedMessage,
    MalformedRequest,
    UnsupportedVersion,
)
from nilometer.wire.messages import RequestHeader
from nilometer.wire.primitives import decode_zigzag
from nilometer.wire.record_batch import HEADER_BYTES, MAGIC, BatchHeader, check_batch, read_header

_LENGTH_AT = slice(8, 12)
_MAGIC_AT, _CRC_AT, _CRC_START = 16, 17, 21
_MAGIC = bytes([MAGIC])
_LENGTH = 4
_REQUEST_HEADER = 10
_ACKS_AND_TIMEOUT, _INDEX = 6, 4
_TIMESTAMP_BYTES_MAX = 10
ROUNDS = 4
"""Of a permutation of keys."""
_LOG_SUFFIX = ".log"


class Payloads:
    """``key``: random."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.internal_ids: set[TopicId] = set()
        """The ids of internal topics."""

    # --- where records are

    def produced(self, frame: bytes) -> bytes:
        """Return what a copy has of a Produce request, given without its length."""
        try:
            header, body = messages.decode_request(frame)
        except (MalformedMessage, UnsupportedVersion):
            return malformed(frame)
        changed = changed_records(
            body,
            "topic_data",
            "partition_data",
            lambda topic: None if self.is_kept(topic) else self.produced_batches,
        )
        return with_body(frame, header, changed)

    def is_kept(self, topic: Any) -> bool:
        """Whether a topic of a message is internal."""
        name = getattr(topic, "topic", None) or getattr(topic, "name", None)
        if name is None:
            return topic_id_of(topic.topic_id) in self.internal_ids
        return name in INTERNAL_TOPICS

    def read(self, path: str, data: bytes) -> bytes:
        """Return what a copy has of what was read in a file."""
        folder, _, name = path.rpartition("/")
        topic = folder.rpartition("/")[2].rpartition("-")[0]
        if not name.endswith(_LOG_SUFFIX) or topic in (*INTERNAL_TOPICS, ""):
            return data
        return self.batches(data)

    # --- batches

    def batches(self, data: bytes) -> bytes:
        return changed_batches(data, self._batch)

    def produced_batches(self, data: bytes) -> bytes:
        """As :meth:`batches`, of a client, which may write what no broker takes."""
        return changed_batches(data, self._batch, is_produced=True)

    def _batch(self, batch: bytes, header: BatchHeader) -> bytes:
        changed = bytearray(batch)
        try:
            if header.is_compressed:
                raise CorruptBatch("its records are not looked at")
            self._records(changed, header.records_count)
        except (CorruptBatch, IndexError):
            changed[HEADER_BYTES:] = bytes(len(batch) - HEADER_BYTES)
        return bytes(changed)

    def _records(self, batch: bytearray, count: int) -> None:
        """Change the records of a batch in place, of which there are zero bytes behind ``count`` records.
        Raises CorruptBatch, IndexError."""
        data, at = bytes(batch), HEADER_BYTES

        def take(stand_in: Callable[[bytes], bytes]) -> None:
            nonlocal at
            size, at = decode_zigzag(data, at)
            if size > 0:
                if at + size > end:
                    raise CorruptBatch("a field ends behind its record")
                batch[at : at + size] = stand_in(data[at : at + size])
                at += size

        for _ in range(count):
            length, at = decode_zigzag(data, at)
            end = at + length
            if length < 0 or end > len(data):
                raise CorruptBatch("a record ends behind its batch")
            _, at = decode_zigzag(data, at + 1, _TIMESTAMP_BYTES_MAX)
            _, at = decode_zigzag(data, at)
            take(self.key)
            take(_zeros)
            headers, at = decode_zigzag(data, at)
            for _ in range(headers):
                take(_letters)
                take(_zeros)
            if at != end:
                raise CorruptBatch("a record ends elsewhere than its length says")
        batch[at:] = bytes(len(batch) - at)

    def key(self, key: bytes) -> bytes:
        """Return a key's stand-in: a permutation of all keys of that length."""
        if len(key) == 1:
            order = sorted(range(256), key=lambda byte: self._digest(b"one", bytes([byte]), 8))
            return bytes([order[key[0]]])
        half = len(key) // 2
        left, right = key[:half], key[half:]
        for number in range(ROUNDS):
            left = _xor(left, self._digest(b"left%d" % number, right, len(left)))
            right = _xor(right, self._digest(b"right%d" % number, left, len(right)))
        return left + right

    def _digest(self, what: bytes, data: bytes, size: int) -> bytes:
        return hashlib.shake_256(self._key + what + len(data).to_bytes(4, "big") + data).digest(size)


def _letters(name: bytes) -> bytes:
    return b"x" * len(name)


Change = Callable[[bytes], bytes]


def changed_records(
    message: Any, topics: str, partitions: str, change_of: Callable[[Any], Change | None]
) -> Any:
    """Return a message with other records. ``topics``, ``partitions``: the names of these fields;
    ``change_of`` returns what changes the records of a topic; None: nothing."""

    def of_partition(partition: Any, change: Change) -> Any:
        if not partition.records:
            return partition
        return dataclasses.replace(partition, records=change(bytes(partition.records)))

    def of_topic(topic: Any) -> Any:
        if (change := change_of(topic)) is None:
            return topic
        changed = tuple(of_partition(one, change) for one in getattr(topic, partitions))
        return dataclasses.replace(topic, **{partitions: changed})

    return dataclasses.replace(message, **{topics: tuple(map(of_topic, getattr(message, topics)))})


def malformed(frame: bytes, letters: Callable[[bytes], bytes] = _letters) -> bytes:
    """Return what a copy has of a malformed request: another one, since letters are no sizes that fit; where
    its header is malformed, bytes that are no UTF-8."""
    rest = frame[_REQUEST_HEADER:]
    changed = letters(rest)
    try:
        messages.decode_request_header(frame)
    except MalformedMessage:
        changed = b"\xff" * len(rest)
    return frame[:_REQUEST_HEADER] + changed


def without_old_records(frame: bytes) -> bytes:
    """Return a Produce request of the versions 0 to 2, which brokers refuse, with zero bytes for records."""
    try:
        changed, at = bytearray(frame), messages.decode_request_header(frame).size + _ACKS_AND_TIMEOUT
        topics, at = _int(frame, at, 4)
        for _ in range(topics):
            name, at = _int(frame, at, 2)
            partitions, at = _int(frame, at + max(0, name), 4)
            for _ in range(partitions):
                size, at = _int(frame, at + _INDEX, 4)
                end = min(len(frame), at + max(0, size))
                changed[at:end] = bytes(end - at)
                at = end
        changed[at:] = bytes(len(frame) - at)
    except MalformedMessage:
        return malformed(frame)
    return bytes(changed)


def _int(frame: bytes, at: int, size: int) -> tuple[int, int]:
    if at + size > len(frame):
        raise MalformedRequest("it ends within a field")
    return int.from_bytes(frame[at : at + size], "big", signed=True), at + size


def with_body(frame: bytes, header: RequestHeader, body: messages.Message) -> bytes:
    """Return a request with another body, whose fields have the same sizes. Tagged fields that are not known
    and bytes behind the body, which no broker reads, are zero bytes behind it."""
    encoded = messages.encode_request(header.correlation_id, header.client_id, body)
    return encoded[_LENGTH:].ljust(len(frame), b"\0")


def changed_batches(
    data: bytes, change: Callable[[bytes, BatchHeader], bytes], *, is_produced: bool = False
) -> bytes:
    """Return batches with other records, which ``change`` makes, and their CRCs. Of an incomplete last batch
    the header is left. What does not begin as a batch does is zero bytes. Control records stay, and a part of
    a last header, unless it ``is_produced``: brokers refuse them. What they refuse is refused in the same
    way: the headers of such batches stay, and a CRC that is wrong is wrong."""
    kept, at = bytearray(), 0
    while at < len(data):
        if at and len(data) - at < HEADER_BYTES:
            kept += _refused(data[at:]) if is_produced else data[at:]  # of the next batch's header
            break
        try:
            header = read_header(data, at)
        except KafkaError:
            kept += _refused(data[at:]) if is_produced else bytes(len(data) - at)
            break
        size = header.size
        if at + size > len(data):
            kept += data[at : at + HEADER_BYTES] + bytes(len(data) - at - HEADER_BYTES)
            break
        batch = data[at : at + size]
        try:
            check_batch(batch, 0, header)
        except KafkaError:
            if not is_produced:
                kept += bytes(len(data) - at)
                break
            kept += _with_crc(batch, batch[:HEADER_BYTES] + bytes(size - HEADER_BYTES))
        else:
            changes = is_produced or not header.is_control
            kept += _with_crc(batch, change(batch, header)) if changes else batch
        at += size
    return bytes(kept)


def _with_crc(batch: bytes, changed: bytes) -> bytes:
    """Return ``changed`` with a right CRC if that of ``batch`` is, otherwise with the same wrong one."""
    stored, found = batch[_CRC_AT:_CRC_START], crc32c(changed[_CRC_START:]).to_bytes(4, "big")
    if crc32c(batch[_CRC_START:]).to_bytes(4, "big") == stored:
        return changed[:_CRC_AT] + found + changed[_CRC_START:]
    return changed[:-1] + b"\1" if found == stored and changed != batch else changed


def _refused(data: bytes) -> bytes:
    """Return what has the size of ``data``, and of a batch only what it is refused by: magic and length."""
    changed = bytearray(len(data))
    changed[_MAGIC_AT:_CRC_AT] = data[_MAGIC_AT:_CRC_AT]
    if data[_MAGIC_AT:_CRC_AT] == _MAGIC:
        changed[_LENGTH_AT] = data[_LENGTH_AT]
    return bytes(changed)


def _zeros(value: bytes) -> bytes:
    return bytes(len(value))


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
