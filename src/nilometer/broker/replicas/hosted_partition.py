"""One partition as this broker hosts it: its log, its replication role, and the requests that wait for it.

:class:`~nilometer.replication.replica.Replica` makes the decisions and returns them as effects. This module
applies the effects, in order, to the log and to the waiting requests. It does not decide what is committed or
which replica leads.

Invariants:
- the role is notified of every change of the log's end before any waiting request;
- an effect that fails stops the following ones (the log is then fenced, and the role resigned).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from nilometer.broker.replicas import delayed_requests
from nilometer.broker.replicas.delayed_requests import (
    RELEASED_AT_ONCE,
    CommitWait,
    DelayedRequest,
    DeleteOutcome,
    DeletionWaits,
    FetchWaiters,
    MayWait,
    Notifier,
    ProduceOutcome,
    ProduceWait,
    Releases,
)
from nilometer.broker.replicas.file_work import GroupCommit, LogDisposal
from nilometer.broker.replicas.isr_changes import NO_ANSWER, IsrLog, IsrRequests
from nilometer.broker.replicas.readable_partition import ReadablePartition
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.replicas.traffic import PartitionTraffic
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import TopicIdPartition
from nilometer.replication.follower import FetchResponse, FollowerRole
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import Replica
from nilometer.replication.shell_interface import (
    PENDING,
    PUBLISH_HIGH_WATERMARK,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BackOff,
    Effect,
    Effects,
    EligibleBrokers,
    FetchResult,
    FollowerFetch,
    PublishHighWatermark,
    ReleaseProduce,
    SendAlterPartition,
    ServeFetch,
    StartEpoch,
    StartInTier,
    TruncateFully,
    TruncateTo,
)
from nilometer.runtime import Clock
from nilometer.storage.appending import AppendInfo
from nilometer.storage.errors import LogFenced
from nilometer.storage.log import Log
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.record_validation import ReadingAllowance, ValidatedBatch
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import NONE, ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.replicas")


class PartitionHost(msgspec.Struct, frozen=True, kw_only=True):
    """What all partitions of this broker share."""

    clock: Clock
    is_live: Callable[[], bool]
    """Whether this broker may lead; see :class:`ReadablePartition`."""
    commit: GroupCommit
    disposal: LogDisposal
    isr_requests: IsrRequests
    isr_log: IsrLog
    failures: ReplicaFailures
    start_in_tier: Callable[[Partition, int], None]
    """Lets a follower go on behind records in remote storage; its leader's log start offset is given."""
    releases: Releases
    notifier: Notifier = msgspec.field(default_factory=Notifier)


class Partition(ReadablePartition):
    """One hosted partition, identified by ``key``; see the module."""

    def __init__(
        self,
        topic: str,
        key: TopicIdPartition,
        state: PartitionState,
        log: Log,
        replica: Replica,
        host: PartitionHost,
        on_broken: Callable[[Partition, AssertionError], None],
    ) -> None:
        """``on_broken`` fences the replica after an invariant was broken: it has no role when this
        returns."""
        super().__init__(topic, key, log, replica, host.is_live)
        self.state = state
        self._host = host
        self._on_broken = on_broken
        self.fetch_waiters = FetchWaiters()
        self._role_listeners: list[Callable[[Partition], None]] = []
        self._resume_listeners: list[Callable[[Partition], None]] = []
        self._produce_waits: dict[int, CommitWait] = {}
        self._next_ticket = 0
        self._flush_waits: deque[tuple[int, ProduceWait]] = deque()
        self._deletion_waits = DeletionWaits()
        self.traffic = PartitionTraffic()
        self._unflushed_records = 0
        self._is_seal_flush_asked = False

    # ── roles ───────────────────────────────────────────────────────────────────────────────────
    def on_metadata(self, state: PartitionState, eligible: EligibleBrokers) -> None:
        """Apply the partition's new state in the metadata log, which may change the role.

        ``eligible``: the epochs of the brokers that may be in an ISR.
        """
        epoch_before = self.replica.leader_epoch
        self.state = state
        self.replica.note_flushed(self.log.flushed_offset)
        self._carry_out(self.replica.on_metadata(state, eligible, self._host.clock.monotonic_ms()))
        if self.replica.leader_epoch != epoch_before:
            delayed_requests.role_changed(self)
            self._maybe_flush_all()
            self._notify_role_changed()
        self._update_deletion_waits()
        self._host.isr_log.note_state(self)

    def add_role_listener(self, listener: Callable[[Partition], None]) -> None:
        """Call ``listener`` with this partition after each change of the role, also when it loses its role.

        A listener that refers to the partition would keep it in memory after its deletion, until a collection
        of the oldest garbage."""
        self._role_listeners.append(listener)

    def add_resume_listener(self, listener: Callable[[Partition], None]) -> None:
        """Call ``listener`` with this partition when a follower may fetch again that could not: its log has
        been flushed, or the checkpoint of its truncation written."""
        self._resume_listeners.append(listener)

    def _notify_resumed(self) -> None:
        for listener in self._resume_listeners:
            listener(self)

    def _notify_role_changed(self) -> None:
        leads = isinstance(self.replica.role, LeaderRole)
        self.traffic.on_role(leads=leads, log_end_offset=self.log.log_end_offset)
        for listener in self._role_listeners:
            listener(self)

    def _maybe_flush_all(self) -> None:
        """Request a flush if only flushed records count and some are not flushed: records of an earlier run
        or role must count without waiting for another append."""
        unflushed = self.log.flushed_offset < self.log.log_end_offset and self.log.failure is None
        if self.counts_flushed and unflushed:
            self.request_flush()

    def configure(self, min_insync_replicas: int) -> None:
        """Apply changed settings of the topic to the replica and its role; the log has its own already."""
        effects = self.replica.configure(
            min_insync_replicas=min_insync_replicas,
            counts_flushed=self.counts_flushed,
            flushed_end_offset=self.log.flushed_offset,
            now_ms=self._host.clock.monotonic_ms(),
        )
        self._carry_out(effects)
        self._maybe_flush_all()
        if isinstance(self.replica.role, FollowerRole):
            self._notify_resumed()

    @property
    def counts_flushed(self) -> bool:
        """Whether a record counts as written only once it is flushed."""
        return self.log.config.flush_messages <= 1

    def resign(self) -> None:
        """Give up the role until the next :meth:`on_metadata`; waiting requests get
        NOT_LEADER_OR_FOLLOWER."""
        self._carry_out(self.replica.resign())
        delayed_requests.role_changed(self)
        while self._flush_waits:
            self._flush_waits.popleft()[1].release(ErrorCode.not_leader_or_follower)
        self._update_deletion_waits()
        self._notify_role_changed()
        self._host.isr_log.note_state(self)

    # ── produce ─────────────────────────────────────────────────────────────────────────────────
    def append(
        self,
        records: Bytes,
        *,
        all_replicas: bool,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        allowance: ReadingAllowance | None = None,
        validated: Sequence[ValidatedBatch] | None = None,
    ) -> AppendInfo:
        """Append a producer's batches as leader. Raises KafkaError; UnreadRecords, see
        :meth:`Log.append_as_leader`, also for ``allowance`` and ``validated``.

        ``all_replicas``: the producer wants acks=all, so too few in-sync replicas are an error.
        """
        leader = self.leader
        if all_replicas and (error := leader.admit_acks_all()) is not NONE:
            raise KafkaError(
                error,
                f"{self} has {len(leader.isr)} in-sync replicas, but min.insync.replicas is "
                f"{leader.min_insync_replicas}: start the brokers that are stopped",
            )
        log, keeps = self.log, self.fetch_waiters.count > 0
        try:
            info = log.append_as_leader(
                records,
                leader_epoch=leader.leader_epoch,
                wall_ms=self._host.clock.wall_ms(),
                origin=origin,
                keeps=keeps,
                allowance=allowance,
                validated=validated,
            )
        except LogFenced as reason:
            self._host.failures.disk_failed(self.log, reason)
            raise
        except AssertionError as broken:
            raise self._fenced_by(broken) from broken
        if not info.duplicate:
            try:
                self._after_append(leader, info)
            finally:
                if keeps:
                    log.keep_records(None)
        return info

    def on_failure(self, work: str, error: Exception) -> None:
        """Handle that ``work`` (a noun such as "retention") failed for this partition with ``error``."""
        if isinstance(error, AssertionError):
            self.fence(error)
        else:
            self._host.failures.on_failure(self.log, work, error)

    def on_success(self, work: str) -> None:
        """Note that ``work`` succeeded: an earlier failure of it is over."""
        self._host.failures.on_success(self.log, work)

    def fence(self, broken: AssertionError) -> None:
        """Fence the replica because of a broken invariant: it has no role when this returns."""
        self._on_broken(self, broken)

    def _fenced_by(self, broken: AssertionError) -> KafkaError:
        """Fence the replica because of a broken invariant, and return the error for the current request."""
        self.fence(broken)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self} is offline on this broker: {broken}")

    def _after_append(self, leader: LeaderRole, info: AppendInfo) -> None:
        self.traffic.bytes_in += info.size
        try:
            effects = leader.on_appended(info.last_offset + 1, self._host.clock.monotonic_ms())
        except AssertionError as broken:
            raise self._fenced_by(broken) from broken
        if not self._carry_out(effects):
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self} is offline on this broker")
        if self.fetch_waiters.count:
            delayed_requests.records_appended(self, info.size)
        self._count_unflushed(info)

    def _count_unflushed(self, info: AppendInfo) -> None:
        self._unflushed_records += info.last_offset - info.first_offset + 1
        state = self.log
        if self._unflushed_records >= state.config.flush_messages:
            self._unflushed_records = 0
            self.request_flush()
        elif state.unsynced_sealed:
            self._flush_sealed()

    def _flush_sealed(self) -> None:
        """Request one flush for full segments: so the recovery point advances, a restart checks little."""
        if not self._is_seal_flush_asked:
            self._is_seal_flush_asked = True
            self.request_flush()

    def acknowledge_when_committed(self, info: AppendInfo, outcome: ProduceOutcome, request: MayWait) -> None:
        """Make ``request`` (acks=all) wait until the appended records are committed, unless they are already.

        Called in the same step of the event loop as the append. Sets ``outcome`` if there are too few in-sync
        replicas. Raises KafkaError.
        """
        leader, required = self.present_leader, info.last_offset + 1
        result = leader.acks_all_outcome(required)
        if result is PENDING:
            ticket = self._hold(leader, required)
            wait = self._produce_waits[ticket] = request.wait_for(outcome)
            wait.ticket = (self, ticket, required)
        elif result is not NONE:
            outcome.fail(result)

    def abandon(self, ticket: int, offset: int) -> bool:
        """Forget a request that waits for the high watermark to reach ``offset``: its timeout has expired.

        Returns false if it does not wait any more: its release is put off.
        """
        if self._produce_waits.pop(ticket, None) is None:
            return False
        role = self.replica.role
        if isinstance(role, LeaderRole):
            role.abandon_produce(ticket, offset)
        return True

    @property
    def waiting_produces(self) -> int:
        """How many acknowledgements wait for the high watermark, or for a flush."""
        return len(self._produce_waits) + len(self._flush_waits)

    def hold_until_committed(self, offset: int, wait: CommitWait) -> None:
        """Release ``wait`` once the high watermark, which is lower now, has reached ``offset``.

        Raises KafkaError if this broker does not lead.
        """
        self._produce_waits[self._hold(self.leader, offset)] = wait

    def _hold(self, leader: LeaderRole, offset: int) -> int:
        """Return a new ticket, with which the leader role will release a wait (effect ReleaseProduce) once
        the high watermark has reached ``offset``."""
        ticket = self._next_ticket = self._next_ticket + 1
        try:
            leader.hold_produce(ticket, offset)
        except AssertionError as broken:
            raise self._fenced_by(broken) from broken
        return ticket

    def acknowledge_when_written(self, info: AppendInfo, outcome: ProduceOutcome, request: MayWait) -> None:
        """Make ``request`` (acks=1) wait for the flush if a record counts as written only once it is flushed;
        else it need not wait."""
        if self.counts_flushed and self.log.flushed_offset <= info.last_offset:
            self._flush_waits.append((info.last_offset + 1, request.wait_for(outcome)))

    def request_flush(self) -> None:
        """Flush the log with the next group commit."""
        self._host.commit.request(self.log, self._on_flush_ended)

    def _on_flush_ended(self, error: Exception | None) -> None:
        if error is not None:
            self.on_failure("flush", error)
        else:
            self._on_flushed()
            self.on_success("flush")

    def _on_flushed(self) -> None:
        """Release the acks=1 requests that wait for the flush, and notify the role and the fetcher.

        Called after the log's flushed offset has advanced.
        """
        self._is_seal_flush_asked = False
        if self.log.unsynced_sealed:
            self._flush_sealed()  # a segment became full during the flush, and no append may follow
        flushed = self.log.flushed_offset
        self._carry_out(self.replica.on_flushed(flushed, self._host.clock.monotonic_ms()))
        while self._flush_waits and self._flush_waits[0][0] <= flushed:
            self._flush_waits.popleft()[1].release()
        self._maybe_flush_all()  # a truncation during the flush makes it invalid
        self._notify_resumed()

    # ── following ───────────────────────────────────────────────────────────────────────────────
    def on_fetch_response(self, fetch: FollowerFetch, answer: FetchResponse, records: Bytes) -> str | None:
        """Apply the leader's response to ``fetch``; return why to back off before the next fetch, or None.

        ``records``: the fetched batches. Raises KafkaError if they cannot be appended: they are damaged, or
        the disk fails.
        """
        backs_off_because = None
        for effect in self.replica.on_fetch_response(fetch, answer):
            if isinstance(effect, AppendBatches):
                self._append_as_follower(records)
            elif isinstance(effect, AdvanceHighWatermark):
                self.log.producers.on_high_watermark(effect.offset)
                self._host.notifier.readable(self, max(len(records), 1))
            elif isinstance(effect, BackOff):
                backs_off_because = f"{effect.error.name}: {effect.reason}"
            elif not self._carry_out((effect,)):
                return "its log has failed"
        return backs_off_because

    def _truncate_to(self, offset: int) -> None:
        before = self.log.log_end_offset
        self._after_truncation(self._host.disposal.truncate_to(self.log, offset))
        if self.log.log_end_offset < before:  # else only leader epochs without records were removed
            logger.info(
                "%s is truncated from offset %d to %d, where its log and its leader's diverge",
                self,
                before,
                self.log.log_end_offset,
            )

    def _truncate_fully_and_start_at(self, offset: int) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self._after_truncation(self._host.disposal.truncate_fully_and_start_at(self.log, offset))
        if start < end:
            logger.info(
                "%s starts again at offset %d: its leader has none of its records from %d to %d",
                self,
                offset,
                start,
                end - 1,
            )

    def start_in_tier(
        self,
        role: FollowerRole,
        offset: int,
        log_start_offset: int,
        epochs: Sequence[tuple[int, int]],
        producers: bytes,
    ) -> None:
        """Let the log of the present ``role`` go on at ``offset``: the records below, from its log start
        offset on, are in remote storage. Raises CorruptSnapshot, with nothing changed; KafkaError."""
        log_start_offset = min(log_start_offset, offset)
        try:
            checkpoint = self._host.disposal.start_in_tier(
                self.log, offset, log_start_offset=log_start_offset, epochs=epochs, producers=producers
            )
        except LogFenced as reason:
            self._host.failures.disk_failed(self.log, reason)
            raise
        logger.info(
            "%s goes on at offset %d: its records from offset %d on are in remote storage",
            self,
            offset,
            log_start_offset,
        )
        role.on_started_in_tier()
        self.log.producers.on_high_watermark(role.high_watermark)
        self._host.notifier.readable(self, 1)
        if checkpoint is None:
            self._notify_resumed()
        else:
            self._after_truncation(checkpoint)

    def give_up_start_in_tier(self, role: FollowerRole) -> None:
        """Let the present ``role`` fetch again."""
        role.give_up_start_in_tier()
        self._notify_resumed()

    def remove_damaged(self, offset: int) -> bool:
        """Remove the records from ``offset``, where they are damaged; return whether the disk did it."""
        try:
            self._after_truncation(self._host.disposal.truncate_to(self.log, offset))
        except LogFenced as reason:
            self._host.failures.disk_failed(self.log, reason)
            return False
        return True

    def _after_truncation(self, checkpoint: asyncio.Future[None] | None) -> None:
        """Let the follower fetch again once the ``checkpoint`` is written that its log waits for."""
        if checkpoint is not None:
            checkpoint.add_done_callback(lambda _: self._notify_resumed())

    def _append_as_follower(self, records: Bytes) -> None:
        try:
            info = self.log.append_as_follower(records, wall_ms=self._host.clock.wall_ms())
        except LogFenced as reason:
            self._host.failures.disk_failed(self.log, reason)
            raise
        if info is not None:
            self.traffic.replication_bytes_in += info.size
            self._count_unflushed(info)

    # ── the ISR ─────────────────────────────────────────────────────────────────────────────────
    def _send_alter_partition(self, request: AlterPartition) -> None:
        host = self._host
        host.isr_log.note_request(self, request, host.clock.monotonic_ms())
        host.isr_requests.send(self.key, request, self._on_alter_partition_response)

    def _on_alter_partition_response(self, request: AlterPartition, answer: AlterPartitionResponse) -> None:
        try:
            now_ms = self._host.clock.monotonic_ms()
            self._carry_out(self.replica.on_alter_partition_response(request, answer, now_ms))
            self._update_deletion_waits()
            self._host.isr_log.note_state(self)
            if answer is NO_ANSWER:
                self.tick()
        except Exception as error:
            self.on_failure("change of the ISR", error)

    def tick(self) -> None:
        """Let the leader role check the time: a follower may have become out of sync, or an AlterPartition
        request may be due again."""
        role = self.replica.role
        if isinstance(role, LeaderRole) and role.needs_tick:
            self._carry_out(role.on_tick(self._host.clock.monotonic_ms()))

    # ── followers that fetch ────────────────────────────────────────────────────────────────────
    def on_follower_fetch(self, leader: LeaderRole, fetch: FollowerFetch) -> FetchResult:
        """Process a follower's fetch, which acknowledges all records below its offset.

        ``leader``: the present role, from :meth:`check_reader`. Returns whether to serve the fetch, to report
        a diverging epoch, or to reject it. Raises KafkaError if the replica has to be fenced.
        """
        try:
            result, effects = leader.on_follower_fetch(fetch, self._host.clock.monotonic_ms())
        except AssertionError as broken:
            raise self._fenced_by(broken) from broken
        self._carry_out(effects)
        self._update_deletion_waits()
        if isinstance(result, ServeFetch) and result.went_back:
            delayed_requests.fetch_went_back(self)
        return result

    def on_read_error(self, error: OSError) -> KafkaError:
        """Take the log's directory offline after a failed read, unless the file was deleted meanwhile.

        Returns the error for the request that read. The directory goes offline a little later, so that this
        request gets its response before those that wait for the partition.
        """
        paths = (segment.log_path for segment in self.log.segments)
        if not isinstance(error, FileNotFoundError) or error.filename in paths:
            self._host.failures.read_failed(self.log, error)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self} could not be read: {error}")

    # ── deletion ────────────────────────────────────────────────────────────────────────────────
    def delete_records(self, offset: int, outcome: DeleteOutcome, request: DelayedRequest) -> None:
        """Move the log start offset to ``offset`` (-1: the high watermark). Raises KafkaError.

        ``request`` waits until the low watermark has reached it, unless that is so already.
        """
        leader = self.leader
        if not self.log.config.is_deleted_by_retention:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"Cannot delete records of {self.topic}: its cleanup.policy does not include delete",
            )
        target = leader.high_watermark if offset == -1 else offset
        if not 0 <= target <= leader.high_watermark:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"cannot delete records of {self} below {target}: the offset must be from 0 to the high "
                f"watermark {leader.high_watermark}",
            )
        try:
            self.log.advance_log_start_offset(target, leader.high_watermark)
            self.notify_log_start()
            outcome.low_watermark = leader.low_watermark
        except LogFenced as reason:
            self._host.failures.disk_failed(self.log, reason)
            raise
        except AssertionError as broken:
            raise self._fenced_by(broken) from broken
        if outcome.low_watermark < target:
            self._deletion_waits.hold(target, outcome, request)

    def _update_deletion_waits(self) -> None:
        """Update the waiting DeleteRecords requests after a change of the low watermark or of the role."""
        if not self._deletion_waits:
            return
        role = self.replica.role
        if isinstance(role, LeaderRole):
            self._deletion_waits.on_low_watermark(role.low_watermark)
        else:
            self._deletion_waits.fail_all(ErrorCode.not_leader_or_follower)

    def notify_log_start(self) -> None:
        """Notify the waiting fetches that the log start offset has moved."""
        self._host.notifier.readable(self, 0)

    # ── effects ─────────────────────────────────────────────────────────────────────────────────
    def _carry_out(self, effects: Effects) -> bool:
        """Apply the effects in order; return whether all were applied.

        A failed disk or a broken invariant stops them, and the host is notified.
        """
        try:
            if effects is PUBLISH_HIGH_WATERMARK:  # the usual effects of an append without followers
                self._publish_high_watermark()
                return True
            if len(effects) > RELEASED_AT_ONCE:
                effects = self._put_off(effects)
            for effect in effects:
                self._carry_out_one(effect)
        except LogFenced as reason:
            self._host.failures.disk_failed(self.log, reason)
            return False
        except OSError as error:
            self._host.failures.disk_failed(self.log, error)
            return False
        except AssertionError as broken:
            self.fence(broken)
            return False
        return True

    def _put_off(self, effects: Effects) -> Effects:
        """Return the effects that are to be applied at once: of those that end waits the first ones."""
        at_once: list[Effect] = []
        put_off: deque[tuple[CommitWait, ErrorCode]] = deque()
        for effect in effects:
            if not isinstance(effect, ReleaseProduce) or len(at_once) < RELEASED_AT_ONCE:
                at_once.append(effect)
            elif (wait := self._produce_waits.pop(effect.ticket, None)) is not None:
                put_off.append((wait, effect.outcome))
        self._host.releases.add(put_off)
        return tuple(at_once)

    def _carry_out_one(self, effect: Effect) -> None:
        # Not by match: this module is compiled.
        if isinstance(effect, PublishHighWatermark):
            self._publish_high_watermark()
        elif isinstance(effect, ReleaseProduce):
            if (wait := self._produce_waits.pop(effect.ticket, None)) is not None:
                wait.release(effect.outcome)
        elif isinstance(effect, StartEpoch):
            self.log.epochs.begin(effect.epoch, effect.start_offset)
        elif isinstance(effect, SendAlterPartition):
            self._send_alter_partition(effect.request)
        elif isinstance(effect, TruncateTo):
            self._truncate_to(effect.offset)
        elif isinstance(effect, TruncateFully):
            self._truncate_fully_and_start_at(effect.start_offset)
        elif isinstance(effect, StartInTier):
            self._host.start_in_tier(self, effect.log_start_offset)
        elif isinstance(effect, AdvanceLogStart):
            self.log.advance_log_start_offset(effect.offset, self.replica.high_watermark)
        else:
            fetched: AdvanceHighWatermark | AppendBatches | BackOff = effect
            raise AssertionError(f"{fetched} of {self} is only valid in a fetch response")

    def _publish_high_watermark(self) -> None:
        self.log.producers.on_high_watermark(self.replica.high_watermark)
        # An estimate: all records up to the log end offset count as readable; a waiting fetch reads to check.
        published = self.traffic.take_published()
        if self.fetch_waiters.count:
            self._host.notifier.readable(self, max(published, 1))
