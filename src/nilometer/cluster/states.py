"""The state of each broker, partition and topic in the metadata, and the indexes of partitions."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field

import msgspec

from nilometer.cluster.records import (
    BrokerFenced,
    BrokerInControlledShutdown,
    BrokerRegistered,
    BrokerUnregistered,
    Endpoint,
    PartitionChanged,
    PartitionCreated,
    RecoveryState,
    Replicas,
    SupportedFeature,
)
from nilometer.identifiers import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    EntryNumber,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
    uuid_from_text,
)
from nilometer.invariants import InvariantBroken

# The state of a registered broker in the metadata.

BrokerRecord = BrokerRegistered | BrokerFenced | BrokerInControlledShutdown | BrokerUnregistered


class Broker(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One registered broker. It stays registered when its session ends (*fenced*): it may return."""

    id: BrokerId
    incarnation: Incarnation
    epoch: BrokerEpoch
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    log_dirs: tuple[str, ...] = ()
    fenced: bool = False
    in_controlled_shutdown: bool = False
    features: tuple[SupportedFeature, ...] = ()
    """The features that the broker supports, by name; empty: a version that did not register features."""

    @property
    def is_active(self) -> bool:
        """Whether its replicas may lead and be in an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((point for point in self.endpoints if point.listener == listener), None)


def broker_after(before: Broker | None, record: BrokerRecord, number: EntryNumber) -> Broker | None:
    """Return the broker's state after ``record``, of entry ``number``; None if it is unregistered.

    Raises InvariantBroken if the record does not fit the state ``before``.
    """
    if isinstance(record, BrokerRegistered):
        return Broker(
            id=record.broker_id,
            incarnation=record.incarnation,
            epoch=BrokerEpoch(number),
            endpoints=record.endpoints,
            rack=record.rack,
            log_dirs=record.log_dirs,
            features=record.features,
        )
    if before is None or before.epoch != record.broker_epoch:
        raise InvariantBroken(f"{record} does not fit {before}")
    match record:
        case BrokerFenced():
            return msgspec.structs.replace(before, fenced=True)
        case BrokerInControlledShutdown():
            return msgspec.structs.replace(before, in_controlled_shutdown=True)
        case BrokerUnregistered():
            return None


# The state of one partition in the metadata.
#
# Invariants (checked whenever a state is created):
# - *leader in ISR*; a partition without a leader keeps one of its last in-sync members;
# - *ISR never empty, within the assignment*; eligible leader replicas are assigned, too, and not in the ISR;
# - *offline replicas within the assignment*, and none of them leads;
# - both epochs only increase, and the leader epoch with every change of leader.


class PartitionState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    replicas: Replicas
    """The assigned replicas (AR) in order of preference, including those being added or removed."""
    isr: Replicas
    leader: BrokerId
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    partition_epoch: PartitionEpoch = PartitionEpoch(0)
    elr: Replicas = ()
    """Eligible leader replicas (KIP-966): not in the ISR, but certainly with every acknowledged record."""
    last_known_leader: BrokerId = NO_LEADER
    """The last leader, while the partition has none; else -1."""
    adding: Replicas = ()
    removing: Replicas = ()
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    offline: Replicas = ()
    """Replicas that cannot be used although their brokers are up: the log directory failed (KIP-858), or the
    broker fenced the replica. They may not lead or be in the ISR until the broker registers again."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def has_preferred_leader(self) -> bool:
        return self.leader == self.replicas[0]

    @property
    def target_replicas(self) -> Replicas:
        """The assignment after the ongoing reassignment."""
        return tuple(r for r in self.replicas if r not in self.removing)

    @property
    def original_replicas(self) -> Replicas:
        """The assignment before the ongoing reassignment."""
        return tuple(r for r in self.replicas if r not in self.adding)

    @property
    def is_suspect(self) -> bool:
        """Whether there is no leader and no replica that certainly has every acknowledged record; see
        :class:`RecoveryState`."""
        return self.leader == NO_LEADER and self.recovery_state is RecoveryState.RECOVERING

    def after(self, change: PartitionChanged) -> PartitionState:
        """Return the state after ``change``. Raises InvariantBroken."""
        state = PartitionState(
            self.replicas if change.replicas is None else change.replicas,
            self.isr if change.isr is None else change.isr,
            self.leader if change.leader is None else change.leader,
            self.leader_epoch if change.leader_epoch is None else change.leader_epoch,
            change.partition_epoch,
            self.elr if change.elr is None else change.elr,
            self.last_known_leader if change.last_known_leader is None else change.last_known_leader,
            self.adding if change.adding is None else change.adding,
            self.removing if change.removing is None else change.removing,
            self.recovery_state if change.recovery_state is None else change.recovery_state,
            self.offline if change.offline is None else change.offline,
        )
        state.check()
        if change.replicas is not None and len(set(state.replicas)) != len(state.replicas):
            raise InvariantBroken(f"a broker is assigned twice: {change}")
        if change.partition_epoch != self.partition_epoch + 1:
            raise InvariantBroken(f"partition epoch {self.partition_epoch} must increase by one: {change}")
        if state.leader_epoch not in (self.leader_epoch, self.leader_epoch + 1):
            raise InvariantBroken(f"leader epoch {self.leader_epoch} may stay or increase by one: {change}")
        if state.leader != self.leader and state.leader_epoch == self.leader_epoch:
            raise InvariantBroken(
                f"the leader changes from {self.leader} to {state.leader} within leader epoch "
                f"{self.leader_epoch}: {change}"
            )
        return state

    def check(self) -> None:
        """Raise InvariantBroken if the state is invalid."""
        if not self.isr:
            raise InvariantBroken(f"the ISR is empty: {self}")
        if self.leader != NO_LEADER and self.leader not in self.isr:
            raise InvariantBroken(f"the leader is not in the ISR: {self}")
        for member in self.isr:
            if member not in self.replicas:
                raise InvariantBroken(f"the ISR is not within the assignment: {self}")
        for member in self.elr:
            if member in self.isr or member not in self.replicas:
                raise InvariantBroken(f"eligible leader replicas inside the ISR or unassigned: {self}")
        for member in self.offline:
            if member == self.leader or member not in self.replicas:
                raise InvariantBroken(f"an offline replica leads or is unassigned: {self}")


def partition_of(record: PartitionCreated) -> PartitionState:
    """Return the first state of a new partition. Raises InvariantBroken."""
    isr = record.replicas if record.isr is None else record.isr
    state = PartitionState(
        record.replicas,
        isr,
        isr[0]
        if record.leader is None and isr
        else record.leader
        if record.leader is not None
        else NO_LEADER,
        record.leader_epoch,
        record.partition_epoch,
        record.elr,
        record.last_known_leader,
        record.adding,
        record.removing,
        record.recovery_state,
    )
    state.check()
    if len(set(state.replicas)) != len(state.replicas):
        raise InvariantBroken(f"a broker is assigned twice: {state}")
    return state


# A topic: its name, its id, its partitions; and the rules for names.
#
# Names are used in folder names (``<topic>-<partition>``) and in metric names, in which ``.`` and ``_`` are
# the same character: a topic whose name differs from another's only there would share its metrics, and is
# rejected.

NAME_LENGTH_MAX = 249
"""Characters."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)


@dataclass(slots=True)
class Topic:
    """A topic's current state. Only the image changes it; other code must not."""

    name: str
    id: TopicId
    partitions: list[PartitionState] = field(default_factory=list[PartitionState])
    """The state of each partition; the index is the partition number."""
    tiered_since: int = -1
    """The metadata entry with which it was last tiered: what its tier had before may have been given up
    meanwhile, or is about to be. -1 if it never was, or an earlier version wrote the snapshot."""
    uuid: uuid.UUID = field(init=False)

    def __post_init__(self) -> None:
        self.uuid = uuid_from_text(self.id)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def partition(self, index: int) -> PartitionState | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


def quoted(name: str) -> str:
    """Return a topic's name for a message, cut where no topic can have it: a client may send one name with
    thousands of partitions, each of which gets a message."""
    return name if len(name) <= NAME_LENGTH_MAX else f"{name[:NAME_LENGTH_MAX]}…"


def why_invalid_name(name: str) -> str | None:
    """Return why a topic name is invalid; None if it is valid."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL_NAME.match(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Return a key that is equal for names that collide."""
    return name.replace(".", "_")


class TopicTable:
    """All topics, indexed by name, by id (text and UUID) and by collision key."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[TopicId, Topic] = {}
        self.by_uuid: dict[uuid.UUID, Topic] = {}
        self._names_by_collision_key: dict[str, str] = {}

    def add(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.id] = topic
        self.by_uuid[topic.uuid] = topic
        self._names_by_collision_key[collision_key(topic.name)] = topic.name

    def remove(self, topic: Topic) -> None:
        del self.by_name[topic.name]
        del self.by_id[topic.id]
        del self.by_uuid[topic.uuid]
        self._names_by_collision_key.pop(collision_key(topic.name), None)

    def in_order(self) -> list[Topic]:
        return [self.by_name[name] for name in sorted(self.by_name)]

    def colliding(self, name: str) -> str | None:
        return self._names_by_collision_key.get(collision_key(name))


# Indexes of the image: the partitions with a replica on a broker, without a leader, or being reassigned.
#
# Derived from the partitions' states; dictionaries are used as ordered sets. A change of ISR or leader, by
# far the most frequent change, updates at most one key.

_Keys = dict[TopicIdPartition, None]


class ReplicaIndex:
    def __init__(self) -> None:
        self.partitions_count = 0
        self._hosted: dict[BrokerId, _Keys] = {}
        self._leaderless: _Keys = {}
        self._reassigning: _Keys = {}

    def hosted_by(self, broker: BrokerId) -> list[TopicIdPartition]:
        return list(self._hosted.get(broker, ()))

    def leaderless(self) -> list[TopicIdPartition]:
        return list(self._leaderless)

    @property
    def leaderless_count(self) -> int:
        return len(self._leaderless)

    def reassigning(self) -> list[TopicIdPartition]:
        return list(self._reassigning)

    def apply(self, change: IndexChange) -> None:
        self.partitions_count += change.count
        for broker, keys in change.left.items():
            hosted = self._hosted[broker]
            for key in keys:
                del hosted[key]
        for broker, keys in change.hosted.items():
            self._hosted.setdefault(broker, {}).update(keys)
        _replace(self._leaderless, change.led, change.leaderless)
        _replace(self._reassigning, change.at_rest, change.reassigning)


def _replace(keys: _Keys, removed: _Keys, added: _Keys) -> None:
    for key in removed:
        del keys[key]
    keys.update(added)


class IndexChange:
    """How an index changes: what :class:`ReplicaIndex` gets, and what it loses, each key once."""

    __slots__ = ("at_rest", "count", "hosted", "leaderless", "led", "left", "reassigning")

    def __init__(self) -> None:
        self.count = 0
        self.hosted: dict[BrokerId, _Keys] = {}
        self.left: dict[BrokerId, _Keys] = {}
        self.leaderless: _Keys = {}
        self.led: _Keys = {}
        self.reassigning: _Keys = {}
        self.at_rest: _Keys = {}

    def note(
        self, key: TopicIdPartition, before: PartitionState | None, after: PartitionState | None
    ) -> None:
        """Note the change of a partition, which must not have been noted before."""
        self.count += (after is not None) - (before is not None)
        old = () if before is None else before.replicas
        new = () if after is None else after.replicas
        if old != new:
            for broker in old:
                if broker not in new:
                    self.left.setdefault(broker, {})[key] = None
            for broker in new:
                if broker not in old:
                    self.hosted.setdefault(broker, {})[key] = None
        _mark(
            key,
            before is not None and not before.has_leader,
            after is not None and not after.has_leader,
            self.led,
            self.leaderless,
        )
        _mark(
            key,
            before is not None and before.is_reassigning,
            after is not None and after.is_reassigning,
            self.at_rest,
            self.reassigning,
        )

    def undone(self) -> IndexChange:
        """Return the change that takes this one back."""
        change = IndexChange()
        change.count = -self.count
        change.hosted, change.left = self.left, self.hosted
        change.leaderless, change.led = self.led, self.leaderless
        change.reassigning, change.at_rest = self.at_rest, self.reassigning
        return change


def _mark(key: TopicIdPartition, was: bool, is_now: bool, removed: _Keys, added: _Keys) -> None:
    if was and not is_now:
        removed[key] = None
    elif is_now and not was:
        added[key] = None
