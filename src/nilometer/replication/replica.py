"""One broker's replica of a partition, and its current role.

The registration in the metadata gives it a role for one leader epoch: every epoch change makes a new role,
also if the leader stays the same (KAFKA-7164). Responses of other brokers are passed through here, so that a
late one for an ended role is ignored (KAFKA-13207).

    NoRole ──registration──▶ FollowerRole ◀──epoch──▶ LeaderRole
       ▲                          │                       │
       └──── not assigned ────────┴───────────────────────┘

Invariants:
- *registrations are applied in order*: one with an older partition epoch changes nothing;
- *the high watermark survives a change of role*: a new leader starts with its value as a follower.
"""

from __future__ import annotations

from nilometer.identifiers import (
    NO_LEADER_EPOCH,
    NO_PARTITION_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
)
from nilometer.replication.epochs import PartitionLog
from nilometer.replication.follower import FetchResponse, FollowerRole, TruncationRule
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse
from nilometer.replication.leader import LeaderRole
from nilometer.replication.shell_interface import (
    NO_EFFECTS,
    Effects,
    EligibleBrokers,
    FollowerFetch,
    PartitionRegistration,
    clamped_high_watermark,
)


class NoRole:
    """The broker has no role: it received no metadata since its start, resigned, or is not assigned."""

    __slots__ = ("high_watermark",)

    def __init__(self, high_watermark: Offset) -> None:
        self.high_watermark = high_watermark


class Replica:
    __slots__ = (
        "_log",
        "_partition_epoch",
        "broker_epoch",
        "broker_id",
        "counts_flushed",
        "flushed_end_offset",
        "min_insync_replicas",
        "replica_lag_time_max_ms",
        "role",
        "rule",
    )

    def __init__(
        self,
        log: PartitionLog,
        *,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        checkpointed_high_watermark: Offset = 0,
        min_insync_replicas: int = 1,
        replica_lag_time_max_ms: int = 10_000,
        counts_flushed: bool = False,
        rule: TruncationRule = TruncationRule.BY_LEADER_EPOCH,
    ) -> None:
        self._log = log
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.min_insync_replicas = min_insync_replicas
        self.replica_lag_time_max_ms = replica_lag_time_max_ms
        self.counts_flushed = counts_flushed
        self.flushed_end_offset: Offset = 0
        self.rule = rule
        self._partition_epoch = NO_PARTITION_EPOCH
        high_watermark = clamped_high_watermark(
            checkpointed_high_watermark, log.log_start_offset, log.log_end_offset
        )
        self.role: NoRole | FollowerRole | LeaderRole = NoRole(high_watermark)

    @property
    def high_watermark(self) -> Offset:
        return self.role.high_watermark

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return NO_LEADER_EPOCH if isinstance(self.role, NoRole) else self.role.leader_epoch

    def on_metadata(
        self, registration: PartitionRegistration, eligible: EligibleBrokers, now_ms: int
    ) -> Effects:
        """Apply newer metadata of this partition and the eligible brokers; change the role if necessary."""
        if registration.partition_epoch < self._partition_epoch:
            return NO_EFFECTS
        self._partition_epoch = registration.partition_epoch
        if self.broker_id not in registration.replicas and self.broker_id not in registration.isr:
            return self._clear_role()
        if isinstance(self.role, NoRole) or registration.leader_epoch != self.role.leader_epoch:
            if registration.leader == self.broker_id:
                return self._become_leader(registration, eligible, now_ms)
            return self._become_follower(registration)
        if isinstance(self.role, LeaderRole):
            return self.role.on_metadata(registration, eligible, now_ms)
        return NO_EFFECTS

    def configure(
        self, *, min_insync_replicas: int, counts_flushed: bool, flushed_end_offset: Offset, now_ms: int
    ) -> Effects:
        """Apply the topic's settings; ``flushed_end_offset`` is where the flushed part of the log ends."""
        self.min_insync_replicas = min_insync_replicas
        self.counts_flushed = counts_flushed
        role = self.role
        if isinstance(role, LeaderRole):
            return role.configure(min_insync_replicas, counts_flushed, flushed_end_offset, now_ms)
        if isinstance(role, FollowerRole):
            role.configure(counts_flushed, flushed_end_offset)
        return NO_EFFECTS

    def note_flushed(self, flushed_end_offset: Offset) -> None:
        """Let the next role begin with the log as it is flushed up to ``flushed_end_offset``."""
        self.flushed_end_offset = flushed_end_offset

    def note_registered(self, broker_epoch: BrokerEpoch) -> None:
        """Let the next role have the broker epoch of a new registration."""
        self.broker_epoch = broker_epoch

    def on_flushed(self, flushed_end_offset: Offset, now_ms: int) -> Effects:
        self.note_flushed(flushed_end_offset)
        role = self.role
        if isinstance(role, LeaderRole):
            return role.on_flushed(flushed_end_offset, now_ms)
        if isinstance(role, FollowerRole):
            role.on_flushed(flushed_end_offset)
        return NO_EFFECTS

    def on_fetch_response(self, fetch: FollowerFetch, response: FetchResponse) -> Effects:
        return (
            self.role.on_fetch_response(fetch, response)
            if isinstance(self.role, FollowerRole)
            else NO_EFFECTS
        )

    def on_alter_partition_response(
        self, request: AlterPartition, response: AlterPartitionResponse, now_ms: int
    ) -> Effects:
        if not isinstance(self.role, LeaderRole) or request.leader_epoch != self.role.leader_epoch:
            return NO_EFFECTS
        return self.role.on_alter_partition_response(request, response, now_ms)

    def resign(self) -> Effects:
        """End the role until the next metadata, because the broker's session is lost or its disk failed."""
        return self._clear_role()

    # ── private helpers ─────────────────────────────────────────────────────────────────────────
    def _become_leader(
        self, registration: PartitionRegistration, eligible: EligibleBrokers, now_ms: int
    ) -> Effects:
        before = self.role
        leader = LeaderRole(
            registration,
            self._log,
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
            high_watermark=before.high_watermark,
            eligible=eligible,
            now_ms=now_ms,
            min_insync_replicas=self.min_insync_replicas,
            replica_lag_time_max_ms=self.replica_lag_time_max_ms,
            counts_flushed=self.counts_flushed,
            flushed_end_offset=min(self.flushed_end_offset, self._log.log_end_offset),
        )
        if isinstance(before, LeaderRole):
            leader.inherit_tickets(before)
        self.role = leader
        return leader.start(now_ms)

    def _become_follower(self, registration: PartitionRegistration) -> Effects:
        before = self.role
        follower = FollowerRole(
            registration,
            self._log,
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
            high_watermark=before.high_watermark,
            counts_flushed=self.counts_flushed,
            flushed_end_offset=min(self.flushed_end_offset, self._log.log_end_offset),
            rule=self.rule,
        )
        self.role = follower
        return (before.resign() if isinstance(before, LeaderRole) else NO_EFFECTS) + follower.start()

    def _clear_role(self) -> Effects:
        before = self.role
        self.role = NoRole(before.high_watermark)
        return before.resign() if isinstance(before, LeaderRole) else NO_EFFECTS
