"""Reading: an iterator over the records of topics, for itself or as a member of a consumer group.

    async with kafka.consume("orders", group="billing") as records:
        async for record in records:
            ...

Invariant: a record whose processing has failed is not committed. With ``auto_commit`` a record counts as
processed when the next one is asked for, or when ``async with`` is left without an exception; so each record
is processed at least once, and those in progress at a crash twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.consumer.consumer import FOREVER_MS, Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import ErrorCode, KafkaError

Record = ConsumerRecord
"""``topic``, ``partition``, ``offset``, ``timestamp`` (milliseconds), ``key``, ``value``, ``headers``."""

END_CHECK_MS = 200
"""How long one wait for records of a group may take before its end is checked."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What :class:`Records` reads."""

    topics: tuple[str, ...]
    partitions: Sequence[int] | None
    offsets: Mapping[int, int] | None
    until_end: bool
    in_group: bool
    auto_commit: bool


class Records:
    """The records of ``Kafka.consume``. Iterate over it in one task only."""

    def __init__(self, consumer: Consumer, reading: Reading) -> None:
        self._consumer = consumer
        self._reading = reading
        self._opened = False
        self._failure: KafkaError | None = None
        self._buffer: deque[Record] = deque()
        self._current: Record | None = None
        self._uncommitted: dict[TopicPartition, OffsetAndMetadata] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._member: GroupMetadata | None = None

    async def __aenter__(self) -> Records:
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
            if self._reading.in_group:
                await self._consumer.subscribe(self._reading.topics)
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
        if self._opened and self._reading.in_group and self._reading.auto_commit:
            self._rewind(failed)
        self._buffer.clear()
        await self._consumer.close()

    def __aiter__(self) -> Records:
        return self

    async def __anext__(self) -> Record:
        """Return the next record; wait for it, unless ``until_end`` is reached. Raises KafkaError."""
        await self.open()
        self._current = None
        while not self._buffer:
            if self._consumer.closed or await self._is_at_end():
                await self.close()
                raise StopAsyncIteration
            bounded = self._reading.until_end
            self._buffer.extend(await self._consumer.poll(timeout_ms=END_CHECK_MS if bounded else FOREVER_MS))
            if self._reading.in_group:
                self._member = self._consumer.group_metadata()
        self._current = record = self._buffer.popleft()
        partition = TopicPartition(record.topic, record.partition)
        self._uncommitted[partition] = OffsetAndMetadata(record.offset + 1, record.leader_epoch)
        return record

    # --- offsets

    async def commit(self) -> None:
        """Commit all records that were returned so far, the last one included.

        Raises CommitFailed if this member has lost its partitions, or another KafkaError.
        """
        offsets, _ = self.processed()
        await self._consumer.commit(offsets)
        self._uncommitted.clear()

    def processed(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return the offsets after the returned records, since the last commit, and the member they are of.

        Raises KafkaError if there is no group.
        """
        if not self._reading.in_group:
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
        if self._reading.in_group:
            partitions = self._consumer.assignment()
            if not partitions:
                return False
            ends = await self._consumer.end_offsets(partitions)
        return all([await self._consumer.position(partition) >= end for partition, end in ends.items()])

    def _rewind(self, failed: bool) -> None:
        """Move the positions back to the first record that was not processed: closing commits them."""
        unprocessed = [self._current] if failed and self._current is not None else []
        assigned = set(self._consumer.assignment())
        for record in (*unprocessed, *self._buffer):
            partition = TopicPartition(record.topic, record.partition)
            if partition in assigned:
                self._consumer.seek(partition, record.offset, record.leader_epoch)
                assigned.discard(partition)
