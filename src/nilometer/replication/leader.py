"""The leader of a partition: its high watermark, its ISR, and which fetches are served.

LEO is a log end offset, HW the high watermark, ISR the set of in-sync replicas. The role has its own LEO,
each follower's, the committed ISR and the requested ISR. It uses no clock and no connection and does not
change the log; ``now_ms`` is monotonic time in ms. Every ``on_*`` method takes one event and returns its
effects (:mod:`nilometer.replication.shell_interface`), usually none.

The high watermark is

    max(HW, min(LEO of the leader and of every replica that is in the committed ISR, is being added to it,
                or is caught up and eligible))

and is *held* while the committed ISR is smaller than min(``min.insync.replicas``, replication factor).

Invariants:
- *the high watermark never decreases* within one leader role, and is never above the log end offset, or above
  the flushed offset if ``counts_flushed``;
- *one AlterPartition in flight*; until its outcome is known, a record is only committed if the whole maximal
  ISR has it;
- *no replica joins the ISR below the high watermark or below the start of the leader's epoch*
  (:mod:`nilometer.replication.followers`);
- *the leader never removes itself*, so an ISR never becomes empty.

A role lasts for one leader epoch: every epoch change makes a new one (:mod:`nilometer.replication.replica`).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
)
from nilometer.invariants import check
from nilometer.replication.epochs import (
    NO_DIVERGENCE,
    EpochEnd,
    ReplicaLog,
    check_leader_epoch,
    diverging_epoch,
)
from nilometer.replication.followers import Followers, IsrMembership, RemoteReplica
from nilometer.replication.isr import (
    AlterPartition,
    AlterPartitionOutcome,
    AlterPartitionResponse,
    CommittedIsr,
    IsrNegotiation,
    IsrState,
)
from nilometer.replication.shell_interface import (
    NO_EFFECTS,
    NOT_HELD,
    PENDING,
    PUBLISH_HIGH_WATERMARK,
    WAITING_FOR_FLUSH,
    AcksAllOutcome,
    DivergingFetch,
    Effects,
    EligibleBrokers,
    FetchResult,
    FollowerFetch,
    HighWatermarkHold,
    PartitionRegistration,
    RejectFetch,
    ReleaseProduce,
    ServeFetch,
    StartEpoch,
    UnderMinIsr,
    WaitingFor,
    clamped_high_watermark,
)
from nilometer.wire.errors import NONE, ErrorCode

# The produce requests with acks=all that wait for the high watermark.
#
# A ticket is a number, chosen by the code that uses the leader role, with the offset that the high watermark
# must reach; they increase. Tickets arrive almost in order of offsets (except for a batch repeated by an
# idempotent producer), so a sorted list is fast enough. Thousands may have the same offset: each repeats it.


class ProduceTickets:
    """The waiting tickets, sorted by required offset, then by arrival."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: list[tuple[Offset, int]] = []

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, ticket: int, required_offset: Offset) -> None:
        waiting = self.queue
        if not waiting or waiting[-1][0] <= required_offset:
            waiting.append((required_offset, ticket))
        else:
            insort(waiting, (required_offset, ticket))

    def discard(self, ticket: int, required_offset: Offset) -> None:
        """Remove a ticket. An unknown one is ignored: it may have been released meanwhile."""
        waiting = self.queue
        index = bisect_left(waiting, (required_offset, ticket))
        if index < len(waiting) and waiting[index] == (required_offset, ticket):
            del waiting[index]

    def released_by(self, high_watermark: Offset) -> list[int]:
        """Remove and return the tickets whose required offset is at or below ``high_watermark``."""
        count = 0
        for required_offset, _ in self.queue:
            if required_offset > high_watermark:
                break
            count += 1
        released = [ticket for _, ticket in self.queue[:count]]
        del self.queue[:count]
        return released

    def take_all(self) -> list[int]:
        tickets = [ticket for _, ticket in self.queue]
        self.queue.clear()
        return tickets

    def waiting(self) -> tuple[tuple[Offset, int], ...]:
        """Return (required offset, ticket) of every waiting produce request."""
        return tuple(self.queue)


class LeaderRole:
    """A leader's state in one leader epoch; the module describes the rules. Fields are read-only outside."""

    __slots__ = (
        "_followers",
        "_has_no_followers",
        "_isr",
        "_log",
        "_membership",
        "_tickets",
        "broker_epoch",
        "broker_id",
        "counts_flushed",
        "epoch_start_offset",
        "flushed_end_offset",
        "high_watermark",
        "leader_epoch",
        "log_end_offset",
        "min_insync_replicas",
        "replicas",
    )

    def __init__(
        self,
        registration: PartitionRegistration,
        log: ReplicaLog,
        *,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        high_watermark: Offset,
        eligible: EligibleBrokers,
        now_ms: int,
        min_insync_replicas: int = 1,
        replica_lag_time_max_ms: int = 10_000,
        counts_flushed: bool = False,
        flushed_end_offset: Offset = 0,
    ) -> None:
        """Become leader according to ``registration``. Call :meth:`start` before any append."""
        check(
            registration.leader == broker_id, "a leader is named by the registration", registration, broker_id
        )
        check(broker_id in registration.isr, "a leader is in the ISR", registration)
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.leader_epoch: LeaderEpoch = registration.leader_epoch
        self.replicas = registration.replicas
        self._isr = IsrNegotiation(
            CommittedIsr.of(registration.isr, registration.partition_epoch),
            leader=broker_id,
            broker_epoch=broker_epoch,
            leader_epoch=registration.leader_epoch,
        )
        self.min_insync_replicas = min_insync_replicas
        self._log = log
        self.log_end_offset: Offset = log.log_end_offset
        self.epoch_start_offset: Offset = log.log_end_offset
        """The log end offset when this role started, even if its epoch has no record (KAFKA-7415)."""
        self.counts_flushed = counts_flushed
        """Whether only flushed records count for the high watermark (``flush.messages``)."""
        self.flushed_end_offset = flushed_end_offset
        self.high_watermark: Offset = clamped_high_watermark(
            high_watermark, log.log_start_offset, log.log_end_offset
        )
        self._tickets = ProduceTickets()
        self._followers = Followers(broker_id, eligible, replica_lag_time_max_ms)
        self._membership = IsrMembership(broker_id, broker_epoch, self._isr, self._followers)
        self._track(now_ms)

    # ── queries ─────────────────────────────────────────────────────────────────────────────────
    @property
    def isr_state(self) -> IsrState:
        return self._isr.state

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The committed ISR."""
        return self._isr.state.committed.isr

    @property
    def partition_epoch(self) -> PartitionEpoch:
        return self._isr.partition_epoch

    @property
    def remote_replicas(self) -> tuple[RemoteReplica, ...]:
        return tuple(self._followers.all())

    @property
    def needed_in_sync(self) -> int:
        """The ISR size below which no record is committed: ``min.insync.replicas``, at most the number of
        replicas (otherwise a topic with one replica would stop)."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        in_sync = len(self._isr.state.committed.isr)
        return in_sync < self.min_insync_replicas and in_sync < len(self.replicas)  # see needed_in_sync

    @property
    def is_latest_offset_available(self) -> bool:
        """Whether ListOffsets may return the latest offset.

        Not while it could be below the previous leader's: the error is OFFSET_NOT_AVAILABLE (KIP-207).
        """
        return self.high_watermark >= self.epoch_start_offset

    @property
    def low_watermark(self) -> Offset:
        """The lowest log start offset of the replicas; DeleteRecords waits until it reaches its target."""
        return self._followers.lowest_start_offset(self._log.log_start_offset)

    @property
    def needs_tick(self) -> bool:
        """Whether :meth:`on_tick` must be called: not while every follower that counts has all records."""
        end = self.log_end_offset
        for remote in self._followers.all():
            if remote.log_end_offset != end and (
                remote.broker_id in self._isr.state.maximal or self._followers.is_eligible(remote)
            ):
                return True
        return self._isr.is_retry_due

    def high_watermark_hold(self, now_ms: int) -> HighWatermarkHold:
        """Return why the high watermark is below the log end offset, for operators."""
        if self.high_watermark >= self.log_end_offset:
            return NOT_HELD
        if self.is_under_min_isr:
            return UnderMinIsr(len(self.isr), self.needed_in_sync)
        behind = tuple(
            remote.broker_id
            for remote in self._followers.all()
            if remote.log_end_offset <= self.high_watermark
            and self._membership.counts(remote, self.log_end_offset, now_ms)
        )
        return WaitingFor(behind) if behind else WAITING_FOR_FLUSH

    def end_offset_for_leader_epoch(
        self, current_leader_epoch: LeaderEpoch, epoch: LeaderEpoch
    ) -> tuple[ErrorCode, EpochEnd]:
        """Return the end offset of ``epoch`` for OffsetForLeaderEpoch, or an error code.

        ``current_leader_epoch`` is the client's; -1 means that it is not checked.
        """
        if current_leader_epoch >= 0 and (
            error := check_leader_epoch(current_leader_epoch, self.leader_epoch)
        ):
            return error, NO_DIVERGENCE
        return ErrorCode.none, EpochEnd(*self._log.end_offset_for_epoch(epoch))

    # ── lifecycle ───────────────────────────────────────────────────────────────────────────────
    def start(self, now_ms: int) -> Effects:
        """Return the first effects of this role: start the epoch; perhaps advance the high watermark."""
        begin = StartEpoch(self.leader_epoch, self.epoch_start_offset)
        return (begin, *self._maybe_advance(now_ms))

    def inherit_tickets(self, previous: LeaderRole) -> None:
        """Take over the waiting produce requests of ``previous``, this broker's role in the epoch before.

        Their records are still in the log and can be committed in the new epoch.
        """
        self._tickets, previous._tickets = previous._tickets, self._tickets

    def resign(self) -> Effects:
        """End this role: return effects that fail the waiting produce requests, whose outcome is unknown."""
        return tuple(
            ReleaseProduce(ticket, ErrorCode.not_leader_or_follower) for ticket in self._tickets.take_all()
        )

    # ── produce ─────────────────────────────────────────────────────────────────────────────────
    def admit_acks_all(self) -> ErrorCode:
        """Return whether an append with acks=all is accepted now: ``none`` or NOT_ENOUGH_REPLICAS."""
        return ErrorCode.not_enough_replicas if self.is_under_min_isr else NONE

    def on_appended(self, log_end_offset: Offset, now_ms: int) -> Effects:
        """Handle an append, after which the log ends at ``log_end_offset``."""
        before = self.log_end_offset
        check(log_end_offset >= before, "a leader's log only grows", before, log_end_offset)
        self.log_end_offset = log_end_offset
        if self._has_no_followers and not self.counts_flushed:
            if log_end_offset == before:
                return NO_EFFECTS
            self.high_watermark = log_end_offset
            return self._released() if self._tickets.queue else PUBLISH_HIGH_WATERMARK
        self._followers.on_leader_append(before, now_ms)
        return self._maybe_advance(now_ms)

    def on_flushed(self, flushed_end_offset: Offset, now_ms: int) -> Effects:
        """Handle a flush, after which the records below ``flushed_end_offset`` survive a machine crash."""
        self.flushed_end_offset = max(self.flushed_end_offset, flushed_end_offset)
        check(
            self.flushed_end_offset <= self.log_end_offset,
            "only what was written is flushed",
            flushed_end_offset,
        )
        return self._maybe_advance(now_ms) if self.counts_flushed else NO_EFFECTS

    def acks_all_outcome(self, required_offset: Offset) -> AcksAllOutcome:
        """Return the error code for a produce whose records end at ``required_offset``; PENDING if the high
        watermark is below that."""
        if self.high_watermark < required_offset:
            return PENDING
        return self._outcome_of_committed()

    def _outcome_of_committed(self) -> ErrorCode:
        return ErrorCode.not_enough_replicas_after_append if self.is_under_min_isr else NONE

    def hold_produce(self, ticket: int, required_offset: Offset) -> None:
        """Register a waiting produce: ReleaseProduce with ``ticket`` follows at ``required_offset``."""
        check(
            required_offset <= self.log_end_offset, "a produce waits for what was appended", required_offset
        )
        self._tickets.add(ticket, required_offset)

    def abandon_produce(self, ticket: int, required_offset: Offset) -> None:
        """Forget a produce of :meth:`hold_produce`, because its timeout has expired."""
        self._tickets.discard(ticket, required_offset)

    # ── followers ───────────────────────────────────────────────────────────────────────────────
    def on_follower_fetch(self, fetch: FollowerFetch, now_ms: int) -> tuple[FetchResult, Effects]:
        """Handle a follower's fetch. Returns how to respond, and the effects of the acknowledgement."""
        replica, broker_epoch, leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, _, _ = fetch
        remote = self._followers.get(replica)
        if refusal := self._refuse_fetch(remote, fetch):
            return RejectFetch(refusal, f"fetch of {replica} in leader epoch {leader_epoch}"), NO_EFFECTS
        diverging = diverging_epoch(self._log, fetch_offset, last_fetched_epoch)
        if diverging is not NO_DIVERGENCE:
            check(
                diverging.epoch != NO_LEADER_EPOCH,
                "a leader's epoch chain reaches its own epoch",
                self._log.latest_epoch,
                last_fetched_epoch,
            )
            return DivergingFetch(diverging), NO_EFFECTS
        end_offset = self.log_end_offset
        if not self._log.log_start_offset <= fetch_offset <= end_offset:
            return RejectFetch(
                ErrorCode.offset_out_of_range, f"fetch of {replica} at {fetch_offset}"
            ), NO_EFFECTS
        assert remote is not None
        went_back = broker_epoch == remote.broker_epoch and fetch_offset < remote.log_end_offset
        remote.on_fetch(broker_epoch, fetch_offset, log_start_offset, end_offset, now_ms)
        high_watermark = self.high_watermark
        effects = self._maybe_advance(now_ms)
        effects += self._membership.expand(self.high_watermark, self.epoch_start_offset)
        has_records = fetch_offset < end_offset
        if has_records:
            remote.last_sent_high_watermark = high_watermark
        has_update = has_records or self.high_watermark > remote.last_sent_high_watermark
        log_start_offset = self._log.log_start_offset
        return ServeFetch(end_offset, high_watermark, log_start_offset, has_update, went_back), effects

    def high_watermark_update_pending(self, replica: BrokerId) -> bool:
        """Whether the high watermark is above the one last sent to ``replica``."""
        remote = self._followers.get(replica)
        return remote is not None and self.high_watermark > remote.last_sent_high_watermark

    def send_high_watermark(self, replica: BrokerId) -> Offset:
        """Return the high watermark for a response without records to ``replica``, and record it as sent."""
        if (remote := self._followers.get(replica)) is not None:
            remote.last_sent_high_watermark = self.high_watermark
        return self.high_watermark

    # ── the ISR ─────────────────────────────────────────────────────────────────────────────────
    def on_tick(self, now_ms: int) -> Effects:
        """Handle the passing of time: propose to remove lagging ISR members; retry AlterPartition."""
        lagging = self._followers.lagging(self.log_end_offset, now_ms)
        return self._membership.retry() + self._membership.shrink(lagging) + self._maybe_advance(now_ms)

    def on_lag_expired(self, replica: BrokerId, now_ms: int) -> Effects:
        """Handle that ``replica`` has lagged for too long: propose to remove it from the ISR.

        The model check uses this event instead of time and :meth:`on_tick`.
        """
        if (remote := self._followers.get(replica)) is None or remote.log_end_offset == self.log_end_offset:
            return NO_EFFECTS
        remote.mark_lagging()
        return self._membership.shrink([replica]) + self._maybe_advance(now_ms)

    def on_alter_partition_response(
        self, request: AlterPartition, response: AlterPartitionResponse, now_ms: int
    ) -> Effects:
        """Handle the controller's response; error REQUEST_TIMED_OUT means that the outcome is unknown."""
        found = self._isr.on_answer(request, response)
        if found is AlterPartitionOutcome.COMMITTED:
            return self._on_isr_committed(now_ms)
        if found is AlterPartitionOutcome.REFUSED:
            self._followers.refuse(request.new_isr)
            return self._advance_and_expand(now_ms)
        return NO_EFFECTS  # stale, or unresolved

    def on_metadata(
        self, registration: PartitionRegistration, eligible: EligibleBrokers, now_ms: int
    ) -> Effects:
        """Handle newer metadata: of this partition in the same leader epoch, or of the eligible brokers.

        Both arguments are from the same metadata entry.
        """
        self._apply_registration(registration, now_ms)
        self._membership.set_eligible(eligible)
        return self._advance_and_expand(now_ms)

    def configure(
        self, min_insync_replicas: int, counts_flushed: bool, flushed_end_offset: Offset, now_ms: int
    ) -> Effects:
        """Apply the topic's settings, with the end of the flushed part of the log."""
        self.min_insync_replicas = min_insync_replicas
        self.counts_flushed = counts_flushed
        self.flushed_end_offset = flushed_end_offset
        return self._maybe_advance(now_ms)

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _refuse_fetch(self, remote: RemoteReplica | None, fetch: FollowerFetch) -> ErrorCode:
        if (error := check_leader_epoch(fetch.leader_epoch, self.leader_epoch)) is not ErrorCode.none:
            return error
        if remote is None:
            return (
                ErrorCode.not_leader_or_follower
            )  # perhaps assigned by a metadata entry that this broker has not applied yet
        known = max(remote.broker_epoch, self._followers.eligible.get(remote.broker_id, NO_BROKER_EPOCH))
        if fetch.broker_epoch < known:
            return ErrorCode.stale_broker_epoch
        if fetch.last_fetched_epoch > self.leader_epoch:
            return ErrorCode.unknown_leader_epoch
        return ErrorCode.none

    def _committable_offset(self, now_ms: int) -> Offset:
        log_end_offset, membership = self.log_end_offset, self._membership
        end = self.flushed_end_offset if self.counts_flushed else log_end_offset
        for remote in self._followers.all():
            if remote.log_end_offset < end and membership.counts(remote, log_end_offset, now_ms):
                end = remote.log_end_offset
        return end

    def _maybe_advance(self, now_ms: int) -> Effects:
        if self.high_watermark >= self.log_end_offset or self.is_under_min_isr:
            return NO_EFFECTS
        offset = self._committable_offset(now_ms)
        if offset <= self.high_watermark:
            return NO_EFFECTS
        check(offset <= self.log_end_offset, "high watermark <= log end offset", offset, self.log_end_offset)
        self.high_watermark = offset
        return self._released() if self._tickets.queue else PUBLISH_HIGH_WATERMARK

    def _advance_and_expand(self, now_ms: int) -> Effects:
        """Advance the high watermark, then propose to add the followers that have reached it."""
        advanced = self._maybe_advance(now_ms)
        return advanced + self._membership.expand(self.high_watermark, self.epoch_start_offset)

    def _released(self) -> Effects:
        """Return effects that publish the new high watermark and release the produces it completes."""
        outcome = self._outcome_of_committed()
        released = self._tickets.released_by(self.high_watermark)
        return (*PUBLISH_HIGH_WATERMARK, *(ReleaseProduce(ticket, outcome) for ticket in released))

    def _apply_registration(self, registration: PartitionRegistration, now_ms: int) -> None:
        """Apply newer metadata of this partition.

        A response to AlterPartition may have brought the same partition epoch before, but never has the
        assignment.
        """
        check(
            registration.leader_epoch == self.leader_epoch, "a role lasts for one leader epoch", registration
        )
        is_newer = registration.partition_epoch > self.partition_epoch
        is_same = registration.partition_epoch == self.partition_epoch
        if is_newer or (is_same and registration.replicas != self.replicas):
            self.replicas = registration.replicas
            self._isr.commit(registration.isr, registration.partition_epoch)
            self._track(now_ms)

    def _track(self, now_ms: int) -> None:
        self._followers.track(self.replicas, self._isr.state.maximal, now_ms)
        self._has_no_followers = not len(self._followers)

    def _on_isr_committed(self, now_ms: int) -> Effects:
        """Handle a newly committed ISR: the high watermark may now be able to advance (KAFKA-13091)."""
        self._track(now_ms)
        return self._advance_and_expand(now_ms)
