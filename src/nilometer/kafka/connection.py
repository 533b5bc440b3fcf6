"""A connection to a cluster, from which everything else is reached."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Generic

from typing_extensions import TypeVar

from nilometer.client.group.member import RebalanceListener
from nilometer.client.producer.batch import Delivery, RecordMetadata
from nilometer.kafka.admin import KafkaAdmin
from nilometer.kafka.clients import KS, VS, Clients, ConnectionSettings, Transaction
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
from nilometer.kafka.records import K, Reading, Records, V

T = TypeVar("T")


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
        self._clients = Clients(settings)

    async def __aenter__(self) -> Kafka:
        """Connect. Raises ConnectionLost if no bootstrap server responds."""
        await self._clients.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(failed=kind is not None)

    async def close(self, *, failed: bool = False) -> None:
        """Send what is not sent yet, leave groups, abort open transactions, and close the connections.

        ``failed``: do not wait for acknowledgements, and do not commit the last record of each consumer.
        """
        await self._clients.close(failed=failed)

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
        producer = await self._clients.producer()
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
        await self._clients.flush()

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
        self._clients.check_open()
        single = partitions is not None or offsets is not None
        if not topics or (single and (len(topics) > 1 or group is not None)):
            raise InvalidSetting("give topics; partitions and offsets are for one topic without a group")
        names = [topic for topic in topics if isinstance(topic, str)]
        if len(names) < len(topics) and (len(topics) > 1 or group is None):
            raise InvalidSetting("a pattern of topics needs group=..., and no other topic beside it")
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
        return self._clients.records(
            reading, _form(key), _form(value), start=start, read_committed=read_committed
        )

    # --- queues

    def queue(self, name: str, *, value: FormatLike[V] = JSON) -> Queue[V]:
        """Return the queue of this name, which ``kafka.admin.create_queue`` has created: to put jobs, and to
        do them. ``value`` is the format of the jobs."""
        self._clients.check_open()
        return Queue(self._clients, name, format_of(value))

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
        async with self._clients.transaction(transactional_id, _form(key), _form(value)) as transaction:
            yield transaction

    # --- the rest

    @property
    def admin(self) -> KafkaAdmin:
        """Topics, configurations, groups and offsets."""
        return KafkaAdmin(self._clients.admin)
