"""Clients that change topics with an Admin from time to time: they create and delete topics, move partitions,
delete records.
"""

from __future__ import annotations

import asyncio
import enum
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.cleanup import Retention
from nilometer.simulation.workload.program import Program
from nilometer.simulation.world import Host
from nilometer.wire.api import Api
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
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
