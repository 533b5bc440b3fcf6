"""The records of the metadata log: one struct per type of change.

A record is a decision, not a request: the controller has checked it, and applying it checks no policy.
Records are written as JSON objects with their type in ``type`` and without fields that have their default, so
that the log can be read with any text tool. The controller decides records
(:mod:`nilometer.cluster.controller`), the image applies them (:mod:`nilometer.cluster.image`), and
:mod:`nilometer.cluster.entries` packs them into entries.

Invariant: the meaning of a field never changes. A record or field that older brokers do not know needs a
higher ``FORMAT_VERSION``, which :func:`format_version_of` returns for it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

from nilometer.identifiers import (
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
from nilometer.quotas import QuotaEntity
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.scram import ScramCredential, ScramMechanism

FORMAT_VERSION = 8
"""The newest format this code writes, and the newest it can read."""
OLDEST_FORMAT_VERSION = 1
"""The format that is written if the records need no newer one, so that older brokers keep working while a
cluster is upgraded. An older broker stops at a newer format, so the finalized level of a feature limits what
is written (:func:`nilometer.cluster.features.newest_format`)."""

FEATURES_FORMAT_VERSION = 2
"""The first format with levels of features."""
GROUP_CONFIGS_FORMAT_VERSION = 3
"""The first format with settings of groups."""
ACLS_FORMAT_VERSION = 4
"""The first format with ACLs."""
SCRAM_FORMAT_VERSION = 5
"""The first format with SCRAM credentials of users."""
QUOTAS_FORMAT_VERSION = 6
"""The first format with quotas of clients."""
TOKENS_FORMAT_VERSION = 7
"""The first format with delegation tokens."""
TIERED_TOPICS_FORMAT_VERSION = 8
"""The first format with tiered topics: an earlier broker would take the records that are only in remote
storage for deleted."""

REMOTE_STORAGE_ENABLE = "remote.storage.enable"

Replicas = tuple[BrokerId, ...]


class RecoveryState(enum.IntEnum):
    """Kafka's LeaderRecoveryState: whether the in-sync replicas certainly have every acknowledged record.

    RECOVERING without a leader: no replica certainly has every acknowledged record, and only the last known
    leader may lead again. RECOVERING with a leader: it was elected although that was not certain, and has not
    confirmed its log yet.
    """

    RECOVERED = 0
    RECOVERING = 1


class Election(enum.Enum):
    """The rule by which the leader of a :class:`PartitionChanged` was elected."""

    IN_SYNC = "in-sync"
    ELIGIBLE = "eligible-leader-replica"
    LAST_KNOWN = "last-known-leader"
    UNCLEAN = "unclean"


class ConfigResourceType(enum.Enum):
    TOPIC = "topic"
    BROKER = "broker"
    """The resource's name is a broker id, or empty for all brokers."""
    CLUSTER = "cluster"
    """The controller's own values of settings that must be equal on all brokers; the name is empty."""
    GROUP = "group"
    """The resource's name is a group id (since `GROUP_CONFIGS_FORMAT_VERSION`)."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """The address at which clients reach one listener of a broker."""

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
    """The first record of the entry that starts a controller's term."""

    controller_id: BrokerId
    incarnation: Incarnation
    controller_epoch: ControllerEpoch


class BrokerRegistered(_Record, frozen=True):
    """A broker registers. Its broker epoch is the number of the entry with this record."""

    broker_id: BrokerId
    incarnation: Incarnation
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    log_dirs: tuple[str, ...] = ()
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """The broker epoch in the marker of a clean shutdown; -1 if there was none."""
    features: tuple[SupportedFeature, ...] = ()
    """The features that the broker supports, by name; empty: a version that did not register features.
    An older controller drops this field, and a feature update must then wait until the broker registers
    again; so the field needs no higher format version."""


class BrokerFenced(_Record, frozen=True):
    """The broker's session ended: it may neither lead nor be in an ISR until it registers again."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class BrokerInControlledShutdown(_Record, frozen=True):
    """The broker is in controlled shutdown: it may not become leader or join an ISR."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class BrokerUnregistered(_Record, frozen=True):
    """The broker is removed from the cluster permanently."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class TopicCreated(_Record, frozen=True):
    name: str
    topic_id: TopicId


class PartitionCreated(_Record, frozen=True):
    """A partition is created. ``isr`` defaults to all replicas, ``leader`` to the first ISR member."""

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
    """A partition changes; a field that is None does not change.

    Invariant: ``partition_epoch`` is one more than the partition's; so is ``leader_epoch`` if given.
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
    """A setting changes: one key of one resource. A value of None removes the key."""

    resource_type: ConfigResourceType
    resource_name: str
    key: str
    value: str | None = None


class ProducerIdsAllocated(_Record, frozen=True):
    """A block of producer ids, the last one below ``next_producer_id``, is allocated to this broker."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: int


class FeatureLevelChanged(_Record, frozen=True):
    """A feature's finalized level changes (since `FEATURES_FORMAT_VERSION`)."""

    name: str
    level: int


class AclCreated(_Record, frozen=True):
    """An ACL exists from now on (since `ACLS_FORMAT_VERSION`). Its types and operation have Kafka's names:
    ``TOPIC``, ``LITERAL``, ``READ``, ``ALLOW``."""

    id: str
    """A UUID, in Kafka's text form."""
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class AclDeleted(_Record, frozen=True):
    """The ACL with this id no longer exists (since `ACLS_FORMAT_VERSION`)."""

    id: str


class ScramCredentialChanged(_Record, frozen=True):
    """A user's credential is set; None removes it (since `SCRAM_FORMAT_VERSION`)."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None = None


class ClientQuotaChanged(_Record, frozen=True):
    """A quota of an entity is set; None removes it (since `QUOTAS_FORMAT_VERSION`)."""

    entity: QuotaEntity
    key: str
    value: float | None = None


class DelegationTokenChanged(_Record, frozen=True):
    """A token is issued, or expires at another time; None removes it (since `TOKENS_FORMAT_VERSION`)."""

    id: str
    token: DelegationToken | None = None


def format_version_of(records: Collection[Record]) -> int:
    """Return the lowest format version that has all of ``records``."""
    kinds = set(map(type, records))  # thousands of records are of few kinds
    formats = {_FORMATS.get(kind, OLDEST_FORMAT_VERSION) for kind in kinds}
    if ConfigChanged in kinds:
        formats.update(
            format_version_of_config(record.resource_type, record.key, record.value)
            for record in records
            if isinstance(record, ConfigChanged)
        )
    return max(formats, default=OLDEST_FORMAT_VERSION)


def format_version_of_config(resource_type: ConfigResourceType, key: str, value: str | None) -> int:
    """Return the lowest format version that has this setting of such a resource."""
    if resource_type is ConfigResourceType.GROUP:
        return GROUP_CONFIGS_FORMAT_VERSION
    if resource_type is ConfigResourceType.TOPIC and key == REMOTE_STORAGE_ENABLE and is_true(value):
        return TIERED_TOPICS_FORMAT_VERSION
    return OLDEST_FORMAT_VERSION


def is_true(value: str | None) -> bool:
    """Whether this text of a setting is that of a boolean which is true. None is not."""
    return value is not None and value.strip().lower() == "true"


_FORMATS: dict[type, int] = {
    AclCreated: ACLS_FORMAT_VERSION,
    AclDeleted: ACLS_FORMAT_VERSION,
    ScramCredentialChanged: SCRAM_FORMAT_VERSION,
    ClientQuotaChanged: QUOTAS_FORMAT_VERSION,
    DelegationTokenChanged: TOKENS_FORMAT_VERSION,
    FeatureLevelChanged: FEATURES_FORMAT_VERSION,
}


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
    | AclCreated
    | AclDeleted
    | ScramCredentialChanged
    | ClientQuotaChanged
    | DelegationTokenChanged
)
