"""The image: the cluster's metadata after applying the entries of the metadata log.

Every broker, also the controller, has one :class:`ClusterImage` and *folds* (applies) the same entries in the
same order, so all images with the same entry number are equal. Entries are applied with ``apply_entry``;
``_apply`` is the only function that changes the state, at run time and after a restart.

Invariants:
- *one term at a time*: an entry is accepted only if it is of the current controller's term, or starts the
  next term; every other entry is ignored by every broker;
- *number*: the number of the last applied entry only increases, by one;
- lookups return no copies, and frequent ones are indexed: the cost of a change does not depend on the number
  of partitions;
- *all or nothing*: if a record cannot be applied (InvariantBroken), the image is unchanged. Then log and code
  contradict each other, on every broker with this code, and the broker must stop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import assert_never
from uuid import UUID

from nilometer.cluster.acl_table import AclTable
from nilometer.cluster.client_quotas import ClientQuotas
from nilometer.cluster.delta import ConfigResource, ImageDelta
from nilometer.cluster.entries import (
    NO_CONTROLLERSHIP,
    Controllership,
    Entry,
    ImageSnapshot,
    TopicSnapshot,
    in_lowest_format,
)
from nilometer.cluster.features import LEVELS_BEFORE
from nilometer.cluster.prepared_entry import PartitionRun, PreparedEntry, prepare
from nilometer.cluster.records import (
    REMOTE_STORAGE_ENABLE,
    AclCreated,
    AclDeleted,
    BrokerFenced,
    BrokerInControlledShutdown,
    BrokerRegistered,
    BrokerUnregistered,
    ClientQuotaChanged,
    ClusterCreated,
    ConfigChanged,
    ConfigResourceType,
    ControllerElected,
    DelegationTokenChanged,
    FeatureLevelChanged,
    PartitionChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    Record,
    ScramCredentialChanged,
    TopicCreated,
    TopicDeleted,
    is_true,
)
from nilometer.cluster.states import (
    Broker,
    BrokerRecord,
    IndexChange,
    PartitionState,
    ReplicaIndex,
    Topic,
    TopicTable,
    broker_after,
)
from nilometer.cluster.tables import ConfigTable, DelegationTokens, ScramUsers
from nilometer.identifiers import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EntryNumber,
    TopicId,
    TopicIdPartition,
)
from nilometer.invariants import InvariantBroken
from nilometer.steps import at_once

_SINGLE_VALUES = (
    "controllership",
    "cluster_id",
    "next_producer_id",
    "unclean_elections",
    "last_known_elections",
    "_features",
)
"""The attributes of an image that records replace."""


class ClusterImage:
    """The metadata; changed only by ``apply_entry``. One per process, used on its event loop only."""

    def __init__(self) -> None:
        self.number = EntryNumber(-1)
        """The number of the last applied entry; -1 before the first."""
        self.cluster_id: str | None = None
        self.controllership = NO_CONTROLLERSHIP
        """The controller's term."""
        self.next_producer_id = 0
        self.unclean_elections = 0
        """Number of unclean leader elections since the cluster was created."""
        self.last_known_elections = 0
        """Number of elections of the last known leader since the cluster was created."""
        self._features: Mapping[str, int] | None = None
        """Finalized levels by feature, never changed in place; None until the first level is finalized."""
        self._brokers: dict[BrokerId, Broker] = {}
        self._topics = TopicTable()
        self._configs = ConfigTable()
        self.acls = AclTable()
        self.scram_users = ScramUsers()
        self.client_quotas = ClientQuotas()
        self.tokens = DelegationTokens()
        self._index = ReplicaIndex()
        self._undo: list[Callable[[], object]] = []
        """The functions that undo the entry being applied; the last one is to be called first."""

    # -- lookups ---------------------------------------------------------------------------------------

    @property
    def controller_id(self) -> BrokerId:
        """The controller's broker id; -1 before the first controller."""
        return self.controllership.controller_id

    @property
    def controller_epoch(self) -> ControllerEpoch:
        return self.controllership.controller_epoch

    @property
    def finalized_features(self) -> Mapping[str, int]:
        """The finalized levels by feature."""
        return LEVELS_BEFORE if self._features is None else self._features

    def feature_level(self, name: str) -> int:
        """Return the finalized level of a feature; 0 if there is none."""
        return self.finalized_features.get(name, 0)

    def broker(self, broker_id: BrokerId) -> Broker | None:
        return self._brokers.get(broker_id)

    def brokers(self) -> list[Broker]:
        """Return all registered brokers, by id."""
        return [self._brokers[broker_id] for broker_id in sorted(self._brokers)]

    def live_brokers(self) -> list[Broker]:
        """Return the brokers that are not fenced, by id: those that clients may connect to."""
        return [broker for broker in self.brokers() if not broker.fenced]

    def is_active(self, broker_id: BrokerId) -> bool:
        """Return whether the broker's replicas may lead and be in an ISR."""
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.is_active

    def broker_epoch(self, broker_id: BrokerId) -> BrokerEpoch | None:
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.epoch

    def topic(self, name: str) -> Topic | None:
        return self._topics.by_name.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self._topics.by_id.get(topic_id)

    def topic_by_uuid(self, value: UUID) -> Topic | None:
        return self._topics.by_uuid.get(value)

    def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return self._topics.in_order()

    def colliding_topic(self, name: str) -> str | None:
        """Return the existing topic with which a topic of this name would share metrics, or None."""
        return self._topics.colliding(name)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        found = self._topics.by_name.get(topic)
        return None if found is None else found.partition(partition)

    def partition_by_id(self, topic_id: TopicId, partition: int) -> PartitionState | None:
        found = self._topics.by_id.get(topic_id)
        return None if found is None else found.partition(partition)

    def partitions(self) -> Iterator[tuple[TopicIdPartition, PartitionState]]:
        """Yield all partitions, by topic name and number."""
        for topic in self.topics():
            for index, state in enumerate(topic.partitions):
                yield TopicIdPartition(topic.id, index), state

    def partitions_on(self, broker_id: BrokerId) -> list[tuple[TopicIdPartition, PartitionState]]:
        """Return the partitions with a replica on the broker, by topic name and number."""
        return self._in_order(self._index.hosted_by(broker_id))

    def leaderless_partitions(self) -> list[tuple[TopicIdPartition, PartitionState]]:
        return self._in_order(self._index.leaderless())

    def reassigning_partitions(self) -> list[tuple[TopicIdPartition, PartitionState]]:
        return self._in_order(self._index.reassigning())

    @property
    def partitions_count(self) -> int:
        return self._index.partitions_count

    @property
    def leaderless_count(self) -> int:
        return self._index.leaderless_count

    @property
    def topics_count(self) -> int:
        return len(self._topics.by_name)

    def config(self, resource_type: ConfigResourceType, name: str) -> Mapping[str, str]:
        """Return the settings of the resource itself, without inherited ones."""
        return self._configs.of(ConfigResource(resource_type, name))

    def config_resources(self) -> list[ConfigResource]:
        return self._configs.resources()

    def topic_setting(self, topic: str, key: str) -> str | None:
        """Return a topic's effective value: its own, else the one for all brokers, else the controller's."""
        return self._configs.topic_setting(topic, key)

    def min_insync_replicas(self, topic: str) -> int:
        """Return a topic's effective min.insync.replicas, which may be above its number of replicas."""
        return self._configs.min_insync_replicas(topic)

    def unclean_leader_election_enabled(self, topic: str) -> bool:
        return is_true(self.topic_setting(topic, "unclean.leader.election.enable"))

    def is_tiered(self, topic: str) -> bool:
        """Whether the topic's records are copied to remote storage, or were."""
        return is_true(self.config(ConfigResourceType.TOPIC, topic).get(REMOTE_STORAGE_ENABLE))

    def tiered_since(self, topic_id: TopicId) -> int:
        """Return :attr:`Topic.tiered_since`; -1 also if there is no such topic."""
        found = self._topics.by_id.get(topic_id)
        return -1 if found is None else found.tiered_since

    # -- the fold --------------------------------------------------------------------------------------

    def apply_entry(
        self, number: EntryNumber, entry: Entry, prepared: PreparedEntry | None = None
    ) -> ImageDelta:
        """Apply the next entry; return its changes. Raises InvariantBroken with the image unchanged.

        ``prepared``: what :meth:`prepare` returned for this entry and this image. It must not be used again.
        """
        delta = self._try(number, entry, prepared)
        self._undo.clear()
        self.number = number
        return delta

    def check_entry(self, number: EntryNumber, entry: Entry, prepared: PreparedEntry | None = None) -> None:
        """Raise InvariantBroken if :meth:`apply_entry` would; the image is unchanged in any case."""
        self._try(number, entry, prepared)
        self._roll_back()

    def prepare(self, entry: Entry) -> Generator[int, None, PreparedEntry]:
        """Compute in steps what takes long of an entry with many partitions; yields the records of each step.

        Valid until the image changes. Raises InvariantBroken if the entry cannot be applied next.
        """
        if not self.counts(entry):
            return PreparedEntry()
        number = self.number + 1
        try:
            return (yield from prepare(self, entry))
        except InvariantBroken:
            raise
        except Exception as error:
            raise InvariantBroken(f"entry {number} cannot be folded: {error!r}") from error

    def _try(self, number: EntryNumber, entry: Entry, prepared: PreparedEntry | None) -> ImageDelta:
        """Apply ``entry`` so that it can be rolled back. Raises InvariantBroken, with nothing applied."""
        if number != self.number + 1:
            raise InvariantBroken(f"entry {number} cannot follow entry {self.number}")
        delta = ImageDelta(number)
        if not self.counts(entry):
            delta.accepted = False
            return delta
        changes = at_once(self.prepare(entry)) if prepared is None else prepared
        values = {name: getattr(self, name) for name in _SINGLE_VALUES}
        self._undo.append(lambda: vars(self).update(values))
        delta.partitions = changes.partitions
        try:
            for step in changes.steps:
                self._apply(step, delta)
        except Exception as error:
            self._roll_back()
            if isinstance(error, InvariantBroken):
                raise
            raise InvariantBroken(f"entry {number} cannot be folded: {error!r}") from error
        self._index.apply(changes.index)
        self._undo.append(lambda: self._index.apply(changes.index.undone()))
        return delta

    def _roll_back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def counts(self, entry: Entry) -> bool:
        """Return whether ``entry`` is accepted as the next one: of the current term, or starting the next."""
        first = entry.records[0] if entry.records else None
        if isinstance(first, ControllerElected):
            return (
                first.controller_epoch == self.controllership.controller_epoch + 1
                and entry.controllership == Controllership.begun_by(first)
            )
        return entry.controllership == self.controllership

    def _apply(self, record: Record | PartitionRun, delta: ImageDelta) -> None:
        match record:
            case PartitionRun():
                self._apply_run(record)
            case BrokerRegistered() | BrokerFenced() | BrokerInControlledShutdown() | BrokerUnregistered():
                self._change_broker(record, delta)
            case TopicCreated():
                self._create_topic(record, delta)
            case TopicDeleted():
                self._delete_topic(record, delta)
            case ConfigChanged():
                self._change_config(record, delta)
            case ProducerIdsAllocated():
                self.next_producer_id = record.next_producer_id
                delta.producer_ids.append(record)
            case FeatureLevelChanged():
                self._features = {**self.finalized_features, record.name: record.level}
                delta.features[record.name] = record.level
            case AclCreated() | AclDeleted():
                self._undo.append(self.acls.apply(record))
                delta.acls += 1
            case ScramCredentialChanged():
                self._undo.append(self.scram_users.apply(record))
                delta.scram += 1
            case ClientQuotaChanged():
                self._undo.append(self.client_quotas.apply(record))
                delta.quotas += 1
            case DelegationTokenChanged():
                self._undo.append(self.tokens.apply(record))
                delta.tokens.append(record.id)
            case ControllerElected():
                self.controllership = Controllership.begun_by(record)
                delta.controller_changed = True
            case ClusterCreated():
                self.cluster_id = record.cluster_id
            case PartitionCreated() | PartitionChanged():
                raise InvariantBroken(f"{record} outside of a run")
            case _:
                assert_never(record)

    def _change_broker(self, record: BrokerRecord, delta: ImageDelta) -> None:
        before = self._brokers.get(record.broker_id)
        after = broker_after(before, record, delta.number)
        self._undo.append(lambda: self._put_broker(record.broker_id, before))
        self._put_broker(record.broker_id, after)
        delta.note_broker(record.broker_id, before, after)

    def _put_broker(self, broker_id: BrokerId, broker: Broker | None) -> None:
        if broker is None:
            self._brokers.pop(broker_id, None)
        else:
            self._brokers[broker_id] = broker

    def _create_topic(self, record: TopicCreated, delta: ImageDelta) -> None:
        if record.name in self._topics.by_name or record.topic_id in self._topics.by_id:
            raise InvariantBroken(f"{record} although the name or the id is taken")
        topic = Topic(record.name, record.topic_id)
        self._topics.add(topic)
        self._undo.append(lambda: self._topics.remove(topic))
        delta.topics_created[topic.id] = topic

    def _delete_topic(self, record: TopicDeleted, delta: ImageDelta) -> None:
        topic = self._topic_of(record.topic_id, record)
        self._topics.remove(topic)
        self._undo.append(lambda: self._topics.add(topic))
        settings = self._configs.forget_topic(topic.name)
        self._undo.append(lambda: self._configs.restore_topic(topic.name, settings))
        delta.topics_deleted[topic.id] = topic

    def _apply_run(self, run: PartitionRun) -> None:
        partitions = self._topics.by_id[run.topic_id].partitions
        count = len(partitions)
        partitions.extend(run.created)
        for index, _, after in run.changed:
            partitions[index] = after

        def undo() -> None:
            del partitions[count:]
            for index, before, _ in reversed(run.changed):
                partitions[index] = before

        self._undo.append(undo)
        self.unclean_elections += run.unclean_elections
        self.last_known_elections += run.last_known_elections

    def _change_config(self, record: ConfigChanged, delta: ImageDelta) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        before = self._configs.of(resource).get(record.key)
        self._undo.append(lambda: self._configs.put(resource, record.key, before))
        self._configs.put(resource, record.key, record.value)
        topic = self.topic(resource.name) if resource.type is ConfigResourceType.TOPIC else None
        is_enabling = record.key == REMOTE_STORAGE_ENABLE and is_true(record.value) and not is_true(before)
        if topic is not None and is_enabling:
            since = topic.tiered_since
            self._undo.append(lambda: setattr(topic, "tiered_since", since))
            topic.tiered_since = delta.number
        delta.configs.setdefault(resource, {})[record.key] = record.value

    def _topic_of(self, topic_id: TopicId, record: Record) -> Topic:
        try:
            return self._topics.by_id[topic_id]
        except KeyError:
            raise InvariantBroken(f"{record} although there is no such topic") from None

    def _in_order(self, keys: list[TopicIdPartition]) -> list[tuple[TopicIdPartition, PartitionState]]:
        topics = self._topics.by_id
        keys.sort(key=lambda key: (topics[key.topic_id].name, key.partition))
        return [(key, topics[key.topic_id].partitions[key.partition]) for key in keys]

    # -- snapshots -------------------------------------------------------------------------------------

    def snapshot(self) -> ImageSnapshot:
        """Return the whole image as a value, equal on all brokers that applied the same entries."""
        snapshot = ImageSnapshot(
            number=self.number,
            cluster_id=self.cluster_id,
            controller_id=self.controllership.controller_id,
            controller_incarnation=self.controllership.incarnation,
            controller_epoch=self.controllership.controller_epoch,
            next_producer_id=self.next_producer_id,
            unclean_elections=self.unclean_elections,
            last_known_elections=self.last_known_elections,
            brokers=tuple(self.brokers()),
            topics=tuple(
                TopicSnapshot(topic.name, topic.id, tuple(topic.partitions), topic.tiered_since)
                for topic in self.topics()
            ),
            configs=self._configs.snapshot(),
            features=None if self._features is None else dict(self._features),
            acls=self.acls.snapshot(),
            scram=self.scram_users.snapshot(),
            quotas=self.client_quotas.snapshot(),
            tokens=self.tokens.snapshot(),
        )
        return in_lowest_format(snapshot)

    @classmethod
    def from_snapshot(cls, snapshot: ImageSnapshot) -> ClusterImage:
        image = cls()
        image.number = snapshot.number
        image.cluster_id = snapshot.cluster_id
        image.controllership = snapshot.controllership
        image.next_producer_id = snapshot.next_producer_id
        image.unclean_elections = snapshot.unclean_elections
        image.last_known_elections = snapshot.last_known_elections
        image._brokers = {broker.id: broker for broker in snapshot.brokers}
        change = IndexChange()
        for found in snapshot.topics:
            topic = Topic(found.name, found.id, list(found.partitions), found.tiered_since)
            image._topics.add(topic)
            for index, state in enumerate(topic.partitions):
                state.check()
                change.note(TopicIdPartition(topic.id, index), None, state)
        image._index.apply(change)
        image._configs.restore(snapshot.configs)
        image._features = snapshot.features
        image.acls.restore(snapshot.acls)
        image.scram_users.restore(snapshot.scram)
        image.client_quotas.restore(snapshot.quotas)
        image.tokens.restore(snapshot.tokens)
        return image

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterImage) and self.snapshot() == other.snapshot()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return (
            f"ClusterImage(number={self.number}, controller={self.controller_id}, "
            f"brokers={len(self._brokers)}, topics={len(self._topics.by_name)})"
        )
