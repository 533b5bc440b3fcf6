"""A client that creates topics, changes their settings and deletes them, and records the results.

At the end (:meth:`TopicChurn.judge`) each topic whose creation was acknowledged, and whose deletion was never
requested, must exist; one whose deletion was acknowledged must not; and a setting is the last acknowledged
value, or one requested later with an unknown outcome. A creation that took long may have been requested
twice, and one of the requests may be executed after the deletion: then the outcome is unknown, too.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.runtime import Runtime
from nilometer.simulation.workload.admin_program import AdminProgram
from nilometer.simulation.world import Host
from nilometer.wire.errors import KafkaError

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
