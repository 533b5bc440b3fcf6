"""Consumer programs: one that follows the log end, one that restarts at random times, one that reads all.

Without deletions and unclean elections, a position out of range or a truncated log is a violation. If records
are deleted, a reader continues at the log start offset; the checkers check that offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Entropy, Runtime
from nilometer.simulation.checkers.history import History, Seen
from nilometer.simulation.workload.program import Program
from nilometer.simulation.world import Host
from nilometer.wire.errors import ErrorCode, KafkaError

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
