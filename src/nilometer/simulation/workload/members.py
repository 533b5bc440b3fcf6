"""Consumer programs that are members of one group: they process, commit, are slow, leave and rejoin.

A member commits only offsets of records that it has processed. Sometimes it exceeds the poll interval, or
closes its consumer and joins with a new one; after :meth:`GroupMember.stop_disrupting` it does neither.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.committer import CommitFailed
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.groups import GroupLedger
from nilometer.simulation.workload.consumers import RETRY_S, TRANSIENT
from nilometer.simulation.workload.program import Program
from nilometer.simulation.world import Host
from nilometer.wire.errors import ErrorCode, KafkaError

POLL_MS = 500
SESSION_TIMEOUT_MS = 8_000
MAX_POLL_INTERVAL_MS = 15_000
SLOW_POLL_S = (5.0, 25.0)
BACKGROUND_COMMIT_OF = 8
"""One asynchronous commit in so many polls, so that the effect of one is not hidden at once by the next."""

TRANSIENT_IN_GROUPS = TRANSIENT | frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.rebalance_in_progress,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.unstable_offset_commit,
        ErrorCode.fenced_instance_id,
        ErrorCode.unreleased_instance_id,
    }
)


CLASSIC, CONSUMER = "classic", "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    members: int
    protocol: str = CLASSIC
    assignor: str
    static: bool
    auto_commit: bool
    commits_in_background: bool = False
    """Whether members without auto-commit commit asynchronously."""

    @property
    def settings(self) -> dict[str, str]:
        """The brokers' settings for this group."""
        return {
            "offsets.topic.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "500",
            "group.min.session.timeout.ms": "1000",
            "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.heartbeat.interval.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "500",
        }


class GroupMember(Program):
    def __init__(
        self,
        name: str,
        host: Host,
        bootstrap_servers: str,
        plan: GroupPlan,
        topics: Sequence[str],
        ledger: GroupLedger,
    ) -> None:
        super().__init__(name, host)
        self.violations: list[str] = []
        self.consumer: Consumer | None = None
        self._bootstrap_servers = bootstrap_servers
        self._plan = plan
        self._topics = list(topics)
        self._ledger = ledger
        self._undisturbed = False
        self._next: dict[TopicPartition, int] = {}
        """The offset after the last processed record, of this member's current partitions."""
        self._assignment_counts: Counter[TopicPartition] = Counter()
        """How often each partition was assigned to this member."""

    def stop_disrupting(self) -> None:
        """Make the member neither exceed the poll interval nor leave the group any more."""
        self._undisturbed = True

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            try:
                async with Consumer(runtime, self._settings()) as consumer:
                    self.consumer = consumer
                    self._next.clear()
                    listener = _RecordingListener(
                        self.name, consumer, self._ledger, self._next, self._assignment_counts
                    )
                    await consumer.subscribe(self._topics, listener)
                    await self._poll_until_stopped(runtime, consumer)
            except KafkaError as error:
                self._on_error(error)
                await asyncio.sleep(RETRY_S)
            finally:
                self.consumer = None

    async def _poll_until_stopped(self, runtime: Runtime, consumer: Consumer) -> None:
        polls_left = 20 + runtime.entropy.below(200)
        while not self._stopping and (polls_left > 0 or self._undisturbed):
            polls_left -= 1
            try:
                self._process(await consumer.poll(timeout_ms=POLL_MS))
                if self._plan.commits_in_background:
                    if runtime.entropy.below(BACKGROUND_COMMIT_OF) == 0:
                        self._commit_in_background(consumer)
                elif not self._plan.auto_commit:
                    await self._commit(consumer)
            except KafkaError as error:
                self._on_error(error)
                if error.code == ErrorCode.fenced_instance_id:
                    return
            if runtime.entropy.below(150) == 0 and not self._undisturbed:
                await asyncio.sleep(runtime.entropy.uniform(*SLOW_POLL_S))
            await asyncio.sleep(runtime.entropy.uniform(0.0, 0.3))

    async def _commit(self, consumer: Consumer) -> None:
        asked = dict(self._next)
        await consumer.commit(asked)
        for partition, offset in asked.items():
            if self._next.get(partition) == offset:
                self._ledger.commit(str(partition), offset)

    def _commit_in_background(self, consumer: Consumer) -> None:
        assignments = {partition: self._assignment_counts[partition] for partition in self._next}

        def done(asked: Mapping[TopicPartition, OffsetAndMetadata], error: KafkaError | None) -> None:
            if error is not None:
                # A rebalance may revoke the partitions before the response to an asynchronous commit.
                if error.code != ErrorCode.stale_member_epoch:
                    self._on_error(error)
                return
            for partition, one in asked.items():
                if partition in self._next and self._assignment_counts[partition] == assignments[partition]:
                    self._ledger.commit_in_background(self.name, str(partition), one.offset)

        consumer.commit_async({at: OffsetAndMetadata(offset) for at, offset in self._next.items()}, done)

    def _process(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            self._ledger.read(self.name, str(partition), record.offset)
            self._next[partition] = record.offset + 1
            value = (record.value or b"").decode().rstrip()
            self._ledger.process(f"{record.topic}-{record.partition}", value)

    def _settings(self) -> dict[str, str | int | bool]:
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": self._bootstrap_servers,
            "client.id": self.name,
            "group.id": self._ledger.group_id,
            "auto.offset.reset": "earliest",
            "group.protocol": self._plan.protocol,
            "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
            "enable.auto.commit": self._plan.auto_commit,
            "auto.commit.interval.ms": 1_000,
            "max.poll.records": 50,
            "request.timeout.ms": 10_000,
            "default.api.timeout.ms": 20_000,
            "metadata.max.age.ms": 30_000,
            "allow.auto.create.topics": False,
        }
        if self._plan.protocol == CLASSIC:
            settings |= {
                "partition.assignment.strategy": self._plan.assignor,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 1_000,
            }
        if self._plan.static:
            settings["group.instance.id"] = self.name
        return settings

    def _on_error(self, error: KafkaError) -> None:
        self.error_counts[error.code.name] += 1
        if error.code not in TRANSIENT_IN_GROUPS and not isinstance(error, CommitFailed):
            self.violations.append(f"{self.name} got {error.code.name}: {error.message}")


class _RecordingListener(RebalanceListener):
    def __init__(
        self,
        name: str,
        consumer: Consumer,
        ledger: GroupLedger,
        positions: dict[TopicPartition, int],
        assignments: Counter[TopicPartition],
    ) -> None:
        self._name = name
        self._consumer = consumer
        self._ledger = ledger
        self._positions = positions
        self._assignment_counts = assignments

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        generation = self._consumer.group_identity().generation
        self._ledger.assigned(self._name, generation, map(str, sorted(self._consumer.assignment())))
        for partition in partitions:
            self._positions.pop(partition, None)
        self._assignment_counts.update(partitions)
        self._ledger.takes_over(self._name, map(str, partitions))

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        for partition in partitions:
            self._positions.pop(partition, None)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        self.on_partitions_revoked(partitions)
