"""Records gathered into batches by partition, until the sender takes the batches (SPEC P-1). Pure.

Knows batches, the order they are in, when one is due, and how many bytes are held. Never sends, waits or
reads a clock.

Invariants:

- A partition's queue is in the order of sending; only its last batch is open.
- A batch that comes back goes before all batches that were never sent; among those that were, by sequence.
- ``held_bytes`` is the sum over all batches neither resolved nor released, taken away or not, and never
  above ``buffer_memory`` after an append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import ProducerBatch
from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import HEADER_BYTES
from nilometer.wire.records import RECORD_OVERHEAD_MAX, BatchBuilder

HEADER_OVERHEAD_MAX = 10
"""Bytes that the lengths of a record header's name and value take at most."""


def size_bound(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Bytes that a record may take in a batch, the lengths of key and value included."""
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
    ) -> None:
        self.batch_size = batch_size
        self.codec = codec
        self.level = level
        self.held_bytes = 0
        self.flushing = False
        """Whether batches go without lingering."""
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
        """Add a record, as the last of the batch returned; None (and nothing added) where memory is short.

        ``size``: its ``size_bound``, where the caller has it.
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
            batch.close()  # full: compressed now, while the sender has other work to do
        builder = BatchBuilder(self.codec, self.batch_size, self.level)
        batch = ProducerBatch(partition, builder, now_ms, now_ms + self._delivery_timeout_ms)
        batch.append(timestamp, key, value, headers)
        batch.held_bytes += HEADER_BYTES
        self.held_bytes += batch.held_bytes
        self._incomplete[batch] = None
        queue.append(batch)
        return batch

    def ready(self, now_ms: int, buffer_is_full: bool = False) -> tuple[list[TopicPartition], int | None]:
        """Partitions whose first batch may go now, and when the next of the others may (None: no other)."""
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
        """The first batch of a partition if it may go now."""
        queue = self._queues.get(partition)
        if queue and self._due_ms(queue, self.flushing or buffer_is_full) <= now_ms:
            return queue[0]
        return None

    def take_first(self, partition: TopicPartition) -> ProducerBatch:
        """Take the first batch of a partition away. It stays accounted for until it is released."""
        queue = self._queues[partition]
        batch = queue.popleft()
        if not queue:
            del self._queues[partition]
        return batch

    def put_back(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Queue a batch that was sent, for another attempt at ``retry_at_ms``."""
        batch.retry_at_ms = retry_at_ms
        queue = self._queues.setdefault(batch.partition, deque())
        place = 0
        if batch.has_sequence:
            while place < len(queue) and queue[place].has_sequence and _is_before(queue[place], batch):
                place += 1
        queue.insert(place, batch)

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch], retry_at_ms: int) -> None:
        """Queue the parts that a batch was split into, in its place."""
        self._incomplete.pop(batch, None)
        for part in reversed(parts):
            self._incomplete[part] = None
            self.put_back(part, retry_at_ms)

    def expired(self, now_ms: int) -> list[ProducerBatch]:
        """Remove and return the queued batches whose delivery time is over."""
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
        """A batch is done with: what it held is free."""
        if batch in self._incomplete:
            del self._incomplete[batch]
            self.held_bytes -= batch.held_bytes
            batch.held_bytes = 0

    def incomplete(self) -> list[ProducerBatch]:
        """Batches not yet released, oldest first."""
        return list(self._incomplete)

    def oldest_deadline_ms(self) -> int | None:
        """When the first of all batches expires, queued or taken away."""
        oldest = next(iter(self._incomplete), None)
        return oldest.deadline_ms if oldest is not None else None

    def queue_lengths(self, topic: str, partitions: Sequence[int]) -> list[int]:
        """Batches queued for each of ``partitions``."""
        return [len(self._queues.get(TopicPartition(topic, partition), ())) for partition in partitions]

    def queued(self) -> Iterator[ProducerBatch]:
        for queue in self._queues.values():
            yield from queue

    def discard_all(self) -> list[ProducerBatch]:
        """Empty the queues; the batches that were in them."""
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
    """Order of two sequences, of which one may have begun at 0 again."""
    return (other.base_sequence - one.base_sequence) & 0x7FFF_FFFF < 0x4000_0000
