"""A leader's followers: the state of each, and which of them count for the high watermark, are added to the
ISR, and are removed from it.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.identifiers import NO_BROKER_EPOCH, UNKNOWN_OFFSET, BrokerEpoch, BrokerId, Offset
from nilometer.replication.isr import CommittedIsr, IsrNegotiation, PendingExpandIsr
from nilometer.replication.shell_interface import NO_EFFECTS, Effects, EligibleBrokers, SendAlterPartition

# The follower's log end offset is its last fetch offset; it is unknown until the follower has fetched in the
# leader's epoch. A follower's high watermark is not kept, only the one last sent to it.

NEVER_MS = -(1 << 62)
"""Earlier than any time: the replica was not caught up since this leader epoch started."""


class RemoteReplica:
    """One follower. Invariant: ``last_caught_up_ms`` never decreases, except by :meth:`mark_lagging`."""

    __slots__ = (
        "assigned",
        "broker_epoch",
        "broker_id",
        "is_silent",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "last_sent_high_watermark",
        "log_end_offset",
        "log_start_offset",
        "refused_broker_epoch",
    )

    def __init__(self, broker_id: BrokerId, *, assigned: bool, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.assigned = assigned
        """Whether the replica is assigned. If not, it may still be in the ISR, but is never added again."""
        self.broker_epoch = NO_BROKER_EPOCH
        """The broker epoch of the last fetch."""
        self.refused_broker_epoch = NO_BROKER_EPOCH
        """The broker epoch that the controller rejected as ineligible."""
        self.is_silent = False
        """True from the proposal to remove it from the ISR for lagging until its next fetch."""
        self.log_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = NEVER_MS
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_sent_high_watermark = UNKNOWN_OFFSET

    def on_fetch(
        self,
        broker_epoch: BrokerEpoch,
        fetch_offset: Offset,
        log_start_offset: Offset,
        leader_end_offset: Offset,
        now_ms: int,
    ) -> None:
        """Record a fetch, which shows that the follower has all records below ``fetch_offset``.

        It is caught up now if ``fetch_offset`` is the leader's log end offset. It was caught up at its
        previous fetch if it now has all records that the leader had then.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif (
            self.last_fetch_leader_end_offset != UNKNOWN_OFFSET
            and fetch_offset >= self.last_fetch_leader_end_offset
        ):
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        if broker_epoch != self.broker_epoch:
            self.broker_epoch = broker_epoch
            self.last_sent_high_watermark = UNKNOWN_OFFSET
        self.is_silent = False
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: Offset, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_time_max_ms

    def mark_lagging(self) -> None:
        """Make the follower count as lagging for longer than ``replica.lag.time.max.ms``."""
        self.last_caught_up_ms = self.last_fetch_ms = NEVER_MS

    def __repr__(self) -> str:
        return f"RemoteReplica({self.broker_id}, log_end_offset={self.log_end_offset})"


# The state of all followers includes every assigned replica and every member of the ISR, assigned or not
# (KAFKA-9672), and the broker epoch of each broker that may be in an ISR.


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
        return min(leader_start_offset, min(live, default=leader_start_offset))


# The membership compares the followers with the leader's offsets, which are arguments, and proposes each
# change through :class:`~nilometer.replication.isr.IsrNegotiation`. Invariant: *no replica joins the ISR
# below the high watermark or below the start of the leader's epoch* (KAFKA-7128), nor because of a fetch that
# its broker sent with another broker epoch (KIP-903).


class IsrMembership:
    __slots__ = ("_followers", "_leader", "_negotiation")

    def __init__(
        self, leader: BrokerId, broker_epoch: BrokerEpoch, negotiation: IsrNegotiation, followers: Followers
    ) -> None:
        self._leader = (leader, broker_epoch)
        self._negotiation = negotiation
        self._followers = followers

    def counts(self, remote: RemoteReplica, log_end_offset: Offset, now_ms: int) -> bool:
        """Whether the high watermark waits for this follower."""
        return remote.broker_id in self._negotiation.state.maximal or (
            remote.assigned
            and self._followers.is_eligible(remote)
            and self._followers.is_caught_up(remote, log_end_offset, now_ms)
        )

    def may_join(self, remote: RemoteReplica, high_watermark: Offset, epoch_start_offset: Offset) -> bool:
        return (
            remote.assigned
            and not remote.is_silent
            and remote.broker_id not in self._negotiation.state.maximal
            and remote.log_end_offset >= high_watermark
            and remote.log_end_offset >= epoch_start_offset
            and self._followers.is_eligible(remote)
            and remote.broker_epoch != remote.refused_broker_epoch
        )

    def expand(self, high_watermark: Offset, epoch_start_offset: Offset) -> Effects:
        """Propose to add the followers that may join; no effects while a request is pending."""
        state = self._negotiation.state
        if not isinstance(state, CommittedIsr) or len(state.isr) > len(self._followers):
            return NO_EFFECTS
        joining = [
            remote.broker_id
            for remote in self._followers.all()
            if self.may_join(remote, high_watermark, epoch_start_offset)
        ]
        if not joining:
            return NO_EFFECTS
        members = self._broker_epochs_of((*state.isr, *joining))
        return (SendAlterPartition(self._negotiation.propose_expand(members)),)

    def shrink(self, lagging: list[BrokerId]) -> Effects:
        """Propose to remove the ISR members in ``lagging``; no effects while a request is pending."""
        state = self._negotiation.state
        if not isinstance(state, CommittedIsr) or state.maximal.isdisjoint(lagging):
            return NO_EFFECTS
        self._followers.mark_silent(lagging)
        staying = tuple(member for member in state.isr if member not in lagging)
        return (SendAlterPartition(self._negotiation.propose_shrink(self._broker_epochs_of(staying))),)

    def retry(self) -> Effects:
        """Send the pending request again if that is due."""
        request = self._negotiation.take_retry()
        return NO_EFFECTS if request is None else (SendAlterPartition(request),)

    def set_eligible(self, eligible: EligibleBrokers) -> None:
        """Set the brokers that may be in an ISR, as of the metadata entry that is already applied.

        If a replica that is being added is no longer eligible, the controller has not committed that request
        and never will: it is withdrawn.
        """
        self._followers.set_eligible(eligible)
        state = self._negotiation.state
        if isinstance(state, PendingExpandIsr) and any(
            eligible.get(broker_id) != broker_epoch
            for broker_id, broker_epoch in state.request.new_isr
            if broker_id in state.added
        ):
            self._negotiation.withdraw()

    def _broker_epochs_of(self, members: tuple[BrokerId, ...]) -> dict[BrokerId, BrokerEpoch]:
        leader, broker_epoch = self._leader
        others = tuple(member for member in members if member != leader)
        return {leader: broker_epoch, **self._followers.broker_epochs_of(others)}
