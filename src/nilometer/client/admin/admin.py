"""The admin client for topics, configurations and the cluster; `nilometer topic` uses it.

Each method sends its requests to the right broker (the controller, the broker concerned, or any broker) and
retries retriable errors until ``default.api.timeout.ms``. An operation on many topics returns one outcome
per topic: None, or the topic's KafkaError. An error of one topic does not stop the others.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nilometer.client.admin.requests import raise_error
from nilometer.client.network.client import Client, controller_knows, no_such_topic
from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    TopicMetadata,
    TopicPartition,
    metadata_request,
    read_metadata,
)
from nilometer.client.offset_queries import READ_UNCOMMITTED, ListedOffset, list_offsets
from nilometer.client.settings import API_TIMEOUT, COMMON_KEYS, ClientSettings, GivenConfig
from nilometer.config import ConfigDefinition, ConfigKey
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from nilometer.cluster.acl import Operation


# DeleteRecords: deletes the records of partitions below an offset (KIP-107).

HIGH_WATERMARK = -1
"""As an offset: delete all records that are committed."""

Deletions = dict[TopicPartition, int | KafkaError]
"""The log start offset after the deletion, or the partition's error."""


async def delete_records(client: Client, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> Deletions:
    """Delete the records of each partition below its offset; return the outcome per partition.

    Retriable errors (a leader that has moved) are retried until ``timeout_ms``. Raises KafkaError if no
    broker responds.
    """
    outcomes: Deletions = {}
    client.watch_topics(sorted({partition.topic for partition in offsets}))
    await client.refresh()

    async def attempt() -> Deletions:
        left = [one for one in sorted(offsets) if not _is_final(outcomes.get(one))]
        by_leader: dict[int, list[TopicPartition]] = {}
        for one in left:
            leader = client.metadata.leader(one)
            if leader is None:
                code = client.topic_errors.get(one.topic, ErrorCode.unknown_topic_or_partition)
                outcomes[one] = KafkaError(code, f"no leader of {one} is known")
            else:
                by_leader.setdefault(leader.node_id, []).append(one)
        requests = (
            _ask(client, leader, offsets, several, timeout_ms) for leader, several in by_leader.items()
        )
        for found in await asyncio.gather(*requests):
            outcomes.update(found)
        retriable = [error for one in left if not _is_final(error := outcomes[one])]
        if retriable and isinstance(retriable[0], KafkaError):
            raise retriable[0]
        return outcomes

    try:
        return await client.retry(attempt, timeout_ms)
    except KafkaError:
        if len(outcomes) < len(offsets):
            raise
        return outcomes


def _is_final(outcome: int | KafkaError | None) -> bool:
    return isinstance(outcome, int) or (isinstance(outcome, KafkaError) and not outcome.retriable)


async def _ask(
    client: Client,
    leader_id: int,
    offsets: Mapping[TopicPartition, int],
    partitions: list[TopicPartition],
    timeout_ms: int,
) -> Deletions:
    def make(api: Api) -> Message:
        by_topic: dict[str, list[TopicPartition]] = {}
        for one in partitions:
            by_topic.setdefault(one.topic, []).append(one)
        topics = tuple(
            api.make_request(
                "DeleteRecordsTopic",
                name=topic,
                partitions=tuple(
                    api.make_request(
                        "DeleteRecordsPartition", partition_index=one.partition, offset=offsets[one]
                    )
                    for one in several
                ),
            )
            for topic, several in by_topic.items()
        )
        return api.request(timeout_ms=timeout_ms, topics=topics)

    try:
        response = await client.send_to(leader_id, ApiKey.DELETE_RECORDS, make)
    except KafkaError as error:
        return dict.fromkeys(partitions, error)
    return {
        TopicPartition(topic.name, part.partition_index): part.low_watermark
        if part.error_code == ErrorCode.none
        else KafkaError(part.error_code, _place(topic.name, part.partition_index))
        for topic in response.topics
        for part in topic.partitions
    }


def _place(topic: str, partition: int) -> str:
    return str(TopicPartition(topic, partition))


# The configuration keys of an admin client; any other key is rejected.

ADMIN_KEYS: tuple[ConfigKey, ...] = (*COMMON_KEYS, API_TIMEOUT)

ADMIN_CONFIG_DEFINITION = ConfigDefinition.of("admin", ADMIN_KEYS)


# Values that the admin client takes and returns: new topics, configurations, brokers, log directories.

BROKER_DEFAULT = -1
"""As a number of partitions or a replication factor: use the broker's configured default."""


class ResourceType(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """The source of an effective configuration value, numbered as in DescribeConfigs."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class AlterOperation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    assignments: Mapping[int, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    """Partition index to broker ids; if given, ``partitions`` and ``replication_factor`` are ignored."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    value: str | None
    operation: AlterOperation = AlterOperation.SET


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that a key has from one source; the first of several is in effect."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()
    """By falling precedence; empty unless they were requested."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerNode, ...]


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    broker_id: int
    path: str
    error: ErrorCode
    replicas: tuple[ReplicaSize, ...]
    total_bytes: int
    usable_bytes: int


Outcomes = dict[str, KafkaError | None]


class Admin:
    """Use as ``async with Admin(runtime, {"bootstrap.servers": …}) as admin``."""

    def __init__(self, runtime: Runtime, config: GivenConfig) -> None:
        settings = ClientSettings(ADMIN_CONFIG_DEFINITION, config)
        self.client = Client(runtime, settings)
        self.timeout_ms = settings.integer("default.api.timeout.ms")

    async def __aenter__(self) -> Admin:
        await self.client.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    # --- topics

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> Outcomes:
        def make(api: Api, names: Sequence[str]) -> Message:
            wanted = [topic for topic in topics if topic.name in names]
            return api.request(
                topics=tuple(_creatable(api, topic) for topic in wanted),
                timeout_ms=self.timeout_ms,
                validate_only=validate_only,
            )

        names = [topic.name for topic in topics]
        return await self._change(ApiKey.CREATE_TOPICS, names, make, lambda response: response.topics)

    async def create_topic(self, topic: NewTopic) -> None:
        """Create one topic. Raises KafkaError when it cannot be created."""
        _raise_first(await self.create_topics([topic]))

    async def ensure_topic(self, topic: NewTopic) -> None:
        """Create one topic, unless it is there. Raises KafkaError.

        A request that is sent again may find the topic that its first attempt has created.
        """
        try:
            await self.create_topic(topic)
        except KafkaError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise

    async def delete_topics(self, names: Sequence[str]) -> Outcomes:
        def make(api: Api, left: Sequence[str]) -> Message:
            states: tuple[Message, ...] = ()
            if api.version >= 6:
                states = tuple(
                    api.make_request("DeleteTopicState", name=name, topic_id=None) for name in left
                )
            return api.request(topic_names=tuple(left), topics=states, timeout_ms=self.timeout_ms)

        return await self._change(ApiKey.DELETE_TOPICS, names, make, lambda response: response.responses)

    async def create_partitions(
        self, counts: Mapping[str, int], assignments: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> Outcomes:
        """Raise the partition count of each topic to ``counts[topic]``; return the outcome per topic.

        ``assignments`` gives, per topic, the replicas of each new partition; without it the controller
        chooses them.
        """
        given = assignments or {}

        def make(api: Api, left: Sequence[str]) -> Message:
            return api.request(
                topics=tuple(
                    api.make_request(
                        "CreatePartitionsTopic",
                        name=name,
                        count=counts[name],
                        assignments=_new_assignments(api, given.get(name)),
                    )
                    for name in left
                ),
                timeout_ms=self.timeout_ms,
                validate_only=False,
            )

        return await self._change(
            ApiKey.CREATE_PARTITIONS, list(counts), make, lambda response: response.results
        )

    async def list_topics(self) -> dict[str, TopicMetadata]:
        """Return the metadata of all topics by name, sorted by name. Raises KafkaError."""
        answer = read_metadata(await self._any(ApiKey.METADATA, lambda api: metadata_request(api, None)))
        return dict(sorted(answer.metadata.topics.items()))

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicMetadata | KafkaError]:
        """Return, by topic name, the topic's metadata or the KafkaError that the broker returned for it."""
        response = await self._any(ApiKey.METADATA, lambda api: metadata_request(api, names))
        answer = read_metadata(response)
        found: dict[str, TopicMetadata | KafkaError] = {}
        for name in names:
            topic = answer.metadata.topics.get(name)
            code = answer.errors.get(name, ErrorCode.unknown_topic_or_partition)
            if topic is not None:
                found[name] = topic
            elif code == ErrorCode.unknown_topic_or_partition:
                found[name] = no_such_topic(name)
            else:
                found[name] = KafkaError(code, f"topic {name}")
        return found

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """Return, per partition, the first offset whose record's timestamp is at or after ``timestamps[…]``.

        Timestamps are in milliseconds, or one of the constants of ``offset_queries``. Raises KafkaError.
        """
        return await list_offsets(self.client, timestamps, isolation_level, self.timeout_ms)

    # --- cluster and configuration

    async def describe_cluster(self) -> ClusterDescription:
        async def ask() -> ClusterDescription:
            response = await self.client.send_to_any(
                ApiKey.DESCRIBE_CLUSTER, lambda api: api.request(endpoint_type=1)
            )
            raise_error(response.error_code, response.error_message)
            nodes = [BrokerNode(node.broker_id, node.host, node.port, node.rack) for node in response.brokers]
            return ClusterDescription(
                response.cluster_id,
                response.controller_id,
                tuple(sorted(nodes, key=lambda node: node.node_id)),
            )

        return await self.client.retry(ask, self.timeout_ms)

    async def may(self, operation: Operation) -> bool:
        """Return whether ACLs allow this user an operation on the cluster. Raises KafkaError."""

        async def ask() -> bool:
            response = await self.client.send_to_any(
                ApiKey.DESCRIBE_CLUSTER,
                lambda api: api.request(endpoint_type=1, include_cluster_authorized_operations=True),
            )
            raise_error(response.error_code, response.error_message)
            return bool(response.cluster_authorized_operations >> operation & 1)

        return await self.client.retry(ask, self.timeout_ms)

    async def describe_configs(
        self, resource_type: ResourceType, name: str, *, in_full: bool = False
    ) -> dict[str, ConfigEntry]:
        """Return a topic's or a broker's configuration by key; a broker's ``name`` is its id, or empty
        for the settings that all brokers share.

        ``in_full`` adds the documentation and the synonyms of each key. Raises KafkaError: at once for a
        topic that the controller does not know.
        """

        def make(api: Api) -> Message:
            resource = api.make_request(
                "DescribeConfigsResource",
                resource_type=resource_type,
                resource_name=name,
                configuration_keys=None,
            )
            return api.request(resources=(resource,), include_synonyms=in_full, include_documentation=in_full)

        async def ask() -> dict[str, ConfigEntry] | None:
            if resource_type is ResourceType.BROKER and name:
                response = await self.client.send_to(int(name), ApiKey.DESCRIBE_CONFIGS, make)
            else:
                response = await self.client.send_to_any(ApiKey.DESCRIBE_CONFIGS, make)
            (result,) = response.results
            if result.error_code == ErrorCode.unknown_topic_or_partition and not await controller_knows(
                self.client, name, self.timeout_ms
            ):
                return None
            raise_error(result.error_code, result.error_message)
            return {entry.name: _config_entry(entry) for entry in result.configs}

        found = await self.client.retry(ask, self.timeout_ms)
        if found is None:
            raise no_such_topic(name)
        return found

    async def describe_topic_configs(
        self, topics: Sequence[str], keys: Sequence[str]
    ) -> dict[str, dict[str, ConfigEntry]]:
        """Return these keys of the configurations of topics, without the topics that the broker does not
        describe to this user. Raises KafkaError."""

        def make(api: Api) -> Message:
            resources = (
                api.make_request(
                    "DescribeConfigsResource",
                    resource_type=ResourceType.TOPIC,
                    resource_name=topic,
                    configuration_keys=tuple(keys),
                )
                for topic in topics
            )
            return api.request(
                resources=tuple(resources), include_synonyms=False, include_documentation=False
            )

        response = await self._any(ApiKey.DESCRIBE_CONFIGS, make)
        return {
            result.resource_name: {entry.name: _config_entry(entry) for entry in result.configs}
            for result in response.results
            if result.error_code == ErrorCode.none
        }

    async def incremental_alter_configs(
        self, resource_type: ResourceType, name: str, changes: Sequence[ConfigChange]
    ) -> None:
        """Apply ``changes`` to the configuration of one resource; keys not named keep their values.

        Raises KafkaError; then none of the changes is applied. An unknown topic is not tried again: the
        controller itself does not know it.
        """

        def make(api: Api) -> Message:
            configs = tuple(
                api.make_request(
                    "AlterableConfig", name=change.name, config_operation=change.operation, value=change.value
                )
                for change in changes
            )
            resource = api.make_request(
                "AlterConfigsResource", resource_type=resource_type, resource_name=name, configs=configs
            )
            return api.request(resources=(resource,), validate_only=False)

        async def ask() -> bool:
            if resource_type is ResourceType.BROKER and name:
                response = await self.client.send_to(int(name), ApiKey.INCREMENTAL_ALTER_CONFIGS, make)
            else:
                response = await self.client.send_to_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, make)
            (result,) = response.responses
            if result.error_code == ErrorCode.unknown_topic_or_partition:
                return False
            raise_error(result.error_code, result.error_message)
            return True

        if not await self.client.retry(ask, self.timeout_ms):
            raise no_such_topic(name)

    async def describe_log_dirs(self, broker_ids: Sequence[int] | None = None) -> list[LogDirDescription]:
        """Return the log directories of brokers (default: all) with the sizes of their replicas.

        Raises KafkaError.
        """

        async def ask(broker_id: int) -> list[LogDirDescription]:
            response = await self.client.send_to(
                broker_id, ApiKey.DESCRIBE_LOG_DIRS, lambda api: api.request(topics=None)
            )
            raise_error(getattr(response, "error_code", ErrorCode.none), None)
            return [_log_dir(broker_id, result) for result in response.results]

        async def ask_all() -> list[LogDirDescription]:
            wanted = sorted(self.client.metadata.brokers) if broker_ids is None else broker_ids
            found = await asyncio.gather(*(ask(broker_id) for broker_id in wanted))
            return [one for several in found for one in several]

        return await self.client.retry(ask_all, self.timeout_ms)

    async def alter_replica_log_dirs(
        self, broker_id: int, paths: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Move replicas of one broker to other log directories of it (KIP-113); return the outcome of each.

        ``describe_log_dirs`` shows the progress. If the broker has no replica of a partition yet, it will
        create the replica in that directory, and the outcome is REPLICA_NOT_AVAILABLE. Raises KafkaError.
        """

        def request(api: Api) -> Message:
            by_path: dict[str, dict[str, list[int]]] = {}
            for key, path in paths.items():
                by_path.setdefault(path, {}).setdefault(key.topic, []).append(key.partition)
            return api.request(
                dirs=tuple(
                    api.make_request(
                        "AlterReplicaLogDir",
                        path=path,
                        topics=tuple(
                            api.make_request(
                                "AlterReplicaLogDirTopic", name=name, partitions=tuple(partitions)
                            )
                            for name, partitions in topics.items()
                        ),
                    )
                    for path, topics in by_path.items()
                )
            )

        response = await self.client.retry(
            lambda: self.client.send_to(broker_id, ApiKey.ALTER_REPLICA_LOG_DIRS, request), self.timeout_ms
        )
        return {
            TopicPartition(topic.topic_name, part.partition_index): _error(
                part.error_code, None, f"{topic.topic_name}-{part.partition_index}"
            )
            for topic in response.results
            for part in topic.partitions
        }

    # --- helpers

    async def _any(self, api_key: int, make: Callable[[Api], Message]) -> Message:
        return await self.client.retry(lambda: self.client.send_to_any(api_key, make), self.timeout_ms)

    async def _change(
        self,
        api_key: int,
        names: Sequence[str],
        make: Callable[[Api, Sequence[str]], Message],
        results: Callable[[Message], Sequence[Any]],
    ) -> Outcomes:
        """Send the request of ``make(api, names)`` to the controller; return the outcome per topic.

        ``results`` reads the results per topic from a response. Topics that fail with NOT_CONTROLLER are
        requested again until the timeout.
        """
        outcomes: Outcomes = {}

        async def ask() -> Outcomes:
            left = [name for name in names if name not in outcomes]
            response = await self.client.send_to_controller(api_key, lambda api: make(api, left))
            passing: KafkaError | None = None
            for result in results(response):
                error = _error(result.error_code, getattr(result, "error_message", None), result.name)
                if error is not None and error.code == ErrorCode.not_controller:
                    passing = error
                else:
                    outcomes[result.name] = error
            if passing is not None:
                raise passing
            return outcomes

        return await self.client.retry(ask, self.timeout_ms) if names else outcomes


def _creatable(api: Api, topic: NewTopic) -> Message:
    return api.make_request(
        "CreatableTopic",
        name=topic.name,
        num_partitions=topic.partitions if not topic.assignments else BROKER_DEFAULT,
        replication_factor=topic.replication_factor if not topic.assignments else BROKER_DEFAULT,
        assignments=tuple(
            api.make_request("CreatableReplicaAssignment", partition_index=index, broker_ids=tuple(brokers))
            for index, brokers in sorted(topic.assignments.items())
        ),
        configs=tuple(
            api.make_request("CreatableTopicConfig", name=name, value=value)
            for name, value in sorted(topic.configs.items())
        ),
    )


def _new_assignments(api: Api, replicas: Sequence[Sequence[int]] | None) -> tuple[Message, ...] | None:
    if replicas is None:
        return None
    return tuple(api.make_request("CreatePartitionsAssignment", broker_ids=tuple(each)) for each in replicas)


def _config_entry(entry: Message) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=ConfigSource(max(getattr(entry, "config_source", 0), 0)),
        read_only=entry.read_only,
        sensitive=entry.is_sensitive,
        documentation=getattr(entry, "documentation", None),
        synonyms=tuple(
            ConfigSynonym(one.name, one.value, ConfigSource(max(one.source, 0)))
            for one in getattr(entry, "synonyms", None) or ()
        ),
    )


def _log_dir(broker_id: int, result: Message) -> LogDirDescription:
    return LogDirDescription(
        broker_id=broker_id,
        path=result.log_dir,
        error=result.error_code,
        replicas=tuple(
            ReplicaSize(
                TopicPartition(topic.name, part.partition_index),
                part.partition_size,
                part.offset_lag,
                part.is_future_key,
            )
            for topic in result.topics
            for part in topic.partitions
        ),
        total_bytes=getattr(result, "total_bytes", -1),
        usable_bytes=getattr(result, "usable_bytes", -1),
    )


def _error(code: ErrorCode, message: str | None, subject: str) -> KafkaError | None:
    return None if code == ErrorCode.none else KafkaError(code, message or subject)


def _raise_first(outcomes: Outcomes) -> None:
    for error in outcomes.values():
        if error is not None:
            raise error
