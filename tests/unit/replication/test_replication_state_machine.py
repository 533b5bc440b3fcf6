"""Random events against one leader, compared with a deliberately dumb leader that recomputes everything.

The same events are played in every run. A failing run prints its own, as a script that plays them again.
"""

from __future__ import annotations

from hypothesis import strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from roles import ALL_REPLICAS, Leading, members, registered

from nilometer.replication.isr import AlterPartition, AlterPartitionResponse, PendingExpandIsr
from nilometer.replication.shell_interface import (
    PENDING,
    Effects,
    ReleaseProduce,
    SendAlterPartition,
    ServeFetch,
)
from nilometer.simulation.model_check.processes import ModelLog
from nilometer.wire.errors import ErrorCode
from support.properties import examples

FOLLOWERS = (2, 3)
LAG_MS = 10_000


class LeaderMachine(RuleBasedStateMachine):
    """Plays the controller, two followers and producers around one leader."""

    def __init__(self) -> None:
        super().__init__()
        self.min_isr = 2
        self.now_ms = 0
        self.partition_epoch = 0
        self.isr: tuple[int, ...] = (1, 2, 3)
        self.eligible = dict(ALL_REPLICAS)
        self.request: AlterPartition | None = None
        self.written = dict.fromkeys(FOLLOWERS, 0)
        self.told = dict.fromkeys(FOLLOWERS, -1)
        self.waiting: dict[int, int] = {}
        self.highest = 0
        self.leader = Leading(ModelLog(), registered(1, 2, 3), min_insync_replicas=self.min_isr)

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case SendAlterPartition(request):
                    assert self.request in (None, request) or self.is_void(self.request)
                    self.request = request
                case ReleaseProduce(ticket, outcome):
                    required = self.waiting.pop(ticket)
                    assert outcome is ErrorCode.none
                    assert required <= self.leader.role.high_watermark
                case _:
                    pass

    def is_void(self, request: AlterPartition) -> bool:
        """It may still arrive at the controller, which will refuse it."""
        if request.partition_epoch != self.partition_epoch:
            return True
        return any(self.eligible.get(broker) != epoch for broker, epoch in request.new_isr)

    @rule(count=strategies.integers(1, 3))
    def produce(self, count: int) -> None:
        if self.leader.role.admit_acks_all() is not ErrorCode.none:
            assert len(self.isr) < self.min_isr
            return
        self.carry_out(self.leader.append(count, self.now_ms))
        required = self.leader.log.log_end_offset
        if self.leader.role.acks_all_outcome(required) is PENDING:
            self.waiting[required] = required
            self.leader.role.hold_produce(required, required)

    @rule(follower=strategies.sampled_from(FOLLOWERS))
    def fetch(self, follower: int) -> None:
        offset = self.written[follower]
        verdict, effects = self.leader.fetch(follower, offset, now_ms=self.now_ms)
        self.carry_out(effects)
        if isinstance(verdict, ServeFetch):
            self.told[follower] = offset
            self.written[follower] = min(offset + 2, verdict.end_offset)

    @rule(elapsed_ms=strategies.sampled_from((1, 4_000, 11_000)))
    def tick(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.carry_out(self.leader.role.on_tick(self.now_ms))

    @precondition(lambda self: self.request is not None)
    @rule(arrives=strategies.booleans())
    def controller_commits(self, arrives: bool) -> None:
        """If the answer does not arrive, the metadata log tells it later."""
        request, self.request = self.request, None
        assert request is not None
        if request.partition_epoch != self.partition_epoch:
            answer = AlterPartitionResponse(error=ErrorCode.invalid_update_version)
        elif any(self.eligible.get(broker) != epoch for broker, epoch in request.new_isr):
            answer = AlterPartitionResponse(error=ErrorCode.ineligible_replica)
        else:
            self.partition_epoch += 1
            self.isr = members(request)
            answer = AlterPartitionResponse(
                leader_epoch=0, partition_epoch=self.partition_epoch, isr=self.isr
            )
        if arrives:
            self.carry_out(self.leader.role.on_alter_partition_response(request, answer, self.now_ms))
        else:
            self.metadata_arrives()

    @rule(follower=strategies.sampled_from(FOLLOWERS))
    def broker_is_fenced_or_back(self, follower: int) -> None:
        if self.eligible.pop(follower, None) is None:
            self.eligible[follower] = ALL_REPLICAS[follower]
        elif follower in self.isr:
            self.partition_epoch += 1
            self.isr = tuple(member for member in self.isr if member != follower)
        self.metadata_arrives()

    def metadata_arrives(self) -> None:
        registration = registered(*self.isr, partition_epoch=self.partition_epoch)
        self.carry_out(self.leader.role.on_metadata(registration, dict(self.eligible), self.now_ms))
        self.request = getattr(self.leader.role.isr_state, "request", None)

    @invariant()
    def high_watermark_is_what_every_in_sync_replica_has(self) -> None:
        role = self.leader.role
        assert self.highest <= role.high_watermark <= role.log_end_offset
        if role.high_watermark > self.highest:
            counted = set(role.isr)
            if isinstance(role.isr_state, PendingExpandIsr):
                counted |= role.isr_state.added
            assert all(self.told[member] >= role.high_watermark for member in counted if member != 1)
            assert len(role.isr) >= self.min_isr
        self.highest = role.high_watermark

    @invariant()
    def nothing_that_is_committed_waits(self) -> None:
        assert all(required > self.leader.role.high_watermark for required in self.waiting.values())

    @invariant()
    def the_leader_is_in_its_isr(self) -> None:
        assert 1 in self.leader.role.isr


LeaderMachine.TestCase.settings = examples(150, stateful_step_count=40)
TestLeader = LeaderMachine.TestCase
