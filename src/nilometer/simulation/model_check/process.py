"""One broker process of the model: the real replica, a model log, and the messages that it sends.

It executes the replica's effects in their order and turns them into messages, as the broker's code around
the replica does; it decides nothing. Time does not pass: that a follower has lagged too long is an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, LeaderEpoch, Offset
from nilometer.invariants import check
from nilometer.replication.follower import FetchResponse, FollowerRole, TruncationRule
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse, CommittedIsr
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole, Replica
from nilometer.replication.shell_interface import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BackOff,
    DivergingFetch,
    Effects,
    EligibleBrokers,
    FollowerFetch,
    Pending,
    PublishHighWatermark,
    Registration,
    RejectFetch,
    ReleaseProduce,
    SendAlterPartition,
    ServeFetch,
    StartEpoch,
    TruncateFully,
    TruncateTo,
)
from nilometer.wire.errors import ErrorCode

# A minimal replica log: a list of (leader epoch, value), and the epoch chain.
#
# It replaces the storage engine's log in the model check, the scenarios and tests. An offset is the index of
# a record plus the log start offset, which changes only when the log is truncated fully. The epoch chain has
# the start offset of each leader epoch.

Record = tuple[int, int]
"""(leader epoch in which it was appended, value)"""


class ModelLog:
    """Invariants: epochs never decrease along the log; epochs and offsets of the chain are increasing."""

    __slots__ = ("chain", "log_start_offset", "records")

    def __init__(self, records: Iterable[Record] = (), log_start_offset: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.records: list[Record] = []
        self.chain: list[tuple[LeaderEpoch, Offset]] = []
        for epoch, value in records:
            self.append(epoch, value)

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.chain[-1][0] if self.chain else NO_LEADER_EPOCH

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        if epoch > self.latest_epoch:
            return NO_LEADER_EPOCH, UNKNOWN_OFFSET
        found, end_offset = NO_LEADER_EPOCH, self.log_end_offset
        for known, start_offset in self.chain:
            if known > epoch:
                end_offset = start_offset
                break
            found = known
        return (epoch if found == NO_LEADER_EPOCH else found), end_offset

    def start_epoch(self, epoch: int, start_offset: int) -> None:
        """Add an epoch to the chain; it replaces one with the same start offset, which has no records."""
        if epoch == self.latest_epoch:
            return
        check(epoch > self.latest_epoch, "epochs only rise along a log", epoch, self.chain)
        self.chain = [entry for entry in self.chain if entry[1] < start_offset]
        self.chain.append((LeaderEpoch(epoch), start_offset))

    def append(self, epoch: int, value: int) -> None:
        self.start_epoch(epoch, self.log_end_offset)
        self.records.append((epoch, value))

    def truncate_to(self, offset: int) -> None:
        del self.records[max(0, offset - self.log_start_offset) :]
        self.chain = [entry for entry in self.chain if entry[1] < offset]

    def truncate_fully(self, start_offset: int) -> None:
        self.records, self.chain, self.log_start_offset = [], [], start_offset

    def read(self, offset: int, max_records: int) -> tuple[Record, ...]:
        index = offset - self.log_start_offset
        return tuple(self.records[index : index + max_records])


NOW_MS = 0


class FetchReply(msgspec.Struct, frozen=True):
    """A leader's response to ``fetch``, in flight."""

    fetch: FollowerFetch
    answer: FetchResponse
    records: tuple[Record, ...] = ()


class AlterReply(msgspec.Struct, frozen=True):
    request: AlterPartition
    answer: AlterPartitionResponse


class Acknowledged(msgspec.Struct, frozen=True):
    """A producer received the acknowledgement of its value (acks=all)."""

    value: int


Message: TypeAlias = FollowerFetch | FetchReply | AlterPartition | AlterReply
Output: TypeAlias = Message | Acknowledged

CURRENT, DELAYED = 1, 0
"""The two fetch numbers: the newest fetch of a follower has CURRENT, all others have DELAYED."""


class Process:
    __slots__ = ("broker", "broker_epoch", "is_up", "log", "min_isr", "outbox", "replica", "rule")

    def __init__(self, broker: int, min_insync_replicas: int, rule: TruncationRule) -> None:
        self.broker = BrokerId(broker)
        self.min_isr = min_insync_replicas
        self.rule = rule
        self.log = ModelLog()
        self.outbox: list[Output] = []
        self.start(broker_epoch=0, checkpointed_high_watermark=0)

    # ── crash and restart ────────────────────────────────────────────────────────────────────────
    def start(self, broker_epoch: int, checkpointed_high_watermark: int) -> None:
        self.is_up = True
        self.broker_epoch = broker_epoch
        self.replica = Replica(
            self.log,
            broker_id=self.broker,
            broker_epoch=BrokerEpoch(broker_epoch),
            checkpointed_high_watermark=checkpointed_high_watermark,
            min_insync_replicas=self.min_isr,
            rule=self.rule,
        )

    def crash(self) -> None:
        """End the process; only the log and the checkpointed high watermark remain."""
        self.start(self.broker_epoch, self.replica.high_watermark)
        self.is_up = False

    def restart(self, broker_epoch: int, kept_records: int, forgets_high_watermark: bool) -> None:
        self.log.truncate_to(kept_records)
        self.start(broker_epoch, 0 if forgets_high_watermark else self.replica.high_watermark)

    # ── events ──────────────────────────────────────────────────────────────────────────────────
    def learn(self, registration: Registration, eligible: EligibleBrokers) -> None:
        """Apply the next metadata entry.

        ``eligible`` has the epoch of each broker that may be in sync. If this process's epoch is not the one
        there, its incarnation has ended and it resigns from its role.
        """
        if eligible.get(self.broker) != self.broker_epoch:
            self._carry_out(self.replica.resign())
        else:
            self._carry_out(self.replica.on_metadata(registration, eligible, NOW_MS))
            self._maybe_ask()

    def produce(self, value: int, *, acks_all: bool = True) -> ErrorCode:
        """Append ``value`` as leader; return the error, or ``none``."""
        leader = self.replica.role
        if not isinstance(leader, LeaderRole):
            return ErrorCode.not_leader_or_follower
        if acks_all and (refusal := leader.admit_acks_all()) is not ErrorCode.none:
            return refusal
        self.log.append(leader.leader_epoch, value)
        required = self.log.log_end_offset
        self._carry_out(leader.on_appended(required, NOW_MS))
        if acks_all:
            self._await_acknowledgement(leader, value, required)
        return ErrorCode.none

    def _await_acknowledgement(self, leader: LeaderRole, value: int, required: int) -> None:
        match leader.acks_all_outcome(required):
            case ErrorCode.none:
                self.outbox.append(Acknowledged(value))
            case Pending():
                leader.hold_produce(value, required)
            case _:
                pass

    def ask(self) -> None:
        """Send a fetch if this process follows; it replaces the fetch that has no response yet."""
        if isinstance(self.replica.role, FollowerRole):
            fetch = self.replica.role.next_fetch()
            if isinstance(fetch, FollowerFetch):
                self.outbox.append(fetch)

    def serve(self, fetch: FollowerFetch, *, max_records: int = 1, may_wait: bool = True) -> ErrorCode:
        """Answer a fetch as leader; return the error, or ``none``.

        An error after which the follower would only repeat the fetch is not sent: instead the fetch itself
        may arrive again. ``may_wait``: without records, the response has the high watermark at the end of the
        wait and the leader records it as sent.
        """
        leader = self.replica.role
        if not isinstance(leader, LeaderRole):
            return ErrorCode.not_leader_or_follower
        result, effects = leader.on_follower_fetch(fetch, NOW_MS)
        self._carry_out(effects)
        match result:
            case ServeFetch():
                records = self.log.read(fetch.fetch_offset, max_records)
                waits = may_wait and not records
                high_watermark = leader.send_high_watermark(fetch.replica) if waits else result.high_watermark
                self.outbox.append(_reply(fetch, result, high_watermark, records))
                return ErrorCode.none
            case DivergingFetch(diverging):
                self.outbox.append(FetchReply(fetch, FetchResponse(diverging=diverging)))
                return ErrorCode.none
            case RejectFetch(error):
                if error is ErrorCode.offset_out_of_range:
                    self.outbox.append(FetchReply(fetch, self._out_of_range(leader)))
                return error

    def take(self, reply: FetchReply) -> None:
        self._carry_out(self.replica.on_fetch_response(reply.fetch, reply.answer), reply.records)
        self._maybe_ask()

    def take_alter_reply(self, reply: AlterReply) -> None:
        self._carry_out(self.replica.on_alter_partition_response(reply.request, reply.answer, NOW_MS))

    def find_lagging(self, follower: int) -> None:
        if isinstance(self.replica.role, LeaderRole):
            self._carry_out(self.replica.role.on_lag_expired(BrokerId(follower), NOW_MS))

    def is_past(self, message: Message) -> bool:
        """Whether ``message`` is of an older epoch, or answers a request that is no longer outstanding."""
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

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _maybe_ask(self) -> None:
        if isinstance(self.replica.role, FollowerRole) and self.replica.role.outstanding is None:
            self.ask()

    def _out_of_range(self, leader: LeaderRole) -> FetchResponse:
        return FetchResponse(
            error=ErrorCode.offset_out_of_range,
            high_watermark=leader.high_watermark,
            log_start_offset=self.log.log_start_offset,
        )

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
                case PublishHighWatermark() | AdvanceHighWatermark() | AdvanceLogStart() | BackOff():
                    pass

    def normalise(self) -> None:
        """Reset the fields that no safety rule reads, so that states which differ only in them are equal."""
        match self.replica.role:
            case FollowerRole() as follower:
                if follower.outstanding is not None:
                    follower.outstanding = follower.outstanding._replace(number=CURRENT)
                follower._next_number = CURRENT  # pyright: ignore[reportPrivateUsage]
            case LeaderRole() as leader:
                for remote in leader.remote_replicas:
                    remote.last_sent_high_watermark = UNKNOWN_OFFSET
                    # The offset is only used to count a replica as caught up later, which keeps it in the
                    # ISR.
                    remote.last_fetch_leader_end_offset = UNKNOWN_OFFSET
            case NoRole():
                pass


def _reply(
    fetch: FollowerFetch, result: ServeFetch, high_watermark: int, records: tuple[Record, ...]
) -> FetchReply:
    answer = FetchResponse(
        base_offset=fetch.fetch_offset if records else UNKNOWN_OFFSET,
        end_offset=fetch.fetch_offset + len(records) if records else UNKNOWN_OFFSET,
        high_watermark=high_watermark,
        log_start_offset=result.log_start_offset,
    )
    return FetchReply(fetch, answer, records)
