"""Reading: an iterator over the records of topics, for itself or as a member of a consumer group.

    async with kafka.consume("orders", group="billing") as records:
        async for record in records:
            ...

``records.batches()`` returns lists of records instead.

Invariant: a record whose processing has failed is not committed. With ``auto_commit`` a record counts as
processed when the next one (or the next batch) is asked for, or when ``async with`` is left without an
exception; so each record is processed at least once, and those in progress at a crash twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Generic, Protocol, cast

from nilometer.client.consumer.consumer import FOREVER_MS, Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord, K, V
from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.kafka.errors import RecordDeserializationError
from nilometer.kafka.formats import Format, Headers, from_bytes
from nilometer.schema_registry.client import RegistryError
from nilometer.wire.errors import ErrorCode, KafkaError

# Retries of a record whose processing fails, and the dead letter that it becomes when every attempt failed.
#
# A dead letter is the record as it was, key, value and headers, in the topic ``<topic>.dlq``, with headers
# that say where it was and why it failed. Pure.

SUFFIX = ".dlq"
PAUSE_MS_MAX = 60_000
REASON_CHARACTERS_MAX = 1_000

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    attempts: int
    """How often a record is processed at most."""
    pause_ms: int
    """The pause after the first failure; each further one is twice as long, up to a minute."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.pause_ms < 0:
            raise ValueError("there is at least one attempt, and pauses are not negative")

    def pauses_ms(self) -> Iterator[int]:
        """Return the pauses between the attempts."""
        return (min(self.pause_ms << n, PAUSE_MS_MAX) for n in range(self.attempts - 1))


def dead_letter_headers(
    record: ConsumerRecord, group: str | None, attempts: int, error: Exception
) -> list[Header]:
    """Return the headers of the record, and after them what became of it."""
    about = {
        "dlq.topic": record.topic,
        "dlq.partition": str(record.partition),
        "dlq.offset": str(record.offset),
        "dlq.timestamp": str(record.timestamp),
        "dlq.group": group or "",
        "dlq.attempts": str(attempts),
        "dlq.error": type(error).__qualname__,
        "dlq.reason": str(error)[:REASON_CHARACTERS_MAX],
    }
    return [*record.headers, *((name, text.encode()) for name, text in about.items())]


logger = logging.getLogger("nilometer.kafka.records")

Record = ConsumerRecord
"""``topic``, ``partition``, ``offset``, ``timestamp`` (milliseconds), ``key``, ``value``, ``headers``."""

END_CHECK_MS = 200
"""How long one wait for records of a group may take before its end is checked."""
BATCH_RECORDS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What :class:`Records` reads."""

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    """Instead of ``topics``."""
    partitions: Sequence[int] | None = None
    offsets: Mapping[int, int] | None = None
    until_end: bool = False
    group: str | None = None
    auto_commit: bool = True
    listener: RebalanceListener | None = None


class Send(Protocol):
    """``Clients.send``, for dead letters."""

    async def __call__(
        self, topic: str, value: bytes | None, *, key: bytes | None, headers: Headers
    ) -> object: ...


class Records(Generic[K, V]):
    """The records of ``Kafka.consume``. Iterate over it in one task only."""

    def __init__(
        self,
        consumer: Consumer,
        reading: Reading,
        key: Format[K] | None,
        value: Format[V] | None,
        send: Send,
    ) -> None:
        self._consumer = consumer
        self._send = send
        self._reading = reading
        self._key, self._value = key, value
        self._has_schemas = any(form is not None and form.subjects is not None for form in (key, value))
        self._opened = False
        self._entered = False
        """Whether ``async with`` will close it: so it can be read again after ``until_end``."""
        self._failure: KafkaError | None = None
        self._buffer: deque[ConsumerRecord] = deque()
        self._in_progress: list[ConsumerRecord] = []
        """What was returned last: the record or the batch at hand."""
        self._uncommitted: dict[TopicPartition, OffsetAndMetadata] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._member: GroupMetadata | None = None

    async def __aenter__(self) -> Records[K, V]:
        self._entered = True
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not GeneratorExit:  # else the coroutine is being destroyed and cannot await anything
            await self.close(failed=kind is not None)

    async def open(self) -> None:
        """Connect, and join the group; iterating does it too. Opening again does nothing.

        Without a group, the positions are known when this returns: records that are sent later are read,
        also with ``start="latest"``. Raises KafkaError.
        """
        if self._failure is not None:
            raise self._failure
        if self._opened:
            return
        self._opened = True
        try:
            await self._consumer.start()
            if self._reading.group is not None:
                reading = self._reading
                listener = _Listener(reading.listener, self._forget)
                await self._consumer.subscribe(reading.pattern or reading.topics, listener)
            else:
                await self._assign()
        except KafkaError as error:
            self._failure = error
            await self._consumer.close()
            raise

    async def close(self, *, failed: bool = False) -> None:
        """Commit what was processed (with ``auto_commit``), and leave the group. Closing again does nothing.

        ``failed``: the last record was not processed, so it is not committed.
        """
        if self._consumer.closed:
            return
        if self._opened and self._reading.group is not None and self._reading.auto_commit:
            # Closing commits the positions: move them back to the first record that was not processed.
            self._put_back([*(self._in_progress if failed else ()), *self._buffer])
        self._buffer.clear()
        await self._consumer.close()

    def __aiter__(self) -> Records[K, V]:
        return self

    async def __anext__(self) -> Record[K, V]:
        """Return the next record; wait for it, unless ``until_end`` is reached.

        Raises RecordDeserializationError for a record of another format, which counts as returned, or
        another KafkaError. After a RegistryError the same record is next.
        """
        self._in_progress.clear()
        if not self._buffer and not await self._fill():
            raise StopAsyncIteration
        if not self._waits(record := self._buffer[0]):
            return self.next_buffered()
        try:
            decoded = await asyncio.to_thread(self._decoded, record)
        except RecordDeserializationError:
            self._take(record)
            raise
        self._take(record)
        return decoded

    def next_buffered(self) -> Record[K, V]:
        """Return the next record, which must be buffered already: without the event loop."""
        self._in_progress.clear()
        try:
            decoded = self._decoded(self._buffer[0])
        except RecordDeserializationError:
            self._advance()
            raise
        self._advance()
        return decoded

    async def next_batch(self, max_records: int = BATCH_RECORDS_MAX) -> list[Record[K, V]]:
        """Return the records that are there, at most ``max_records``; wait for the first one.

        The list is empty once ``until_end`` is reached. Raises as iterating does; the records before one of
        another format are returned first.
        """
        self._in_progress.clear()
        batch: list[Record[K, V]] = []
        if not self._buffer and not await self._fill():
            return batch
        while self._buffer and len(batch) < max_records:
            record = self._buffer[0]
            try:
                if self._waits(record):
                    batch.append(await asyncio.to_thread(self._decoded, record))
                else:
                    batch.append(self._decoded(record))
            except (RecordDeserializationError, RegistryError) as error:
                if batch:
                    break  # the next call raises it
                if isinstance(error, RecordDeserializationError):
                    self._take(record)
                raise
            self._take(record)
        return batch

    async def batches(self, max_records: int = BATCH_RECORDS_MAX) -> AsyncIterator[list[Record[K, V]]]:
        """Yield what :meth:`next_batch` returns. A batch is processed when the next one is asked for."""
        while batch := await self.next_batch(max_records):
            yield batch

    # --- processing

    async def process(
        self,
        handle: Callable[[Record[K, V]], Awaitable[None] | None],
        *,
        attempts: int = 3,
        pause_ms: int = 100,
    ) -> None:
        """Call ``handle`` for each record, until ``until_end`` is reached or the task is cancelled.

        If ``handle`` raises, it is called again, ``attempts`` times in all, after pauses that begin with
        ``pause_ms`` and double. Then the record is sent to the topic ``<topic>.dlq``, with headers that say
        why, and counts as processed; a record of another format goes there at once. The pauses together must
        be shorter than ``max.poll.interval.ms``, and the group's other members wait meanwhile. Raises
        KafkaError, also if the dead letter is not acknowledged: then the record is not committed.
        """
        retries = Retries(attempts=attempts, pause_ms=pause_ms)
        async with self:
            while True:
                try:
                    record = await anext(self)
                except StopAsyncIteration:
                    return
                except RecordDeserializationError as error:
                    await self._send_dead_letter(error.record, 0, error)
                else:
                    await self._process(record, handle, retries)

    async def _process(
        self,
        record: Record[K, V],
        handle: Callable[[Record[K, V]], Awaitable[None] | None],
        retries: Retries,
    ) -> None:
        pauses = retries.pauses_ms()
        while True:
            try:
                await _done(handle(record))
                return
            # What the program's function raises is for the headers of the dead letter.
            except Exception as error:
                pause_ms = next(pauses, None)
                where = f"{partition_of(record)} at offset {record.offset}"
                if pause_ms is None:
                    logger.warning("Processing %s failed %d times: %r", where, retries.attempts, error)
                    await self._send_dead_letter(self._in_progress[-1], retries.attempts, error)
                    return
                logger.info("Processing %s failed, and is repeated in %d ms: %r", where, pause_ms, error)
            await asyncio.sleep(pause_ms / 1000)

    async def _send_dead_letter(self, record: ConsumerRecord, attempts: int, error: Exception) -> None:
        headers = dead_letter_headers(record, self._reading.group, attempts, error)
        await self._send(record.topic + SUFFIX, record.value, key=record.key, headers=headers)

    @property
    def has_buffered(self) -> bool:
        """Whether the next record can be returned without waiting."""
        return bool(self._buffer) and not self._waits(self._buffer[0])

    # --- positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on at ``offset``. Raises KafkaError if the partition is not assigned."""
        self._consumer.seek(partition, offset)
        self._forget([partition])

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on at the first record of ``partitions`` (default: of all assigned)."""
        self._consumer.seek_to_beginning(*partitions)
        self._forget(partitions or self.assignment)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read on after the last record that ``partitions`` (default: all assigned) have then."""
        self._consumer.seek_to_end(*partitions)
        self._forget(partitions or self.assignment)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of ``partitions`` until they are resumed; the group keeps them assigned."""
        self._consumer.pause(*partitions)
        self._put_back([record for record in self._buffer if partition_of(record) in partitions])
        self._drop_buffered(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._consumer.resume(*partitions)

    @property
    def paused(self) -> list[TopicPartition]:
        return self._consumer.paused()

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record. Raises KafkaError if the partition is not assigned."""
        await self.open()
        known = await self._consumer.position(partition)
        return next((one.offset for one in self._buffer if partition_of(one) == partition), known)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets of the first records. Raises KafkaError."""
        await self.open()
        return await self._consumer.beginning_offsets(partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last records that can be read now. Raises KafkaError."""
        await self.open()
        return await self._consumer.end_offsets(partitions)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return, per partition, the offset of the first record at or after a time; None if there is none.

        Timestamps are in milliseconds since 1970. Raises KafkaError.
        """
        await self.open()
        found = await self._consumer.offsets_for_times(timestamps)
        return {partition: None if one is None else one.offset for partition, one in found.items()}

    # --- offsets

    async def commit(self, record: Record[Any, Any] | None = None) -> None:
        """Commit all records that were returned so far, the last one included; or only ``record``, with those
        before it in its partition.

        Raises CommitFailed if this member has lost its partitions, or another KafkaError.
        """
        offsets, _ = self.processed()
        if record is not None:
            offsets = {partition_of(record): _offset_after(record)}
        await self._consumer.commit(offsets)
        self.on_committed(offsets)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the group's committed offsets, of the next records to read. Raises KafkaError."""
        await self.open()
        found = await self._consumer.committed(partitions)
        return {partition: None if one is None else one.offset for partition, one in found.items()}

    def processed(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return the offsets after the returned records, since the last commit, and the member they are of.

        Raises KafkaError if there is no group.
        """
        if self._reading.group is None:
            raise KafkaError(ErrorCode.invalid_group_id, "only a group has committed offsets: give `group`")
        return dict(self._uncommitted), self._member or self._consumer.group_metadata()

    def on_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that a transaction has committed ``offsets``."""
        for partition, offset in offsets.items():
            if self._uncommitted.get(partition) == offset:
                del self._uncommitted[partition]

    @property
    def closed(self) -> bool:
        return self._consumer.closed

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return self._consumer.assignment()

    # --- helpers

    async def _fill(self) -> bool:
        """Wait for records in the buffer; return False if there are no more, and close unless ``async with``
        does. Raises KafkaError."""
        await self.open()
        while not self._buffer:
            if self._consumer.closed or await self._is_at_end():
                if not self._entered:
                    await self.close()
                return False
            bounded = self._reading.until_end
            records = await self._consumer.poll(timeout_ms=END_CHECK_MS if bounded else FOREVER_MS)
            self._buffer.extend(records)  # only now: a rebalance in the poll has replaced the buffer
            if self._reading.group is not None:
                self._member = self._consumer.group_metadata()
        return True

    def _decoded(self, record: ConsumerRecord) -> Record[K, V]:
        """Return the record with its key and value as their formats say."""
        if self._key is None and self._value is None:
            return cast("Record[K, V]", record)
        field = "key"
        try:
            key = from_bytes(record.key, self._key)
            field = "value"
            value = from_bytes(record.value, self._value)
        except RegistryError:
            raise  # it says nothing of the record
        # The formats are the program's functions: whatever else they raise, the record is of another format.
        except Exception as error:
            raise RecordDeserializationError(record, field, error) from error
        return cast("Record[K, V]", record._replace(key=key, value=value))

    def _waits(self, record: ConsumerRecord) -> bool:
        """Whether decoding may wait for a registry of schemas, so that it must not run in the event loop."""
        return self._has_schemas and (
            (self._key is not None and self._key.waits_to_decode(record.key))
            or (self._value is not None and self._value.waits_to_decode(record.value))
        )

    def _take(self, record: ConsumerRecord) -> None:
        """Count a record as returned, unless it was forgotten while it was decoded."""
        if self._buffer and self._buffer[0] is record:
            self._advance()

    def _advance(self) -> None:
        """Count the next buffered record as returned."""
        record = self._buffer.popleft()
        self._in_progress.append(record)
        self._uncommitted[TopicPartition(record.topic, record.partition)] = _offset_after(record)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the records of partitions that were read, and those that were to be returned next."""
        self._drop_buffered(partitions)
        self._in_progress = [one for one in self._in_progress if partition_of(one) not in partitions]
        for partition in partitions:
            self._uncommitted.pop(partition, None)

    def _drop_buffered(self, partitions: Collection[TopicPartition]) -> None:
        self._buffer = deque(one for one in self._buffer if partition_of(one) not in partitions)

    def _put_back(self, records: Iterable[ConsumerRecord]) -> None:
        """Move the positions of assigned partitions back to the first of ``records`` that each has."""
        assigned = set(self._consumer.assignment())
        for record in records:
            partition = partition_of(record)
            if partition in assigned:
                self._consumer.seek(partition, record.offset, record.leader_epoch)
                assigned.discard(partition)

    async def _assign(self) -> None:
        reading, consumer = self._reading, self._consumer
        partitions = [
            partition for topic in reading.topics for partition in await consumer.partitions_for(topic)
        ]
        wanted = reading.partitions if reading.offsets is None else tuple(reading.offsets)
        if wanted is not None:
            known = {partition.partition for partition in partitions}
            for number in wanted:
                if number not in known:
                    raise KafkaError(
                        ErrorCode.unknown_topic_or_partition, f"{reading.topics[0]} has no partition {number}"
                    )
            partitions = [partition for partition in partitions if partition.partition in wanted]
        consumer.assign(partitions)
        for partition in partitions:
            if reading.offsets is not None:
                consumer.seek(partition, reading.offsets[partition.partition])
            await consumer.position(partition)
        if reading.until_end:
            self._ends = await consumer.end_offsets(partitions)

    async def _is_at_end(self) -> bool:
        """Whether ``until_end`` is reached: all records were returned that existed when reading began.

        A group member is at the end when it has partitions, and none of them has more records.
        """
        if not self._reading.until_end:
            return False
        ends = self._ends
        if self._reading.group is not None:
            partitions = self._consumer.assignment()
            if not partitions:
                return False
            ends = await self._consumer.end_offsets(partitions)
        return all([await self._consumer.position(partition) >= end for partition, end in ends.items()])


def partition_of(record: Record[Any, Any]) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _offset_after(record: Record[Any, Any]) -> OffsetAndMetadata:
    return OffsetAndMetadata(record.offset + 1, record.leader_epoch)


class _Listener(RebalanceListener):
    """The user's listener; after it, the records of partitions that are given up are forgotten: they are no
    longer this member's to commit."""

    def __init__(
        self, listener: RebalanceListener | None, forget: Callable[[Collection[TopicPartition]], None]
    ) -> None:
        self._listener = listener or RebalanceListener()
        self._forget = forget

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await _done(self._listener.on_partitions_assigned(partitions))

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await _done(self._listener.on_partitions_revoked(partitions))
        self._forget(partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await _done(self._listener.on_partitions_lost(partitions))
        self._forget(partitions)


async def _done(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result
