"""A connection to a cluster, from which everything else is reached."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic

from typing_extensions import TypeVar

from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION, Admin
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery, RecordMetadata
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.client.settings.client_settings import ClientSettings, GivenConfig, GivenValue
from nilometer.client.share.share_consumer import ShareConsumer
from nilometer.client.transactions.transaction_manager import ProducerState
from nilometer.config import ConfigDefinition, ConfigError
from nilometer.kafka.admin import KafkaAdmin
from nilometer.kafka.errors import InvalidSetting
from nilometer.kafka.formats import (
    JSON,
    Data,
    Format,
    FormatLike,
    Headers,
    encoded,
    format_of,
    to_bytes,
    to_headers,
)
from nilometer.kafka.queue import Queue
from nilometer.kafka.queue_jobs import Pauses, Worker
from nilometer.kafka.queue_settings import Duration, Returner, retry_group, settings_of
from nilometer.kafka.records import K, Reading, Records, V
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

KS = TypeVar("KS", default=Data)
VS = TypeVar("VS", default=Data)
T = TypeVar("T")


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


def _form(given: FormatLike[T] | None) -> Format[T] | None:
    return None if given is None else format_of(given)


class TypedProducer(Generic[KS, VS]):
    """``kafka.producer(value=JSON)``: sends keys and values of one format each, through its connection."""

    def __init__(self, kafka: Kafka, key: Format[KS] | None, value: Format[VS] | None) -> None:
        self._kafka = kafka
        self._key, self._value = key, value

    async def send(
        self,
        topic: str,
        value: VS | None = None,
        *,
        key: KS | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record as ``Kafka.send`` does. Raises KafkaError, TypeError for what has no such form."""
        return await (
            await self.enqueue(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        )

    async def enqueue(
        self,
        topic: str,
        value: VS | None = None,
        *,
        key: KS | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send a record as ``Kafka.enqueue`` does, without waiting for it."""
        return await self._kafka.enqueue(
            topic,
            await encoded(value, topic, "value", self._value),
            key=await encoded(key, topic, "key", self._key),
            headers=headers,
            partition=partition,
            timestamp=timestamp,
        )

    async def flush(self) -> None:
        """Wait until every record of the connection so far is acknowledged or has failed."""
        await self._kafka.flush()


class Kafka:
    """``async with nilometer.connect("host:port") as kafka: …``. Use it in one event loop."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._transactional: dict[str, TransactionalProducer] = {}
        self._records: list[Records[Any, Any]] = []
        self._workers: list[Worker[Any]] = []
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Kafka:
        """Connect. Raises ConnectionLost if no bootstrap server responds."""
        if self._admin is not None:
            raise KafkaError(ErrorCode.invalid_request, "this connection is open already")
        admin = Admin(Runtime.system(), self._settings.admin())
        try:
            self._admin = await admin.__aenter__()
        except BaseException:
            await admin.client.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(failed=kind is not None)

    async def close(self, *, failed: bool = False) -> None:
        """Send what is not sent yet, leave groups, abort open transactions, and close the connections.

        ``failed``: do not wait for acknowledgements, and do not commit the last record of each consumer.
        """
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

    # --- writing

    async def send(
        self,
        topic: str,
        value: Data = None,
        *,
        key: Data = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its partition and offset once it is acknowledged by all in-sync replicas.

        Records with the same key go to the same partition, if no ``partition`` is given. ``timestamp`` is in
        milliseconds since 1970 (None: now). Raises KafkaError; TypeError for a key, value or header that is
        not bytes, text or None.
        """
        delivery = await self.enqueue(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )
        return await delivery

    async def enqueue(
        self,
        topic: str,
        value: Data = None,
        *,
        key: Data = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Send a record without waiting for it, for many records a second; awaiting the delivery waits.

        Waits while ``buffer.memory`` is used up. Raises KafkaError; an error of the record itself is raised
        where the delivery is awaited.
        """
        producer = self._producer or await self._started_producer()
        return await producer.send(
            topic,
            to_bytes(value, topic, "value"),
            key=to_bytes(key, topic, "key"),
            headers=to_headers(headers, topic),
            partition=partition,
            timestamp=timestamp,
        )

    def producer(
        self, *, key: FormatLike[KS] | None = None, value: FormatLike[VS] | None = None
    ) -> TypedProducer[KS, VS]:
        """Return what sends keys and values of these formats: ``JSON``, a type, or ``(encode, decode)``."""
        return TypedProducer(self, _form(key), _form(value))

    async def flush(self) -> None:
        """Wait until every record so far is acknowledged or has failed."""
        if self._producer is not None:
            await self._producer.flush()

    # --- reading

    def consume(
        self,
        *topics: str | re.Pattern[str],
        key: FormatLike[K] | None = None,
        value: FormatLike[V] | None = None,
        group: str | None = None,
        start: str = "earliest",
        partitions: Sequence[int] | None = None,
        offsets: Mapping[int, int] | None = None,
        until_end: bool = False,
        auto_commit: bool = True,
        read_committed: bool = False,
        listener: RebalanceListener | None = None,
    ) -> Records[K, V]:
        """Return the records of ``topics``, to iterate over; with ``group`` also by one compiled pattern,
        which must match a topic's whole name.

        ``key`` and ``value`` are the formats of keys and values: ``JSON``, ``Avro(…)``, a type, or
        ``(encode, decode)``; without one they are bytes.

        With ``group``, the members of the group share the partitions, and go on after the group's committed
        offsets; ``auto_commit=False`` leaves commits to ``Records.commit`` or a transaction. Without it, all
        partitions are read, or only ``partitions`` of one topic, or those of ``offsets`` (first offset by
        partition). ``start`` is where reading begins without a committed or given offset: ``"earliest"``,
        ``"latest"``, or ``"by_duration:PT1H"`` (the last hour). ``until_end`` stops at the present end
        instead of waiting for more. ``read_committed`` leaves out records of open and aborted transactions.
        ``listener`` is called when the group gives this member partitions or takes them away.

        Raises InvalidSetting for arguments that contradict each other.
        """
        self._opened()
        single = partitions is not None or offsets is not None
        if not topics or (single and (len(topics) > 1 or group is not None)):
            raise InvalidSetting("give topics; partitions and offsets are for one topic without a group")
        names = [topic for topic in topics if isinstance(topic, str)]
        if len(names) < len(topics) and (len(topics) > 1 or group is None):
            raise InvalidSetting("a pattern of topics is for a group, and stands alone")
        own = {
            "auto.offset.reset": start,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        }
        in_group = {"group.id": group, "enable.auto.commit": auto_commit} if group is not None else {}
        try:
            consumer = Consumer(Runtime.system(), self._settings.consumer({**own, **in_group}))
        except ConfigError as error:
            raise InvalidSetting(str(error)) from None
        reading = Reading(
            topics=tuple(names),
            pattern=next((topic for topic in topics if isinstance(topic, re.Pattern)), None),
            partitions=partitions,
            offsets=offsets,
            until_end=until_end,
            group=group,
            auto_commit=auto_commit,
            listener=listener,
        )
        records = Records(consumer, reading, _form(key), _form(value), self.send)
        self._records = [*(one for one in self._records if not one.closed), records]
        return records

    # --- queues

    def queue(self, name: str, *, value: FormatLike[V] = JSON) -> Queue[V]:
        """Return the queue of this name, which ``kafka.admin.create_queue`` has created: to put jobs, and to
        do them. ``value`` is the format of the jobs."""
        self._opened()
        return Queue(self, name, format_of(value))

    async def open_worker(
        self,
        queue: str,
        form: Format[V] | None,
        *,
        time_limit_s: float,
        pauses: Pauses,
        max_deliveries: int | None = None,
        lock: Duration | None = None,
    ) -> Worker[V]:
        """Return a worker of a queue, which joins its group. :class:`~nilometer.kafka.queue.Queue` has the
        methods to use. Raises KafkaError, InvalidSetting."""
        settings = await settings_of(self._opened(), queue, max_deliveries=max_deliveries, lock=lock)
        runtime = Runtime.system()
        consumer = ShareConsumer(runtime, self._settings.consumer({"group.id": queue}), [queue])
        worker = Worker(
            consumer,
            settings,
            runtime.clock,
            self.send,
            form,
            time_limit_s=time_limit_s,
            pauses=pauses,
            returner=self._returner(queue, settings.retry_after_s) if settings.retry_after_s else None,
        )
        try:
            await worker.start()
        except BaseException:
            await consumer.close()
            raise
        self._workers.append(worker)
        return worker

    def _returner(self, queue: str, pauses_s: Sequence[int]) -> Returner:
        own = {"group.id": retry_group(queue), "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        runtime = Runtime.system()
        consumer = Consumer(runtime, self._settings.consumer(own))
        return Returner(consumer, queue, pauses_s, runtime.clock, self.send)

    async def close_worker(self, worker: Worker[Any]) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        await worker.close()

    # --- transactions

    @asynccontextmanager
    async def transaction(
        self,
        transactional_id: str,
        *,
        key: FormatLike[KS] | None = None,
        value: FormatLike[VS] | None = None,
    ) -> AsyncGenerator[Transaction[KS, VS], None]:
        """Begin a transaction; commit it at the end of the block, or abort it if the block raises.

        ``key`` and ``value`` are the formats of the keys and values that it sends.

        ``transactional_id`` names the program's instance: a new connection with the same id fences the one
        before, whose calls then raise ProducerFenced. One transaction of an id is open at a time. Raises
        TransactionError.
        """
        producer = await self._transactional_producer(transactional_id)
        try:
            async with producer.transaction():
                transaction = Transaction(producer, _form(key), _form(value))
                yield transaction
            transaction.on_committed()
        finally:
            if producer.state is not ProducerState.READY and producer is self._transactional.get(
                transactional_id
            ):
                del self._transactional[transactional_id]
                await producer.close()

    # --- the rest

    @property
    def admin(self) -> KafkaAdmin:
        """Topics, configurations, groups and offsets."""
        return KafkaAdmin(self._opened())

    def _opened(self) -> Admin:
        if self._admin is None:
            raise KafkaError(ErrorCode.network_exception, "not connected: use connect() in `async with`")
        return self._admin

    async def _started_producer(self) -> Producer:
        self._opened()
        async with self._starting:
            if self._producer is None:
                producer = Producer(Runtime.system(), self._settings.producer({}))
                await producer.start()
                self._producer = producer
            return self._producer

    async def _transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        self._opened()
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
