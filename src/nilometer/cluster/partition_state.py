"""The state of one partition in the metadata.

Invariants (checked whenever a state is created):
- *leader in ISR*; a partition without a leader keeps one of its last in-sync members;
- *ISR never empty, within the assignment*; eligible leader replicas are assigned, too, and not in the ISR;
- *offline replicas within the assignment*, and none of them leads;
- both epochs only increase, and the leader epoch with every change of leader.
"""

from __future__ import annotations

import msgspec

from nilometer.cluster.records import PartitionChanged, PartitionCreated, RecoveryState, Replicas
from nilometer.identifiers import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch
from nilometer.invariants import InvariantBroken


class PartitionState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    replicas: Replicas
    """The assigned replicas (AR) in order of preference, including those being added or removed."""
    isr: Replicas
    leader: BrokerId
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    partition_epoch: PartitionEpoch = PartitionEpoch(0)
    elr: Replicas = ()
    """Eligible leader replicas (KIP-966): not in the ISR, but certainly with every acknowledged record."""
    last_known_leader: BrokerId = NO_LEADER
    """The last leader, while the partition has none; else -1."""
    adding: Replicas = ()
    removing: Replicas = ()
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    offline: Replicas = ()
    """Replicas that cannot be used although their brokers are up: the log directory failed (KIP-858), or the
    broker fenced the replica. They may not lead or be in the ISR until the broker registers again."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def has_preferred_leader(self) -> bool:
        return self.leader == self.replicas[0]

    @property
    def target_replicas(self) -> Replicas:
        """The assignment after the ongoing reassignment."""
        return tuple(r for r in self.replicas if r not in self.removing)

    @property
    def original_replicas(self) -> Replicas:
        """The assignment before the ongoing reassignment."""
        return tuple(r for r in self.replicas if r not in self.adding)

    @property
    def is_suspect(self) -> bool:
        """Whether there is no leader and no replica that certainly has every acknowledged record; see
        :class:`RecoveryState`."""
        return self.leader == NO_LEADER and self.recovery_state is RecoveryState.RECOVERING

    def after(self, change: PartitionChanged) -> PartitionState:
        """Return the state after ``change``. Raises InvariantBroken."""
        state = PartitionState(
            self.replicas if change.replicas is None else change.replicas,
            self.isr if change.isr is None else change.isr,
            self.leader if change.leader is None else change.leader,
            self.leader_epoch if change.leader_epoch is None else change.leader_epoch,
            change.partition_epoch,
            self.elr if change.elr is None else change.elr,
            self.last_known_leader if change.last_known_leader is None else change.last_known_leader,
            self.adding if change.adding is None else change.adding,
            self.removing if change.removing is None else change.removing,
            self.recovery_state if change.recovery_state is None else change.recovery_state,
            self.offline if change.offline is None else change.offline,
        )
        state.check()
        if change.replicas is not None and len(set(state.replicas)) != len(state.replicas):
            raise InvariantBroken(f"a broker is assigned twice: {change}")
        if change.partition_epoch != self.partition_epoch + 1:
            raise InvariantBroken(f"partition epoch {self.partition_epoch} followed by {change}")
        if state.leader_epoch not in (self.leader_epoch, self.leader_epoch + 1):
            raise InvariantBroken(f"leader epoch {self.leader_epoch} followed by {change}")
        if state.leader != self.leader and state.leader_epoch == self.leader_epoch:
            raise InvariantBroken(f"one leader per epoch: leader {self.leader} followed by {change}")
        return state

    def check(self) -> None:
        """Raise InvariantBroken if the state is invalid."""
        if not self.isr:
            raise InvariantBroken(f"the ISR is empty: {self}")
        if self.leader != NO_LEADER and self.leader not in self.isr:
            raise InvariantBroken(f"the leader is not in the ISR: {self}")
        for member in self.isr:
            if member not in self.replicas:
                raise InvariantBroken(f"the ISR is not within the assignment: {self}")
        for member in self.elr:
            if member in self.isr or member not in self.replicas:
                raise InvariantBroken(f"eligible leader replicas inside the ISR or unassigned: {self}")
        for member in self.offline:
            if member == self.leader or member not in self.replicas:
                raise InvariantBroken(f"an offline replica leads or is unassigned: {self}")


def partition_of(record: PartitionCreated) -> PartitionState:
    """Return the first state of a new partition. Raises InvariantBroken."""
    isr = record.replicas if record.isr is None else record.isr
    state = PartitionState(
        record.replicas,
        isr,
        isr[0]
        if record.leader is None and isr
        else record.leader
        if record.leader is not None
        else NO_LEADER,
        record.leader_epoch,
        record.partition_epoch,
        record.elr,
        record.last_known_leader,
        record.adding,
        record.removing,
        record.recovery_state,
    )
    state.check()
    if len(set(state.replicas)) != len(state.replicas):
        raise InvariantBroken(f"a broker is assigned twice: {state}")
    return state
