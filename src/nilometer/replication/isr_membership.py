"""Which followers a leader counts for the high watermark, adds to the ISR, and removes from it.

It compares the followers with the leader's offsets, which are arguments, and proposes each change through
:class:`~nilometer.replication.isr.IsrNegotiation`. Invariant: *no replica joins the ISR below the high
watermark or below the start of the leader's epoch* (KAFKA-7128), nor because of a fetch that its broker sent
with another broker epoch (KIP-903).
"""

from __future__ import annotations

from nilometer.identifiers import BrokerEpoch, BrokerId, Offset
from nilometer.replication.effects import NO_EFFECTS, Effects, SendAlterPartition
from nilometer.replication.followers import Followers
from nilometer.replication.isr import CommittedIsr, IsrNegotiation, PendingExpandIsr
from nilometer.replication.partition_registration import EligibleBrokers
from nilometer.replication.remote_replica import RemoteReplica


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
