"""The follower of a partition: what to fetch next, and what to do with the answer.

Knows the local log through :class:`ReplicaLog` and its own high watermark. Never touches batches: what an
answer holds is described to it by a few numbers. One fetch is outstanding at most.

An answer is handled in this order, and the order is the safety argument:

1. *late*: not the answer to the outstanding fetch of this role. Ignored (KAFKA-13207). An answer that
   arrives after its request was given up could otherwise truncate records acknowledged since.
2. *an error*: back off, or start again at the leader's log start if the leader has deleted what comes next.
3. *a diverging epoch*: truncate, and **nothing else** of the answer counts (KAFKA-14704).
4. *records*: append them; then the high watermark, min(leader's, own log end); then the log start.

Invariants:
- *a fetch offset is an acknowledgement*: it is never above what is written, or flushed where that is asked
  for;
- *high watermark <= log end offset*; it falls only when the log is truncated below it, which only happens
  after an unclean election;
- *every leader epoch is reconciled*: a new epoch means a new role, and its first fetch carries the last
  epoch in the log even if the leader has not changed (KAFKA-7164).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nilometer.replication.effects import (
    NO_EFFECTS,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BackOff,
    Effect,
    Effects,
    TruncateFully,
    TruncateTo,
)
from nilometer.replication.epochs import NO_DIVERGENCE, EpochEnd, ReplicaLog, truncation_offset
from nilometer.replication.high_watermark import clamped_high_watermark
from nilometer.replication.invariants import check
from nilometer.replication.partition import (
    NO_EPOCH,
    NO_LEADER,
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionRegistration,
)
from nilometer.wire.errors import ErrorCode


class TruncationRule(enum.Enum):
    """What a replica does with its log when it becomes a follower."""

    BY_LEADER_EPOCH = "by-leader-epoch"
    """Keep everything that is in the leader's log too (R-8)."""
    TO_HIGH_WATERMARK = "truncate-to-high-watermark"
    """Kafka's rule before 0.11. It loses records; tests use it to show how (R-12)."""


@dataclass(frozen=True, slots=True)
class FollowerFetch:
    """What to ask the leader for. Keep it: an answer is only valid together with its fetch."""

    number: int
    replica: BrokerId
    broker_epoch: BrokerEpoch
    leader: BrokerId
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset


class NoFetch(enum.Enum):
    """Why there is nothing to fetch."""

    NO_LEADER = "the partition has no leader"
    UNFLUSHED = "what was fetched must be flushed before it may be acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """The leader's answer, its batches described by where they begin and end."""

    error: ErrorCode = ErrorCode.none
    diverging: EpochEnd = NO_DIVERGENCE
    base_offset: Offset = UNKNOWN_OFFSET
    """The first batch's; UNKNOWN_OFFSET without records."""
    end_offset: Offset = UNKNOWN_OFFSET
    """The offset after the last batch's last record."""
    high_watermark: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET

    @property
    def has_records(self) -> bool:
        return self.end_offset != UNKNOWN_OFFSET


class FollowerRole:
    """See the module. A role lasts for one leader epoch."""

    __slots__ = (
        "_log",
        "_next_number",
        "broker_epoch",
        "broker_id",
        "counts_flushed",
        "flushed_end_offset",
        "high_watermark",
        "leader",
        "leader_epoch",
        "outstanding",
        "rule",
    )

    def __init__(
        self,
        registration: PartitionRegistration,
        log: ReplicaLog,
        *,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        high_watermark: Offset,
        counts_flushed: bool = False,
        flushed_end_offset: Offset = 0,
        rule: TruncationRule = TruncationRule.BY_LEADER_EPOCH,
    ) -> None:
        check(registration.leader != broker_id, "a follower's leader is another broker", registration)
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.leader = registration.leader
        self.leader_epoch = registration.leader_epoch
        self._log = log
        self.high_watermark = clamped_high_watermark(high_watermark, log.log_start_offset, log.log_end_offset)
        self.counts_flushed = counts_flushed
        self.flushed_end_offset = flushed_end_offset
        self.rule = rule
        self.outstanding: FollowerFetch | None = None
        self._next_number = 1

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    def start(self) -> Effects:
        """The first effects of this role. Nothing is truncated before the leader has answered."""
        if self.rule is TruncationRule.TO_HIGH_WATERMARK and self.has_leader:
            return self._truncate_to(self.high_watermark)
        return NO_EFFECTS

    def next_fetch(self) -> FollowerFetch | NoFetch:
        """The fetch to send now. It replaces an outstanding one: that one's answer will be ignored as
        late."""
        if self.leader == NO_LEADER:
            return NoFetch.NO_LEADER
        log = self._log
        fetch_offset = log.log_end_offset
        if self.counts_flushed and self.flushed_end_offset < fetch_offset:
            return NoFetch.UNFLUSHED
        by_epoch = self.rule is TruncationRule.BY_LEADER_EPOCH
        self.outstanding = FollowerFetch(
            self._next_number,
            self.broker_id,
            self.broker_epoch,
            self.leader,
            self.leader_epoch,
            fetch_offset,
            log.latest_epoch if by_epoch else NO_EPOCH,
            log.log_start_offset,
        )
        self._next_number += 1
        return self.outstanding

    def on_fetch_failed(self, fetch: FollowerFetch) -> None:
        """No answer will come (disconnect, time-out); one that arrives anyway is late."""
        if self.outstanding == fetch:
            self.outstanding = None

    def on_flushed(self, flushed_end_offset: Offset) -> None:
        self.flushed_end_offset = max(self.flushed_end_offset, flushed_end_offset)

    def on_fetch_answer(self, fetch: FollowerFetch, answer: FetchAnswer) -> Effects:
        """See the module for the order. The effects are carried out before the next fetch is made."""
        if fetch != self.outstanding:
            return NO_EFFECTS
        self.outstanding = None
        if answer.error is not ErrorCode.none:
            return self._on_error(answer)
        if answer.diverging != NO_DIVERGENCE:
            return self._on_diverging(answer.diverging)
        return self._on_records(fetch, answer)

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _on_error(self, answer: FetchAnswer) -> Effects:
        if answer.error is ErrorCode.offset_out_of_range and answer.log_start_offset >= 0:
            log = self._log
            # Either the leader has deleted what comes next, or this log holds nothing that could be kept.
            if log.log_end_offset < answer.log_start_offset or log.latest_epoch == NO_EPOCH:
                return self._truncate_fully(answer.log_start_offset)
            if self.rule is TruncationRule.TO_HIGH_WATERMARK and answer.high_watermark < log.log_end_offset:
                return self._truncate_to(max(answer.high_watermark, log.log_start_offset))
        return (
            BackOff(answer.error, f"leader {self.leader} in epoch {self.leader_epoch} refused the fetch"),
        )

    def _on_diverging(self, diverging: EpochEnd) -> Effects:
        log = self._log
        if diverging.epoch < 0 or diverging.end_offset < 0:
            return (BackOff(ErrorCode.unknown_server_error, f"leader {self.leader} sent {diverging}"),)
        offset = truncation_offset(log, diverging)
        if offset < log.log_start_offset:
            return self._truncate_fully(offset)
        return self._truncate_to(offset)

    def _on_records(self, fetch: FollowerFetch, answer: FetchAnswer) -> Effects:
        effects: list[Effect] = []
        end_offset = self._log.log_end_offset
        if answer.has_records:
            # A log that begins in the middle of a batch takes the whole batch (KAFKA-6975). Compaction leaves
            # gaps; a leader serves none in a log that was never compacted.
            begins_log = end_offset == self._log.log_start_offset
            fits = answer.base_offset >= end_offset or begins_log
            if fetch.fetch_offset != end_offset or not fits or answer.end_offset <= end_offset:
                reason = f"batches {answer.base_offset} to {answer.end_offset} do not follow {end_offset}"
                return (BackOff(ErrorCode.corrupt_message, reason),)
            end_offset = answer.end_offset
            effects.append(AppendBatches(end_offset))
        high_watermark = min(answer.high_watermark, end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            effects.append(AdvanceHighWatermark(high_watermark))
        log_start_offset = min(answer.log_start_offset, self.high_watermark)
        if log_start_offset > self._log.log_start_offset:
            effects.append(AdvanceLogStart(log_start_offset))
        return tuple(effects)

    def _truncate_to(self, offset: Offset) -> Effects:
        self.high_watermark = min(self.high_watermark, offset)
        self.flushed_end_offset = min(self.flushed_end_offset, offset)
        return (TruncateTo(offset),)

    def _truncate_fully(self, start_offset: Offset) -> Effects:
        """The log starts again; everything below was committed, so the high watermark moves too
        (KAFKA-9491)."""
        self.high_watermark = start_offset
        self.flushed_end_offset = start_offset
        return (TruncateFully(start_offset), AdvanceHighWatermark(start_offset))
