"""Clients that change topics with an Admin: they create, alter and delete them, move replicas between brokers
and directories, delete records, and use one name again and again.
"""

from __future__ import annotations

import asyncio
import enum
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicMetadata, TopicPartition
from nilometer.client.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.cleanup import Retention
from nilometer.simulation.world import Host, Program
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError

# A client process that sends requests with an Admin from time to time.
#
# Errors are only counted: the checkers check the results.


class AdminProgram(Program):
    gap_s: tuple[float, float]
    """Bounds of the random pause between two steps (seconds)."""

    def __init__(self, name: str, host: Host, bootstrap_servers: str) -> None:
        super().__init__(name, host)
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": name,
            "request.timeout.ms": 10_000,
            "default.api.timeout.ms": 20_000,
        }

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            await asyncio.sleep(runtime.entropy.uniform(*self.gap_s))
            try:
                async with Admin(runtime, self._settings) as admin:
                    await self._step(runtime, admin)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1

    @abstractmethod
    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        """Send the requests of one step. Raises KafkaError."""


# A client that creates topics, changes their settings and deletes them, and records the results.
#
# At the end (:meth:`TopicChurn.judge`) each topic whose creation was acknowledged, and whose deletion was
# never requested, must exist; one whose deletion was acknowledged must not; and a setting is the last
# acknowledged value, or one requested later with an unknown outcome. A creation that took long may have been
# requested twice, and one of the requests may be executed after the deletion: then the outcome is unknown,
# too.

TOPICS_MAX = 6
KEY = "max.message.bytes"
FIRST_VALUE = 100_000
SLOW_S = 1.0
"""A creation that takes longer (seconds) may have been retried."""


class Existence(enum.Enum):
    EXISTS = "it was created"
    DELETED = "it was deleted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class KnownTopic:
    existence: Existence = Existence.UNKNOWN
    values: set[str] = field(default_factory=set[str])
    """The allowed values of its setting; empty: not checked."""
    may_come_back: bool = False
    """Whether a request to create it may still be in transit."""


class TopicChurn(AdminProgram):
    """Creates, alters and deletes topics. It keeps its connections until an error."""

    gap_s = (0.5, 6.0)

    def __init__(self, host: Host, bootstrap_servers: str) -> None:
        super().__init__("churn", host, bootstrap_servers)
        self.topics: dict[str, KnownTopic] = {}
        self.done = 0
        self._numbers = 0

    def judge(self, present: Mapping[str, str | None]) -> list[str]:
        """Return the errors in ``present``, the existing topics with their setting (None: unknown)."""
        wrong: list[str] = []
        for name, topic in self.topics.items():
            if topic.existence is Existence.EXISTS and name not in present:
                wrong.append(f"lost topic: {name}: {topic.existence.value}, but does not exist")
            if topic.existence is Existence.DELETED and name in present:
                wrong.append(f"deleted topic still present: {name}: {topic.existence.value}, but exists")
            value = present.get(name)
            if (
                topic.existence is Existence.EXISTS
                and topic.values
                and value is not None
                and value not in topic.values
            ):
                allowed = sorted(topic.values)
                wrong.append(f"lost setting: {name} has {KEY}={value}, and it may only be one of {allowed}")
        return wrong

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            try:
                async with Admin(runtime, self._settings) as admin:
                    while not self._stopping:
                        await asyncio.sleep(runtime.entropy.uniform(*self.gap_s))
                        await self._step(runtime, admin)
                        self.done += 1
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(1)

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        there = [name for name, topic in self.topics.items() if topic.existence is Existence.EXISTS]
        choice = runtime.entropy.below(3)
        if not there or (choice == 0 and len(there) < TOPICS_MAX):
            await self._create(runtime, admin)
        elif choice == 1 and len(there) > 1:
            await self._delete(admin, runtime.entropy.choice(there))
        else:
            await self._alter(admin, runtime.entropy.choice(there))

    async def _create(self, runtime: Runtime, admin: Admin) -> None:
        self._numbers += 1
        name = f"churn{self._numbers}"
        topic = self.topics[name] = KnownTopic()
        began_s = asyncio.get_running_loop().time()
        await admin.create_topic(
            NewTopic(
                name, 1 + runtime.entropy.below(3), 1 + runtime.entropy.below(3), {KEY: str(FIRST_VALUE)}
            )
        )
        topic.existence = Existence.EXISTS
        topic.values = {str(FIRST_VALUE)}
        topic.may_come_back = asyncio.get_running_loop().time() - began_s > SLOW_S

    async def _delete(self, admin: Admin, name: str) -> None:
        topic = self.topics[name]
        topic.existence = Existence.UNKNOWN
        error = (await admin.delete_topics([name]))[name]
        if error is not None:
            raise error
        if not topic.may_come_back:
            topic.existence = Existence.DELETED

    async def _alter(self, admin: Admin, name: str) -> None:
        topic = self.topics[name]
        self._numbers += 1
        value = str(FIRST_VALUE + self._numbers)
        topic.values.add(value)
        await admin.incremental_alter_configs(ResourceType.TOPIC, name, [ConfigChange(KEY, value)])
        topic.values = {value}


# A client that moves partitions: it reassigns a partition's replicas to random brokers from time to time.

REPLICAS = 3


class Mover(AdminProgram):
    gap_s = (3.0, 20.0)

    def __init__(
        self,
        host: Host,
        bootstrap_servers: str,
        partitions: Sequence[TopicPartition],
        broker_ids: Callable[[], Sequence[int]],
    ) -> None:
        super().__init__("mover", host, bootstrap_servers)
        self.asked = 0
        self._partitions = list(partitions)
        self._broker_ids = broker_ids

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        partition = runtime.entropy.choice(self._partitions)
        left, replicas = list(self._broker_ids()), list[int]()
        while left and len(replicas) < REPLICAS:
            replicas.append(left.pop(runtime.entropy.below(len(left))))

        def make(api: Api) -> Message:
            part = api.make_request(
                "ReassignablePartition", partition_index=partition.partition, replicas=tuple(replicas)
            )
            topic = api.make_request("ReassignableTopic", name=partition.topic, partitions=(part,))
            return api.request(timeout_ms=20_000, topics=(topic,))

        response = await admin.client.send_to_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, make)
        if response.error_code != ErrorCode.none:
            raise KafkaError(response.error_code, "reassignment rejected")
        self.asked += 1


# A client that moves replicas between the log directories of their brokers (KIP-113), also while they move.

UNKNOWN_PATH_OF = 10


class DirectoryMover(AdminProgram):
    gap_s = (0.3, 4.0)

    def __init__(self, host: Host, bootstrap_servers: str, broker_ids: Callable[[], Sequence[int]]) -> None:
        super().__init__("directory mover", host, bootstrap_servers)
        self.asked = 0
        """How many moves were accepted."""
        self.violations: list[str] = []
        self._broker_ids = broker_ids

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        broker_id = runtime.entropy.choice(list(self._broker_ids()))
        folders = await admin.describe_log_dirs([broker_id])
        replicas = sorted(
            {str(one.partition): one.partition for each in folders for one in each.replicas}.items()
        )
        some = [partition for _, partition in replicas if runtime.entropy.below(4) == 0]
        is_unknown = runtime.entropy.below(UNKNOWN_PATH_OF) == 0
        paths = {
            partition: "/nowhere" if is_unknown else runtime.entropy.choice(folders).path
            for partition in some
        }
        for partition, error in (await admin.alter_replica_log_dirs(broker_id, paths)).items():
            if is_unknown and (error is None or error.code is not ErrorCode.log_dir_not_found):
                self.violations.append(f"{partition} is moved to a directory that does not exist: {error}")
            elif error is not None:
                self.error_counts[error.code.name] += 1
            else:
                self.asked += 1


# A client that deletes records: it moves the log start offset of a partition up to a random offset.
#
# Sometimes it requests an offset above the log end, which must be rejected.

NEVER_WRITTEN = 1_000_000
TOO_FAR_OF = 8


class Trimmer(AdminProgram):
    gap_s = (4.0, 30.0)

    def __init__(
        self, host: Host, bootstrap_servers: str, partitions: Sequence[TopicPartition], retention: Retention
    ) -> None:
        super().__init__("trimmer", host, bootstrap_servers)
        self.violations: list[str] = []
        self.trimmed = 0
        self._partitions = list(partitions)
        self._retention = retention

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        partition = runtime.entropy.choice(self._partitions)
        first = (await admin.list_offsets({partition: EARLIEST_TIMESTAMP}))[partition].offset
        last = (await admin.list_offsets({partition: LATEST_TIMESTAMP}))[partition].offset
        too_far = runtime.entropy.below(TOO_FAR_OF) == 0
        offset = last + NEVER_WRITTEN if too_far else first + runtime.entropy.below(max(last - first, 0) + 1)
        if not too_far:
            self._retention.asked(str(partition), offset)
        before = self._retention.members(str(partition))
        code = await self._delete(admin, partition, offset)
        if code is not ErrorCode.none:
            self.error_counts[code.name] += 1
        elif too_far:
            self.violations.append(f"records of {partition} up to {offset} were deleted; its end was {last}")
        else:
            self._retention.deleted(str(partition), offset, before)
            self.trimmed += 1

    @staticmethod
    async def _delete(admin: Admin, partition: TopicPartition, offset: int) -> ErrorCode:
        def make(api: Api) -> Message:
            part = api.make_request(
                "DeleteRecordsPartition", partition_index=partition.partition, offset=offset
            )
            topic = api.make_request("DeleteRecordsTopic", name=partition.topic, partitions=(part,))
            return api.request(timeout_ms=10_000, topics=(topic,))

        await admin.client.topic(partition.topic, 10_000)
        response = await admin.client.send_to_leader(partition, ApiKey.DELETE_RECORDS, make)
        return response.topics[0].partitions[0].error_code


# A client that uses one topic name repeatedly: create, write, delete records, delete the topic, in seconds.
#
# Data left under a topic's name (checkpoint lines, folders, caches) could affect the next topic. So each
# topic is checked by its id: every acknowledged record is at its offset unless a client deleted it, and there
# is no record of an earlier topic.
#
# Topics are deleted by id, so that a late request cannot delete the next topic; a topic created by a late
# request is used like any other.

NAME = "reused"
PARTITIONS = 2
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

    def __init__(
        self, host: Host, bootstrap_servers: str, *, flush_each: bool, configs: Mapping[str, str]
    ) -> None:
        super().__init__("reuser", host, bootstrap_servers)
        self.violations: list[str] = []
        self.incarnations = 0
        self.producers = 0
        self.compared = 0
        """How often all records of a topic were read back."""
        self._configs = {"min.insync.replicas": "2", "segment.ms": "5000", **configs}
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
        await admin.ensure_topic(NewTopic(NAME, PARTITIONS, REPLICAS, self._configs))
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
