"""A client that sends random admin requests, valid and invalid, to every broker.

No broker may end, log a traceback, or respond with UNKNOWN_SERVER_ERROR; all brokers must have the same
metadata, and the cluster must converge after the program stops. It only changes its own topics, and broker
settings are only validated, so that other topics are not affected. Its last request to each broker is a large
one, for the bound of what one turn of an event loop walks
(:mod:`nilometer.simulation.checkers.running_brokers`).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION
from nilometer.client.network.connection import Connection
from nilometer.client.producer.producer import Producer
from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.world import Host, Program
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import KafkaApi, api

# Random settings of topics and brokers: valid, extreme, invalid, and contradicting each other.

NONSENSE = (
    "", " ", "nonsense", "-1", "-2", "0", "1", "true", "TRUE", "*", "0:1,1:2", ",", "1e3", "1_000", "nan",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 400, "x" * 3000, "\x00",
    "٣", "ä水𝄞",
)  # fmt: skip
UNKNOWN_KEYS = (
    "",
    " ",
    "nonsense",
    "segment.byte",
    "Retention.ms",
    "k" * 3000,
    "\x00",
    "log.dirs",
    "node.id",
)
CONTRADICTIONS = (
    ("min.compaction.lag.ms", "max.compaction.lag.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)
_RARE = 0.08


def random_topic_settings(chance: random.Random) -> list[tuple[str, str | None]]:
    return _random_settings(chance, TOPIC_CONFIG, CONTRADICTIONS[0])


def random_broker_settings(chance: random.Random) -> list[tuple[str, str | None]]:
    return _random_settings(chance, BROKER_CONFIG_DEFINITION, CONTRADICTIONS[1])


def _random_settings(
    chance: random.Random, definition: ConfigDefinition, pair: tuple[str, str]
) -> list[tuple[str, str | None]]:
    """Return (key, text) pairs, mostly of known keys; a key may occur twice."""
    if chance.random() < 0.2:
        if chance.random() < 0.5:
            return list(zip(pair, ("100", "1"), strict=True))
        return [(key, str(chance.choice((0, 1, 100)))) for key in pair[: chance.choice((1, 2, 2))]]
    keys: Sequence[str] = list(definition.keys)
    found: list[tuple[str, str | None]] = []
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        if chance.random() < _RARE:
            found.append((chance.choice(UNKNOWN_KEYS), chance.choice(NONSENSE)))
        else:
            key = definition.keys[chance.choice(keys)]
            found.append((key.name, random_text(chance, key)))
    if found and chance.random() < _RARE:
        found.append(found[0])
    return found


def random_text(chance: random.Random, key: ConfigKey) -> str | None:
    """Return a text for ``key``, mostly a valid one; or None."""
    if chance.random() < 0.3:
        return chance.choice((None, *NONSENSE))
    match key.kind:
        case ConfigKind.BOOLEAN:
            return chance.choice(("true", "false"))
        case ConfigKind.STRING:
            return chance.choice(key.choices or ("nonsense",))
        case ConfigKind.LIST:
            items = key.choices or ("0:1", "1:2", "*", "nonsense")
            return ",".join(chance.sample(items, chance.randrange(len(items) + 1)))
        case ConfigKind.DOUBLE:
            return str(chance.choice((0, 0.5, 1, 2, chance.random())))
        case ConfigKind.INT | ConfigKind.SHORT | ConfigKind.LONG:
            return str(_random_number(chance, key))


def _random_number(chance: random.Random, key: ConfigKey) -> int:
    bounds = [int(bound) for bound in (key.minimum, key.maximum) if bound is not None]
    near = [bound + step for bound in bounds for step in (-1, 0, 1)]
    usual = [key.default] if isinstance(key.default, int) else []
    return chance.choice((*near, *usual, 1, 2, 1000, 10_000_000, 2**31 - 1, 2**31, 2**63 - 1))


# Random admin requests, valid and invalid. No request may make a broker end.
#
# A request only depends on the given ``random.Random``, so it is identified by a seed and a number. About
# half of the fields are valid for the cluster (:class:`Subjects`); the others are unknown, empty, negative,
# huge, duplicate, or contradict each other. No valid request makes a cluster large: a count is small, or
# above the limit of a broker.

COUNTS = (-1, 1, 1, 2, 3, 5, 0, -2, 10_001, 2**31 - 1, -(2**31))
FACTORS = (-1, 1, 1, 2, 3, 0, 4, -2, 32767, -32768)
PARTITIONS = (0, 0, 0, 1, 2, -1, 7, 2**31 - 1, -(2**31))
OFFSETS = (-1, 0, 1, 5, 100, -2, 2**63 - 1, -(2**63))
TIMEOUTS_MS = (*[5000] * 14, 0, 1, -1, -(2**31))
"""No long timeouts, since the program waits for each response."""
BAD_NAMES = ("", ".", "..", "a/b", "x y", "ä水", "\x00", "n" * 249, "n" * 250, "n" * 5000, "no-such-topic")
BAD_BROKERS = (-1, 99, 2**31 - 1, -(2**31))
RESOURCE_TYPES = (*[2] * 12, *[4] * 8, 8, 16, 32, 0, 1, 99, -1)
OPERATIONS = (*[0] * 12, *[1] * 4, 2, 2, 3, 3, 4, -1)


class Subjects(msgspec.Struct, frozen=True, kw_only=True):
    """The topics, brokers and groups of the cluster.

    Topics and groups listed here may be changed and deleted.
    """

    topics: Sequence[str]
    brokers: Sequence[int]
    groups: Sequence[str] = ("group",)
    topic_ids: Sequence[uuid.UUID] = ()
    new_topics: Sequence[str] = tuple(f"random-{number}" for number in range(8))
    """Names of topics that may be created and deleted."""
    internal_topics: Sequence[str] = ("__consumer_offsets", "__transaction_state")
    unregister: bool = True
    """Whether existing brokers may be unregistered."""
    only_own: bool = False
    """Whether topics not listed here must not be affected: then broker settings, which all topics inherit,
    are only validated, and only preferred leaders are elected in all partitions."""


class AdminRequest(msgspec.Struct, frozen=True):
    key: ApiKey
    version: int
    message: Message


def random_admin_request(
    chance: random.Random, subjects: Subjects, versions: Mapping[int, tuple[int, int]]
) -> AdminRequest:
    """Return a random request, of an API and version in ``versions`` (API key → lowest and highest)."""
    key = chance.choice([key for key in KINDS if key in versions])
    version = chance.randint(*versions[key])
    found = api(key, version)
    assert isinstance(found, KafkaApi), "an API of Kafka's"
    return AdminRequest(key, version, found.request(**_REQUESTS[key](_Maker(chance, subjects, found))))


def seeded_admin_request(
    seed: int, number: int, subjects: Subjects, versions: Mapping[int, tuple[int, int]]
) -> AdminRequest:
    """Return the request with this seed and number, which is always the same."""
    return random_admin_request(random.Random(f"admin {seed} {number}"), subjects, versions)


class _Maker:
    """Chooses the fields of one request at random."""

    def __init__(self, chance: random.Random, subjects: Subjects, found: KafkaApi) -> None:
        self.chance = chance
        self.subjects = subjects
        self.make = found.make_request
        self.version = found.version

    def timeout(self) -> int:
        return self.chance.choice(TIMEOUTS_MS)

    def flag(self) -> bool:
        return self.chance.random() < 0.3

    def topic(self) -> str:
        """Return a topic name, mostly one that exists or may exist."""
        subjects = self.subjects
        kinds = (subjects.topics, subjects.new_topics, subjects.internal_topics, BAD_NAMES)
        return self.chance.choice(self.chance.choices(kinds, (5, 4, 1, 2))[0] or BAD_NAMES)

    def new_topic(self) -> str:
        return self.chance.choice(self.subjects.new_topics) if self.chance.random() < 0.8 else self.topic()

    def group(self) -> str:
        return self.chance.choice(
            (*self.subjects.groups, *self.subjects.groups, "", "no-such-group", "g" * 5000)
        )

    def broker(self) -> int:
        known = self.chance.random() < 0.9
        return self.chance.choice(self.subjects.brokers if known else BAD_BROKERS)

    def replicas(self) -> tuple[int, ...]:
        """Return broker ids, mostly of different existing brokers."""
        if self.chance.random() < 0.7:
            brokers = list(self.subjects.brokers)
            return tuple(self.chance.sample(brokers, self.chance.randint(1, len(brokers))))
        return tuple(self.broker() for _ in range(self.chance.choice((0, 1, 2, 3, 8))))

    def some(self, make: Callable[[], Message]) -> tuple[Message, ...]:
        """Return none, one or a few items from ``make``; sometimes one of them twice."""
        items = [make() for _ in range(self.chance.choice((0, 1, 1, 1, 1, 2, 3)))]
        if items and self.chance.random() < 0.1:
            items.append(items[0])
        return tuple(items)

    def partition(self) -> int:
        return self.chance.choice(PARTITIONS)

    def partitions(self) -> tuple[int, ...]:
        return self.some(self.partition)


Fields = Mapping[str, object]


def _create_topics(maker: _Maker) -> Fields:
    def assignment() -> Message:
        return maker.make(
            "CreatableReplicaAssignment", partition_index=maker.partition(), broker_ids=maker.replicas()
        )

    def in_order() -> tuple[Message, ...]:
        return tuple(
            maker.make("CreatableReplicaAssignment", partition_index=index, broker_ids=maker.replicas())
            for index in range(maker.chance.randint(1, 3))
        )

    def topic() -> Message:
        how = maker.chance.choice(("counts", "counts", "counts", "assigned", "nonsense"))
        settings = random_topic_settings(maker.chance) if maker.flag() or maker.flag() else []
        return maker.make(
            "CreatableTopic",
            name=maker.new_topic(),
            num_partitions=-1 if how == "assigned" else maker.chance.choice(COUNTS),
            replication_factor=-1 if how == "assigned" else maker.chance.choice(FACTORS),
            assignments={"counts": tuple, "assigned": in_order, "nonsense": lambda: maker.some(assignment)}[
                how
            ](),
            configs=tuple(
                maker.make("CreatableTopicConfig", name=name, value=text) for name, text in settings
            ),
        )

    return {"topics": maker.some(topic), "timeout_ms": maker.timeout(), "validate_only": maker.flag()}


def _delete_topics(maker: _Maker) -> Fields:
    def state() -> Message:
        by_id = maker.flag()
        known = maker.subjects.topic_ids if maker.flag() else ()
        topic_id = maker.chance.choice(
            known or (None, uuid.UUID(int=maker.chance.getrandbits(128), version=4))
        )
        both = maker.chance.random() < 0.1
        return maker.make(
            "DeleteTopicState",
            name=None if by_id and not both else maker.topic(),
            topic_id=topic_id if by_id or both else None,
        )

    if maker.version < 6:
        return {"topic_names": maker.some(maker.topic), "timeout_ms": maker.timeout()}
    return {"topics": maker.some(state), "timeout_ms": maker.timeout()}


def _create_partitions(maker: _Maker) -> Fields:
    def assignment() -> Message:
        return maker.make("CreatePartitionsAssignment", broker_ids=maker.replicas())

    def topic() -> Message:
        return maker.make(
            "CreatePartitionsTopic",
            name=maker.topic(),
            count=maker.chance.choice((*COUNTS, 2, 3, 4, 5, 6)),
            assignments=maker.some(assignment) if maker.flag() else None,
        )

    return {"topics": maker.some(topic), "timeout_ms": maker.timeout(), "validate_only": maker.flag()}


def _alter_configs(maker: _Maker) -> Fields:
    def resource() -> Message:
        kind = maker.chance.choice(RESOURCE_TYPES)
        of_brokers = kind in (4, 8)
        draw = random_broker_settings if of_brokers else random_topic_settings
        brokers = ("", "", *(str(broker) for broker in maker.subjects.brokers), "99", "-1", "x", "1 ")
        return maker.make(
            "AlterConfigsResource",
            resource_type=kind,
            resource_name=maker.chance.choice(brokers) if of_brokers else maker.topic(),
            configs=tuple(
                maker.make(
                    "AlterableConfig",
                    name=name,
                    config_operation=maker.chance.choice(OPERATIONS),
                    value=text,
                )
                for name, text in draw(maker.chance)
            ),
        )

    resources = maker.some(resource)
    inherited = any(one.resource_type in (4, 8) for one in resources)
    return {
        "resources": resources,
        "validate_only": maker.flag() or (maker.subjects.only_own and inherited),
    }


def _reassign(maker: _Maker) -> Fields:
    def partition() -> Message:
        replicas = None if maker.flag() else maker.replicas()
        return maker.make("ReassignablePartition", partition_index=maker.partition(), replicas=replicas)

    def topic() -> Message:
        return maker.make("ReassignableTopic", name=maker.topic(), partitions=maker.some(partition))

    return {
        "topics": maker.some(topic),
        "timeout_ms": maker.timeout(),
        "allow_replication_factor_change": not maker.flag(),
    }


def _elect(maker: _Maker) -> Fields:
    def topic() -> Message:
        return maker.make("TopicPartitions", topic=maker.topic(), partitions=maker.partitions())

    election = maker.chance.choice((0, 0, 1, 2, -1, 127))
    named = maker.some(topic) if not maker.flag() else None
    spares = maker.subjects.only_own and election == 1
    return {
        "election_type": election,
        "topic_partitions": () if named is None and spares else named,
        "timeout_ms": maker.timeout(),
    }


def _delete_records(maker: _Maker) -> Fields:
    def partition() -> Message:
        return maker.make(
            "DeleteRecordsPartition", partition_index=maker.partition(), offset=maker.chance.choice(OFFSETS)
        )

    def topic() -> Message:
        return maker.make("DeleteRecordsTopic", name=maker.topic(), partitions=maker.some(partition))

    return {"topics": maker.some(topic), "timeout_ms": maker.timeout()}


def _delete_groups(maker: _Maker) -> Fields:
    return {"groups_names": maker.some(maker.group)}


def _offset_delete(maker: _Maker) -> Fields:
    def partition() -> Message:
        return maker.make("OffsetDeleteRequestPartition", partition_index=maker.partition())

    def topic() -> Message:
        return maker.make("OffsetDeleteRequestTopic", name=maker.topic(), partitions=maker.some(partition))

    return {"group_id": maker.group(), "topics": maker.some(topic)}


def _unregister(maker: _Maker) -> Fields:
    broker = maker.broker()
    if broker in maker.subjects.brokers and not maker.subjects.unregister:
        broker = maker.chance.choice(BAD_BROKERS)
    return {"broker_id": broker}


def _describe_configs(maker: _Maker) -> Fields:
    def resource() -> Message:
        kind = maker.chance.choice(RESOURCE_TYPES)
        name = str(maker.broker()) if kind in (4, 8) else maker.topic()
        keys = tuple(key for key, _ in random_topic_settings(maker.chance)) if maker.flag() else None
        return maker.make(
            "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys
        )

    return {
        "resources": maker.some(resource),
        "include_synonyms": maker.flag(),
        "include_documentation": maker.flag(),
    }


def _list_reassignments(maker: _Maker) -> Fields:
    def topic() -> Message:
        return maker.make(
            "ListPartitionReassignmentsTopics", name=maker.topic(), partition_indexes=maker.partitions()
        )

    return {"topics": None if maker.flag() else maker.some(topic), "timeout_ms": maker.timeout()}


_REQUESTS: Mapping[ApiKey, Callable[[_Maker], Fields]] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.ELECT_LEADERS: _elect,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.UNREGISTER_BROKER: _unregister,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _list_reassignments,
}
KINDS = (
    *_REQUESTS,
    ApiKey.CREATE_TOPICS,
    ApiKey.CREATE_TOPICS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
)
"""The APIs to choose from; those that change most are listed several times."""


GAP_S = (0.02, 1.0)
TIMEOUT_MS = 10_000
REQUESTS_OF_A_CONNECTION = 8
WRITE_SHARE = 0.1
"""How often it writes a few records instead, so that its topics have data."""
LARGE_ELEMENTS = 5_000
TOPICS = ("random-0", "random-1", "random-2")
VIOLATIONS_MAX = 10


class RandomAdministrator(Program):
    def __init__(self, host: Host, cluster: Cluster) -> None:
        super().__init__("random-admin", host)
        self.violations: list[str] = []
        self.answers: Counter[str] = Counter()
        """Number of responses by API and error code."""
        self._cluster = cluster

    async def _main(self, runtime: Runtime) -> None:
        chance = random.Random(runtime.entropy.bytes(16))
        while not self._stopping:
            await asyncio.sleep(chance.uniform(*GAP_S))
            try:
                if chance.random() < WRITE_SHARE:
                    await self._write(runtime, chance)
                else:
                    await self._ask_one_broker(runtime, chance)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
        for node in list(self._cluster.nodes.values()):  # brokers are added meanwhile
            if node.is_serving:
                await self._ask_much(runtime, node)

    async def _ask_much(self, runtime: Runtime, node: BrokerNode) -> None:
        """Describe thousands of groups, none of which exists."""
        request = api(ApiKey.DESCRIBE_GROUPS, 0).request(groups=tuple(f"g{n}" for n in range(LARGE_ELEMENTS)))
        try:
            connection = await Connection.open(
                runtime, node.host.name, node.port, client_id=self.name, request_timeout_ms=TIMEOUT_MS
            )
            try:
                described = await connection.send(request)
            finally:
                connection.close()
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return
        if len(described.groups) != LARGE_ELEMENTS:
            self.violations.append(f"administrator: {node.name} described {len(described.groups)} groups")

    async def _ask_one_broker(self, runtime: Runtime, chance: random.Random) -> None:
        node = chance.choice(list(self._cluster.nodes.values()))
        connection = await Connection.open(
            runtime, node.host.name, node.port, client_id=self.name, request_timeout_ms=TIMEOUT_MS
        )
        try:
            for _ in range(chance.randint(1, REQUESTS_OF_A_CONNECTION)):
                request = random_admin_request(chance, self._subjects(), connection.versions)
                self._note(request, node.name, await connection.send(request.message))
        finally:
            connection.close()

    def _subjects(self) -> Subjects:
        return Subjects(
            topics=TOPICS,
            brokers=sorted(self._cluster.open_to_replicas),
            new_topics=TOPICS,
            internal_topics=(),
            unregister=False,
            only_own=True,
        )

    def _note(self, request: AdminRequest, broker: str, answer: object) -> None:
        for code in error_codes(answer):
            self.answers[f"{request.key.name} {code}"] += 1
            if code == ErrorCode.unknown_server_error.name and len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(f"administrator: {broker} failed without a fault at {request.message}")

    async def _write(self, runtime: Runtime, chance: random.Random) -> None:
        settings = {
            "bootstrap.servers": self._cluster.bootstrap_servers,
            "client.id": self.name,
            "acks": "1",
            "enable.idempotence": False,
            "allow.auto.create.topics": False,
            "max.block.ms": 3_000,
            "request.timeout.ms": 3_000,
            "delivery.timeout.ms": 6_000,
        }
        topic = chance.choice(TOPICS)
        async with Producer(runtime, settings) as producer:
            for number in range(chance.randint(1, 5)):
                key, value = str(number).encode(), bytes(chance.randint(0, 500))
                await (await producer.send(topic, value, key=key))


def error_codes(message: object) -> Iterator[str]:
    """Yield the names of all error codes in a response, at any depth."""
    code = getattr(message, "error_code", None)
    if code is not None:
        yield ErrorCode(code).name
    for name in getattr(message, "__slots__", ()):
        value = getattr(message, name)
        for item in cast("tuple[object, ...]", value) if isinstance(value, tuple) else ():
            if hasattr(item, "__slots__"):
                yield from error_codes(item)
