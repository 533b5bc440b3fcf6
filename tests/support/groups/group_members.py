"""Consumer group members with various clients, Nilometer's too: each polls, records values, and commits.

All of them read strings from one topic, from its beginning if nothing is committed, and commit what they have
recorded. An error from which a client recovers is ignored; one that ends the member is in `failure`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import aiokafka
import aiokafka.coordinator.assignors.range
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.coordinator.assignors.range
import kafka.errors

from nilometer.client.consumer.consumer import Consumer
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

from ..kafka.java_driver import JavaDriver

SESSION_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_MS = 500
POLL_S = 0.1


class GroupMember(Protocol):
    def seen(self) -> list[str]:
        """Return all values read so far, in order; values may repeat."""
        ...

    @property
    def assigned(self) -> int:
        """Return the number of partitions assigned at the last poll."""
        ...

    @property
    def failure(self) -> str | None: ...

    def leave(self) -> None:
        """Leave the group with a leave request."""
        ...


class _ThreadedMember:
    """Runs ``_consume`` in a thread until the member must leave."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._leaving = threading.Event()
        self.assigned = 0
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def seen(self) -> list[str]:
        return list(self._seen)

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(30)

    def _run(self) -> None:
        try:
            self._consume()
        except Exception as error:
            self.failure = repr(error)

    def _consume(self) -> None:
        raise NotImplementedError


class ConfluentMember(_ThreadedMember):
    """librdkafka; ``protocol`` is `classic` or `consumer` (KIP-848)."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, instance: str = "") -> None:
        self._topic = topic
        self._config: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,
        }
        if instance:
            self._config["group.instance.id"] = instance
        if protocol == "classic":
            self._config["session.timeout.ms"] = SESSION_TIMEOUT_MS
            self._config["heartbeat.interval.ms"] = HEARTBEAT_INTERVAL_MS
            self._config["partition.assignment.strategy"] = "range"
        super().__init__()

    def _consume(self) -> None:
        consumer = confluent_kafka.Consumer(self._config)
        consumer.subscribe([self._topic])
        try:
            while not self._leaving.is_set():
                messages = consumer.consume(500, POLL_S)
                values = [one.value().decode() for one in messages if one.error() is None]
                self.assigned = len(consumer.assignment())
                self._seen += values
                if values:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: confluent_kafka.Consumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as refusal:
            if refusal.args[0].fatal():
                raise
            # Another generation, or no coordinator: uncommitted records are read again.


class KafkaPythonMember(_ThreadedMember):
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._bootstrap, self._group, self._topic = bootstrap, group, topic
        super().__init__()

    def _consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap.split(","),
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            metadata_max_age_ms=1_000,
            partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
        )
        try:
            while not self._leaving.is_set():
                records = consumer.poll(int(POLL_S * 1000))
                values = [record.value.decode() for each in records.values() for record in each]
                self.assigned = len(consumer.assignment())
                self._seen += values
                if values:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: kafka.KafkaConsumer) -> None:
        try:
            consumer.commit()
        except kafka.errors.KafkaError:
            pass  # another generation, or no coordinator: uncommitted records are read again


class AiokafkaMember(_ThreadedMember):
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._bootstrap, self._group, self._topic = bootstrap, group, topic
        super().__init__()

    def _consume(self) -> None:
        asyncio.run(self._consume_in_loop())

    async def _consume_in_loop(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            metadata_max_age_ms=1_000,
            partition_assignment_strategy=[aiokafka.coordinator.assignors.range.RangePartitionAssignor],
        )
        await consumer.start()
        try:
            while not self._leaving.is_set():
                records = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                values = [record.value.decode() for each in records.values() for record in each]
                self.assigned = len(consumer.assignment())
                self._seen += values
                if values:
                    await self._commit(consumer)
        finally:
            await consumer.stop()

    async def _commit(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        try:
            await consumer.commit()
        except aiokafka.errors.KafkaError:
            pass  # another generation, or no coordinator: uncommitted records are read again


class OurMember(_ThreadedMember):
    """Nilometer's consumer; ``protocol`` is `classic` or `consumer` (KIP-848)."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        self._topic = topic
        self._config: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "metadata.max.age.ms": 1_000,
        }
        if protocol == "classic":
            self._config["session.timeout.ms"] = SESSION_TIMEOUT_MS
            self._config["heartbeat.interval.ms"] = HEARTBEAT_INTERVAL_MS
            self._config["partition.assignment.strategy"] = "range"
        super().__init__()

    def _consume(self) -> None:
        asyncio.run(self._consume_in_loop())

    async def _consume_in_loop(self) -> None:
        async with Consumer(Runtime.system(), self._config) as consumer:
            await consumer.subscribe([self._topic])
            while not self._leaving.is_set():
                records = await consumer.poll(timeout_ms=int(POLL_S * 1000))
                values = [(record.value or b"").decode() for record in records]
                self.assigned = len(consumer.assignment())
                self._seen += values
                if values:
                    await self._commit(consumer)

    async def _commit(self, consumer: Consumer) -> None:
        try:
            await consumer.commit()
        except KafkaError:
            pass  # another generation, or no coordinator: uncommitted records are read again


class JavaMember:
    """Apache Kafka's own consumer; ``protocol`` is `classic` or `consumer` (KIP-848)."""

    def __init__(
        self, driver: JavaDriver, name: str, bootstrap: str, group: str, topic: str, protocol: str
    ) -> None:
        self._driver, self._name = driver, name
        self._seen: list[str] = []
        self._assigned = 0
        self._failure: str | None = None
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "metadata.max.age.ms": "1000",
        }
        if protocol == "classic":
            config |= {
                "session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "heartbeat.interval.ms": str(HEARTBEAT_INTERVAL_MS),
                "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
            }
        driver.run("group_join", member=name, topic=topic, config=config)

    def seen(self) -> list[str]:
        self._take(self._driver.run("group_seen", member=self._name))
        return list(self._seen)

    @property
    def assigned(self) -> int:
        self.seen()
        return self._assigned

    @property
    def failure(self) -> str | None:
        return self._failure

    def leave(self) -> None:
        self._take(self._driver.run("group_leave", member=self._name))

    def _take(self, told: dict[str, object]) -> None:
        values = told["seen"]
        assert isinstance(values, list)
        self._seen += values
        self._assigned = int(str(told["assigned"]))
        self._failure = None if told["failure"] is None else str(told["failure"])


MakeMember = Callable[[str, str, str], GroupMember]
"""Makes a member from bootstrap servers, group id and topic."""


def kinds_of_members(driver: JavaDriver) -> dict[str, MakeMember]:
    """Return a factory for each kind of member by name; names with `-848` use the protocol of KIP-848."""

    def java(protocol: str) -> MakeMember:
        return lambda bootstrap, group, topic: JavaMember(
            driver, f"{group}/{protocol}", bootstrap, group, topic, protocol
        )

    return {
        "librdkafka": partial(ConfluentMember, protocol="classic"),
        "aiokafka": AiokafkaMember,
        "kafka-python": KafkaPythonMember,
        "java": java("classic"),
        "ours": partial(OurMember, protocol="classic"),
        "librdkafka-848": lambda bootstrap, group, topic: ConfluentMember(
            bootstrap, group, topic, "consumer"
        ),
        "java-848": java("consumer"),
        "ours-848": partial(OurMember, protocol="consumer"),
    }
