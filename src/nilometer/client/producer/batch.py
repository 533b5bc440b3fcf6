"""The batches of a producer: one is open while records are added, then closed, sent, and resolved once; and
the accumulator, which holds those of each partition until the sender takes them (SPEC P-1). Pure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import structs

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, pack_batch, read_header
from nilometer.wire.records import RECORD_OVERHEAD_MAX, BatchBuilder, NumberedHeaders, decode_records

# One batch of a producer: open while records are added, then closed, sent, and resolved once. Pure.
#
# To resolve a batch is to set its ``outcome``: acknowledged, or failed. Invariants:
#
# - ``outcome`` is set once and never changes; callbacks run when it is set, in the order they were added.
# - A batch that was split has ``parts``, each with an outcome; :meth:`ProducerBatch.locate` finds a record.
# - The records of a batch with a sequence (``base_sequence >= 0``) never change: the broker recognises a
#   duplicate by the sequence alone.

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
SEQUENCE_MASK = 0x7FFF_FFFF


def next_sequence(sequence: int, count: int) -> int:
    """Return ``sequence`` + ``count``; 0 follows the largest signed 32-bit number."""
    return (sequence + count) & SEQUENCE_MASK


@dataclass(frozen=True, slots=True)
class Acknowledged:
    base_offset: int
    """-1 if the broker returned none (acks=0)."""
    log_append_time: int = -1


class RecordsRejected(KafkaError):
    """The broker rejected a batch because of some of its records (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, reasons: Mapping[int, str]) -> None:
        """``reasons``: why, by the index of a record in the batch; a broker names only the first ones."""
        index, first = next(iter(reasons.items()))
        super().__init__(code, message or f"record {index} of the batch: {first}")
        self.reasons = reasons

    def of_record(self, partition: TopicPartition, index: int) -> KafkaError:
        """Return the error of one record of the batch."""
        if index in self.reasons:
            return KafkaError(self.code, f"{partition} rejects this record: {self.reasons[index]}")
        return KafkaError(
            self.code,
            f"{partition}: not written, because other records of its batch are rejected: {self.message}",
        )


Outcome = Acknowledged | KafkaError


class ProducerBatch:
    __slots__ = (
        "_builder",
        "_callbacks",
        "_data",
        "_open_size",
        "attempts",
        "base_sequence",
        "created_ms",
        "deadline_ms",
        "failures",
        "held_bytes",
        "last_failure",
        "maybe_written",
        "outcome",
        "partition",
        "parts",
        "producer_epoch",
        "producer_id",
        "records_count",
        "resequenced",
        "retry_at_ms",
        "transactional",
    )

    def __init__(
        self,
        partition: TopicPartition,
        builder: BatchBuilder | None,
        created_ms: int,
        deadline_ms: int,
        *,
        transactional: bool = False,
    ):
        self.partition = partition
        self.transactional = transactional
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.retry_at_ms = 0
        self.attempts = 0
        """How often it was sent."""
        self.failures = 0
        """How many of these attempts failed and count against ``retries``."""
        self.last_failure: KafkaError | None = None
        """Why the last attempt failed, to be named if no further one succeeds in time."""
        self.maybe_written = False
        """Whether an attempt failed so that the batch may be in the log (a time-out, for example)."""
        self.records_count = 0
        self.held_bytes = 0
        """The bytes of ``buffer.memory`` that it takes."""
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.resequenced = False
        """Whether the sequence was changed since the last attempt: errors about the old one are ignored."""
        self.outcome: Outcome | None = None
        self.parts: Sequence[ProducerBatch] = ()
        self._builder = builder
        self._open_size = builder.estimated_size if builder is not None else 0
        self._data: bytes | None = None
        self._callbacks: list[Callable[[ProducerBatch], None]] = []

    @property
    def is_open(self) -> bool:
        return self._builder is not None

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence >= 0

    @property
    def size(self) -> int:
        """The size in bytes: before compression while it is open, as sent once it is closed."""
        if self._builder is not None:
            return self._open_size
        return len(self._data) if self._data is not None else 0

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> int:
        """Add a record; return the bytes that it takes, or 0 if there is no room or the batch is closed."""
        builder = self._builder
        if builder is None or not builder.append(timestamp, key, value, headers):
            return 0
        return self._note_growth(builder)

    def append_numbered(
        self,
        timestamp: int,
        key: bytes | None,
        values: Sequence[bytes],
        start: int,
        headers: NumberedHeaders,
        bytes_max: int,
        value_max: int,
    ) -> int:
        """Add records as :meth:`BatchBuilder.append_numbered`; return the bytes that they take, or 0 if there
        is no room or the batch is closed."""
        builder = self._builder
        if builder is None:
            return 0
        reached = builder.append_numbered(timestamp, key, values, start, headers, bytes_max, value_max)
        if reached == start:
            return 0
        return self._note_growth(builder)

    def _note_growth(self, builder: BatchBuilder) -> int:
        self.records_count = builder.records_count
        size = builder.estimated_size
        grown = size - self._open_size
        self._open_size = size
        self.held_bytes += grown
        return grown

    def close(self) -> None:
        """Build and compress the batch; no more records can be added."""
        if self._builder is not None:
            self._data = self._builder.build(transactional=self.transactional)
            self._builder = None

    def set_sequence(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set or replace the producer id, producer epoch and base sequence."""
        self.resequenced = self.attempts > 0
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        if self._data is not None:
            self._renumber(self._data)

    def encoded(self) -> bytes:
        """Close the batch and return its bytes as they are sent to the broker."""
        if self._builder is not None:
            self._data = self._builder.build(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                transactional=self.transactional,
            )
            self._builder = None
        assert self._data is not None, "a resolved batch is not sent"
        return self._data

    def split(self, codec: Codec, level: int | None) -> tuple[ProducerBatch, ProducerBatch]:
        """Split the batch into two with half of the records each and the same sequences; return them.

        The batch is resolved when both are.
        """
        data = self.encoded()
        records = decode_records(data, 0, read_header(data))
        middle = len(records) // 2
        halves: list[ProducerBatch] = []
        for part in (records[:middle], records[middle:]):
            half = ProducerBatch(
                self.partition,
                BatchBuilder(codec, level=level),
                self.created_ms,
                self.deadline_ms,
                transactional=self.transactional,
            )
            for record in part:
                half.append(record.timestamp, record.key, record.value, record.headers)
            half.close()
            if self.has_sequence:
                ahead = middle if halves else 0
                sequence = next_sequence(self.base_sequence, ahead)
                half.set_sequence(self.producer_id, self.producer_epoch, sequence)
            halves.append(half)
        first, second = halves
        # The parts hold exactly the bytes of the whole, so that the accumulator's sum stays right.
        first.held_bytes = self.held_bytes * middle // len(records)
        second.held_bytes = self.held_bytes - first.held_bytes
        self.parts, self._data, self.held_bytes = (first, second), None, 0
        for half in halves:
            half.add_done_callback(self._on_part_done)
        return first, second

    def locate(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch that holds record ``index`` after any splits, and the record's index in it."""
        batch = self
        while batch.parts:
            for part in batch.parts:
                if index < part.records_count:
                    batch = part
                    break
                index -= part.records_count
            else:
                raise IndexError(index)
        return batch, index

    def resolve(self, outcome: Outcome) -> None:
        """Set the outcome, free the data and run the callbacks; ignored if the batch is resolved."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._builder = self._data = None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[ProducerBatch], None]) -> None:
        if self.outcome is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _on_part_done(self, _part: ProducerBatch) -> None:
        """Resolve this batch when all its parts are: with the first part's error, if any.

        The outcome of each record is that of its part.
        """
        if all(part.outcome is not None for part in self.parts):
            failed = next((part.outcome for part in self.parts if isinstance(part.outcome, KafkaError)), None)
            self.resolve(failed if failed is not None else Acknowledged(-1))

    def _renumber(self, data: bytes) -> None:
        header = structs.replace(
            read_header(data),
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
        )
        self._data = pack_batch(header, memoryview(data)[HEADER_BYTES:])


# The result of `send`: the acknowledgement or failure of one record, which callers may await or ignore.
#
# A delivery is one small object; an asyncio future is made only when a caller awaits it.


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int
    """-1 if the broker returned none: with acks=0, or for a duplicate whose offset it no longer knows."""
    timestamp: int


class Delivery:
    """Awaiting it returns the RecordMetadata or raises the KafkaError that the record failed with."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        batch, _ = self._batch.locate(self._index)
        return batch.outcome is not None

    def result(self) -> RecordMetadata:
        """Return the metadata of the acknowledged record, or raise the KafkaError that it failed with.

        Raises InvalidStateError while it is neither.
        """
        batch, index = self._batch.locate(self._index)
        match batch.outcome:
            case Acknowledged(base_offset, log_append_time):
                offset = base_offset + index if base_offset >= 0 else -1
                timestamp = log_append_time if log_append_time >= 0 else self._timestamp
                return RecordMetadata(batch.partition.topic, batch.partition.partition, offset, timestamp)
            case RecordsRejected() as error:
                raise error.of_record(batch.partition, index) from error
            case KafkaError() as error:
                # A new exception for each record: each raise adds a traceback to the exception.
                raise KafkaError(error.code, error.message) from error
            case None:
                raise asyncio.InvalidStateError("the record is not acknowledged yet")

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call ``callback`` with this delivery when it is done; at once if it already is."""
        self._watch(lambda _batch: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watch(lambda _batch: None if future.done() else future.set_result(None))
            yield from future.__await__()
        return self.result()

    def _watch(self, call: Callable[[ProducerBatch], None]) -> None:
        """Call ``call`` when the record's batch is resolved, which may be a part of the present batch."""

        def on_resolved(_batch: ProducerBatch) -> None:
            batch, _ = self._batch.locate(self._index)
            if batch.outcome is not None:
                call(batch)
            else:
                batch.add_done_callback(on_resolved)

        batch, _ = self._batch.locate(self._index)
        batch.add_done_callback(on_resolved)


class Deliveries:
    """The deliveries of records that follow each other in a batch; one object for all of them."""

    __slots__ = ("_batch", "_count", "_first", "_timestamp")

    def __init__(self, batch: ProducerBatch, first: int, count: int, timestamp: int) -> None:
        self._batch = batch
        self._first = first
        self._count = count
        self._timestamp = timestamp

    @classmethod
    def of(cls, delivery: Delivery) -> Deliveries:
        batch, index, timestamp = delivery._batch, delivery._index, delivery._timestamp  # pyright: ignore[reportPrivateUsage]
        return cls(batch, index, 1, timestamp)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Delivery:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return Delivery(self._batch, self._first + index, self._timestamp)

    def to_look_at(self) -> range:
        """Return the indices of those to look at, to know of all whether they failed and which offset
        is the highest: of a batch that was written as a whole, the last one."""
        is_whole = isinstance(self._batch.outcome, Acknowledged) and not self._batch.parts
        return range(self._count - 1 if is_whole else 0, self._count)


# Collects records in batches per partition, until the sender takes the batches (SPEC P-1). Pure.
#
# Keeps the order of the batches, decides when one is due, and counts the bytes held. Never sends, waits or
# reads a clock.
#
# Invariants:
#
# - A partition's queue is in the order of sending; only its last batch is open.
# - A batch that is put back goes before all batches that were never sent; among those sent, by sequence.
# - ``held_bytes`` is the sum over all batches that are not released yet, in a queue or taken by the sender,
#   and is never above ``buffer_memory`` after an append, except for a single record.

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
        value_max: int,
    ) -> tuple[ProducerBatch, int] | None:
        """Add as many of ``values``, from index ``start`` on, as one batch and the memory have room for, up
        to one of more than ``value_max`` bytes; ``values[start]`` has at most so many.

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
            grown = batch.append_numbered(timestamp, key, values, start, headers, room, value_max)
            if grown:
                self.held_bytes += grown
                return batch, first
            batch.close()
        batch = self._new_batch(partition, now_ms)
        batch.append_numbered(timestamp, key, values, start, headers, room, value_max)
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
