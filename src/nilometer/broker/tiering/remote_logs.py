"""The tiers of all partitions on this broker: who works when, how fast, and what becomes of errors.

A partition whose tier fails is tried again in the next round; others are not held up by it, and its local log
goes on: nothing that is not in the tier is deleted, so it grows as one without a tier would.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.readable_partition import ReadablePartition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION
from nilometer.broker.settings.tiering import TierConfig, with_dynamic
from nilometer.broker.tasks import Tasks
from nilometer.broker.tiering.partition_reads import PartitionReads
from nilometer.broker.tiering.parts import RemoteParts
from nilometer.broker.tiering.remote_partition import MetadataBehind, RemotePartition, RemoteTraffic, TierLost
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.identifiers import BrokerId, TopicId, TopicIdPartition
from nilometer.quotas import TokenBucket
from nilometer.runtime import Clock, Runtime
from nilometer.runtime.object_store import ObjectStore, ObjectStoreError
from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.time_search import TimestampOffset
from nilometer.storage.topic_config import DELETE_ON_DISABLE
from nilometer.tier.chain import Chain, Contested, Deposed, ManifestsGone
from nilometer.tier.format import DamagedObject, TopicFacts, manifest_start
from nilometer.tier.reader import LogState, RemoteCache
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import TierState

T = TypeVar("T")
logger = logging.getLogger("nilometer.broker.tiering")

_WINDOWS, _WINDOW_MS = 11, 1_000
"""A limit on the bandwidth holds for the mean of so many windows, as Kafka's default."""
LIMIT_LOOK_MS = 1_000
"""So long at most a transfer waits before it looks at its limit again."""
SWEEP_ROUNDS = 20
"""So many intervals lie between two searches for tiers of deleted topics."""


class Bandwidth:
    """A limit on the bytes per second."""

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self.bytes_per_second = bytes_per_second
        self._bucket = TokenBucket(_WINDOWS, _WINDOW_MS, bytes_per_second, clock.monotonic_ms())

    async def wait(self, count: int) -> None:
        """Wait until ``count`` more bytes may be transferred."""
        self._bucket.take(count, self.bytes_per_second, self._clock.monotonic_ms())
        # The limit may be another one at the next look.
        while wait_ms := self._throttle_ms():  # noqa: ASYNC110
            await asyncio.sleep(min(wait_ms, LIMIT_LOOK_MS) / 1000)

    def _throttle_ms(self) -> int:
        return self._bucket.throttle_ms(self.bytes_per_second, self._clock.monotonic_ms())


class RemoteLogs:
    def __init__(
        self,
        config: TierConfig,
        runtime: Runtime,
        tasks: Tasks,
        replicas: ReplicaManager,
        metadata: MetadataLog,
        store: ObjectStore,
        cluster_id: str,
        broker_id: BrokerId,
        turns: Turns,
    ) -> None:
        self._turns = turns
        self._config = config
        self._runtime = runtime
        self._tasks = tasks
        self._replicas = replicas
        self._metadata = metadata
        self._store = store
        self._broker_id = broker_id
        self._workers = 0
        self._due: deque[RemotePartition] = deque()
        self._by_key: dict[TopicIdPartition, RemotePartition] = {}
        self._running: dict[TopicIdPartition, asyncio.Event] = {}
        self._removers = 0
        self._removals: deque[RemotePartition] = deque()
        """The tiers of deleted topics that are to be removed."""
        self._unremoved: list[RemotePartition] = []
        """Those of which that has failed: the next round tries again."""
        self._unknown_since_ms: dict[str, int] = {}
        """The folders of topics that this cluster does not know, and the first sweep that has found them."""
        self._unchanged_since: dict[str, tuple[object, int]] = {}
        """By folder of a partition: what the last sweep has seen there, and when one has first seen that."""
        self._swept_ms = -1
        """The time of the last sweep."""
        self.traffic: dict[str, RemoteTraffic] = {}
        """By topic."""
        self._file_config = config
        self._copies = Bandwidth(runtime.clock, config.copy_bytes_per_second)
        self._fetches = Bandwidth(runtime.clock, config.fetch_bytes_per_second)
        self._cache = RemoteCache(
            store, runtime.disk, config.index_cache_bytes, self._fetches.wait, turns.wait_next
        )
        self._parts = RemoteParts(
            runtime=runtime,
            store=store,
            cache=self._cache,
            cluster_id=cluster_id,
            grace_ms=config.grace_ms,
            writer=runtime.entropy.bytes(8).hex(),
            claim=config.claim,
            metadata_entry=lambda: metadata.image.number,
            tiered_since=lambda topic_id: metadata.image.tiered_since(topic_id),  # noqa: PLW0108
            before_copy=self._copies.wait,
            pause=turns.wait_next,
        )
        metadata.subscribe(self._on_delta, self._on_reload)
        replicas.add_hosting_listener(lambda partition: partition.add_role_listener(self._on_role_changed))

    def start(self, tasks: Tasks) -> None:
        interval_ms = self._config.task_interval_ms
        tasks.periodic("remote storage", interval_ms, self.begin_round)
        tasks.periodic("sweep of remote storage", SWEEP_ROUNDS * interval_ms, self.sweep)

    async def close(self) -> None:
        await self._cache.close()

    def __iter__(self) -> Iterator[RemotePartition]:
        """Yield the tiers in use, for reports: of the partitions that are hosted."""
        for remote in self._by_key.values():
            if remote.partition in self._replicas:
                yield remote

    def _configure(self, image: ClusterImage) -> None:
        """Take the settings that can change while a broker runs."""
        config = self._file_config
        for name in ("", str(self._broker_id)):  # the later one wins, if it can be read
            texts = image.config(ConfigResourceType.BROKER, name)
            config = with_dynamic(config, BROKER_CONFIG_DEFINITION.readable(texts))
        self._config = config
        self._copies.bytes_per_second = config.copy_bytes_per_second
        self._fetches.bytes_per_second = config.fetch_bytes_per_second
        self._cache.indexes.resize(config.index_cache_bytes)
        self._replicas.remote.configure(config)

    def state_of(self, partition: Partition) -> TierState | None:
        """Describe the tier of a partition that is led here; None if it has none, or none was looked at.

        A topic that is tiered no more has one as long as its objects cannot be removed.
        """
        found = self._by_key.get(partition.key)
        if found is None or found.partition is not partition or not partition.is_led_here:
            return None
        has_tier = partition.log.config.remote_storage_enable or found.error is not None
        return found.state() if has_tier else None

    # -- rounds

    async def begin_round(self) -> None:
        """Have each tiered partition do what is due, a few at once, in the background."""
        slices = LongWork(self._turns)
        for partition in list(self._replicas):
            await slices.step(1)
            if partition in self._replicas and self._may_have_tier(partition):
                remote = self._of(partition)
                if not remote.is_queued:
                    remote.is_queued = True
                    self._due.append(remote)
        for key, remote in list(self._by_key.items()):
            await slices.step(1)
            if self._by_key.get(key) is not remote or remote.partition in self._replicas:
                continue
            # A replica that is offline may have led: if no other one does until its topic is deleted, this
            # broker removes the tier.
            if key not in self._running and key not in self._replicas.offline:
                # What is known of a topic's deletion may come after this round, or only as a new image.
                self._forget(key, is_deleted=self._metadata.image.topic_by_id(key.topic_id) is None)
        again, self._unremoved = self._unremoved, []
        for remote in again:
            self._remove_soon(remote)
        for _ in range(min(self._config.copies_at_once - self._workers, len(self._due))):
            self._workers += 1
            self._tasks.spawn(self._work(), name="copies to remote storage")

    def _may_have_tier(self, partition: Partition) -> bool:
        """Whether the topic is tiered, or was: then what it had is removed, also after a restart."""
        if partition.log.config.remote_storage_enable or partition.key in self._by_key:
            return True
        settings = self._metadata.image.config(ConfigResourceType.TOPIC, partition.topic)
        return settings.get(DELETE_ON_DISABLE) == "true"

    def _of(self, partition: ReadablePartition) -> RemotePartition:
        assert isinstance(partition, Partition), "partitions of this broker are hosted"
        found = self._by_key.get(partition.key)
        if found is not None and found.partition is partition:
            return found
        traffic = self.traffic.setdefault(partition.topic, RemoteTraffic())
        remote = RemotePartition(partition, self._parts, self._facts, traffic)
        if found is not None:
            remote.had_led |= found.had_led
            remote.newest_epoch = max(remote.newest_epoch, found.newest_epoch)
            if partition not in self._replicas and found.partition in self._replicas:
                return remote  # for a read that waited while its replica was replaced
        self._by_key[partition.key] = remote
        return remote

    def _facts(self, partition: Partition) -> TopicFacts:
        image = self._metadata.image
        topic = image.topic(partition.topic)
        return TopicFacts(
            self._parts.cluster_id,
            partition.key.topic_id,
            partition.topic,
            partition.key.partition,
            0 if topic is None else len(topic.partitions),
            dict(sorted(image.config(ConfigResourceType.TOPIC, partition.topic).items())),
            image.number,
        )

    async def _work(self) -> None:
        try:
            while self._due:
                remote, has_more = self._due.popleft(), False
                try:
                    has_more = self._may_run(remote) and await self._run(remote)
                finally:
                    remote.is_queued = has_more
                if has_more:
                    self._due.append(remote)  # what is due to others does not wait until all is copied
        finally:
            self._workers -= 1

    def _may_run(self, remote: RemotePartition) -> bool:
        """Whether the replica is still the present one, and that before it is not still in its round."""
        key = remote.partition.key
        is_present = self._by_key.get(key) is remote and remote.partition in self._replicas
        return is_present and key not in self._running

    async def _run(self, remote: RemotePartition) -> bool:
        """Run one round; return whether it goes on with another segment."""
        key, partition = remote.partition.key, remote.partition
        ended = self._running[key] = asyncio.Event()
        try:
            has_more = await remote.run_round()
        except (ObjectStoreError, DamagedObject, TierLost, MetadataBehind, Contested) as error:
            remote.traffic.copy_errors += 1
            if remote.error is None:
                logger.warning("The tier of %s cannot be used, and is tried again: %s", partition, error)
            remote.fail(str(error))
        except Deposed as reason:
            logger.info("%s: this broker leaves its tier to the present leader: %s", partition, reason)
        except CorruptRecordFound as found:
            remote.fail(str(found))
            self._replicas.damaged.report(found)  # the copy goes on when the log is repaired
        except Exception as error:
            remote.fail(str(error))
            if partition in self._replicas:
                partition.on_failure("copies to remote storage", error)
        else:
            if remote.error is not None:
                logger.info("The tier of %s can be used again", partition)
            remote.error = None
            partition.on_success("copies to remote storage")
            return has_more
        finally:
            del self._running[key]
            ended.set()
        return False

    def _on_role_changed(self, partition: Partition) -> None:
        """Let the tier of this replica know of it, before the first round of that, too: the topic may be
        deleted, or another broker lead, before the round."""
        leads = partition.has_leader_role and self._may_have_tier(partition)
        if leads or partition.key in self._by_key:
            self._of(partition).on_role_changed()

    # -- deleted topics

    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        if any(resource.type is ConfigResourceType.BROKER for resource in delta.configs):
            self._configure(image)
        for topic in delta.topics_deleted.values():
            self.traffic.pop(topic.name, None)
            for index, state in enumerate(topic.partitions):
                key = TopicIdPartition(topic.id, index)
                if (remote := self._by_key.get(key)) is not None:  # its replica may be offline
                    remote.newest_epoch = max(remote.newest_epoch, state.leader_epoch)
                self._forget(key, is_deleted=True)

    def _on_reload(self, image: ClusterImage) -> None:
        """The next round forgets partitions that are gone, and removes the tiers of deleted topics."""
        self._configure(image)

    def _forget(self, key: TopicIdPartition, *, is_deleted: bool) -> None:
        """Forget a partition that is not hosted any more; remove its tier if its topic was deleted."""
        remote = self._by_key.pop(key, None)
        if is_deleted and remote is not None and remote.had_led:
            remote.error = None  # of its rounds
            self._remove_soon(remote)

    def _remove_soon(self, remote: RemotePartition) -> None:
        self._removals.append(remote)
        if self._removers < self._config.copies_at_once:
            self._removers += 1
            self._tasks.spawn(self._remove(), name="removal of a tier")

    async def _remove(self) -> None:
        """Remove tiers, one after another: a topic may have had thousands of partitions."""
        try:
            while self._removals:
                remote = self._removals.popleft()
                if not await self._delete(remote):
                    self._unremoved.append(remote)
        finally:
            self._removers -= 1

    async def _delete(self, remote: RemotePartition) -> bool:
        """Remove a tier, unless it is another cluster's; return false if that has to be tried again."""
        if (running := self._running.get(remote.partition.key)) is not None:
            await running.wait()
        try:
            await remote.delete()
        except Contested as reason:
            logger.warning("The tier of %s is not removed: %s", remote.partition, reason)
        except (ObjectStoreError, DamagedObject) as error:
            if remote.error is None:
                logger.warning("The tier of %s is not removed yet: %s", remote.partition, error)
            remote.fail(str(error))
            return False
        return True

    async def sweep(self) -> None:
        """Remove the tiers of deleted topics whose leaders could not: one broker of the cluster does.

        A topic that this cluster does not know was deleted, or its metadata were restored from a backup that
        is older than the topic. So it is said in the log, and removed much later.
        """
        live = min((broker.id for broker in self._metadata.image.live_brokers()), default=None)
        if live != self._broker_id:
            return
        try:
            folders = await self._store.folders(f"{self._parts.cluster_id}/")
            unknown = [one for one in folders if self._is_unknown(one)]
            for_long, seen = set(self._unknown_for_long(unknown)), self._unchanged_since
            self._unchanged_since = {}
            for topic in unknown:
                for folder in await self._store.folders(topic):
                    try:
                        await self._sweep(topic, folder, seen.get(folder, (None, 0)))
                    except (DamagedObject, Contested) as reason:
                        if topic in for_long:
                            logger.warning("The tier of a topic that was deleted is not removed: %s", reason)
        except ObjectStoreError as error:
            logger.warning("Tiers of deleted topics are not looked for: %s", error)

    def _is_unknown(self, folder: str) -> bool:
        return self._metadata.image.topic_by_id(TopicId(folder.split("/")[-2])) is None

    def _unknown_for_long(self, folders: list[str]) -> list[str]:
        """Note which folders are of unknown topics; return those that this process has known as such for the
        grace period."""
        now_ms, grace_ms = self._runtime.clock.monotonic_ms(), self._config.unknown_topic_grace_ms
        if stay := [one for one in folders if self._unknown_since_ms.get(one, now_ms) == self._swept_ms]:
            logger.warning(
                "Remote storage has %d topics that this cluster does not know, %s for example: they were "
                "deleted, or its metadata are older. `nilometer tier restore` brings them back; what is in "
                "no archive, and was not written under a lower claim, is removed in %d s "
                "(nilometer.tier.unknown.topic.grace.ms)",
                len(stay),
                stay[0],
                grace_ms // 1000,
            )
        self._swept_ms = now_ms
        self._unknown_since_ms = {one: self._unknown_since_ms.get(one, now_ms) for one in folders}
        return [one for one, since_ms in self._unknown_since_ms.items() if now_ms - since_ms >= grace_ms]

    async def _sweep(self, topic: str, folder: str, before: tuple[object, int]) -> None:
        """Remove a partition of a topic that is in no image which has the entry that the writer of its last
        manifest knew.

        Not if it was written to within the grace period: another cluster has the topic, or the store is being
        restored. The other cluster's clock may be wrong, so what counts is when a sweep has seen a change.
        """
        names = await self._store.names(folder)  # before the chain: what is found has a manifest, or had one
        if not names:
            return
        chain = Chain(self._store, folder, self._parts.writer, self._parts.claim, self._parts.pause)
        try:
            last = await chain.read()
        except ManifestsGone:
            last = None
        seen: object = tuple(names) if last is None else manifest_start(last)
        now_ms = self._runtime.clock.monotonic_ms()
        since_ms = before[1] if seen == before[0] else now_ms
        self._unchanged_since[folder] = seen, since_ms
        known = last is None or last.topic.metadata_entry <= self._metadata.image.number
        if known and self._is_unknown(topic) and (last is None or last.claim == self._parts.claim):
            if (age_ms := now_ms - since_ms) < self._config.unknown_topic_grace_ms:
                raise Contested(f"{folder} was still written to {age_ms // 1000} s ago, by another cluster")
            logger.info("%s has the tier of a topic that was deleted: it is removed", folder)
            await chain.remove_all(lambda found: last is not None and found.number == last.number)

    # -- reading

    async def read(
        self, partition: ReadablePartition, offset: int, max_bytes: int, *, read_committed: bool
    ) -> tuple[bytes, list[AbortedTxn]]:
        """Return the batches from the one that contains ``offset`` on, about ``max_bytes``, and the aborted
        transactions that overlap them. Raises KafkaError, OffsetOutOfRange."""
        remote = self._of(partition)
        reads = self._reads_of(remote)
        return await self._reading(remote, reads.read(offset, max_bytes, read_committed=read_committed))

    async def offset_for_timestamp(
        self, partition: ReadablePartition, timestamp: int
    ) -> TimestampOffset | None:
        """Return the first record in the tier that is not older than ``timestamp``; None if there is none.
        Raises KafkaError."""
        remote = self._of(partition)
        return await self._reading(remote, self._reads_of(remote).offset_for_timestamp(timestamp))

    async def state_at(self, partition: ReadablePartition, offset: int) -> LogState:
        """Return the state with which a replica begins at ``offset``, or a little above. Raises as
        :meth:`read`."""
        remote = self._of(partition)
        return await self._reading(remote, self._reads_of(remote).state_at(offset))

    async def check_own(self, partition: ReadablePartition) -> None:
        """Raises KafkaError if the last manifest is not one that this leader goes on from, or names records
        that are not of its log."""
        remote = self._of(partition)
        try:
            await self._reading(remote, remote.check_own())
        except Deposed as reason:
            raise KafkaError(ErrorCode.kafka_storage_error, str(reason)) from reason

    def _reads_of(self, remote: RemotePartition) -> PartitionReads:
        return PartitionReads(remote, self._cache)

    async def _reading(self, remote: RemotePartition, work: Awaitable[T]) -> T:
        remote.traffic.fetch_requests += 1
        try:
            return await work
        except (ObjectStoreError, DamagedObject) as error:
            remote.traffic.fetch_errors += 1
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"The tier of {remote.partition} could not be read: {error}",
            ) from error
