"""A program that uses one topic name again and again: create, write, purge, delete, within seconds.

What a topic leaves behind under its name (checkpoint lines, folders, caches) could affect its successor. So
each topic is judged as itself, by its id: every acknowledged record is there at its offset unless a client
asked for its deletion, and no record of an earlier topic is.

Deletions go by topic id, so that one that arrives late harms no successor; a creation that arrives late makes
a topic that is taken up like any other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.descriptions import NewTopic
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicMetadata, TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.workload.admin_program import AdminProgram
from nilometer.simulation.world import Host
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "reused"
PARTITIONS = 2
REPLICAS = 3
RECORDS_MAX = 25
POLL_MS = 500
LOOKS_MAX = 60
"""A second apart, before a topic that no broker knows is considered lost."""
VIOLATIONS_MAX = 10


@dataclass(slots=True)
class Incarnation:
    """One topic of the name, and what was acknowledged to it."""

    number: int
    topic_id: UUID
    acknowledged: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """Value by partition and offset."""
    deleted_to: dict[int, int] = field(default_factory=dict[int, int])
    """By partition, up to where the deletion of records was asked for."""
    deletion_requested: bool = False
    """Its deletion was asked for: from then on nothing is promised."""


class _OneTopic:
    """Whether all that a client does is about one topic of the name.

    A client writes and reads by the id in its metadata. Where it asked a broker that is behind, that is the
    id of an earlier topic, whose leader and replicas may all be behind too; and what it fetched by that id is
    handed out when its metadata may be right again. So every metadata counts that it ever had.
    """

    def __init__(self, client: Client, topic: Incarnation) -> None:
        self._topic = topic
        self._saw_another = False
        self._look(client.metadata)
        client.on_metadata.append(self._look)

    def _look(self, metadata: ClusterMetadata) -> None:
        found = metadata.topics.get(NAME)
        if found is not None and found.topic_id != self._topic.topic_id:
            self._saw_another = True

    def check(self) -> None:
        """Raises KafkaError where the client took another topic for this one."""
        if self._saw_another:
            raise KafkaError(ErrorCode.inconsistent_topic_id, "another topic of the name")


class NameReuser(AdminProgram):
    gap_s = (0.0, 2.0)

    def __init__(self, host: Host, bootstrap_servers: str, *, flush_each: bool) -> None:
        super().__init__("reuser", host, bootstrap_servers)
        self.violations: list[str] = []
        self.incarnations = 0
        self.producers = 0
        self.compared = 0
        """How often all records of a topic were read back."""
        self._configs = {"min.insync.replicas": "2", "segment.ms": "5000"}
        if flush_each:
            self._configs["flush.messages"] = "1"
        self._topic: Incarnation | None = None
        self._ids_to_delete: set[UUID] = set()
        self._records = 0

    async def _main(self, runtime: Runtime) -> None:
        await super()._main(runtime)
        looks = 0
        while (topic := self._topic) is not None and not topic.deletion_requested:
            try:
                async with Admin(runtime, self._settings) as admin:
                    if await self._is_current(admin, topic):
                        await self._compare(runtime, topic)
                        return
                looks += 1  # a broker that has just started may not know it yet
                if looks == LOOKS_MAX:
                    self._add_violation(f"{self._label(topic)} is gone, and was not deleted")
                    return
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
            await asyncio.sleep(1)

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        topic = self._topic
        if topic is None or topic.deletion_requested:
            topic = await self._create(admin)
            if topic is not None:
                await self._write(runtime, topic)
            return
        match runtime.entropy.below(6):
            case 0:
                await self._write(runtime, topic)
            case 1 | 2:
                await self._purge(runtime, admin, topic)
            case 3:
                await self._compare(runtime, topic)
            case _:
                await self._delete(admin, topic)
                if (successor := await self._create(admin)) is not None:
                    await self._write(runtime, successor)

    async def _create(self, admin: Admin) -> Incarnation | None:
        """The topic of the name now; None while an earlier one is all that is known."""
        outcome = (await admin.create_topics([NewTopic(NAME, PARTITIONS, REPLICAS, self._configs)]))[NAME]
        if outcome is not None and outcome.code is not ErrorCode.topic_already_exists:
            raise outcome
        found = await self._find(admin)
        if found is None or found.topic_id is None or found.topic_id in self._ids_to_delete:
            return None
        self.incarnations += 1
        self._topic = Incarnation(self.incarnations, found.topic_id)
        return self._topic

    async def _find(self, admin: Admin) -> TopicMetadata | None:
        """The topic of the name that there is, as a broker knows. Raises KafkaError when no broker knows."""
        found = (await admin.describe_topics([NAME]))[NAME]
        if not isinstance(found, KafkaError):
            return found
        if found.code is ErrorCode.unknown_topic_or_partition:
            return None
        raise found

    async def _is_current(self, admin: Admin, topic: Incarnation) -> bool:
        found = await self._find(admin)
        return found is not None and found.topic_id == topic.topic_id

    async def _write(self, runtime: Runtime, topic: Incarnation) -> None:
        """Some records, all of which have an outcome before anything else is done to the topic."""
        settings = {
            "bootstrap.servers": self._settings["bootstrap.servers"],
            "client.id": self.name,
            "acks": "all",
            "delivery.timeout.ms": 20_000,
            "request.timeout.ms": 10_000,
            "max.block.ms": 20_000,
            "allow.auto.create.topics": False,
        }
        self.producers += 1
        async with Producer(runtime, settings) as producer:
            one_topic = _OneTopic(producer.client, topic)
            await producer.client.topic(NAME, 10_000)
            for _ in range(1 + runtime.entropy.below(RECORDS_MAX)):
                self._records += 1
                value = f"{topic.number}-{self._records}"
                partition = runtime.entropy.below(PARTITIONS)
                one_topic.check()
                response = await (await producer.send(NAME, value.encode(), partition=partition))
                one_topic.check()
                topic.acknowledged[partition, response.offset] = value

    async def _purge(self, runtime: Runtime, admin: Admin, topic: Incarnation) -> None:
        """Delete records up to one in the middle, as a log start inside of a segment comes about."""
        if not topic.acknowledged:
            return
        index, offset = runtime.entropy.choice(list(topic.acknowledged))
        topic.deleted_to[index] = max(offset, topic.deleted_to.get(index, 0))
        partition = TopicPartition(NAME, index)

        def make(api: Api) -> Message:
            part = api.make_request("DeleteRecordsPartition", partition_index=index, offset=offset)
            return api.request(
                timeout_ms=10_000,
                topics=(api.make_request("DeleteRecordsTopic", name=NAME, partitions=(part,)),),
            )

        await admin.client.topic(NAME, 10_000)
        await admin.client.send_to_leader(partition, ApiKey.DELETE_RECORDS, make)

    async def _delete(self, admin: Admin, topic: Incarnation) -> None:
        topic.deletion_requested = True
        self._ids_to_delete.add(topic.topic_id)

        def make(api: Api) -> Message:
            state = api.make_request("DeleteTopicState", name=None, topic_id=topic.topic_id)
            return api.request(topics=(state,), timeout_ms=10_000)

        response = await admin.client.send_to_controller(ApiKey.DELETE_TOPICS, make)
        code = response.responses[0].error_code
        if code not in (ErrorCode.none, ErrorCode.unknown_topic_id):
            raise KafkaError(code, "deletion refused")

    async def _compare(self, runtime: Runtime, topic: Incarnation) -> None:
        """Read the whole topic back. Raises KafkaError when it cannot be read now.

        Ends of partitions are asked for by name, and the leader that answers may still mean an earlier topic:
        so a record counts as lost only when it is missed again and again.
        """
        missing = self._judge(topic, await self._read(runtime, topic))
        for _ in range(LOOKS_MAX):
            if not missing:
                break
            await asyncio.sleep(1)
            try:
                missing = self._judge(topic, await self._read(runtime, topic))
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
        for violation in missing:
            self._add_violation(violation)
        self.compared += 1

    def _judge(self, topic: Incarnation, seen: Mapping[tuple[int, int], str]) -> list[str]:
        """Note what is wrong in ``seen``; return what is missing from it."""
        missing: list[str] = []
        for (partition, offset), value in topic.acknowledged.items():
            at = f"at {partition}/{offset}: {value} was acknowledged"
            found = seen.get((partition, offset))
            if found is None and offset >= topic.deleted_to.get(partition, 0):
                missing.append(f"{self._label(topic)} has no record {at}")
            elif found not in (None, value):
                self._add_violation(f"{self._label(topic)} has {found} {at}")
        for (partition, offset), value in seen.items():
            if not value.startswith(f"{topic.number}-"):
                self._add_violation(
                    f"{self._label(topic)} has {value} of an earlier one at {partition}/{offset}"
                )
        return missing

    async def _read(self, runtime: Runtime, topic: Incarnation) -> Mapping[tuple[int, int], str]:
        """Value by partition and offset. Raises KafkaError where brokers that are behind show another one.

        Ends are asked for again while nothing comes: a leader that is behind tells those of an earlier topic.
        """
        seen: dict[tuple[int, int], str] = {}
        partitions = [TopicPartition(NAME, index) for index in range(PARTITIONS)]
        settings = {
            **self._settings,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
        }
        async with Consumer(runtime, settings) as consumer:
            one_topic = _OneTopic(consumer.client, topic)
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            while [one for one in partitions if await consumer.position(one) < ends[one]]:
                records = await consumer.poll(timeout_ms=POLL_MS)
                one_topic.check()
                for record in records:
                    seen[record.partition, record.offset] = (record.value or b"").decode()
                if not records:
                    ends = await consumer.end_offsets(partitions)
        return seen

    def _label(self, topic: Incarnation) -> str:
        return f"reused name: topic {topic.number} of {NAME}"

    def _add_violation(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what)
