"""Collects records in batches per partition, until the sender takes the batches (SPEC P-1). Pure.

Keeps the order of the batches, decides when one is due, and counts the bytes held. Never sends, waits or
reads a clock.

Invariants:

- A partition's queue is in the order of sending; only its last batch is open.
- A batch that is put back goes before all batches that were never sent; among those sent, by sequence.
- ``held_bytes`` is the sum over all batches that are not released yet, in a queue or taken by the sender, and
  is never above ``buffer_memory`` after an append, except for a single record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import ProducerBatch
from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import HEADER_BYTES
from nilometer.wire.records import RECORD_OVERHEAD_MAX, BatchBuilder, NumberedHeaders

HEADER_OVERHEAD_MAX = 10
"""The maximum size of a record header's two length fields, in bytes."""


def size_bound(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Return the maximum number of bytes that a record takes in a batch, length fields included."""
    size = RECORD_OVERHEAD_MAX + 10 + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += HEADER_OVERHEAD_MAX + 4 * len(name) + (len(content) if content else 0)
    return size


class RecordAccumulator:
    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: int,
        buffer_memory: int,
        delivery_timeout_ms: int,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        transactional: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self.codec = codec
        self.level = level
        self.held_bytes = 0
        self.flushing = False
        """Whether batches are due at once, without ``linger.ms``."""
        self._transactional = transactional
        self._linger_ms = linger_ms
        self._buffer_memory = buffer_memory
        self._delivery_timeout_ms = delivery_timeout_ms
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self._incomplete: dict[ProducerBatch, None] = {}

    def append(
        self,
        partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        now_ms: int,
        size: int | None = None,
    ) -> ProducerBatch | None:
        """Add a record and return its batch, in which it is the last; return None if memory is full.

        ``size`` is the record's ``size_bound``, if the caller has computed it.
        """
        if size is None:
            size = size_bound(key, value, headers)
        if self.held_bytes + size + HEADER_BYTES > self._buffer_memory and self.held_bytes:
            return None
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = deque()
        if queue:
            batch = queue[-1]
            grown = batch.append(timestamp, key, value, headers)
            if grown:
                self.held_bytes += grown
                return batch
            batch.close()  # full: compress it now, before the sender takes it
        batch = self._new_batch(partition, now_ms)
        batch.append(timestamp, key, value, headers)
        self._queue(batch, queue)
        return batch

    def append_numbered(
        self,
        partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        values: Sequence[bytes],
        start: int,
        headers: NumberedHeaders,
        now_ms: int,
    ) -> tuple[ProducerBatch, int] | None:
        """Add as many of ``values``, from index ``start`` on, as one batch and the memory have room for.

        Returns the batch, and the index in it of the first of them, which are its last records; None if
        memory is full.
        """
        room = self._buffer_memory - self.held_bytes - HEADER_BYTES
        if self.held_bytes and room < size_bound(key, values[start], headers.of(start)):
            return None
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = deque()
        if queue:
            batch = queue[-1]
            first = batch.records_count
            grown = batch.append_numbered(timestamp, key, values, start, headers, room)
            if grown:
                self.held_bytes += grown
                return batch, first
            batch.close()
        batch = self._new_batch(partition, now_ms)
        batch.append_numbered(timestamp, key, values, start, headers, room)
        self._queue(batch, queue)
        return batch, 0

    def _new_batch(self, partition: TopicPartition, now_ms: int) -> ProducerBatch:
        builder = BatchBuilder(self.codec, self.batch_size, self.level)
        deadline_ms = now_ms + self._delivery_timeout_ms
        return ProducerBatch(partition, builder, now_ms, deadline_ms, transactional=self._transactional)

    def _queue(self, batch: ProducerBatch, queue: deque[ProducerBatch]) -> None:
        batch.held_bytes += HEADER_BYTES
        self.held_bytes += batch.held_bytes
        self._incomplete[batch] = None
        queue.append(batch)

    def ready(self, now_ms: int, buffer_is_full: bool = False) -> tuple[list[TopicPartition], int | None]:
        """Return the partitions whose first batch is due, and the time of the next other one (or None).

        With ``buffer_is_full`` no batch lingers.
        """
        at_once = self.flushing or buffer_is_full
        due: list[TopicPartition] = []
        next_ms: int | None = None
        for partition, queue in self._queues.items():
            if not queue:
                continue
            when = self._due_ms(queue, at_once)
            if when <= now_ms:
                due.append(partition)
            elif next_ms is None or when < next_ms:
                next_ms = when
        return due, next_ms

    def ready_batch(
        self, partition: TopicPartition, now_ms: int, buffer_is_full: bool = False
    ) -> ProducerBatch | None:
        """Return the first batch of a partition if it is due, else None."""
        queue = self._queues.get(partition)
        if queue and self._due_ms(queue, self.flushing or buffer_is_full) <= now_ms:
            return queue[0]
        return None

    def take_first(self, partition: TopicPartition) -> ProducerBatch:
        """Remove and return the first batch of a partition. It counts in ``held_bytes`` until released."""
        queue = self._queues[partition]
        batch = queue.popleft()
        if not queue:
            del self._queues[partition]
        return batch

    def put_back(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Put a batch that was sent back into its queue, for another attempt at ``retry_at_ms``."""
        batch.retry_at_ms = retry_at_ms
        queue = self._queues.setdefault(batch.partition, deque())
        place = 0
        if batch.has_sequence:
            while place < len(queue) and queue[place].has_sequence and _is_before(queue[place], batch):
                place += 1
        queue.insert(place, batch)

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch], retry_at_ms: int) -> None:
        """Queue the ``parts`` that ``batch`` was split into, for an attempt at ``retry_at_ms``."""
        self._incomplete.pop(batch, None)
        for part in reversed(parts):
            self._incomplete[part] = None
            self.put_back(part, retry_at_ms)

    def expired(self, now_ms: int) -> list[ProducerBatch]:
        """Remove and return the queued batches whose delivery timeout has passed."""
        late: list[ProducerBatch] = []
        for partition in list(self._queues):
            queue = self._queues[partition]
            gone = [batch for batch in queue if batch.deadline_ms <= now_ms]
            if gone:
                late += gone
                rest = deque(batch for batch in queue if batch.deadline_ms > now_ms)
                if rest:
                    self._queues[partition] = rest
                else:
                    del self._queues[partition]
        return late

    def release(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that is resolved; a second call for the batch has no effect."""
        if batch in self._incomplete:
            del self._incomplete[batch]
            self.held_bytes -= batch.held_bytes
            batch.held_bytes = 0

    @property
    def has_incomplete(self) -> bool:
        """Whether any batch is not yet released."""
        return bool(self._incomplete)

    def incomplete(self) -> list[ProducerBatch]:
        """Return the batches that are not yet released, oldest first."""
        return list(self._incomplete)

    def oldest_deadline_ms(self) -> int | None:
        """Return when the oldest batch expires, queued or taken by the sender; None if there is no batch."""
        oldest = next(iter(self._incomplete), None)
        return oldest.deadline_ms if oldest is not None else None

    def queue_lengths(self, topic: str, partitions: Sequence[int]) -> list[int]:
        """Return the number of queued batches of each of ``partitions``."""
        return [len(self._queues.get(TopicPartition(topic, partition), ())) for partition in partitions]

    def queued(self) -> Iterator[ProducerBatch]:
        for queue in self._queues.values():
            yield from queue

    def discard_unsent(self) -> list[ProducerBatch]:
        """Remove and return the queued batches that were never sent (those without a sequence number)."""
        gone: list[ProducerBatch] = []
        for partition, queue in list(self._queues.items()):
            gone += [batch for batch in queue if not batch.has_sequence]
            rest = deque(batch for batch in queue if batch.has_sequence)
            if rest:
                self._queues[partition] = rest
            else:
                del self._queues[partition]
        return gone

    def discard_all(self) -> list[ProducerBatch]:
        """Empty the queues and return the batches that were in them."""
        batches = list(self.queued())
        self._queues.clear()
        return batches

    def _due_ms(self, queue: deque[ProducerBatch], at_once: bool) -> int:
        batch = queue[0]
        if batch.attempts:
            return batch.retry_at_ms
        if at_once or len(queue) > 1 or not batch.is_open or batch.size >= self.batch_size:
            return batch.created_ms
        return batch.created_ms + self._linger_ms


def _is_before(one: ProducerBatch, other: ProducerBatch) -> bool:
    """Whether ``one`` has the lower sequence; sequences wrap around to 0."""
    return (other.base_sequence - one.base_sequence) & 0x7FFF_FFFF < 0x4000_0000
