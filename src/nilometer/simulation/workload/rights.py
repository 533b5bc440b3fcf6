"""Users with passwords on a listener of their own, and an administrator who gives and takes their rights."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.admin.security_admin import AclAdmin
from nilometer.client.network.connection import Connection
from nilometer.client.settings import ClientSecurity
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
from nilometer.security.sasl import PLAIN
from nilometer.simulation.checkers.metadata import counted_records
from nilometer.simulation.cluster import BrokerNode, Cluster, guest_password
from nilometer.simulation.world import Host, Program
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api
from nilometer.wire.records import BatchBuilder

# Whether what users were served and refused agrees with the ACLs in the metadata log.
#
# The rules are written here a second time, from Kafka's documentation of ACLs, and share no code with the
# product. Each answer is judged by the ACLs of the entries that the answering broker may have known: from the
# last entry that it had applied when the request was sent to the last one when the response arrived. For a
# request that the controller decides, these are the entries of any broker. At rest every broker has applied
# all entries, so that a right that was given or taken away must be in force everywhere.

VIOLATIONS_MAX = 10
IMPLYING = {"DESCRIBE": ("READ", "WRITE", "DELETE", "ALTER"), "DESCRIBE_CONFIGS": ("ALTER_CONFIGS",)}

AclRecord = dict[str, Any]


class Judged(msgspec.Struct, frozen=True):
    """One answer: whether ``user`` was allowed ``operation`` on the topic ``name``.

    ``first``, ``last``: the numbers of the entries that may have been the newest ones for it.
    """

    user: str
    operation: str
    name: str
    is_allowed: bool
    first: int
    last: int
    broker: str
    """The broker that answered."""


def allows(acls: Iterable[AclRecord], user: str, operation: str, name: str) -> bool:
    """Return whether ``acls`` allow ``operation`` on the topic ``name`` to ``user``, from any host."""
    own = [
        acl
        for acl in acls
        if acl["resource_type"] == "TOPIC"
        and acl["principal"] in (f"User:{user}", "User:*")
        and acl["host"] == "*"
        and _selects(acl, name)
    ]
    if any(acl["permission"] == "DENY" and acl["operation"] in ("ALL", operation) for acl in own):
        return False
    enough = ("ALL", operation, *IMPLYING.get(operation, ()))
    return any(acl["permission"] == "ALLOW" and acl["operation"] in enough for acl in own)


def _selects(acl: AclRecord, name: str) -> bool:
    if acl["pattern_type"] == "PREFIXED":
        return name.startswith(acl["resource_name"])
    return acl["resource_name"] in (name, "*")


class AclHistory:
    """The ACLs after each entry of the metadata log."""

    def __init__(self, entries: Iterable[tuple[int, bytes]]) -> None:
        self._states: list[tuple[int, tuple[AclRecord, ...]]] = [(-1, ())]
        acls: dict[str, AclRecord] = {}
        for number, records in counted_records(entries):
            before = dict(acls)
            for record in records:
                if record["type"] == "AclCreated":
                    acls[record["id"]] = record
                elif record["type"] == "AclDeleted":
                    del acls[record["id"]]
            if acls != before:
                self._states.append((number, tuple(acls.values())))

    @property
    def changes(self) -> int:
        return len(self._states) - 1

    def between(self, first: int, last: int) -> Iterator[tuple[AclRecord, ...]]:
        """Yield the ACLs that were in force after some entry from ``first`` to ``last``."""
        ends = [number for number, _ in self._states[1:]]
        for (number, acls), end in zip(self._states, (*ends, last + 1), strict=True):
            if number <= last and end > first:
                yield acls


class RightsLedger:
    def __init__(self) -> None:
        self.answers: list[Judged] = []
        self.counts: Counter[str] = Counter()

    def note(self, answer: Judged) -> None:
        self.answers.append(answer)
        self.counts["allowed" if answer.is_allowed else "denied"] += 1

    def violations(self, entries: list[tuple[int, bytes]] | None) -> list[str]:
        """Return the answers that no ACLs explain. ``entries``: the metadata log; None: it is incomplete."""
        if entries is None:
            return []
        history = AclHistory(entries)
        return [
            f"rights: {'served' if each.is_allowed else 'refused'} {each.user} {each.operation} on "
            f"{each.name} against the ACLs of the entries {each.first} to {each.last}: {each.broker}"
            for each in self.answers
            if not _is_explained(each, history)
        ][:VIOLATIONS_MAX]


def _is_explained(answer: Judged, history: AclHistory) -> bool:
    return any(
        allows(acls, answer.user, answer.operation, answer.name) is answer.is_allowed
        for acls in history.between(answer.first, answer.last)
    )


# The administrator: creates and deletes ACLs of the users' topics, while brokers fail.
#
# It connects to the listener without a login, whose clients are super users in a simulation.

USERS = ("guest-0", "guest-1")
PREFIX = "guarded-"
TOPICS = (f"{PREFIX}0", f"{PREFIX}1")
CHANGES_GAP_S = (0.2, 2.0)
CHANGES_TIMEOUT_MS = 10_000
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


class Grantor(Program):
    def __init__(self, host: Host, bootstrap_servers: str) -> None:
        super().__init__("grantor", host)
        self.done: Counter[str] = Counter()
        self._servers = bootstrap_servers

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            try:
                async with Admin(runtime, {"bootstrap.servers": self._servers}) as admin:
                    await self._change_rights(runtime.entropy, AclAdmin(admin.client, CHANGES_TIMEOUT_MS))
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
                await asyncio.sleep(CHANGES_GAP_S[0])

    async def _change_rights(self, chance: Entropy, admin: AclAdmin) -> None:
        while not self._stopping:
            await asyncio.sleep(chance.uniform(*CHANGES_GAP_S))
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


# A user with a password: it logs in to any broker, and sends requests that it may or may not send.
#
# An answer counts as allowed if it succeeded, and as refused if it is TOPIC_AUTHORIZATION_FAILED. Any other
# error says nothing, as a broker may find it first.

GAP_S = (0.02, 0.6)
TIMEOUT_MS = 5_000
REQUESTS_OF_A_CONNECTION = 15
PAUSE_S = (0.0, 0.4)
READERS_SHARE = 0.4
"""How often a connection is used for one fetch session only."""
TOPIC_CONFIG = 2
SET = 0
REFUSED = ErrorCode.topic_authorization_failed


@dataclass(slots=True)
class _Session:
    """A connection, and its fetch session."""

    connection: Connection
    runtime: Runtime
    fetch_id: int = 0
    fetch_epoch: int = 0
    fetched: str = ""
    """The topic of the fetch session."""


_Ask = Callable[["_Session", str], Awaitable["ErrorCode | None"]]


class Guest(Program):
    def __init__(self, user: str, host: Host, cluster: Cluster, ledger: RightsLedger) -> None:
        super().__init__(user, host)
        self._cluster = cluster
        self._ledger = ledger
        security = ClientSecurity(mechanism=PLAIN, user=user, password=guest_password(user))
        self._security = security
        self._requests: dict[str, tuple[_Ask, bool]] = {
            "WRITE": (_produce, False),
            "READ": (_fetch, False),
            "DESCRIBE": (_metadata, False),
            "ALTER_CONFIGS": (_alter_configs, True),
            "CREATE": (_create, True),
        }
        """By operation: the request, and whether the controller decides it."""

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            chance = runtime.entropy
            await asyncio.sleep(chance.uniform(*GAP_S))
            node = chance.choice(list(self._cluster.nodes.values()))
            await self._use(runtime, node, self._random_requests(chance))

    def _random_requests(self, chance: Entropy) -> list[tuple[str, str]]:
        count = 1 + chance.below(REQUESTS_OF_A_CONNECTION)
        if chance.uniform(0, 1) < READERS_SHARE:
            return [("READ", chance.choice(TOPICS))] * count
        return [(chance.choice(list(self._requests)), chance.choice(TOPICS)) for _ in range(count)]

    async def ask_every_broker(self, runtime: Runtime) -> None:
        """Send each request to each broker, at rest."""
        wanted = [(operation, name) for operation in self._requests for name in TOPICS]
        for node in self._cluster.nodes.values():
            await self._use(runtime, node, wanted)

    async def _use(self, runtime: Runtime, node: BrokerNode, wanted: Sequence[tuple[str, str]]) -> None:
        """Log in to a broker, and send requests: each an operation and a topic."""
        try:
            connection = await Connection.open(
                runtime,
                node.host.name,
                node.guest_port,
                client_id=self.name,
                request_timeout_ms=TIMEOUT_MS,
                security=self._security,
            )
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return
        session = _Session(connection, runtime)
        try:
            for operation, name in wanted:
                await self._ask(session, node, operation, name)
                await asyncio.sleep(runtime.entropy.uniform(*PAUSE_S))
        except KafkaError as error:  # no response in time, or no connection any more
            self.error_counts[error.code.name] += 1
        finally:
            connection.close()

    async def _ask(self, session: _Session, node: BrokerNode, operation: str, name: str) -> None:
        request, is_forwarded = self._requests[operation]
        if operation == "CREATE":
            name = f"{PREFIX}{session.runtime.entropy.below(1000)}-new"
        image = node.image
        if image is None:
            return
        first, incarnation = image.number, node.incarnations
        if is_forwarded:
            first = min(self._known_numbers())
        code = await request(session, name)
        if code not in (ErrorCode.none, REFUSED):
            return
        image = node.image
        if is_forwarded or image is None or node.incarnations != incarnation:
            last = self._last_entry()
        else:
            last = image.number
        is_allowed = code is not REFUSED
        self._ledger.note(Judged(self.name, operation, name, is_allowed, first, last, node.name))

    def _last_entry(self) -> int:
        """The number of the last entry: a broker that has crashed since may have been the only one that had
        applied it."""
        return max([self._cluster.store.entry_count() - 1, *self._known_numbers()])

    def _known_numbers(self) -> list[int]:
        images = [node.image for node in self._cluster.known.values()]
        return [image.number for image in images if image is not None]


# ── the requests: each returns the error code of the topic, None if the response does not show it ───


async def _produce(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.PRODUCE, 9)
    builder = BatchBuilder()
    builder.append(session.runtime.clock.wall_ms(), None, b"of a guest")
    partition = codec.make_request("PartitionProduceData", index=0, records=builder.build())
    topic = codec.make_request("TopicProduceData", name=name, partition_data=(partition,))
    answer = await session.connection.send(
        codec.request(acks=1, timeout_ms=TIMEOUT_MS // 2, topic_data=(topic,))
    )
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def _fetch(session: _Session, name: str) -> ErrorCode | None:
    """Begin a fetch session, or go on with the one of the connection, whose partition is cached."""
    codec = api(ApiKey.FETCH, 12)
    topics: tuple[Message, ...] = ()
    goes_on = session.fetch_id > 0 and session.fetched == name
    if not goes_on:
        session.fetch_id = session.fetch_epoch = 0
        partition = codec.make_request(
            "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1000, log_start_offset=-1
        )
        topics = (codec.make_request("FetchTopic", topic=name, partitions=(partition,)),)
    answer = await session.connection.send(
        codec.request(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=10_000,
            session_id=session.fetch_id,
            session_epoch=session.fetch_epoch,
            topics=topics,
        )
    )
    if answer.error_code != ErrorCode.none:
        session.fetch_id = 0
        return None
    session.fetch_id, session.fetched = answer.session_id, name
    session.fetch_epoch += 1
    if answer.responses:
        return ErrorCode(answer.responses[0].partitions[0].error_code)
    return ErrorCode.none if goes_on else None  # an error would be there


async def _metadata(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.METADATA, 9)
    asked = codec.make_request("MetadataRequestTopic", name=name)
    answer = await session.connection.send(codec.request(topics=(asked,), allow_auto_topic_creation=False))
    return ErrorCode(answer.topics[0].error_code)


async def _alter_configs(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
    config = codec.make_request("AlterableConfig", name="retention.ms", config_operation=SET, value="-1")
    resource = codec.make_request(
        "AlterConfigsResource", resource_type=TOPIC_CONFIG, resource_name=name, configs=(config,)
    )
    answer = await session.connection.send(codec.request(resources=(resource,), validate_only=True))
    return ErrorCode(answer.responses[0].error_code)


async def _create(session: _Session, name: str) -> ErrorCode | None:
    codec = api(ApiKey.CREATE_TOPICS, 7)
    topic = codec.make_request("CreatableTopic", name=name, num_partitions=1, replication_factor=1)
    answer = await session.connection.send(
        codec.request(topics=(topic,), timeout_ms=TIMEOUT_MS // 2, validate_only=True)
    )
    return ErrorCode(answer.topics[0].error_code)


# The users of a run and their rights: the programs, what they did, and its judgement.

REPLICAS = 3


class RightsWorkload:
    def __init__(self, cluster: Cluster, clients: Host, *, flushes: bool) -> None:
        """``flushes``: whether the machines may all lose power, so that records must be flushed."""
        self._cluster = cluster
        self._configs = {"min.insync.replicas": "2", **({"flush.messages": "1"} if flushes else {})}
        self.ledger = RightsLedger()
        self._grantor = Grantor(clients, cluster.bootstrap_servers)
        self._guests = [Guest(user, clients, cluster, self.ledger) for user in USERS]

    @property
    def programs(self) -> list[Grantor | Guest]:
        return [self._grantor, *self._guests]

    async def create_topics(self, runtime: Runtime, admin: Admin) -> None:
        for name in TOPICS:
            await admin.ensure_topic(NewTopic(name, 1, REPLICAS, self._configs))

    async def ask_at_rest(self, runtime: Runtime) -> None:
        """Send all requests to all brokers: they must know all ACLs now."""
        for guest in self._guests:
            await guest.ask_every_broker(runtime)

    def judge(self) -> list[str]:
        return self.ledger.violations(self._cluster.store.entries())

    @property
    def error_counts(self) -> Counter[str]:
        return sum((each.error_counts for each in self.programs), start=Counter[str]())

    def done(self) -> Counter[str]:
        entries = self._cluster.store.entries()
        return self._grantor.done + Counter(
            {
                **{f"requests of users, {outcome}": count for outcome, count in self.ledger.counts.items()},
                "changes of ACLs": 0 if entries is None else AclHistory(entries).changes,
            }
        )
