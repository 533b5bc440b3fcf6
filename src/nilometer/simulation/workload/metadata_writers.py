"""Clients that change metadata at the same time, and whether each change that was acknowledged is there.

What they change is theirs: topics, settings of one topic that all of them alter, ACLs. Every change has a
name or a value of its own, so that the metadata log, read at the end, says when it took place, or that it
never did.

The rules, by key (a topic, a setting, an ACL):

- an acknowledged change is in the log;
- changes of a key have one order, which agrees with real time: what began after another one had been
  acknowledged is later in the log. A change whose outcome is not known may have taken place at any time
  after it began, or never;
- at rest every broker's image has what the log's last change of each key says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.admin.security_admin import AclAdmin
from nilometer.cluster.acl import WILDCARD, Acl, AclFilter, Operation, PatternType, Permission
from nilometer.cluster.acl import ResourceType as AclResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.runtime import Entropy, Runtime
from nilometer.simulation.checkers.metadata import counted_records
from nilometer.simulation.workload.admin_programs import AdminProgram
from nilometer.simulation.world import Host
from nilometer.wire.errors import KafkaError

SETTING: Final = "delete.retention.ms"
FIRST_VALUE: Final = 86_400_000
WRITERS: Final = 2
TOPICS_MAX: Final = 4
ACLS_MAX: Final = 4
TIMEOUT_MS: Final = 10_000
PAUSE_S: Final = 0.2
"""Before it connects again."""
VIOLATIONS_MAX: Final = 10

Key = tuple[str, str]
"""What kind of thing, and which one."""


class Change(msgspec.Struct):
    """A change that was asked for: ``value`` of ``key`` is set; None: it is deleted."""

    key: Key
    value: str | None
    began_s: float
    ended_s: float | None = None
    """When it was acknowledged; None: its outcome is not known."""


class MetadataLedger:
    """What was asked for and acknowledged, of all writers."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    async def make(self, key: Key, value: str | None, work: Awaitable[object]) -> None:
        """Note a change, and have it done. Raises KafkaError."""
        clock = asyncio.get_running_loop().time
        change = Change(key, value, clock())
        self.changes.append(change)
        await work
        change.ended_s = clock()

    def done(self) -> Counter[str]:
        return Counter(f"acknowledged changes of a {each.key[0]}" for each in self.changes if each.ended_s)

    def judge(self, entries: list[tuple[int, bytes]] | None, images: Mapping[str, ClusterImage]) -> list[str]:
        """Return what is wrong at rest. ``entries``: the metadata log; None: it is incomplete, and nothing is
        checked."""
        if entries is None:
            return []
        log = _read_log(entries)
        wrong = [text for key in self._keys() for text in self._judge_key(key, log.get(key, []))]
        for who, image in images.items():
            for key, last in ((key, log[key][-1][1]) for key in self._keys() if key in log):
                if (value := _value_in(image, key)) != last:
                    wrong.append(f"metadata: {key[0]} {key[1]} is {value} on {who}, and {last} in the log")
        return wrong[:VIOLATIONS_MAX]

    def _keys(self) -> list[Key]:
        return list(dict.fromkeys(change.key for change in self.changes))

    def _judge_key(self, key: Key, logged: list[tuple[int, str | None]]) -> Iterable[str]:
        """``logged``: the numbers of the entries that changed the key, and the values."""
        placed: list[tuple[Change, int, int]] = []
        for change in self.changes:
            if change.key != key or change.ended_s is None:
                continue
            numbers = [number for number, value in logged if value == change.value]
            if not numbers:
                yield f"lost metadata: {key[0]} {key[1]} was set to {change.value}, and no entry says so"
            else:
                placed.append((change, numbers[0], numbers[-1]))
        for earlier, first, _ in placed:
            for later, _, last in placed:
                assert earlier.ended_s is not None, "it was acknowledged"
                if earlier.ended_s < later.began_s and first > last:
                    yield (
                        f"order of metadata: {key[0]} {key[1]} was set to {earlier.value}, and then to "
                        f"{later.value}, which entries {first} and {last} turn round"
                    )


def _read_log(entries: Iterable[tuple[int, bytes]]) -> dict[Key, list[tuple[int, str | None]]]:
    """Return, by key, the numbers of the entries that change it, and the values."""
    found: dict[Key, list[tuple[int, str | None]]] = {}
    names: dict[str, str] = {}
    """Of topics and of ACLs' users, by id."""

    def note(kind: str, name: str, number: int, value: str | None) -> None:
        found.setdefault((kind, name), []).append((number, value))

    for number, records in counted_records(entries):
        for record in records:
            match record["type"]:
                case "TopicCreated":
                    names[record["topic_id"]] = record["name"]
                    note("topic", record["name"], number, "there")
                case "TopicDeleted":
                    note("topic", names[record["topic_id"]], number, None)
                case "ConfigChanged" if record["key"] == SETTING:
                    note("setting", record["resource_name"], number, record.get("value"))
                case "AclCreated":
                    names[record["id"]] = record["principal"]
                    note("ACL", record["principal"], number, "there")
                case "AclDeleted":
                    note("ACL", names[record["id"]], number, None)
                case _:
                    pass
    return found


def _value_in(image: ClusterImage, key: Key) -> str | None:
    kind, name = key
    if kind == "topic":
        return None if image.topic(name) is None else "there"
    if kind == "setting":
        return image.config(ConfigResourceType.TOPIC, name).get(SETTING)
    return "there" if any(acl.principal == name for _, acl in image.acls.items()) else None


class MetadataWriter(AdminProgram):
    gap_s = (0.1, 1.5)

    def __init__(
        self, number: int, host: Host, servers: str, shared: str, ledger: MetadataLedger, *, acls: bool
    ) -> None:
        """``shared``: the topic whose setting all alter; ``acls``: whether the brokers have an authorizer."""
        super().__init__(f"metadata writer {number}", host, servers)
        self._prefix = f"kept-{number}"
        self._shared = shared
        self._ledger = ledger
        self._has_acls = acls
        self._numbers = 0
        self._topics: list[str] = []
        self._users: list[str] = []

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            await asyncio.sleep(PAUSE_S)
            with suppress(KafkaError):
                async with Admin(runtime, self._settings) as admin:
                    while not self._stopping:
                        await asyncio.sleep(runtime.entropy.uniform(*self.gap_s))
                        await self._counted_step(runtime, admin)

    async def _counted_step(self, runtime: Runtime, admin: Admin) -> None:
        try:
            await self._step(runtime, admin)
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            raise

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        self._numbers += 1
        choice = runtime.entropy.below(4 if self._has_acls else 3)
        if choice == 0:
            key = ("setting", self._shared)
            value = str(FIRST_VALUE + self._numbers * 10 + int(self._prefix[-1]))
            change = [ConfigChange(SETTING, value)]
            await self._ledger.make(
                key, value, admin.incremental_alter_configs(ResourceType.TOPIC, self._shared, change)
            )
        elif choice == 3:
            await self._change_acl(runtime.entropy, AclAdmin(admin.client, TIMEOUT_MS))
        elif self._topics and (choice == 1 or len(self._topics) >= TOPICS_MAX):
            name = self._topics.pop(runtime.entropy.below(len(self._topics)))
            await self._ledger.make(("topic", name), None, _delete(admin, name))
        else:
            name = f"{self._prefix}-{self._numbers}"
            await self._ledger.make(("topic", name), "there", admin.create_topic(NewTopic(name, 1, 1)))
            self._topics.append(name)

    async def _change_acl(self, chance: Entropy, admin: AclAdmin) -> None:
        if self._users and (chance.below(2) or len(self._users) >= ACLS_MAX):
            user = self._users.pop(chance.below(len(self._users)))
            wanted = AclFilter(AclResource.TOPIC, principal=user)
            await self._ledger.make(("ACL", user), None, admin.delete_acls([wanted]))
            return
        user = f"User:{self._prefix}-{self._numbers}"
        acl = Acl(
            AclResource.TOPIC,
            f"{self._prefix}-any",
            PatternType.LITERAL,
            user,
            WILDCARD,
            Operation.READ,
            Permission.ALLOW,
        )
        await self._ledger.make(("ACL", user), "there", admin.create_acls([acl]))
        self._users.append(user)


async def _delete(admin: Admin, name: str) -> None:
    error = (await admin.delete_topics([name]))[name]
    if error is not None:
        raise error
