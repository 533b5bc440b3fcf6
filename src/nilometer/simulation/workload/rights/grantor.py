"""The administrator: creates and deletes ACLs of the users' topics, while brokers fail.

It connects to the listener without a login, whose clients are super users in a simulation.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.security_admin import AclAdmin
from nilometer.cluster.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from nilometer.runtime import Entropy, Runtime
from nilometer.simulation.world import Host, Process
from nilometer.wire.errors import KafkaError

USERS = ("guest-0", "guest-1")
PREFIX = "guarded-"
TOPICS = (f"{PREFIX}0", f"{PREFIX}1")
GAP_S = (0.2, 2.0)
TIMEOUT_MS = 10_000
DELETIONS_SHARE = 0.4

_PATTERNS = (
    *((name, PatternType.LITERAL) for name in (*TOPICS, WILDCARD)),
    (PREFIX, PatternType.PREFIXED),
)
_OPERATIONS = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.CREATE,
    Operation.ALTER_CONFIGS,
)


class Grantor:
    def __init__(self, host: Host, bootstrap_servers: str) -> None:
        self.name = "grantor"
        self.done: Counter[str] = Counter()
        self.error_counts: Counter[str] = Counter()
        self.process: Process | None = None
        self._host = host
        self._servers = bootstrap_servers
        self._stopping = False

    def start(self) -> Process:
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        self._stopping = True

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            try:
                async with Admin(runtime, {"bootstrap.servers": self._servers}) as admin:
                    await self._change_rights(runtime.entropy, AclAdmin(admin.client, TIMEOUT_MS))
            except KafkaError as error:
                self.error_counts[error.code.name] += 1

    async def _change_rights(self, chance: Entropy, admin: AclAdmin) -> None:
        while not self._stopping:
            await asyncio.sleep(chance.uniform(*GAP_S))
            if chance.uniform(0, 1) < DELETIONS_SHARE:
                self.done["ACLs deleted"] += len(await admin.delete_acls([_random_filter(chance)]))
            else:
                await admin.create_acls([random_acl(chance) for _ in range(1 + chance.below(2))])
                self.done["ACLs created"] += 1


def random_acl(chance: Entropy) -> Acl:
    name, kind = chance.choice(_PATTERNS)
    denies = chance.uniform(0, 1) < 0.3
    return Acl(
        ResourceType.TOPIC,
        name,
        kind,
        chance.choice((*(f"User:{user}" for user in USERS), WILDCARD_PRINCIPAL)),
        WILDCARD,
        chance.choice(_OPERATIONS),
        Permission.DENY if denies else Permission.ALLOW,
    )


def _random_filter(chance: Entropy) -> AclFilter:
    """Return a filter for the ACLs of one pattern, of one user, or all that deny."""
    name, kind = chance.choice(_PATTERNS)
    return chance.choice(
        (
            AclFilter(ResourceType.TOPIC, name, kind),
            AclFilter(ResourceType.TOPIC, principal=f"User:{chance.choice(USERS)}"),
            AclFilter(ResourceType.TOPIC, permission=Permission.DENY),
        )
    )
