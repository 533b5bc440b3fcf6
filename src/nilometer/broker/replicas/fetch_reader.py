"""Reads the records for one fetch: partition by partition in the reader's order, within its byte limits.

The first partition that has records returns at least one whole batch, however large (KIP-74), unless the
memory for responses is used up, and clients of the same origin hold a share of it; later ones only batches
that fit. A follower's fetch counts as its acknowledgement once, at the first read. A read of data that is not
in memory is *cold*: it runs off the event loop, and its result is added afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from nilometer.broker.connection_memory import FETCH_BYTES_MAX, Holder, ResponseMemory
from nilometer.broker.replicas.fetch_session import FetchPartition, PartitionKey
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replicas.replication_quota import ReplicationQuota
from nilometer.identifiers import BrokerEpoch, BrokerId
from nilometer.replication.epochs import EpochEnd
from nilometer.replication.follower import FollowerRole
from nilometer.replication.shell_interface import DivergingFetch, FollowerFetch, RejectFetch
from nilometer.storage.errors import CorruptRecordFound, OffsetInTier
from nilometer.storage.reading import LogSlice
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, KafkaError

READ_US = 5_000
"""After this processor time a client's fetch reads no further partition that has records: batches may be
small. What other processes take does not count: the same fetch gets the same records on a busy machine."""


class ReaderIdentity(msgspec.Struct, frozen=True):
    replica_id: BrokerId
    replica_epoch: BrokerEpoch
    read_committed: bool
    rack: str

    @property
    def is_replica(self) -> bool:
        return self.replica_id >= 0


class ColdRead(msgspec.Struct, frozen=True):
    """A read that has to wait for the disk: at most ``max_bytes`` of records from ``offset`` up to ``end``.

    With ``min_one`` the first batch is read even if it is larger than ``max_bytes``.
    """

    partition: Partition
    offset: int
    max_bytes: int
    end: int
    min_one: bool

    def run(self, *, may_exceed: bool) -> LogSlice:
        """Read the records; without ``may_exceed`` no batch that is larger than ``max_bytes``. Raises
        KafkaError, OSError.

        May wait for the disk: call it off the event loop. It changes nothing that the event loop uses.
        """
        min_one = self.min_one and may_exceed
        found = self.partition.log.read(self.offset, self.max_bytes, self.end, min_one=min_one)
        assert found is not None, "only a read from memory may return None"
        return found


class RemoteRead(msgspec.Struct, frozen=True):
    """A read of records that are in remote storage only; with ``min_one`` as a :class:`ColdRead`."""

    partition: Partition
    offset: int
    max_bytes: int
    min_one: bool


class FetchOutcome(msgspec.Struct):
    """The part of the response for one partition."""

    asked: FetchPartition
    error: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Bytes = b""
    size: int = 0
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions among the records; None unless read_committed."""
    diverging: EpochEnd | None = None
    preferred_read_replica: int = -1
    cold: ColdRead | RemoteRead | None = None
    has_more: bool = False
    """Whether the partition has more records, which did not fit or which the leader's replication quota does
    not allow now."""
    throttled: bool = False
    """Whether the bytes count against the leader's replication quota."""
    has_update: bool = False
    """For a follower: the high watermark has risen above the one last sent to it, so that the response must
    be sent soon."""

    def fail(self, error: ErrorCode) -> None:
        self.error = error
        self.records, self.size, self.cold = b"", 0, None

    @property
    def topic(self) -> str | UUID:
        """The topic's name or id, as the reader named it."""
        return self.asked.topic.as_named

    @property
    def is_urgent(self) -> bool:
        """Whether the response must be sent at once."""
        return (
            self.error is not ErrorCode.none or self.diverging is not None or self.preferred_read_replica >= 0
        )


class FetchReader:
    def __init__(
        self,
        replicas: ReplicaManager,
        identity: ReaderIdentity,
        to_read: Callable[[], Sequence[FetchPartition]],
        max_bytes: int,
        on_found: Callable[[FetchPartition, Partition], None],
        quota: ReplicationQuota,
        cpu_us: Callable[[], int],
        check: Callable[[FetchPartition], None] | None = None,
        memory: ResponseMemory | None = None,
        holder: Holder | None = None,
    ) -> None:
        """``to_read`` is called at each read and returns the partitions to read; ``on_found`` is called with
        each of them that this broker hosts. ``check``, if given, is called with each before it is read, and
        raises KafkaError if the reader may not read it. ``memory`` bounds what is read, if the reader is a
        client, whose connection is ``holder``; ``cpu_us`` gives the processor time that this thread has used.
        """
        self._check = check
        self._memory = memory
        self._holder = holder
        self._cpu_us = cpu_us
        self._is_timed = False
        """Whether the present read is for a client, and all of it in one turn."""
        self._began_us: int | None = None
        """When it came to the second partition that has records."""
        self.identity = identity
        self._is_replica = identity.is_replica
        self._replicas = replicas
        self._bytes_allowed = max_bytes
        self.max_bytes = 0
        """How many bytes this read may have; more only if its first batch is larger."""
        self._to_read = to_read
        self._on_found = on_found
        self._quota = quota
        self._acknowledged: set[PartitionKey] = set()
        """Partitions for which this fetch has counted as its follower's acknowledgement."""
        self.outcomes: list[FetchOutcome] = []
        self.bytes_read = 0
        self.is_urgent = False
        """Whether the response must be sent at once; with ``has_update``: soon."""
        self.has_update = False
        self.has_cold = False
        self._with_records: list[tuple[Partition, FetchOutcome]] = []
        """The outcomes that have records."""

    def read(self) -> None:
        """Read all partitions again, from memory; sets ``outcomes``, of which some may need a cold read."""
        partitions = self.begin()
        self._is_timed = not self._is_replica
        for asked in partitions:
            self.read_next(asked)

    def begin(self) -> Sequence[FetchPartition]:
        """Begin to read again; return the partitions to call :meth:`read_next` with."""
        self.drop()
        self._is_timed, self._began_us = False, None
        memory_max = FETCH_BYTES_MAX if self._memory is None else self._memory.fetch_bytes_max()
        self.max_bytes = min(self._bytes_allowed, memory_max)
        self.bytes_read = 0
        self.is_urgent = self.has_update = self.has_cold = False
        return self._to_read()

    def drop(self) -> None:
        """Drop what was read: a fetch that waits must not keep it."""
        self.outcomes = []
        self._with_records = []

    def read_next(self, asked: FetchPartition) -> None:
        outcome = FetchOutcome(asked)
        try:
            if self._check is not None:
                self._check(asked)
            partition = self._find(asked)
            self._on_found(asked, partition)
            self._read_one(partition, outcome)
        except OffsetInTier as error:
            self._leave_to_remote(self._find(asked), outcome, error)
        except KafkaError as error:
            self.fail(outcome, error)
        except OSError as error:
            self.fail(outcome, self._find(asked).on_read_error(error))
        self.outcomes.append(outcome)
        self.is_urgent |= outcome.is_urgent
        self.has_update |= outcome.has_update
        self.has_cold |= outcome.cold is not None

    def fail(self, outcome: FetchOutcome, error: KafkaError) -> None:
        """Respond with ``error`` for this partition."""
        if isinstance(error, CorruptRecordFound):
            self._replicas.damaged.report(error)
        self._replicas.traffic.failed_fetches += 1
        outcome.fail(error.code)

    def _find(self, asked: FetchPartition) -> Partition:
        topic_id, name = asked.topic
        if topic_id is not None:
            return self._replicas.partition_by_raw_id(topic_id, asked.partition)
        return self._replicas.partition(name or "", asked.partition)

    def read_cold(
        self, *, may_exceed: bool = True
    ) -> list[tuple[FetchOutcome, LogSlice | KafkaError | OSError]]:
        """Carry out the cold reads; the result is for ``take_cold``. Call it off the event loop.

        ``may_exceed``: whether the first batch may be larger than all that is allowed.
        """
        found: list[tuple[FetchOutcome, LogSlice | KafkaError | OSError]] = []
        left = self.max_bytes - self.bytes_read
        for outcome in self.outcomes:
            if not isinstance(outcome.cold, ColdRead) or left <= 0:
                continue
            try:
                piece = outcome.cold.run(may_exceed=may_exceed and left == self.max_bytes)
                left -= len(piece.records)
                found.append((outcome, piece))
            except (KafkaError, OSError) as error:
                found.append((outcome, error))
        return found

    def take_cold(self, found: Sequence[tuple[FetchOutcome, LogSlice | KafkaError | OSError]]) -> None:
        """Add the results of :meth:`read_cold` to the outcomes. Call it on the event loop."""
        for outcome, piece in found:
            cold, outcome.cold = outcome.cold, None
            if not isinstance(cold, ColdRead):
                continue
            try:
                if isinstance(piece, Exception):
                    raise piece
                self._take(cold.partition, outcome, piece, cold.end)
            except OffsetInTier as error:  # deleted here meanwhile
                self._leave_to_remote(cold.partition, outcome, error)
            except KafkaError as error:
                self.fail(outcome, error)
            except OSError as error:
                self.fail(outcome, cold.partition.on_read_error(error))

    @property
    def has_local_cold(self) -> bool:
        """Whether some of the cold reads are not of remote storage."""
        return any(isinstance(outcome.cold, ColdRead) for outcome in self.outcomes)

    @property
    def _has_remote(self) -> bool:
        return any(isinstance(outcome.cold, RemoteRead) for outcome in self.outcomes)

    @property
    def _is_short_of_memory(self) -> bool:
        """Whether the client gets no batch that is larger than what is left for it."""
        memory, holder = self._memory, self._holder
        if memory is None or not memory.is_short():
            return False
        return holder is None or memory.is_short_for(holder.origin)

    def take_remote_reads(self) -> list[tuple[FetchOutcome, RemoteRead]]:
        """Return the reads of remote storage, each with the outcome that waits for it: as many as there is
        room for, also if each is as large as it may be."""
        found: list[tuple[FetchOutcome, RemoteRead]] = []
        left = self.max_bytes - self.bytes_read
        for outcome in self.outcomes:
            remote = outcome.cold
            if not isinstance(remote, RemoteRead):
                continue
            outcome.cold = None
            if left > 0 or not (found or self.bytes_read):
                found.append((outcome, remote))
                left -= remote.max_bytes
            else:
                self.pass_over(outcome)
        return found

    def take_remote(
        self, outcome: FetchOutcome, remote: RemoteRead, records: Bytes, aborted: Sequence[AbortedTxn]
    ) -> None:
        """Add what was read from remote storage, unless it is larger than it may be."""
        if len(records) > remote.max_bytes and not remote.min_one:
            self.pass_over(outcome)
            return
        outcome.records, outcome.size = records, len(records)
        self.bytes_read += outcome.size
        self._with_records.append((remote.partition, outcome))
        in_records = [(one.producer_id, one.first_offset) for one in aborted]
        outcome.aborted = in_records if self.identity.read_committed else None

    def pass_over(self, outcome: FetchOutcome) -> None:
        """Respond without the partition's records, which are there: the reader asks again."""
        outcome.has_more = True

    def _leave_to_remote(self, partition: Partition, outcome: FetchOutcome, moved: OffsetInTier) -> None:
        """Read from remote storage, unless a follower reads: it goes on behind what is there."""
        if self._is_replica:
            self.fail(outcome, moved)
        else:
            room = max(0, min(outcome.asked.max_bytes, self.max_bytes - self.bytes_read))
            is_first = not self.bytes_read and not self._has_remote
            min_one = is_first and not self._is_short_of_memory
            outcome.cold = RemoteRead(partition, moved.offset, room, min_one)

    def _read_one(self, partition: Partition, outcome: FetchOutcome) -> None:
        if self._is_replica:
            end = self._end_for_replica(partition, outcome)
        else:
            end = self._end_for_consumer(partition, outcome)
        if end is None or outcome.diverging is not None or outcome.preferred_read_replica >= 0:
            return
        asked, log = outcome.asked, partition.log
        if self._is_replica:
            if asked.fetch_offset == end:
                return  # the follower has all records, as usual when its fetch arrives
            if self._is_held_back(partition):
                outcome.has_more = asked.fetch_offset < end
                return
        room = max(0, min(asked.max_bytes, self.max_bytes - self.bytes_read))
        min_one = self.bytes_read == 0 and not self._is_short_of_memory
        if (room <= 0 and not min_one) or self._is_over:
            outcome.has_more = asked.fetch_offset < end
            return
        # Above the high watermark but within the log there is nothing to read yet, which is no error.
        piece = log.read(asked.fetch_offset, room, end, min_one=min_one, only_cached=True)
        if piece is None:
            outcome.cold = ColdRead(partition, asked.fetch_offset, room, end, min_one)
        else:
            self._take(partition, outcome, piece, end)

    @property
    def _is_over(self) -> bool:
        if not self._is_timed or not self.bytes_read:
            return False
        now_us = self._cpu_us()
        if self._began_us is None:
            self._began_us = now_us
        return now_us - self._began_us >= READ_US

    def _describe(self, partition: Partition, high_watermark: int, outcome: FetchOutcome) -> None:
        outcome.log_start_offset = partition.log.log_start_offset
        outcome.high_watermark = high_watermark
        outcome.last_stable_offset = partition.log.last_stable_offset(high_watermark)

    def _end_for_consumer(self, partition: Partition, outcome: FetchOutcome) -> int:
        asked = outcome.asked
        if self._replicas.serves_from_followers:
            role = partition.check_consumer(asked.current_leader_epoch)
        else:
            role = partition.check_reader(asked.current_leader_epoch)
        self._describe(partition, role.high_watermark, outcome)
        if isinstance(role, FollowerRole):
            if asked.fetch_offset > role.high_watermark:
                raise KafkaError(
                    ErrorCode.offset_not_available,
                    f"{partition}: offset {asked.fetch_offset} is above this follower's high watermark "
                    f"{role.high_watermark}",
                )
        elif self._replicas.serves_from_followers:
            preferred = self._replicas.preferred_read_replica(role, self.identity.rack, asked.fetch_offset)
            outcome.preferred_read_replica = -1 if preferred is None else preferred
        if asked.last_fetched_epoch >= 0:
            outcome.diverging = partition.diverging_epoch(asked.fetch_offset, asked.last_fetched_epoch)
        return outcome.last_stable_offset if self.identity.read_committed else role.high_watermark

    def _is_held_back(self, partition: Partition) -> bool:
        """Return whether the leader's replication quota keeps this follower from reading ``partition`` now.

        This is so if the settings name the partition's replica here as throttled, the follower is not in the
        ISR, and the quota, which all throttled replicas on this broker share, is used up.
        """
        if not self._quota.throttles(partition.topic, partition.key.partition):
            return False
        return self.identity.replica_id not in partition.leader.isr and self._quota.wait_ms() > 0

    def count_sent(self) -> None:
        """Count the bytes of the outcomes, which are sent now; those of throttled replicas also against the
        quota."""
        for partition, outcome in self._with_records:
            if self._is_replica:
                partition.traffic.replication_bytes_out += outcome.size
                if outcome.throttled:
                    self._quota.record(outcome.size)
            else:
                partition.traffic.bytes_out += outcome.size

    def _end_for_replica(self, partition: Partition, outcome: FetchOutcome) -> int | None:
        asked, identity = outcome.asked, self.identity
        leader = partition.check_reader(asked.current_leader_epoch)
        self._describe(partition, leader.high_watermark, outcome)
        if asked.key in self._acknowledged:
            outcome.has_update = leader.high_watermark_update_pending(identity.replica_id)
            outcome.high_watermark = leader.send_high_watermark(identity.replica_id)
            return leader.log_end_offset
        fetch = FollowerFetch(
            identity.replica_id,
            identity.replica_epoch,
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
        )
        result = partition.on_follower_fetch(leader, fetch)
        if isinstance(result, RejectFetch):
            raise KafkaError(result.error)
        if isinstance(result, DivergingFetch):
            outcome.diverging = result.diverging
            return None
        self._acknowledged.add(asked.key)
        has_records = asked.fetch_offset < result.end_offset
        outcome.has_update = result.has_update
        outcome.high_watermark = (
            result.high_watermark if has_records else leader.send_high_watermark(identity.replica_id)
        )
        return result.end_offset

    def _take(self, partition: Partition, outcome: FetchOutcome, piece: LogSlice, end: int) -> None:
        outcome.records = piece.records
        outcome.size = len(piece.records)
        outcome.throttled = self._quota.throttles(partition.topic, partition.key.partition)
        outcome.has_more = not outcome.size and outcome.asked.fetch_offset < end
        self.bytes_read += outcome.size
        if outcome.size:
            self._with_records.append((partition, outcome))
        if self.identity.read_committed:
            outcome.aborted = [
                (aborted.producer_id, aborted.first_offset)
                for aborted in partition.log.aborted_transactions(
                    outcome.asked.fetch_offset, piece.next_offset, piece.records
                )
            ]
