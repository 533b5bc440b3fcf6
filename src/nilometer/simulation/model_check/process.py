"""One broker process of the model: the real replica, a model log, and what it says to others.

This is the shell in its smallest form. It carries out effects in their order and turns them into messages; it
decides nothing. Time stands still: that a follower has lagged for too long is an event of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from nilometer.replication import (
    UNKNOWN_OFFSET,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AlterPartition,
    AlterPartitionAnswer,
    AppendBatches,
    BackOff,
    DivergingFetch,
    Effects,
    FetchAnswer,
    FollowerFetch,
    FollowerRole,
    HighWatermarkAdvanced,
    LeaderRole,
    NoRole,
    RefuseFetch,
    Registration,
    ReleaseProduce,
    Replica,
    SendAlterPartition,
    ServeFetch,
    StartEpoch,
    TruncateFully,
    TruncateTo,
    TruncationRule,
)
from nilometer.replication.isr import CommittedIsr
from nilometer.simulation.model_check.model_log import ModelLog, Record
from nilometer.wire.errors import ErrorCode

NOW_MS = 0


@dataclass(frozen=True, slots=True)
class FetchReply:
    """A leader's answer on its way, with the fetch it answers."""

    fetch: FollowerFetch
    answer: FetchAnswer
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterReply:
    request: AlterPartition
    answer: AlterPartitionAnswer


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A producer was told that its value is safe (acks=all)."""

    value: int


Message: TypeAlias = FollowerFetch | FetchReply | AlterPartition | AlterReply
Output: TypeAlias = Message | Acknowledged

CURRENT, LATE = 1, 0
"""Fetch numbers, of which only equality matters: the newest fetch of a role is CURRENT, all others are
LATE."""


class Process:
    __slots__ = ("broker", "broker_epoch", "is_up", "log", "min_isr", "outbox", "replica", "rule")

    def __init__(self, broker: int, min_insync_replicas: int, rule: TruncationRule) -> None:
        self.broker = broker
        self.min_isr = min_insync_replicas
        self.rule = rule
        self.log = ModelLog()
        self.outbox: list[Output] = []
        self.start(broker_epoch=0, checkpointed_high_watermark=0)

    # ── life and death ──────────────────────────────────────────────────────────────────────────
    def start(self, broker_epoch: int, checkpointed_high_watermark: int) -> None:
        self.is_up = True
        self.broker_epoch = broker_epoch
        self.replica = Replica(
            self.log,
            broker_id=self.broker,
            broker_epoch=broker_epoch,
            checkpointed_high_watermark=checkpointed_high_watermark,
            min_insync_replicas=self.min_isr,
            rule=self.rule,
        )

    def crash(self) -> None:
        """Only the log and the checkpointed high watermark remain."""
        self.start(self.broker_epoch, self.replica.high_watermark)
        self.is_up = False

    def restart(self, broker_epoch: int, kept_records: int, forgets_high_watermark: bool) -> None:
        self.log.truncate_to(kept_records)
        self.start(broker_epoch, 0 if forgets_high_watermark else self.replica.high_watermark)

    # ── events ──────────────────────────────────────────────────────────────────────────────────
    def learn(self, registration: Registration, eligible: dict[int, int]) -> None:
        """The next entry of the metadata log. One that ends this very life ends the role at once."""
        if eligible.get(self.broker) != self.broker_epoch:
            self._carry_out(self.replica.resign())
        else:
            self._carry_out(self.replica.on_metadata(registration, eligible, NOW_MS))
            self._maybe_ask()

    def produce(self, value: int) -> None:
        leader = self.replica.role
        if not isinstance(leader, LeaderRole) or leader.admit_acks_all() is not ErrorCode.none:
            return
        self.log.append(leader.leader_epoch, value)
        required = self.log.log_end_offset
        self._carry_out(leader.on_appended(required, NOW_MS))
        match leader.acks_all_outcome(required):
            case ErrorCode.none:
                self.outbox.append(Acknowledged(value))
            case ErrorCode.request_timed_out:
                leader.hold_produce(value, required)
            case _:
                pass

    def ask(self) -> None:
        """A fetch that replaces the one whose answer has not come."""
        if isinstance(self.replica.role, FollowerRole):
            fetch = self.replica.role.next_fetch()
            if isinstance(fetch, FollowerFetch):
                self.outbox.append(fetch)

    def serve(self, fetch: FollowerFetch) -> None:
        """A refusal that only makes the follower ask the same again is not sent: the fetch may arrive once
        more."""
        leader = self.replica.role
        if not isinstance(leader, LeaderRole):
            return
        verdict, effects = leader.on_follower_fetch(
            fetch.replica,
            fetch.broker_epoch,
            fetch.leader_epoch,
            fetch.fetch_offset,
            fetch.last_fetched_epoch,
            fetch.log_start_offset,
            NOW_MS,
        )
        self._carry_out(effects)
        match verdict:
            case ServeFetch():
                self.outbox.append(self._records_for(fetch, verdict, leader))
            case DivergingFetch(diverging):
                self.outbox.append(FetchReply(fetch, FetchAnswer(diverging=diverging)))
            case RefuseFetch(ErrorCode.offset_out_of_range as error):
                log_start = self.log.log_start_offset
                self.outbox.append(FetchReply(fetch, FetchAnswer(error=error, log_start_offset=log_start)))
            case RefuseFetch():
                pass

    def take(self, reply: FetchReply) -> None:
        self._carry_out(self.replica.on_fetch_answer(reply.fetch, reply.answer), reply.records)
        self._maybe_ask()

    def take_alter_reply(self, reply: AlterReply) -> None:
        self._carry_out(self.replica.on_alter_partition_answer(reply.request, reply.answer, NOW_MS))

    def find_lagging(self, follower: int) -> None:
        if isinstance(self.replica.role, LeaderRole):
            self._carry_out(self.replica.role.on_lag_expired(follower, NOW_MS))

    def is_past(self, message: Message) -> bool:
        """Whether ``message`` belongs to something that is over in this process, for good."""
        role = self.replica.role
        match message:
            case FollowerFetch(leader_epoch=epoch):
                return isinstance(role, LeaderRole) and epoch < role.leader_epoch
            case FetchReply(fetch):
                return not isinstance(role, FollowerRole) or role.outstanding != fetch
            case AlterReply(request):
                if not isinstance(role, LeaderRole):
                    return True
                return isinstance(role.isr_state, CommittedIsr) or role.isr_state.request != request
            case AlterPartition():
                return False

    # ── below: how ──────────────────────────────────────────────────────────────────────────────
    def _maybe_ask(self) -> None:
        if isinstance(self.replica.role, FollowerRole) and self.replica.role.outstanding is None:
            self.ask()

    def _records_for(self, fetch: FollowerFetch, verdict: ServeFetch, leader: LeaderRole) -> FetchReply:
        records = self.log.read(fetch.fetch_offset, 1)
        high_watermark = verdict.high_watermark if records else leader.tell_high_watermark(fetch.replica)
        answer = FetchAnswer(
            base_offset=fetch.fetch_offset if records else UNKNOWN_OFFSET,
            end_offset=fetch.fetch_offset + len(records) if records else UNKNOWN_OFFSET,
            high_watermark=high_watermark,
            log_start_offset=verdict.log_start_offset,
        )
        return FetchReply(fetch, answer, records)

    def _carry_out(self, effects: Effects, records: tuple[Record, ...] = ()) -> None:
        for effect in effects:
            match effect:
                case StartEpoch(epoch, start_offset):
                    self.log.start_epoch(epoch, start_offset)
                case SendAlterPartition(request):
                    self.outbox.append(request)
                case ReleaseProduce(ticket, outcome):
                    if outcome is ErrorCode.none:
                        self.outbox.append(Acknowledged(ticket))
                case TruncateTo(offset):
                    self.log.truncate_to(offset)
                case TruncateFully(start_offset):
                    self.log.truncate_fully(start_offset)
                case AppendBatches():
                    for epoch, value in records:
                        self.log.append(epoch, value)
                case HighWatermarkAdvanced() | AdvanceHighWatermark() | AdvanceLogStart() | BackOff():
                    pass

    def normalise(self) -> None:
        """Make equal what differs only in ways that no rule of safety looks at."""
        match self.replica.role:
            case FollowerRole() as follower:
                if follower.outstanding is not None:
                    follower.outstanding = replace(follower.outstanding, number=CURRENT)
                follower._next_number = CURRENT
            case LeaderRole() as leader:
                for remote in leader.remote_replicas:
                    remote.told_high_watermark = UNKNOWN_OFFSET
                    # Being caught up by what the leader had at the last fetch only keeps more replicas
                    # counted.
                    remote.last_fetch_leader_end_offset = UNKNOWN_OFFSET
            case NoRole():
                pass
