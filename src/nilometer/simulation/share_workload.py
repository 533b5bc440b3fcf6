"""The share group of a run: who puts its records, also in transactions, its members, and their checks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nilometer.client.admin.admin import Admin, ConfigChange, NewTopic, ResourceType
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import CoordinatorType
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from nilometer.identifiers import topic_id_of
from nilometer.replication.leader import LeaderRole
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.history import LongHistory, Outcome
from nilometer.simulation.checkers.share_groups import FINDINGS_MAX, ShareLedger
from nilometer.simulation.checkers.transactions import Fate, TransactionLedger
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.workload.producers import Writer, WriterPlan
from nilometer.simulation.workload.program import Program
from nilometer.simulation.workload.share_members import ShareMember, ShareObserver
from nilometer.simulation.workload.transactions.program import (
    V2,
    TransactionalProgram,
    TransactionPlan,
    make_client,
)
from nilometer.simulation.world import Host
from nilometer.wire.api import Api
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError

GROUP = "share-workers"
TOPIC = "share-jobs"
PARTITIONS = 2
REPLICAS = 3
GROUP_CONFIGS = 32
SHARE_COORDINATOR = 2
SET_UP_MS = 120_000
TWO_IN_SYNC = {"min.insync.replicas": "2"}
INTERNAL: Mapping[str, Mapping[str, str]] = {
    GROUP_METADATA_TOPIC: TWO_IN_SYNC,
    TRANSACTION_STATE_TOPIC: {},
    SHARE_GROUP_STATE_TOPIC: {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlan:
    members: int
    limit: int
    """``group.share.delivery.count.limit``."""
    lock_ms: int
    max_record_locks: int
    per_second: float
    """Records put, and transactions begun half as often."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the brokers."""
        return {
            "offsets.topic.num.partitions": "2",
            "share.coordinator.state.topic.num.partitions": "2",
            "share.coordinator.snapshot.update.records.per.snapshot": "10",
            "share.coordinator.state.topic.prune.interval.ms": "5000",
            "transaction.state.log.num.partitions": "2",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "group.share.delivery.count.limit": str(self.limit),
            "group.share.record.lock.duration.ms": str(self.lock_ms),
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.partition.max.record.locks": str(self.max_record_locks),
            "group.share.session.timeout.ms": "8000",
            "group.share.min.session.timeout.ms": "1000",
            "group.share.heartbeat.interval.ms": "1000",
            "group.share.min.heartbeat.interval.ms": "500",
            "group.share.assignment.interval.ms": "100",
        }


class JobTransactions(TransactionalProgram):
    """Puts records in transactions, of which it aborts some."""

    async def _incarnation(self, runtime: Runtime) -> None:
        async with self._client(runtime) as client:
            session = self._session(client)
            await session.init()
            while not self._stopping:
                await asyncio.sleep(runtime.entropy.uniform(0.0, 2 * self.plan.gap_s))
                transaction = self._begin(session)
                partition = TopicPartition(TOPIC, runtime.entropy.below(PARTITIONS))
                for number in range(1 + runtime.entropy.below(2)):
                    value = f"{self.name}-{transaction.number}-{number}"
                    written = transaction.write(str(partition), value)
                    written.offset = await session.write(partition, [(None, value)])
                await asyncio.sleep(runtime.entropy.uniform(0.0, 0.5))
                await self._end(session, transaction, commit=runtime.entropy.below(3) > 0)
                if session.needs_new_epoch:
                    await session.init(goes_on=True)


class ShareWorkload:
    def __init__(self, cluster: Cluster, clients: Host, plan: SharePlan, *, flush_each: bool) -> None:
        self._cluster = cluster
        self._durable = {"flush.messages": "1"} if flush_each else dict[str, str]()
        self.ledger = ShareLedger(plan.limit, plan.lock_ms / 1000)
        self._history = LongHistory()
        self._transactions = TransactionLedger()
        servers = cluster.bootstrap_servers
        puts = WriterPlan(topic=TOPIC, partitions=PARTITIONS, per_second=plan.per_second, value_bytes=10)
        self._writer = Writer("share-writer", clients, servers, puts, self._history)
        self._transactional = JobTransactions(
            "share-transactions",
            clients,
            servers,
            TransactionPlan(version=V2, timeout_ms=5_000, gap_s=2 / plan.per_second),
            self._transactions,
        )
        self.programs: list[Writer | TransactionalProgram] = [self._writer, self._transactional]
        self.members = [
            ShareMember(
                f"share-member{number}", clients, servers, GROUP, TOPIC, self.ledger, self._leader_epoch
            )
            for number in range(plan.members)
        ]
        self.observer = ShareObserver("share-observer", clients, servers, GROUP, TOPIC, self.ledger)
        self.workers: list[Program] = [*self.members, self.observer]

    def _leader_epoch(self, partition: str, broker: int) -> int | None:
        node = self._cluster.nodes.get(broker)
        for hosted in () if node is None else node.partitions:
            if str(hosted) == partition and isinstance(hosted.replica.role, LeaderRole):
                return hosted.leader_epoch
        return None

    # ── the run ─────────────────────────────────────────────────────────────────────────────────
    async def create_topics(self, runtime: Runtime, admin: Admin) -> None:
        """Create the topic of the records and that of the states, and configure the group. Raises
        KafkaError."""
        await admin.create_topic(NewTopic(TOPIC, PARTITIONS, REPLICAS, TWO_IN_SYNC | self._durable))
        async with make_client(runtime, self._cluster.bootstrap_servers, "share-set-up") as client:
            await client.retry(Coordinator(client, GROUP).find, SET_UP_MS)
            topic = await client.topic(TOPIC, SET_UP_MS)
            assert topic.topic_id is not None
            key = f"{GROUP}:{topic_id_of(topic.topic_id)}:0"
            await client.retry(lambda: _find_share_coordinator(client, key), SET_UP_MS)
            await client.retry(lambda: _configure(client), SET_UP_MS)
            await client.retry(Coordinator(client, "any", CoordinatorType.TRANSACTION).find, SET_UP_MS)
        # By default one replica may acknowledge an offset alone, and then lose it with its machine.
        for name, configs in INTERNAL.items():
            changes = [ConfigChange(key, value) for key, value in {**configs, **self._durable}.items()]
            if changes:
                await admin.incremental_alter_configs(ResourceType.TOPIC, name, changes)

    def stop_disrupting(self) -> None:
        """End the faults of the members, and start those that had crashed."""
        for member in self.members:
            member.stop_disrupting()
        for worker in self.workers:
            if worker.process is None or not worker.process.alive:
                worker.start()

    @property
    def producers(self) -> int:
        return self._writer.incarnations + self._transactional.incarnations

    def not_settled(self) -> list[str]:
        """Return the share partitions with records that are not done, for a cluster at rest."""
        found: list[str] = []
        for node in self._cluster.nodes.values():
            for hosted in node.partitions:
                if hosted.topic != TOPIC or not isinstance(hosted.replica.role, LeaderRole):
                    continue
                assert node.broker is not None
                end = hosted.replica.high_watermark
                led = node.broker.parts.serving.share_partitions.loaded(GROUP, hosted.key)
                start = None if led is None or led.core is None else led.core.start_offset
                if end and (start is None or start < end):
                    found.append(f"share group: {hosted} is done up to {start} of {end} on {node.name}")
        return found

    # ── checks ──────────────────────────────────────────────────────────────────────────────────
    def judge_at_rest(self) -> Iterator[str]:
        """Compare what was put with what members did; they have ended."""
        put = [(send.partition, send.value) for send in self._history.sends if send.outcome is Outcome.OK]
        for transaction in self._transactions.transactions:
            if transaction.fate is Fate.COMMITTED:
                put += [(one.partition, one.value) for one in transaction.writes]
        missing = list(self.ledger.missing(put))
        yield from missing[:FINDINGS_MAX]

    def judge(self) -> Iterator[str]:
        aborted = [
            one.value
            for transaction in self._transactions.transactions
            if transaction.fate in (Fate.ABORTED, Fate.OPEN)
            for one in transaction.writes
        ]
        yield from self.ledger.judge(self._newest_leader_epoch, aborted)
        yield from self._transactional.violations[:FINDINGS_MAX]

    def _newest_leader_epoch(self, partition: str) -> int:
        image = self._cluster.newest_image
        name, _, index = partition.rpartition("-")
        topic = None if image is None else image.topic(name)
        state = None if topic is None else topic.partition(int(index))
        return 0 if state is None else int(state.leader_epoch)

    @property
    def error_counts(self) -> Counter[str]:
        programs = (*self.programs, *self.workers)
        return sum((each.error_counts for each in programs), Counter[str]())

    def done(self) -> Mapping[str, int]:
        return self.ledger.counted + Counter({"share records put": self._writer.acknowledged})


async def _find_share_coordinator(client: Client, key: str) -> None:
    def make(api: Api) -> Message:
        return api.request(key_type=SHARE_COORDINATOR, coordinator_keys=(key,))

    (found,) = (await client.send_to_any(ApiKey.FIND_COORDINATOR, make)).coordinators
    if found.error_code is not ErrorCode.none:
        raise KafkaError(found.error_code, key)


async def _configure(client: Client) -> None:
    """Let the group begin with the first record, and read only what is committed. Raises KafkaError."""
    configs = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}

    def make(api: Api) -> Message:
        changes = tuple(
            api.make_request("AlterableConfig", name=name, config_operation=0, value=value)
            for name, value in configs.items()
        )
        resource = api.make_request(
            "AlterConfigsResource", resource_type=GROUP_CONFIGS, resource_name=GROUP, configs=changes
        )
        return api.request(resources=(resource,), validate_only=False)

    (answer,) = (await client.send_to_any(ApiKey.INCREMENTAL_ALTER_CONFIGS, make)).responses
    if answer.error_code is not ErrorCode.none:
        raise KafkaError(answer.error_code, answer.error_message or GROUP)
