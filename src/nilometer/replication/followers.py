"""The state of all followers of one leader, and queries over it.

It includes every assigned replica and every member of the ISR, assigned or not (KAFKA-9672), and the broker
epoch of each broker that may be in an ISR. :mod:`~nilometer.replication.leader` decides which replica joins
or leaves the ISR and which records are committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.identifiers import UNKNOWN_OFFSET, BrokerEpoch, BrokerId, Offset
from nilometer.replication.partition_registration import EligibleBrokers
from nilometer.replication.remote_replica import NEVER_MS, NO_BROKER_EPOCH, RemoteReplica


class Followers:
    """One :class:`RemoteReplica` for each assigned replica and each other ISR member, except the leader."""

    __slots__ = ("_leader", "_remotes", "eligible", "lag_time_max_ms")

    def __init__(self, leader: BrokerId, eligible: EligibleBrokers, lag_time_max_ms: int) -> None:
        self._leader = leader
        self._remotes: dict[BrokerId, RemoteReplica] = {}
        self.eligible = eligible
        self.lag_time_max_ms = lag_time_max_ms

    def __len__(self) -> int:
        return len(self._remotes)

    def get(self, broker_id: BrokerId) -> RemoteReplica | None:
        return self._remotes.get(broker_id)

    def all(self) -> Iterable[RemoteReplica]:
        return self._remotes.values()

    def track(self, replicas: tuple[BrokerId, ...], isr: frozenset[BrokerId], now_ms: int) -> None:
        """Update the followers to a new assignment or ISR.

        An ISR member not known yet counts as caught up.
        """
        known, self._remotes = self._remotes, {}
        for broker_id in (*replicas, *sorted(isr.difference(replicas))):
            if broker_id == self._leader:
                continue
            remote = known.get(broker_id)
            if remote is None:
                last_caught_up_ms = now_ms if broker_id in isr else NEVER_MS
                remote = RemoteReplica(broker_id, assigned=True, last_caught_up_ms=last_caught_up_ms)
            remote.assigned = broker_id in replicas
            self._remotes[broker_id] = remote

    def set_eligible(self, eligible: EligibleBrokers) -> None:
        """Set the brokers that may be in an ISR; those that the controller rejected may be proposed again."""
        self.eligible = eligible
        for remote in self._remotes.values():
            remote.refused_broker_epoch = NO_BROKER_EPOCH

    def refuse(self, members: Iterable[tuple[BrokerId, BrokerEpoch]]) -> None:
        """Remember that the controller rejected this ISR, so that it is not proposed again unchanged."""
        for broker_id, broker_epoch in members:
            if broker_id in self._remotes:
                self._remotes[broker_id].refused_broker_epoch = broker_epoch

    def mark_silent(self, lagging: Iterable[BrokerId]) -> None:
        """Mark replicas that lag: they may not rejoin the ISR before their next fetch."""
        for broker_id in lagging:
            self._remotes[broker_id].is_silent = True

    def on_leader_append(self, end_offset_before: Offset, now_ms: int) -> None:
        """Update the caught-up time before an append: a follower at the log end was caught up until now."""
        for remote in self._remotes.values():
            if remote.log_end_offset == end_offset_before and remote.last_caught_up_ms < now_ms:
                remote.last_caught_up_ms = now_ms

    def is_eligible(self, remote: RemoteReplica) -> bool:
        """Whether the broker may be in an ISR, and its last fetch had its current broker epoch."""
        return self.eligible.get(remote.broker_id, NO_BROKER_EPOCH) == remote.broker_epoch != NO_BROKER_EPOCH

    def is_caught_up(self, remote: RemoteReplica, leader_end_offset: Offset, now_ms: int) -> bool:
        return remote.is_caught_up(leader_end_offset, now_ms, self.lag_time_max_ms)

    def lagging(self, leader_end_offset: Offset, now_ms: int) -> list[BrokerId]:
        return [r.broker_id for r in self.all() if not self.is_caught_up(r, leader_end_offset, now_ms)]

    def broker_epochs_of(self, members: tuple[BrokerId, ...]) -> dict[BrokerId, BrokerEpoch]:
        """Return each member's broker epoch: that of its last fetch, or else the registered one."""
        epochs: dict[BrokerId, BrokerEpoch] = {}
        for member in members:
            fetched = self._remotes[member].broker_epoch
            epochs[member] = (
                fetched if fetched != NO_BROKER_EPOCH else self.eligible.get(member, NO_BROKER_EPOCH)
            )
        return epochs

    def lowest_start_offset(self, leader_start_offset: Offset) -> Offset:
        """Return the lowest log start offset of the leader and of all replicas that may be in an ISR.

        -1 while the offset of one of them is unknown.
        """
        live = (
            remote.log_start_offset if self.is_eligible(remote) else UNKNOWN_OFFSET
            for remote in self.all()
            if remote.broker_id in self.eligible
        )
        return min((leader_start_offset, *live))
