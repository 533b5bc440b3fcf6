"""Stand-ins for what users wrote: records without their keys and values, of the same sizes.

All that brokers decide by stays: offsets, timestamps, sizes, counts, producers, control records, and which
records have equal keys, or no value. A value, and that of a header, has zero bytes in its place; a key has
other bytes, equal keys the same ones, and different keys different ones. Compressed records are zero bytes:
where a broker decompresses them, it is not the same.

Records of internal topics stay: they are the state of groups and transactions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from crc32c import crc32c

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.identifiers import TopicId, topic_id_of
from nilometer.wire import messages
from nilometer.wire.errors import CorruptBatch, KafkaError, MalformedMessage, UnsupportedVersion
from nilometer.wire.primitives import decode_zigzag
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, check_batch, read_header

_CRC_AT, _CRC_START = 17, 21
_REQUEST_HEADER = 10
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
            _, body = messages.decode_request(frame)
        except (MalformedMessage, UnsupportedVersion):
            return frame[:_REQUEST_HEADER] + bytes(len(frame) - _REQUEST_HEADER)
        return changed_message(
            frame,
            ((topic, topic.partition_data) for topic in body.topic_data),
            lambda topic: None if self.is_kept(topic) else self.batches,
        )

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
        """Change the records of a batch in place. Raises CorruptBatch, IndexError."""
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


Change = Callable[[bytes], bytes]


def changed_message(
    frame: bytes, topics: Iterable[tuple[Any, Any]], change_of: Callable[[Any], Change | None]
) -> bytes:
    """Return a message with other records. ``topics``: each with its partitions; ``change_of`` returns what
    changes the records of a topic; None: nothing."""
    changed, at = bytearray(frame), 0
    for topic, parts in topics:
        change = change_of(topic)
        for part in parts:
            if part.records:
                records = bytes(part.records)
                at = frame.index(records, at)
                if change is not None:
                    changed[at : at + len(records)] = change(records)
                at += len(records)
    return bytes(changed)


def changed_batches(data: bytes, change: Callable[[bytes, BatchHeader], bytes]) -> bytes:
    """Return batches with other records, which ``change`` makes, and their CRCs; control records stay. Of an
    incomplete last batch the header is left. What does not begin as a batch does is zero bytes."""
    kept, at = bytearray(), 0
    while at < len(data):
        if at and len(data) - at < HEADER_BYTES:
            kept += data[at:]  # of the next batch's header
            break
        try:
            header = read_header(data, at)
            size = header.size
            if at + size > len(data):
                kept += data[at : at + HEADER_BYTES] + bytes(len(data) - at - HEADER_BYTES)
                break
            check_batch(data, at, header)
        except KafkaError:
            kept += bytes(len(data) - at)
            break
        batch = data[at : at + size]
        if not header.is_control:
            batch = change(batch, header)
            batch = batch[:_CRC_AT] + crc32c(batch[_CRC_START:]).to_bytes(4, "big") + batch[_CRC_START:]
        kept += batch
        at += size
    return bytes(kept)


def _zeros(value: bytes) -> bytes:
    return bytes(len(value))


def _letters(name: bytes) -> bytes:
    return b"x" * len(name)


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
