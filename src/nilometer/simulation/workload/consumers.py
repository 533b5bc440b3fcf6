"""Consumer programs: what reads topics alone, and what reads them as a member of a group."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.group.committer import CommitFailed
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.group.member import RebalanceListener
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Entropy, Runtime
from nilometer.simulation.checkers.group_ledger import GroupLedger
from nilometer.simulation.checkers.history import History, Seen
from nilometer.simulation.world import Host, Program
from nilometer.wire.errors import ErrorCode, KafkaError

# Consumer programs: one that follows the log end, one that restarts at random times, one that reads all.
#
# Without deletions and unclean elections, a position out of range or a truncated log is a violation. If
# records are deleted, a reader continues at the log start offset; the checkers check that offset.

# Look-ups of offsets by time by a consumer: the result must be consistent with the records that it has read.
#
# A record that was read remains unless records are deleted. So the first record that is not older than one
# that was read must not be after it.

KNOWN_MAX = 64


class TimeLookups:
    """Checks look-ups by time, with the timestamps of a few records of each partition."""

    def __init__(self, *, deleted: bool) -> None:
        """``deleted``: whether records of the partitions may be deleted."""
        self._deleted = deleted
        self._known: dict[TopicPartition, dict[int, int]] = {}
        self.done = 0

    def note(self, record: ConsumerRecord, entropy: Entropy) -> None:
        known = self._known.setdefault(TopicPartition(record.topic, record.partition), {})
        if len(known) >= KNOWN_MAX:
            del known[list(known)[entropy.below(KNOWN_MAX)]]
        known[record.offset] = record.timestamp

    async def look(self, consumer: Consumer, entropy: Entropy) -> str | None:
        """Look up the timestamp of a record that was read; return the error in the result, None if correct.

        Raises KafkaError.
        """
        if not self._known:
            return None
        partition = entropy.choice(sorted(self._known))
        known = self._known[partition]
        offset = entropy.choice(sorted(known))
        wanted = known[offset]
        found = (await consumer.offsets_for_times({partition: wanted}))[partition]
        self.done += 1
        where = f"look-up by time: {partition} has a record of {wanted} ms at {offset}"
        if found is None:
            return None if self._deleted else f"{where}, and none was found"
        if found.timestamp < wanted:
            return f"{where}, and one of {found.timestamp} ms was found"
        if self._deleted:
            return None
        first = min(at for at, timestamp in known.items() if timestamp >= wanted)
        if found.offset > first:
            return f"{where}, one as recent at {first}, and {found.offset} was found"
        return None


RETRY_S = 0.5
PAUSE_S = (0.0, 0.6)
"""Between two polls: the reader is not the load that is tested."""
POLL_MS = 1_000
LOOK_UPS_NOTED = 16
"""Of how many records of a poll the timestamps are noted, to be looked up later."""
TRANSIENT = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.replica_not_available,
    }
)
"""Errors that a reader may get while faults are injected."""


class Reader(Program):
    """One consumer program. ``violations`` are results that it must never get."""

    def __init__(
        self,
        name: str,
        host: Host,
        bootstrap_servers: str,
        partitions: Sequence[TopicPartition],
        history: History,
        *,
        polls_per_incarnation: int | None = None,
        deleted: bool = False,
        committed: bool = False,
    ) -> None:
        """``polls_per_incarnation``: restart from the first offset after about so many polls; None: never.
        ``deleted``: whether records are deleted. ``committed``: whether only committed records are read."""
        super().__init__(name, host)
        self.violations: list[str] = []
        self.read = 0
        self._bootstrap_servers = bootstrap_servers
        self._partitions = list(partitions)
        self._history = history
        self._polls_per_incarnation = polls_per_incarnation
        self._deleted = deleted
        self._committed = committed
        self._latest: dict[TopicPartition, int] = {}
        self._times = TimeLookups(deleted=deleted)
        self.positions: dict[TopicPartition, int] = dict.fromkeys(self._partitions, 0)

    async def read_to_end(self, runtime: Runtime) -> None:
        """Read all records up to the current log ends, and record that in the history (a main function)."""
        async with self._consumer(runtime) as consumer:
            self._begin(consumer)
            ends = await consumer.end_offsets(self._partitions)
            while await self._behind(consumer, ends):
                self._note(await consumer.poll(timeout_ms=POLL_MS), consumer)
        self._history.read_to_end(self.name)

    async def _behind(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
        for partition, end in ends.items():
            passes_offsets = self._deleted or self._committed
            if self.positions[partition] < end and not (
                passes_offsets and await consumer.position(partition) >= end
            ):
                return True
        return False

    async def _main(self, runtime: Runtime) -> None:
        fresh = True
        while not self._stopping:
            try:
                async with self._consumer(runtime) as consumer:
                    self._begin(consumer, fresh=fresh)
                    fresh = await self._poll_until_stopped(runtime, consumer)
            except KafkaError as error:
                self._on_error(error)
                fresh = error.code not in TRANSIENT
                await asyncio.sleep(RETRY_S)

    def _consumer(self, runtime: Runtime) -> Consumer:
        return Consumer(
            runtime,
            {
                "bootstrap.servers": self._bootstrap_servers,
                "client.id": self.name,
                "auto.offset.reset": "earliest" if self._deleted else "none",
                "request.timeout.ms": 10_000,
                "default.api.timeout.ms": 30_000,
                "metadata.max.age.ms": 30_000,
                "allow.auto.create.topics": False,
                "isolation.level": "read_committed" if self._committed else "read_uncommitted",
            },
        )

    def _begin(self, consumer: Consumer, *, fresh: bool = True) -> None:
        if fresh:
            self._history.moved(self.name)
            self.positions = dict.fromkeys(self._partitions, 0)
        consumer.assign(self._partitions)
        for partition, offset in self.positions.items():
            consumer.seek(partition, offset)

    async def _poll_until_stopped(self, runtime: Runtime, consumer: Consumer) -> bool:
        """Poll until stopped; return True to restart from the first offset."""
        polls = 0
        limit = None
        if self._polls_per_incarnation is not None:
            limit = 1 + runtime.entropy.below(2 * self._polls_per_incarnation)
        while not self._stopping:
            polls += 1
            if limit is not None and polls > limit:
                return True
            await self._try(lambda: self._poll(runtime, consumer))
            if polls % 6 == 0:
                await self._try(lambda: self._look_at_latest(consumer))
            if polls % 2 == 0:
                await self._try(lambda: self._look_up_by_time(runtime, consumer))
            await asyncio.sleep(runtime.entropy.uniform(*PAUSE_S))
        return False

    async def _try(self, step: Callable[[], object]) -> None:
        """Execute a step; transient errors are only counted."""
        try:
            await step()  # type: ignore[misc]
        except KafkaError as error:
            self._on_error(error)
            if error.code not in TRANSIENT:
                raise

    async def _poll(self, runtime: Runtime, consumer: Consumer) -> None:
        records = await consumer.poll(timeout_ms=POLL_MS)
        self._note(records, consumer)
        for record in records[:: 1 + len(records) // LOOK_UPS_NOTED]:
            self._times.note(record, runtime.entropy)

    def _note(self, records: list[ConsumerRecord], consumer: Consumer) -> None:
        if not records:
            return
        self.read += len(records)
        for record in records:
            self.positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
        self._history.poll(
            self.name,
            (
                Seen(
                    f"{record.topic}-{record.partition}",
                    record.offset,
                    (record.value or b"").decode().rstrip(),
                )
                for record in records
            ),
        )

    async def _look_up_by_time(self, runtime: Runtime, consumer: Consumer) -> None:
        error = await self._times.look(consumer, runtime.entropy)
        if error is not None:
            self.violations.append(error)

    async def _look_at_latest(self, consumer: Consumer) -> None:
        for partition, offset in (await consumer.end_offsets(self._partitions)).items():
            known = self._latest.get(partition, 0)
            if offset < known:
                self.violations.append(f"latest of {partition} went back from {known} to {offset}")
            self._latest[partition] = max(known, offset)

    def _on_error(self, error: KafkaError) -> None:
        self.error_counts[error.code.name] += 1
        if error.code not in TRANSIENT:
            self.violations.append(f"{self.name} got {error.code.name}: {error.message}")


# Consumer programs that are members of one group: they process, commit, are slow, leave and rejoin.
#
# A member commits only offsets of records that it has processed. Sometimes it exceeds the poll interval, or
# closes its consumer and joins with a new one; after :meth:`GroupMember.stop_disrupting` it does neither.

MEMBER_POLL_MS = 500
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
                self._process(await consumer.poll(timeout_ms=MEMBER_POLL_MS))
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
