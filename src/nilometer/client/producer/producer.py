"""The producer: `send` adds records to batches and returns their future acknowledgements (SPEC P-1 to P-4).

``await producer.send(topic, value, key=…)`` returns once the record is in a batch. Awaiting the
:class:`~nilometer.client.producer.batch.Delivery` that it returns waits for the acknowledgement. Sending
waits while ``buffer.memory`` is used up, so a producer that is faster than its brokers is slowed down.

This module puts records into batches; ``sender`` sends the batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.client.producer.batch import (
    Deliveries,
    Delivery,
    ProducerBatch,
    RecordAccumulator,
    RecordMetadata,
    size_bound,
)
from nilometer.client.producer.partitioner import (
    Partitioner,
    PartitionFunction,
    StickyPartitioner,
    UserPartitioner,
    make_partitioner,
)
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION, ProducerConfig
from nilometer.client.producer.sender import Sender
from nilometer.client.producer.transaction_manager import TransactionManager
from nilometer.client.settings import ClientSettings, GivenConfig
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import NumberedHeaders

Headers = Sequence[tuple[str, bytes | None]]


class Producer:
    """Use as ``async with Producer(runtime, {"bootstrap.servers": …}) as producer``: leaving it flushes."""

    def __init__(
        self,
        runtime: Runtime,
        config: GivenConfig,
        *,
        partitioner: PartitionFunction | None = None,
        transactions: TransactionManager | None = None,
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        """Only :class:`~nilometer.client.producer.transactional_producer.TransactionalProducer` gives
        ``transactions`` and ``on_settled``, which is called after every resolved batch and after the
        transaction's first record for a partition."""
        settings = ClientSettings(PRODUCER_CONFIG_DEFINITION, config)
        self.config = ProducerConfig.of(settings)
        if self.config.transactional_id is not None and transactions is None:
            raise ConfigError("transactional.id", "transactional.id is for the TransactionalProducer")
        self._transactions = transactions
        self._on_settled = on_settled
        self.client = Client(runtime, settings)
        self.client.auto_create_topics = settings.boolean("allow.auto.create.topics")
        self._clock = runtime.clock
        self._accumulator = RecordAccumulator(
            batch_size=self.config.batch_size,
            linger_ms=self.config.linger_ms,
            buffer_memory=self.config.buffer_memory,
            delivery_timeout_ms=self.config.delivery_timeout_ms,
            codec=self.config.codec,
            level=self.config.level,
            transactional=transactions is not None,
        )
        in_transaction = transactions is not None
        self._append_record = self._append_in_transaction if in_transaction else self._accumulator.append
        self._partitioner = self._make_partitioner(runtime, partitioner)
        self._sender: Sender | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._numbered: dict[str, tuple[ClusterMetadata, list[TopicPartition]]] = {}
        self._flushes = 0
        self._closed = False

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, do not wait for acknowledgements.
        await self.close(timeout_ms=None if kind is None else 0)

    async def start(self) -> None:
        """Connect to the cluster and start the sender. Raises ConnectionLost."""
        await self.client.start()
        self._sender = Sender(
            self.client,
            self.config,
            self._accumulator,
            self._on_resolved,
            lambda: bool(self._room),
            self._transactions,
        )

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Add a record to a batch and return its delivery; ``timestamp`` is in milliseconds (None: now).

        Raises KafkaError if the topic or buffer memory is not available within ``max.block.ms``.
        """
        sender = self._open_sender()
        metadata = self.client.metadata
        if topic not in metadata.topics:
            await self.client.topic(topic, self.config.max_block_ms)
            metadata = self.client.metadata
        chosen = partition
        if chosen is None:
            chosen = self._partitioner.partition(topic, key, value, metadata)
        target = self._target(topic, chosen, metadata)
        if timestamp is None:
            timestamp = self._clock.wall_ms()
        size = size_bound(key, value, headers)
        self._check_size(size)
        now_ms = self._clock.monotonic_ms()
        batch = None
        if not self._room:
            batch = self._append_record(target, timestamp, key, value, headers, now_ms, size)
        if batch is None:
            batch = await self._append_when_room(target, timestamp, key, value, headers)
        delivery = Delivery(batch, batch.records_count - 1, timestamp)
        if partition is None:
            room = self.config.batch_size - batch.size
            self._partitioner.on_appended(topic, chosen, size, room, metadata)
        if batch.records_count == 1:
            # A new batch began, so the one before it may be full: let the sender and the network run.
            sender.wake()
            await asyncio.sleep(0)
        return delivery

    async def send_numbered(
        self,
        topic: str,
        values: Sequence[bytes],
        start: int,
        *,
        key: bytes | None = None,
        headers: NumberedHeaders,
    ) -> Deliveries:
        """Add records of ``values``, from index ``start`` on, as many as one batch has room for; return their
        deliveries.

        It is :meth:`send` of each, with the headers ``headers.of(index)``, at a small part of the cost.
        Records in a transaction, and those whose partitions are chosen one by one, are added alone. Raises
        KafkaError as :meth:`send` of ``values[start]`` does; nothing was added then.
        """
        partitioner = self._partitioner
        if (
            self._transactions is not None
            or not isinstance(partitioner, StickyPartitioner)
            or self._room
            or topic not in self.client.metadata.topics
        ):
            sent = await self.send(topic, values[start], key=key, headers=headers.of(start))
            return Deliveries.of(sent)
        sender = self._open_sender()
        metadata = self.client.metadata
        last = headers.of(len(values) - 1)
        self._check_size(size_bound(key, values[start], last))
        value_max = self.config.max_request_size - size_bound(key, None, last)
        chosen = partitioner.partition(topic, key, None, metadata)
        target = self._target(topic, chosen, metadata)
        timestamp, held = self._clock.wall_ms(), self._accumulator.held_bytes
        now_ms = self._clock.monotonic_ms()
        added = self._accumulator.append_numbered(
            target, timestamp, key, values, start, headers, now_ms, value_max
        )
        if added is None:
            sent = await self.send(topic, values[start], key=key, headers=headers.of(start))
            return Deliveries.of(sent)
        batch, first = added
        deliveries = Deliveries(batch, first, batch.records_count - first, timestamp)
        grown, size = self._accumulator.held_bytes - held, size_bound(key, values[-1], last)
        if start + len(deliveries) < len(values):  # there was no room for the next one
            partitioner.on_appended(topic, chosen, grown, 0, metadata)
        else:
            room = self.config.batch_size - batch.size
            partitioner.on_appended(topic, chosen, max(grown - size, 0), self.config.batch_size, metadata)
            partitioner.on_appended(topic, chosen, size, room, metadata)
        if not first:
            sender.wake()
            await asyncio.sleep(0)
        return deliveries

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement. Raises KafkaError."""
        return await (
            await self.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        )

    async def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises KafkaError."""
        return len((await self.client.topic(topic, self.config.max_block_ms)).partitions)

    async def flush(self) -> None:
        """Send all batches without lingering; return when all records so far are acknowledged or failed."""
        if self._sender is None:
            return
        self._flushes += 1
        self._accumulator.flushing = True
        self._sender.wake()
        try:
            for batch in self._accumulator.incomplete():
                await _resolved(batch)
        finally:
            self._flushes -= 1
            self._accumulator.flushing = self._flushes > 0

    async def close(self, timeout_ms: int | None = None) -> None:
        """Flush for at most ``timeout_ms`` (None: no limit) and close; unacknowledged records then fail."""
        if self._closed:
            return
        self._closed = True
        try:
            if timeout_ms is None:
                await self.flush()
            elif timeout_ms > 0:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self.flush()
        except TimeoutError:
            pass  # the unacknowledged records fail below
        finally:
            if self._sender is not None:
                await self._sender.close()
            await self.client.close()

    def _open_sender(self) -> Sender:
        if self._sender is None or self._closed:
            raise KafkaError(ErrorCode.network_exception, "the producer is not open: use it in `async with`")
        return self._sender

    def _check_size(self, size: int) -> None:
        if size > self.config.max_request_size:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"the record takes {size} bytes; max.request.size is {self.config.max_request_size}",
            )

    def _make_partitioner(self, runtime: Runtime, choose: PartitionFunction | None) -> Partitioner:
        if choose is not None:
            return UserPartitioner(choose)
        return make_partitioner(
            self.config.partitioner,
            runtime.entropy,
            self.config.batch_size,
            ignore_keys=self.config.ignore_keys,
            queue_lengths=self._accumulator.queue_lengths if self.config.adaptive else None,
        )

    def _target(self, topic: str, partition: int, metadata: ClusterMetadata) -> TopicPartition:
        known = self._numbered.get(topic)
        if known is None or known[0] is not metadata:
            numbered = [TopicPartition(topic, index) for index in range(metadata.partition_count(topic))]
            known = self._numbered[topic] = (metadata, numbered)
        if not 0 <= partition < len(known[1]):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {len(known[1])} partitions; there is no partition {partition}",
            )
        return known[1][partition]

    @property
    def is_all_settled(self) -> bool:
        """Whether every record given to ``send`` is acknowledged or has failed."""
        return not self._accumulator.has_incomplete

    def wake(self) -> None:
        """Have the sender check again which batches it may send; call it when the transaction changes."""
        if self._sender is not None:
            self._sender.wake()

    def _append_in_transaction(
        self,
        target: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        now_ms: int,
        size: int | None = None,
    ) -> ProducerBatch | None:
        transactions = self._transactions
        assert transactions is not None
        transactions.check_in_transaction("send")
        batch = self._accumulator.append(target, timestamp, key, value, headers, now_ms, size)
        if batch is not None and transactions.on_appended(target):
            self._on_settled()
        return batch

    async def _append_when_room(
        self,
        target: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> ProducerBatch:
        """Wait for free memory, after all callers that wait already; add the record and return its batch.

        Raises KafkaError after ``max.block.ms``.
        """
        assert self._sender is not None
        try:
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                while True:
                    await self._wait_for_room()
                    now_ms = self._clock.monotonic_ms()
                    try:
                        batch = self._append_record(target, timestamp, key, value, headers, now_ms)
                    except KafkaError:
                        self._on_room()  # the transaction has failed for the next one too
                        raise
                    if batch is not None:
                        self._on_room()  # there may be room for the next waiter too
                        return batch
        except TimeoutError:
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"no room in buffer.memory ({self.config.buffer_memory} bytes) "
                f"within max.block.ms ({self.config.max_block_ms})",
            ) from None

    async def _wait_for_room(self) -> None:
        assert self._sender is not None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(waiter)
        self._sender.wake()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._on_room()  # pass the room on to the next waiter
            raise
        finally:
            self._room.remove(waiter)

    def _on_resolved(self) -> None:
        self._on_room()
        self._on_settled()

    def _on_room(self) -> None:
        """Wake the first waiter for free memory."""
        for waiter in self._room:
            if not waiter.done():
                waiter.set_result(None)
                return


async def _resolved(batch: ProducerBatch) -> None:
    if batch.outcome is None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch.add_done_callback(lambda _batch: None if future.done() else future.set_result(None))
        await future
