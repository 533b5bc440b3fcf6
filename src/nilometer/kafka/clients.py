"""The clients of one connection: its producers, consumers and admin client, and the workers of its queues.

Each gets those settings of the connection that it has. A producer is started when it is first used, as is one
for each transactional id; :meth:`Clients.close` ends all of them. ``Kafka`` and ``Queue`` send and read by
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic

from typing_extensions import TypeVar

from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION, Admin
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.client.consumer.share_consumer import ShareConsumer
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery, RecordMetadata
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION
from nilometer.client.producer.transaction_manager import ProducerState
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.client.settings import ClientSettings, GivenConfig, GivenValue
from nilometer.config import ConfigDefinition, ConfigError
from nilometer.kafka.errors import InvalidSetting
from nilometer.kafka.formats import Data, Format, Headers, encoded, to_headers
from nilometer.kafka.queue_jobs import Worker
from nilometer.kafka.records import K, Reading, Records, V
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

KS = TypeVar("KS", default=Data)
VS = TypeVar("VS", default=Data)


# The settings of one connection, under Kafka's keys, for the producer, consumers and admin that it makes.

BY_ARGUMENT = {
    "bootstrap.servers": "the first argument of connect()",
    "client.id": "client_id of connect()",
    "group.id": "group of consume()",
    "auto.offset.reset": "start of consume()",
    "enable.auto.commit": "auto_commit of consume()",
    "isolation.level": "read_committed of consume()",
    "transactional.id": "the argument of transaction()",
}
_DEFINITIONS = (PRODUCER_CONFIG_DEFINITION, CONSUMER_CONFIG_DEFINITION, ADMIN_CONFIG_DEFINITION)


class ConnectionSettings:
    def __init__(self, servers: str, client_id: str, given: GivenConfig) -> None:
        """Raises InvalidSetting."""
        for key in given:
            if key in BY_ARGUMENT:
                raise InvalidSetting(f"{key} is {BY_ARGUMENT[key]}")
            if not any(key in definition.keys for definition in _DEFINITIONS):
                raise InvalidSetting(f"there is no setting {key} of a producer, consumer or admin")
        self._given: dict[str, GivenValue] = {**given, "bootstrap.servers": servers, "client.id": client_id}
        try:
            for definition in _DEFINITIONS:
                ClientSettings(definition, self._of(definition))
        except ConfigError as error:
            raise InvalidSetting(str(error)) from None

    def producer(self, own: Mapping[str, GivenValue]) -> GivenConfig:
        return {**self._of(PRODUCER_CONFIG_DEFINITION), **own}

    def consumer(self, own: Mapping[str, GivenValue]) -> GivenConfig:
        return {**self._of(CONSUMER_CONFIG_DEFINITION), **own}

    def admin(self) -> GivenConfig:
        return self._of(ADMIN_CONFIG_DEFINITION)

    def _of(self, definition: ConfigDefinition) -> dict[str, GivenValue]:
        """Return the given settings that this client has; each of them is one of some client."""
        return {key: value for key, value in self._given.items() if key in definition.keys}


# Transactions: records, and the offsets of the records they were made from, become visible together.


class Transaction(Generic[KS, VS]):
    """An open transaction: ``async with kafka.transaction("billing-1") as transaction``.

    It is committed at the end of the block, and aborted if the block raises.
    """

    def __init__(
        self, producer: TransactionalProducer, key: Format[KS] | None, value: Format[VS] | None
    ) -> None:
        self._producer = producer
        self._key, self._value = key, value
        self._offsets: list[tuple[Records[Any, Any], dict[TopicPartition, OffsetAndMetadata]]] = []

    async def send(
        self,
        topic: str,
        value: VS | None = None,
        *,
        key: KS | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send a record as part of the transaction; the commit waits for its acknowledgement.

        The parameters are those of ``Kafka.send``. Raises AbortableTransactionError if an earlier record of
        the transaction failed, FatalTransactionError.
        """
        return await self.send_encoded(
            topic,
            await encoded(value, topic, "value", self._value),
            key=await encoded(key, topic, "key", self._key),
            headers=headers,
            partition=partition,
            timestamp=timestamp,
        )

    async def send_encoded(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send a record whose key and value are bytes already, whatever the transaction's formats are."""
        return await self._producer.send(
            topic,
            value,
            key=key,
            headers=to_headers(headers, topic),
            partition=partition,
            timestamp=timestamp,
        )

    async def commit_offsets(self, records: Records[Any, Any]) -> None:
        """Commit the records that ``records`` has returned so far as part of the transaction.

        ``records`` needs a group, and ``auto_commit=False``. Raises AbortableTransactionError if the member
        has lost its partitions, FatalTransactionError.
        """
        offsets, member = records.processed()
        await self._producer.send_offsets(offsets, member)
        self._offsets.append((records, offsets))

    def on_committed(self) -> None:
        for records, offsets in self._offsets:
            records.on_committed(offsets)


class Clients:
    """What one connection has opened. Use it in one event loop."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._transactional: dict[str, TransactionalProducer] = {}
        self._records: list[Records[Any, Any]] = []
        self._workers: list[Worker[Any]] = []
        self._starting = asyncio.Lock()

    async def open(self) -> None:
        """Connect. Raises ConnectionLost if no bootstrap server responds."""
        if self._admin is not None:
            raise KafkaError(ErrorCode.invalid_request, "this connection is open already")
        admin = Admin(Runtime.system(), self._settings.admin())
        try:
            self._admin = await admin.__aenter__()
        except BaseException:
            await admin.client.close()
            raise

    async def close(self, *, failed: bool = False) -> None:
        """Close what is open, the last one first; ``failed`` as in ``Kafka.close``."""
        records, self._records = self._records, []
        workers, self._workers = self._workers, []
        transactional, self._transactional = self._transactional, {}
        producer, self._producer = self._producer, None
        admin, self._admin = self._admin, None
        async with AsyncExitStack() as last_first:
            if admin is not None:
                last_first.push_async_callback(admin.client.close)
            if producer is not None:
                last_first.push_async_callback(producer.close, 0 if failed else None)
            for each in transactional.values():
                last_first.push_async_callback(each.close)
            for worker in workers:
                last_first.push_async_callback(worker.close)
            for one in records:
                last_first.push_async_callback(one.close, failed=failed)

    @property
    def admin(self) -> Admin:
        """Raises KafkaError if the connection is not open."""
        if self._admin is None:
            raise KafkaError(ErrorCode.network_exception, "not connected: use connect() in `async with`")
        return self._admin

    def check_open(self) -> None:
        """Raises KafkaError if the connection is not open."""
        _ = self.admin

    # --- writing

    async def producer(self) -> Producer:
        """Return the producer; start it first, if no record was sent yet. Raises KafkaError."""
        if self._producer is not None:
            return self._producer
        self.check_open()
        async with self._starting:
            if self._producer is None:
                producer = Producer(Runtime.system(), self._settings.producer({}))
                await producer.start()
                self._producer = producer
            return self._producer

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None, headers: Headers
    ) -> RecordMetadata:
        """Send a dead letter, or a job again, and wait for its acknowledgement. Raises KafkaError."""
        producer = await self.producer()
        return await producer.send_and_wait(topic, value, key=key, headers=to_headers(headers, topic))

    async def flush(self) -> None:
        if self._producer is not None:
            await self._producer.flush()

    @asynccontextmanager
    async def transaction(
        self, transactional_id: str, key: Format[KS] | None = None, value: Format[VS] | None = None
    ) -> AsyncGenerator[Transaction[KS, VS], None]:
        """Begin a transaction, and end it with the block, as ``Kafka.transaction`` says."""
        producer = await self._transactional_producer(transactional_id)
        try:
            async with producer.transaction():
                transaction = Transaction(producer, key, value)
                yield transaction
            transaction.on_committed()
        finally:
            if producer.state is not ProducerState.READY and producer is self._transactional.get(
                transactional_id
            ):
                del self._transactional[transactional_id]
                await producer.close()

    async def _transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        self.check_open()
        async with self._starting:
            known = self._transactional.get(transactional_id)
            if known is None:
                try:
                    config = self._settings.producer({"transactional.id": transactional_id})
                    producer = TransactionalProducer(Runtime.system(), config)
                except ConfigError as error:
                    raise InvalidSetting(str(error)) from None
                known = self._transactional[transactional_id] = await producer.__aenter__()
            return known

    # --- reading

    def consumer(self, own: Mapping[str, GivenValue]) -> Consumer:
        """Return a consumer that is not started, with settings of its own. Raises InvalidSetting."""
        try:
            return Consumer(Runtime.system(), self._settings.consumer(own))
        except ConfigError as error:
            raise InvalidSetting(str(error)) from None

    def share_consumer(self, group: str, topic: str) -> ShareConsumer:
        return ShareConsumer(Runtime.system(), self._settings.consumer({"group.id": group}), [topic])

    def records(
        self,
        reading: Reading,
        key: Format[K] | None = None,
        value: Format[V] | None = None,
        *,
        start: str = "earliest",
        read_committed: bool = False,
    ) -> Records[K, V]:
        """Return records to iterate over, which are closed with the connection. Raises InvalidSetting, and
        KafkaError if the connection is not open."""
        self.check_open()
        own: dict[str, GivenValue] = {
            "auto.offset.reset": start,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        }
        if reading.group is not None:
            own |= {"group.id": reading.group, "enable.auto.commit": reading.auto_commit}
        records = Records(self.consumer(own), reading, key, value, self.send)
        self._records = [*(one for one in self._records if not one.closed), records]
        return records

    # --- workers of queues

    def add_worker(self, worker: Worker[Any]) -> None:
        """Have a worker that has joined its group be closed with the connection."""
        self._workers.append(worker)

    async def close_worker(self, worker: Worker[Any]) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        await worker.close()
