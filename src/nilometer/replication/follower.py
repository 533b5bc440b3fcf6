"""The follower of a partition: the next fetch to send, and how to process its response.

The role reads the local log through :class:`PartitionLog` and keeps the follower's high watermark. It does
not see batches: a response is described to it by offsets. At most one fetch is outstanding.

A response is processed in this order, on which safety depends:

1. *late*: not the response to this role's outstanding fetch. Ignored (KAFKA-13207), since a response that
   arrives after its request was abandoned could truncate records acknowledged in between.
2. *an error*: back off, or restart at the leader's log start offset if the leader deleted the next records;
   if it has them in remote storage only, restart behind these.
3. *a diverging epoch*: truncate, and ignore **everything else** in the response (KAFKA-14704).
4. *records*: append them; then set the high watermark, min(leader's, own log end offset); then the log start.

Invariants:
- *a fetch offset is an acknowledgement*: it is never above the written records, or, if the topic counts only
  flushed records, above the flushed ones;
- *high watermark <= log end offset*: a truncation below the high watermark lowers it. A leader that was
  elected cleanly has every record below it, so that follows an unclean election, or a leader that lost
  records and that no replica could replace. A log that became shorter before the role began (damage, a lost
  tail) lowers it, too; a full truncation sets it to the log's new start;
- *every leader epoch is reconciled*: a new epoch means a new role, and its first fetch has the last epoch in
  the log even if the leader has not changed (KAFKA-7164).
"""

from __future__ import annotations

import enum

import msgspec

from nilometer.identifiers import NO_LEADER, NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, Offset
from nilometer.invariants import check
from nilometer.replication.epochs import NO_DIVERGENCE, EpochEnd, PartitionLog, truncation_offset
from nilometer.replication.shell_interface import (
    NO_EFFECTS,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BackOff,
    Effect,
    Effects,
    FollowerFetch,
    PartitionRegistration,
    StartInTier,
    TruncateFully,
    TruncateTo,
    clamped_high_watermark,
)
from nilometer.wire.errors import ErrorCode


class TruncationRule(enum.Enum):
    """How a replica truncates its log when it becomes a follower."""

    BY_LEADER_EPOCH = "by-leader-epoch"
    """Keep all records that are in the leader's log, too (R-8)."""
    TO_HIGH_WATERMARK = "truncate-to-high-watermark"
    """Kafka's rule before 0.11. It loses records; tests use it to show how (R-12)."""


class NoFetch(enum.Enum):
    """The reason why no fetch can be sent now."""

    NO_LEADER = "the partition has no leader"
    IN_TIER = "the log is about to go on behind records in remote storage"
    UNFLUSHED = "what was fetched must be flushed before it may be acknowledged"


class FetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's response; its batches are described by their first and last offsets."""

    error: ErrorCode = ErrorCode.none
    diverging: EpochEnd = NO_DIVERGENCE
    base_offset: Offset = UNKNOWN_OFFSET
    """The first batch's base offset; UNKNOWN_OFFSET without records."""
    end_offset: Offset = UNKNOWN_OFFSET
    """The offset after the last batch's last record."""
    high_watermark: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET

    @property
    def has_records(self) -> bool:
        return self.end_offset != UNKNOWN_OFFSET


class FollowerRole:
    """A follower's state in one leader epoch; the module describes the rules."""

    __slots__ = (
        "_log",
        "_next_number",
        "broker_epoch",
        "broker_id",
        "counts_flushed",
        "flushed_end_offset",
        "high_watermark",
        "is_starting_in_tier",
        "leader",
        "leader_epoch",
        "outstanding",
        "rule",
    )

    def __init__(
        self,
        registration: PartitionRegistration,
        log: PartitionLog,
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
        self.is_starting_in_tier = False
        """Whether the log is about to go on behind records in remote storage."""
        self._next_number = 1

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    def start(self) -> Effects:
        """Return the first effects of this role: none, unless an old truncation rule is tested (R-12)."""
        if self.rule is TruncationRule.TO_HIGH_WATERMARK and self.has_leader:
            return self._truncate_to(self.high_watermark)
        return NO_EFFECTS

    def next_fetch(self) -> FollowerFetch | NoFetch:
        """Return the fetch to send now, or why there is none.

        It replaces an outstanding fetch, whose response will be ignored as late.
        """
        if self.leader == NO_LEADER:
            return NoFetch.NO_LEADER
        if self.is_starting_in_tier:
            return NoFetch.IN_TIER
        log = self._log
        fetch_offset = log.log_end_offset
        if self.counts_flushed and self.flushed_end_offset < fetch_offset:
            return NoFetch.UNFLUSHED
        by_epoch = self.rule is TruncationRule.BY_LEADER_EPOCH
        self.outstanding = FollowerFetch(
            self.broker_id,
            self.broker_epoch,
            self.leader_epoch,
            fetch_offset,
            log.latest_epoch if by_epoch else NO_LEADER_EPOCH,
            log.log_start_offset,
            self.leader,
            self._next_number,
        )
        self._next_number += 1
        return self.outstanding

    def on_fetch_failed(self, fetch: FollowerFetch) -> None:
        """Abandon ``fetch`` after a disconnect or timeout; a response that still arrives will be ignored."""
        if self.outstanding == fetch:
            self.outstanding = None

    def configure(self, counts_flushed: bool, flushed_end_offset: Offset) -> None:
        """Apply the topic's settings, with the end of the flushed part of the log."""
        self.counts_flushed = counts_flushed
        self.flushed_end_offset = flushed_end_offset

    def on_started_in_tier(self) -> None:
        """Go on at the end of the log: all records below it are in remote storage, and so committed."""
        self.is_starting_in_tier = False
        self.high_watermark = self.flushed_end_offset = self._log.log_end_offset

    def give_up_start_in_tier(self) -> None:
        """Fetch again: the log could not go on behind records in remote storage."""
        self.is_starting_in_tier = False

    def on_flushed(self, flushed_end_offset: Offset) -> None:
        self.flushed_end_offset = max(self.flushed_end_offset, flushed_end_offset)

    def on_fetch_response(self, fetch: FollowerFetch, response: FetchResponse) -> Effects:
        """Process the response to ``fetch``, in the order that the module describes.

        The shell must execute the returned effects before it calls :meth:`next_fetch`.
        """
        if fetch != self.outstanding:
            return NO_EFFECTS
        self.outstanding = None
        if response.error is not ErrorCode.none:
            return self._on_error(response)
        if response.diverging != NO_DIVERGENCE:
            return self._on_diverging(response.diverging)
        return self._on_records(fetch, response)

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _on_error(self, response: FetchResponse) -> Effects:
        if (
            response.error is ErrorCode.offset_moved_to_tiered_storage
            and response.log_start_offset >= 0
            and self.rule is TruncationRule.BY_LEADER_EPOCH
        ):
            self.is_starting_in_tier = True
            return (StartInTier(response.log_start_offset),)
        if response.error is ErrorCode.offset_out_of_range and response.log_start_offset >= 0:
            log = self._log
            # Either the leader has deleted the next records, or this log has no records to keep.
            if log.log_end_offset < response.log_start_offset or log.latest_epoch == NO_LEADER_EPOCH:
                return self._truncate_fully(response.log_start_offset)
            if self.rule is TruncationRule.TO_HIGH_WATERMARK and response.high_watermark < log.log_end_offset:
                return self._truncate_to(max(response.high_watermark, log.log_start_offset))
        return (
            BackOff(response.error, f"leader {self.leader} in epoch {self.leader_epoch} rejected the fetch"),
        )

    def _on_diverging(self, diverging: EpochEnd) -> Effects:
        log = self._log
        if diverging.epoch < 0 or diverging.end_offset < 0:
            return (
                BackOff(
                    ErrorCode.unknown_server_error,
                    f"leader {self.leader} sent an invalid diverging epoch: {diverging}",
                ),
            )
        offset = truncation_offset(log, diverging)
        if offset < log.log_start_offset:
            return self._truncate_fully(offset)
        if offset < log.local_start_offset:  # only remote storage has what the producers had done by then
            return self._truncate_fully(log.log_start_offset)
        return self._truncate_to(offset)

    def _on_records(self, fetch: FollowerFetch, response: FetchResponse) -> Effects:
        effects: list[Effect] = []
        end_offset = self._log.log_end_offset
        if response.has_records:
            # A log that starts in the middle of a batch accepts the whole batch (KAFKA-6975). Gaps are valid:
            # compaction leaves them, and a leader serves none in a log that was never compacted.
            begins_log = end_offset == self._log.log_start_offset
            fits = response.base_offset >= end_offset or begins_log
            if fetch.fetch_offset != end_offset or not fits or response.end_offset <= end_offset:
                reason = (
                    f"batches {response.base_offset} to {response.end_offset} do not continue "
                    f"the log, which ends at {end_offset}"
                )
                return (BackOff(ErrorCode.corrupt_message, reason),)
            end_offset = response.end_offset
            effects.append(AppendBatches(end_offset))
        high_watermark = min(response.high_watermark, end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            effects.append(AdvanceHighWatermark(high_watermark))
        log_start_offset = min(response.log_start_offset, self.high_watermark)
        if log_start_offset > self._log.log_start_offset:
            effects.append(AdvanceLogStart(log_start_offset))
        return tuple(effects)

    def _truncate_to(self, offset: Offset) -> Effects:
        self.high_watermark = min(self.high_watermark, offset)
        self.flushed_end_offset = min(self.flushed_end_offset, offset)
        return (TruncateTo(offset),)

    def _truncate_fully(self, start_offset: Offset) -> Effects:
        """Restart the log at ``start_offset``, also the new high watermark: records below it are committed
        (KAFKA-9491)."""
        self.high_watermark = start_offset
        self.flushed_end_offset = start_offset
        return (TruncateFully(start_offset), AdvanceHighWatermark(start_offset))
