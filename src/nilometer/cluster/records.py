"""The records of the metadata log: one struct per kind of change.

A record is a decision, never a request: folding it cannot fail for reasons of policy.
Records are written as JSON objects with their name in ``type`` and with fields at their default left
out, so that the log can be read with any text tool. The controller decides records
(:mod:`nilometer.cluster.controller`), the image applies them (:mod:`nilometer.cluster.image`), and
:mod:`nilometer.cluster.entries` packs them into entries.

Invariant: a field is never given a new meaning. A record or field that older brokers do not know comes
with a higher ``FORMAT_VERSION``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from nilometer.cluster.identifiers import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
)

FORMAT_VERSION = 2
"""The newest format this code writes, and the newest it can read."""
OLDEST_FORMAT_VERSION = 1
"""What is written wherever it suffices: brokers of older versions then go on while a cluster is upgraded."""

Replicas = tuple[BrokerId, ...]


class RecoveryState(enum.IntEnum):
    """LeaderRecoveryState: whether the in-sync replicas hold every acknowledged record.

    RECOVERING without a leader: no replica certainly has every acknowledged record, and only the last known
    leader may lead again. RECOVERING with a leader: it was elected without that certainty and has not
    confirmed its log yet.
    """

    RECOVERED = 0
    RECOVERING = 1


class Election(enum.Enum):
    """How the leader of a :class:`PartitionChanged` was found."""

    IN_SYNC = "in-sync"
    ELIGIBLE = "eligible-leader-replica"
    LAST_KNOWN = "last-known-leader"
    UNCLEAN = "unclean"


class ConfigResourceType(enum.Enum):
    TOPIC = "topic"
    BROKER = "broker"
    """A broker id as name, or the empty name for all brokers."""
    CLUSTER = "cluster"
    """The controller's own values of settings that must be equal on all brokers; the name is empty."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One listener of a broker as clients reach it."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class SupportedFeature(msgspec.Struct, frozen=True, gc=False):
    """The lowest and highest level of a feature that a broker supports."""

    name: str
    low: int
    high: int


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag=True):
    pass


class ClusterCreated(_Record, frozen=True):
    cluster_id: str
    format_version: int = 1


class ControllerElected(_Record, frozen=True, tag="TakeOffice"):  # codespell:ignore
    """The first record of the entry that begins a controller's term."""

    controller_id: BrokerId
    incarnation: Incarnation
    controller_epoch: ControllerEpoch


class BrokerRegistered(_Record, frozen=True):
    """A broker registers. Its broker epoch is the number of the entry that holds this record."""

    broker_id: BrokerId
    incarnation: Incarnation
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    log_dirs: tuple[str, ...] = ()
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """From the marker of a clean shutdown; -1 where there was none."""
    features: tuple[SupportedFeature, ...] = ()
    """What the broker supports, by name; empty: a version from before features were kept.
    Older brokers leave it out, which makes an update of features wait for another registration: so it needs
    no higher format version."""


class BrokerFenced(_Record, frozen=True):
    """The broker's session ended: it may neither lead nor be in sync until it registers again."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class BrokerInControlledShutdown(_Record, frozen=True):
    """The broker is in controlled shutdown: it may not become leader or join an ISR."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class BrokerUnregistered(_Record, frozen=True):
    """The broker is removed from the cluster for good."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class TopicCreated(_Record, frozen=True):
    name: str
    topic_id: TopicId


class PartitionCreated(_Record, frozen=True):
    """A partition is created. ``isr`` and ``leader`` default to all replicas and the first in sync."""

    topic_id: TopicId
    partition: int
    replicas: Replicas
    isr: Replicas | None = None
    leader: BrokerId | None = None
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    partition_epoch: PartitionEpoch = PartitionEpoch(0)
    elr: Replicas = ()
    last_known_leader: BrokerId = NO_LEADER
    adding: Replicas = ()
    removing: Replicas = ()
    recovery_state: RecoveryState = RecoveryState.RECOVERED


class PartitionChanged(_Record, frozen=True):
    """What changes in a partition; a field that is None stays as it is.

    Invariant: ``partition_epoch`` is one more than the partition's; ``leader_epoch``, where given, likewise.
    """

    topic_id: TopicId
    partition: int
    partition_epoch: PartitionEpoch
    leader: BrokerId | None = None
    leader_epoch: LeaderEpoch | None = None
    isr: Replicas | None = None
    elr: Replicas | None = None
    last_known_leader: BrokerId | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    recovery_state: RecoveryState | None = None
    election: Election | None = None
    offline: Replicas | None = None


class TopicDeleted(_Record, frozen=True):
    topic_id: TopicId


class ConfigChanged(_Record, frozen=True):
    """One key of one resource; a value of None removes the key."""

    resource_type: ConfigResourceType
    resource_name: str
    key: str
    value: str | None = None


class ProducerIdsAllocated(_Record, frozen=True):
    """Producer ids below ``next_producer_id`` are allocated, the last block of them to this broker."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: int


class FeatureLevelChanged(_Record, frozen=True):
    """A level is finalized for a feature (since format version 2)."""

    name: str
    level: int


def format_version_of(records: Iterable[Record]) -> int:
    """The lowest format version that has all of ``records``."""
    return 2 if any(isinstance(record, FeatureLevelChanged) for record in records) else OLDEST_FORMAT_VERSION


Record = (
    ClusterCreated
    | ControllerElected
    | BrokerRegistered
    | BrokerFenced
    | BrokerInControlledShutdown
    | BrokerUnregistered
    | TopicCreated
    | PartitionCreated
    | PartitionChanged
    | TopicDeleted
    | ConfigChanged
    | ProducerIdsAllocated
    | FeatureLevelChanged
)
