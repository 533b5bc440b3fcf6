"""All partitions that this broker hosts, kept in line with the metadata log."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from nilometer.broker.control.membership import OwnSession
from nilometer.broker.decision_lines import PartitionDecision, log_partition_decisions
from nilometer.broker.replicas.file_work import LogDisposal
from nilometer.broker.replicas.hosted_logs import (
    HostedLogs,
    RequiredLog,
    required_log,
    required_logs_by,
    required_logs_on,
)
from nilometer.broker.replicas.hosted_partition import Partition, PartitionHost
from nilometer.broker.replicas.partition_table import DamagedReplicas, PartitionTable
from nilometer.broker.replicas.remote_reading import RemoteReads
from nilometer.broker.replicas.replica_failures import OfflineReplicas, ReplicaFailures, ReplicaFenced
from nilometer.broker.replicas.replica_fetchers import ReplicaFetchers
from nilometer.broker.replicas.traffic import BrokerTraffic
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.config_keys import RACK_AWARE_SELECTOR
from nilometer.broker.tasks import describe
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.delta import ConfigResource, ImageDelta
from nilometer.cluster.entries import Entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import BrokerRegistered, ConfigResourceType, Record
from nilometer.cluster.states import PartitionState, Topic
from nilometer.identifiers import BrokerEpoch, BrokerId, TopicIdPartition, topic_id_of
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import Replica
from nilometer.replication.shell_interface import EligibleBrokers
from nilometer.runtime import Runtime
from nilometer.storage.directories.log_manager import LogManager, NoLogDirectory
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LONG_MAX
from nilometer.wire.body_reader import uuid_of
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.primitives import NULL_UUID


def preferred_read_replica(
    leader: LeaderRole, client_rack: str, fetch_offset: int, racks: Mapping[int, str | None]
) -> int | None:
    """Return the in-sync replica in ``client_rack`` that has ``fetch_offset`` and the highest log end offset.

    None: the consumer should stay with the leader. ``racks``: the racks of live brokers, by broker id.
    """
    if not client_rack or racks.get(leader.broker_id) == client_rack:
        return None
    candidates = [
        (remote.log_end_offset, -remote.broker_id)
        for remote in leader.remote_replicas
        if remote.broker_id in leader.isr
        and racks.get(remote.broker_id) == client_rack
        and remote.log_start_offset <= fetch_offset <= remote.log_end_offset
    ]
    return -max(candidates)[1] if candidates else None


logger = logging.getLogger("nilometer.broker.replicas")


APPLIED_AT_ONCE = 16
"""So many changes of partitions are applied before other clients are served."""

_OF_ALL_TOPICS = (ConfigResourceType.BROKER, ConfigResourceType.CLUSTER)


class ReplicaManager:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        turns: Turns,
        logs: LogManager,
        session: OwnSession,
        partitions: PartitionTable,
        host: PartitionHost,
        disposal: LogDisposal,
        fetchers: ReplicaFetchers,
        failures: ReplicaFailures,
        offline: OfflineReplicas,
        remote: RemoteReads,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._turns = turns
        self.logs = logs
        self._session = session
        self._partitions = partitions
        self._host = host
        self._disposal = disposal
        self._hosted = HostedLogs(
            config, runtime, logs, disposal, lambda name: (name.topic, name.partition) in partitions.by_name
        )
        self._fetchers = fetchers
        self.failures = failures
        self.offline = offline
        self.remote = remote
        """What partitions have in remote storage."""
        self._removals: list[PartitionDecision] = []
        self._fenced: dict[TopicIdPartition, TopicPartition] = {}
        """The replicas that are offline because an invariant was broken: their logs are still open."""
        self._broker_id = BrokerId(config.node_id)
        self.serves_from_followers = config.optional_string("replica.selector.class") == RACK_AWARE_SELECTOR
        """Whether consumers are directed to followers, and may read from them (KIP-392)."""
        self._by_name, self._by_raw_id = partitions.by_name, partitions.by_raw_id
        self.with_flush_ms: dict[Partition, None] = {}
        """The partitions whose topic sets ``flush.ms``; usually none."""
        self.damaged = DamagedReplicas(partitions)
        self.traffic = BrokerTraffic()
        self._hosting_listeners: list[Callable[[Partition], None]] = []
        self._image = ClusterImage()
        self._is_registered = False
        """Whether this incarnation of the broker is registered: only then do partitions have roles."""
        self._eligible: EligibleBrokers = {}
        self._broker_epoch = BrokerEpoch(-1)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions)

    def __contains__(self, partition: Partition) -> bool:
        """Whether the partition is hosted, and has not been replaced by another of its name."""
        return self._by_name.get((partition.topic, partition.key.partition)) is partition

    def add_hosting_listener(self, listener: Callable[[Partition], None]) -> None:
        """Call ``listener`` with each partition before it gets its first role on this broker."""
        self._hosting_listeners.append(listener)

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def partition(self, topic: str, index: int) -> Partition:
        """Return the hosted partition.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
        """
        found = self._by_name.get((topic, index))
        if found is None:
            raise self._not_here(self._image.topic(topic), index, ErrorCode.unknown_topic_or_partition)
        return found

    def partition_by_id(self, topic_id: UUID | None, index: int) -> Partition:
        return self.partition_by_raw_id(NULL_UUID if topic_id is None else topic_id.bytes, index)

    def partition_by_raw_id(self, topic_id: bytes, index: int) -> Partition:
        """Return the hosted partition. Raises KafkaError: UNKNOWN_TOPIC_ID, else as :meth:`partition`."""
        found = self._by_raw_id.get((topic_id, index))
        if found is None:
            topic = self._image.topic_by_uuid(uuid_of(topic_id))
            raise self._not_here(topic, index, ErrorCode.unknown_topic_id)
        return found

    def _not_here(self, topic: Topic | None, index: int, unknown: ErrorCode) -> KafkaError:
        state = topic.partition(index) if topic is not None else None
        if topic is None:
            return KafkaError(unknown, "This server does not host this topic.")
        if state is None:
            return KafkaError(
                ErrorCode.unknown_topic_or_partition, f"{topic.name} has {len(topic.partitions)} partitions."
            )
        if self._broker_id in state.replicas:
            if TopicIdPartition(topic.id, index) not in self.offline:
                return KafkaError(
                    ErrorCode.not_leader_or_follower, f"This broker does not lead {topic.name}-{index} yet."
                )
            return KafkaError(
                ErrorCode.kafka_storage_error, f"The log of {topic.name}-{index} is offline on this broker."
            )
        return KafkaError(
            ErrorCode.not_leader_or_follower, f"This broker has no replica of {topic.name}-{index}."
        )

    def preferred_read_replica(self, leader: LeaderRole, client_rack: str, fetch_offset: int) -> int | None:
        """Return the broker id of the replica from which a consumer in ``client_rack`` should read (KIP-392);
        None: from this broker."""
        racks: dict[int, str | None] = {broker.id: broker.rack for broker in self._image.live_brokers()}
        return preferred_read_replica(leader, client_rack, fetch_offset, racks)

    def hosts(self, partition: Partition) -> bool:
        return partition in self._partitions

    def end_repair(self, partition: Partition) -> None:
        """End the repair: the partition may follow again, and damage found from now on is reported again."""
        self.damaged.end_repair(partition)
        state = self._image.partition_by_id(*partition.key)
        if self._is_registered and state is not None and self.hosts(partition):
            self._follow_state(partition.key, state)

    def offset_lag(self, name: TopicPartition) -> int:
        """Return how many offsets a log's end is below the high watermark that this replica knows; 0 if the
        replica is not hosted."""
        partition = self._by_name.get((name.topic, name.partition))
        if partition is None:
            return 0
        return max(0, partition.replica.high_watermark - partition.log.log_end_offset)

    # ── the metadata log ────────────────────────────────────────────────────────────────────────
    async def before_entry(self, entry: Entry, image: ClusterImage) -> None:
        """Create the logs that ``entry`` requires, before it is applied to ``image``."""
        if self._is_registered:
            await self._hosted.create_ahead(
                image, self._usable(required_logs_by(entry, image, self._broker_id))
            )
        elif any(self._registers_this_incarnation(record) for record in entry.records):
            await self._hosted.create_ahead(image, self._usable(required_logs_on(image, self._broker_id)))

    def _usable(self, wanted: Iterable[RequiredLog]) -> Iterator[RequiredLog]:
        if not self.offline:
            yield from wanted
            return
        for one in wanted:
            if TopicIdPartition(topic_id_of(one.topic_id), one.name.partition) not in self.offline:
                yield one

    async def before_reload(self, image: ClusterImage) -> None:
        own = image.broker(self._broker_id)
        if self._is_registered or (own is not None and own.incarnation == self._session.incarnation):
            await self._hosted.create_ahead(image, self._usable(required_logs_on(image, self._broker_id)))

    def _registers_this_incarnation(self, record: Record) -> bool:
        return (
            isinstance(record, BrokerRegistered)
            and record.broker_id == self._broker_id
            and record.incarnation == self._session.incarnation
        )

    def on_delta(self, delta: ImageDelta, image: ClusterImage) -> Awaitable[None] | None:
        """Apply the changes of one entry of the metadata log; ``image`` is the image after it.

        If there are many, the rest is applied by awaiting the result, slice by slice: clients are served, and
        the image is ahead of the partitions. If the session expires then, or this broker is registered again,
        all of the image is applied later, or has been.
        """
        steps = self._apply(delta, image)
        for _ in itertools.islice(steps, APPLIED_AT_ONCE):
            pass
        for _ in steps:
            return self._apply_rest(steps)
        return None

    async def _apply_rest(self, steps: Iterator[None]) -> None:
        work = LongWork(self._turns)
        await self._turns.wait_next()
        for _ in steps:
            await work.step(1)

    def _apply(self, delta: ImageDelta, image: ClusterImage) -> Iterator[None]:
        """Apply the changes; yields after each partition."""
        self._image = image
        if delta.configs:
            self._hosted.configs.on_settings_changed()
        if not self._is_registered:
            return
        for topic in delta.topics_deleted.values():
            for index in range(len(topic.partitions)):
                self._stop_hosting(TopicIdPartition(topic.id, index), "its topic was deleted")
                yield
            self._hosted.configs.forget_topic(topic.uuid)
        if delta.topics_deleted:
            self._forget_traffic_of_deleted_topics()
        if delta.brokers:
            self._update_eligible(image)
        yield from self._reconfigure(image, delta.configs)
        for key, transition in delta.partitions_on(self._broker_id):
            if transition.after is not None and self._is_registered:
                self._follow_state(key, transition.after)
                yield
        if delta.brokers:
            yield from self._notify_eligible_brokers()
        self._log_removals()

    def on_reload(self, image: ClusterImage) -> None:
        """Apply all differences to ``image``, which has replaced the previous image."""
        self._image = image
        self._hosted.configs.on_settings_changed()
        if not self._is_registered:
            return
        self._update_eligible(image)
        assigned = dict(image.partitions_on(self._broker_id))
        for key in [key for key in (*self._partitions.by_key, *self._fenced) if key not in assigned]:
            self._stop_hosting(key, "it is no longer assigned to this broker")
        self.offline.on_image(image)
        for _ in self._reconfigure(image, [ConfigResource(ConfigResourceType.CLUSTER, "")]):
            pass
        for key, state in assigned.items():
            self._follow_state(key, state)
        for _ in self._notify_eligible_brokers():
            pass
        self._log_removals()
        self._forget_traffic_of_deleted_topics()

    def _forget_traffic_of_deleted_topics(self) -> None:
        self.traffic.keep_topics(lambda name: self._image.topic(name) is not None)

    def rename_strays(self) -> None:
        """Take the logs that are not assigned to this broker out of use; keep those that ever had records.

        The metadata do not tell whether such a log's topic was deleted while this broker was down, or never
        existed in this cluster. Kafka keeps them, too. Call it only once the image is up to date.
        """
        assigned = {wanted.name for wanted in required_logs_on(self._image, self._broker_id)}
        assigned.update(self._hosted.ahead)  # a log created ahead, not hosted yet, is no stray either
        for name in [name for name in self.logs.logs if name not in assigned]:
            if self.logs.logs[name].log_end_offset:
                self._disposal.make_stray(name, "is not assigned to this broker by the metadata")
            else:
                self._delete(name)  # left by a creation that was interrupted

    @property
    def stray_folders(self) -> tuple[str, ...]:
        """The folders of logs that are used no more, and are kept until an operator deletes them."""
        return tuple(
            folder
            for directory in self.logs.directories
            if directory.failure is None
            for folder in directory.stray_folders
        )

    async def forget_deleted_strays(self) -> None:
        """Forget the stray folders that an operator has deleted; of a directory that fails, none."""
        disk = self._runtime.disk
        for directory in self.logs.directories:
            folders = tuple(directory.stray_folders) if directory.failure is None else ()
            if not folders:
                continue
            try:
                is_there = await disk.offload(lambda folders=folders: [disk.exists(one) for one in folders])
            except OSError as error:  # who uses a log of the directory takes it offline
                logger.info("The stray folders of %s are not looked at: %s", directory.path, error)
            else:
                still = zip(folders, is_there, strict=True)
                directory.forget_strays([folder for folder, is_kept in still if not is_kept])

    def on_directory_failed(self, path: str, error: Exception, names: Sequence[TopicPartition]) -> None:
        """Take the replicas ``names``, whose log directory failed, offline until the broker starts again."""
        reason = f"the log directory {path} failed: {error}"
        if all(directory.failure is not None for directory in self.logs.directories):
            self.offline.stop_reporting()
        for name in names:
            partition = self._by_name.get((name.topic, name.partition))
            if partition is not None:
                self._take_offline(partition, reason)

    def fence(self, partition: Partition, broken: Exception) -> None:
        """Fence a replica whose invariant is broken: its log is fenced, it loses its role and is offline."""
        if not self.hosts(partition):
            return
        reason = f"an invariant was broken: {describe(broken)}"
        logger.critical("%s is fenced: %s", partition, reason, exc_info=broken)
        partition.log.fence(ReplicaFenced(reason))
        self._fenced[partition.key] = partition.log.topic_partition
        self._take_offline(partition, reason)

    def _take_offline(self, partition: Partition, reason: str) -> None:
        self._forget(partition)
        self.offline.add(partition.key, reason)
        try:
            partition.resign()
        except Exception:  # the other replicas of its directory must still be taken offline
            logger.exception("%s could not resign", partition)

    def find_offline(self, image: ClusterImage) -> None:
        """Take the replicas offline whose logs are missing and may be in a failed log directory.

        Called before this broker registers, with the image that assigns the replicas to it.
        """
        failed = [directory for directory in self.logs.directories if directory.failure is not None]
        if not failed:
            return
        reason = f"the log directory {failed[0].path} failed: {failed[0].failure}"
        for key, _ in image.partitions_on(self._broker_id):
            topic = image.topic_by_id(key.topic_id)
            assert topic is not None, "a partition has a topic"
            log = self.logs.get(TopicPartition(topic.name, key.partition))
            if log is None or log.topic_id != topic.uuid:
                self.offline.add(key, reason)

    def become_registered(self, image: ClusterImage) -> None:
        """Apply the whole image, since this broker is registered (again)."""
        self._is_registered = True
        self.on_reload(image)

    def resign_all(self) -> None:
        """Resign every role, since the broker's session has expired: none is valid until its next
        registration."""
        self._is_registered = False
        for partition in list(self._partitions):
            self._fetchers.forget(partition)
            partition.resign()

    def stop(self) -> None:
        """Resign every role, since the broker stops; waiting requests get their responses."""
        self._is_registered = False
        self._fetchers.stop()
        for partition in list(self._partitions):
            partition.resign()

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _follow_state(self, key: TopicIdPartition, state: PartitionState) -> None:
        if self._broker_id not in state.replicas:
            self._stop_hosting(key, "it is no longer assigned to this broker")
            return
        partition = self._partitions.by_key.get(key)
        if partition is None:
            partition = self._begin_hosting(key, state)
        if partition is not None and self._may_not_follow(partition, state):
            partition.state = state
            self._fetchers.forget(partition)
            partition.resign()
        elif partition is not None:
            epoch_before = partition.leader_epoch
            with self._fencing(partition):
                partition.on_metadata(state, self._eligible)
            if partition.leader_epoch != epoch_before and self.hosts(partition):
                self._fetchers.assign(partition)

    def _may_not_follow(self, partition: Partition, state: PartitionState) -> bool:
        return self.damaged.is_in_repair(partition) and state.leader != self._broker_id

    @contextmanager
    def _fencing(self, partition: Partition) -> Generator[None, None, None]:
        """Fence the replica if the block raises: its role may be inconsistent. The broker continues."""
        try:
            yield
        except Exception as error:
            self.fence(partition, error)

    def _begin_hosting(self, key: TopicIdPartition, state: PartitionState) -> Partition | None:
        if key in self.offline:
            return None
        topic = self._image.topic_by_id(key.topic_id)
        assert topic is not None, "a partition has a topic"
        name = TopicPartition(topic.name, key.partition)
        try:
            log = self._hosted.open(
                self._image, required_log(self._image, topic, key.partition, state, self._broker_id)
            )
        except (OSError, NoLogDirectory) as error:
            logger.error("The log of %s cannot be opened: %s", name, error)
            self.offline.add(key, f"its log cannot be opened: {error}")
            if self.logs.get(name) is not None:
                self.logs.fail_directory(self.logs.directory_of(name), error)
            return None
        replica = Replica(
            log,
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch,
            checkpointed_high_watermark=self.logs.initial_high_watermark(name),
            min_insync_replicas=self._image.min_insync_replicas(topic.name),
            replica_lag_time_max_ms=self._config.replica_lag_time_max_ms,
            counts_flushed=log.config.flush_messages <= 1,
        )
        partition = Partition(topic.name, key, state, log, replica, self._host, self.fence)
        partition.add_resume_listener(self._fetchers.resume)
        self._partitions.add(partition)
        self._note_flush_ms(partition)
        for listener in self._hosting_listeners:
            listener(partition)
        return partition

    def _stop_hosting(self, key: TopicIdPartition, why: str) -> None:
        self.offline.remove(key)
        if (fenced := self._fenced.pop(key, None)) is not None:
            self._delete(fenced)
        partition = self._partitions.by_key.get(key)
        if partition is None:
            return
        self._forget(partition)
        partition.resign()
        self._removals.append(_removal(partition, why))
        self._delete(partition.log.topic_partition)

    def _delete(self, name: TopicPartition) -> None:
        self._disposal.delete(name, self._hosted.configs.deletion_delay_ms(self._image))

    def _log_removals(self) -> None:
        removals, self._removals = self._removals, []
        log_partition_decisions(logger, removals)

    def _forget(self, partition: Partition) -> None:
        self._fetchers.forget(partition)
        self.traffic.on_departed(partition.topic, partition.traffic, partition.log.log_end_offset)
        self.failures.forget(partition.log.topic_partition)
        self.with_flush_ms.pop(partition, None)
        self._partitions.remove(partition)

    def _reconfigure(self, image: ClusterImage, changed: Iterable[ConfigResource]) -> Iterator[None]:
        """Apply changed settings, those of groups are none of partitions; yields after each partition."""
        topics = {each.name for each in changed if each.type is ConfigResourceType.TOPIC}
        all_topics = any(each.type in _OF_ALL_TOPICS for each in changed)
        for partition in list(self) if topics or all_topics else ():
            if all_topics or partition.topic in topics:
                partition.log.configure(self._hosted.configs.of_topic(image, partition.topic))
                self._note_flush_ms(partition)
                with self._fencing(partition):
                    partition.configure(image.min_insync_replicas(partition.topic))
                yield

    def _note_flush_ms(self, partition: Partition) -> None:
        if partition.log.config.flush_ms < LONG_MAX:
            self.with_flush_ms[partition] = None
        else:
            self.with_flush_ms.pop(partition, None)

    def _update_eligible(self, image: ClusterImage) -> None:
        self._eligible = {broker.id: broker.epoch for broker in image.brokers() if broker.is_active}
        own = image.broker(self._broker_id)
        if own is not None and own.epoch != self._broker_epoch:
            self._broker_epoch = own.epoch
            for partition in self:
                partition.replica.note_registered(own.epoch)

    def _notify_eligible_brokers(self) -> Iterator[None]:
        """Let the leaders see which brokers may join an ISR; yields after each."""
        for partition in list(self):
            role = partition.replica.role
            if isinstance(role, LeaderRole) and len(role.replicas) > 1:
                with self._fencing(partition):
                    partition.on_metadata(partition.state, self._eligible)
                yield


def _removal(partition: Partition, why: str) -> PartitionDecision:
    return PartitionDecision(
        "replica-deleted",
        partition.topic,
        partition.key.partition,
        "replicas are deleted",
        why,
        lambda: f"The replica of {partition} is deleted",
        {},
    )
