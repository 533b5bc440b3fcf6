"""Values that the admin client takes and returns: new topics, configurations, brokers, log directories."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nilometer.client.network.cluster_metadata import BrokerNode, TopicPartition
from nilometer.wire.errors import ErrorCode

BROKER_DEFAULT = -1
"""As a number of partitions or a replication factor: use the broker's configured default."""


class ResourceType(enum.IntEnum):
    TOPIC = 2
    BROKER = 4


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
