"""All followers of one leader, and the queries over all of them.

Knows every assigned replica and every member of the ISR, assigned or not (KAFKA-9672), and the broker epoch
of each broker that may be in sync. Decides nothing: the leader decides which replica joins or leaves the ISR
and what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.replication.partition import UNKNOWN_OFFSET, BrokerEpoch, BrokerId, EligibleBrokers, Offset
from nilometer.replication.remote_replica import NEVER_MS, NO_BROKER_EPOCH, RemoteReplica


class Followers:
    """Invariant: one :class:`RemoteReplica` for each of AR, then of the ISR, without the leader."""

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
        """The assignment or the ISR has changed. A new member of the ISR counts as caught up now."""
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
        """The eligible brokers have changed: what the controller refused before may be possible now."""
        self.eligible = eligible
        for remote in self._remotes.values():
            remote.refused_broker_epoch = NO_BROKER_EPOCH

    def refuse(self, members: Iterable[tuple[BrokerId, BrokerEpoch]]) -> None:
        """The controller refused this ISR; asking again before something changes is useless."""
        for broker_id, broker_epoch in members:
            if broker_id in self._remotes:
                self._remotes[broker_id].refused_broker_epoch = broker_epoch

    def find_silent(self, lagging: Iterable[BrokerId]) -> None:
        """A replica that leaves the ISR for lagging does not rejoin before it has fetched again."""
        for broker_id in lagging:
            self._remotes[broker_id].is_silent = True

    def on_leader_append(self, end_offset_before: Offset, now_ms: int) -> None:
        """A follower at the log end was caught up until this append, however long ago it fetched."""
        for remote in self._remotes.values():
            if remote.log_end_offset == end_offset_before and remote.last_caught_up_ms < now_ms:
                remote.last_caught_up_ms = now_ms

    def is_eligible(self, remote: RemoteReplica) -> bool:
        """Whether the broker epoch that fetched is the one that may be in sync."""
        return self.eligible.get(remote.broker_id, NO_BROKER_EPOCH) == remote.broker_epoch != NO_BROKER_EPOCH

    def is_caught_up(self, remote: RemoteReplica, leader_end_offset: Offset, now_ms: int) -> bool:
        return remote.is_caught_up(leader_end_offset, now_ms, self.lag_time_max_ms)

    def lagging(self, leader_end_offset: Offset, now_ms: int) -> list[BrokerId]:
        return [r.broker_id for r in self.all() if not self.is_caught_up(r, leader_end_offset, now_ms)]

    def broker_epochs_of(self, members: tuple[BrokerId, ...]) -> dict[BrokerId, BrokerEpoch]:
        """The broker epoch of each member: the one that fetched, or else the registered one."""
        epochs: dict[BrokerId, BrokerEpoch] = {}
        for member in members:
            fetched = self._remotes[member].broker_epoch
            epochs[member] = (
                fetched if fetched != NO_BROKER_EPOCH else self.eligible.get(member, NO_BROKER_EPOCH)
            )
        return epochs

    def lowest_start_offset(self, leader_start_offset: Offset) -> Offset:
        """The lowest over the leader and every replica that may be in sync; -1 while one of them is
        unknown."""
        live = (
            remote.log_start_offset if self.is_eligible(remote) else UNKNOWN_OFFSET
            for remote in self.all()
            if remote.broker_id in self.eligible
        )
        return min((leader_start_offset, *live))
