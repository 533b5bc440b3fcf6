"""A client that uses one topic name repeatedly: create, write, delete records, delete the topic, in seconds.

Data left under a topic's name (checkpoint lines, folders, caches) could affect the next topic. So each topic
is checked by its id: every acknowledged record is at its offset unless a client deleted it, and there is no
record of an earlier topic.

Topics are deleted by id, so that a late request cannot delete the next topic; a topic created by a late
request is used like any other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicMetadata, TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.workload.admin_programs import AdminProgram
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
"""How often, once a second, a missing topic or record is looked for before it counts as lost."""
VIOLATIONS_MAX = 10


@dataclass(slots=True)
class Incarnation:
    """One of the topics that have the same name one after another, and its acknowledged records."""

    number: int
    topic_id: UUID
    acknowledged: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """(partition, offset) → value."""
    deleted_to: dict[int, int] = field(default_factory=dict[int, int])
    """Partition → the offset up to which a deletion of records was requested."""
    deletion_requested: bool = False
    """Whether its deletion was requested: from then on it is not checked."""


class _OneTopic:
    """Checks that a client uses only one topic of the name.

    A client writes and reads by the topic id in its metadata. If a lagging broker provided the metadata, that
    is the id of an earlier topic, whose leader and replicas may lag, too; and records fetched by that id may
    be returned after the metadata is correct again. So all metadata that the client ever had is checked.
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
        """Raise KafkaError if the client has used another topic of the name."""
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
                looks += 1  # a broker that has just started may not have the metadata yet
                if looks == LOOKS_MAX:
                    self._add_violation(f"{self._label(topic)} no longer exists, but was not deleted")
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
        """Create the topic and return it; None while the broker only has a deleted one."""
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
        """Return the metadata of the current topic, None if there is none. Raises KafkaError."""
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
        """Write some records, and wait for the outcome of each."""
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
        """Delete records up to a random one, so that the log start offset is inside a segment."""
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
            raise KafkaError(code, "deletion rejected")

    async def _compare(self, runtime: Runtime, topic: Incarnation) -> None:
        """Read the whole topic and check it. Raises KafkaError if it cannot be read now.

        End offsets are requested by topic name, and a lagging leader may return those of an earlier topic: so
        a record counts as lost only if it is missing repeatedly.
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
        """Report wrong records in ``seen``, (partition, offset) → value; return those that are missing."""
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
        """Return the topic's values by (partition, offset). Raises KafkaError if lagging brokers show another
        topic.

        End offsets are requested again while no records arrive: a lagging leader returns an earlier topic's.
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
