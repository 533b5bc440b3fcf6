"""Changing one partition: its leader, its ISR, its eligible leader replicas (ELR).

Every change of a partition is made by :func:`change_partition`. Its arguments are the requested change (a new
ISR, a new assignment, brokers that forfeit their replica) and which brokers may lead now; it returns the
record, or None if nothing changes.

A replica is **safe** if it certainly has every acknowledged record: a member of the ISR, or an eligible
leader replica (KIP-966: it was in the ISR when that shrank below min.insync.replicas, and since then the
leader could not advance its high watermark). After a restart without a clean shutdown this is no longer
certain: the replica is *forfeited*.

A replica that may not lead (its broker is fenced or shutting down, or the replica itself is *offline*: its
log directory failed) is removed from the ISR, but stays safe. The leader is the first of the following; among
several replicas, the first in the assignment:

1. the current leader, if it is still in sync (in a preferred election the first replica, if it is in sync);
2. a member of the ISR;
3. an eligible leader replica, which becomes the whole ISR;
4. if no replica is safe any more: the last known leader, since after a crash of all replicas the partition
   would otherwise never have a leader again;
5. if unclean elections are allowed: any replica.

Otherwise there is no leader. Even then the ISR is not empty: its last member stays; if that one is
forfeited, an eligible leader replica replaces it; if there is none, the last known leader does, and the
partition is marked RECOVERING: its ISR no longer guarantees all acknowledged records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Election, PartitionChanged, RecoveryState, Replicas
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicIdPartition

MayLead = Callable[[BrokerId], bool]


class RequestedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The requested change of a partition. A field that is None does not change."""

    isr: Replicas | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    forfeited: Collection[BrokerId] = ()
    """Brokers that may have lost records (unclean restart, damage): removed from ISR and ELR."""
    lost: Collection[BrokerId] = ()
    """Brokers that lost the log: also not accepted as last known leader."""
    offline: Collection[BrokerId] = ()
    """Brokers whose replica cannot be used from now on, although the broker is up."""
    online: Collection[BrokerId] = ()
    """Brokers whose replica can be used again."""
    new_epoch: bool = False
    """Increment the leader epoch even if the leader stays, since what it knows of a follower is outdated."""
    recovered: bool = False
    """The leader has confirmed its log after an election of a replica that was not safe."""
    prefer_first: bool = False
    """Prefer the first assigned replica to the current leader."""
    allow_unclean: bool = False
    """Allow unclean leader election."""


class _Assignment(NamedTuple):
    replicas: Replicas
    isr: Replicas
    adding: Replicas
    removing: Replicas


class _ElectionOutcome(NamedTuple):
    """The partition's leader and replica sets after an election; ``election`` is None without a leader."""

    leader: BrokerId
    isr: Replicas
    elr: Replicas
    last_known_leader: BrokerId
    recovery_state: RecoveryState
    election: Election | None


def change_partition(
    key: TopicIdPartition,
    state: PartitionState,
    requested: RequestedChange,
    *,
    may_lead: MayLead,
    min_insync_replicas: int,
) -> PartitionChanged | None:
    """Return the record of the requested change, with a leader elected; None if nothing changes.

    ``may_lead``: whether a broker may lead and be in sync, for example because it is not fenced.
    """
    offline = _offline(state, requested)

    def is_usable(replica: BrokerId) -> bool:
        return replica not in offline and may_lead(replica)

    underway = _requested_assignment(state, requested, is_usable)
    assignment = _completed(underway)
    elected = _elect(state, assignment, requested, is_usable, min_insync_replicas)
    if elected.leader == NO_LEADER and assignment is not underway:
        # Without a leader, do not complete the reassignment: a replica to be removed may lead later.
        assignment = underway
        elected = _elect(state, assignment, requested, is_usable, min_insync_replicas)
    offline = tuple(r for r in assignment.replicas if r in offline)
    return _record(key, state, assignment, elected, offline, wants_epoch=requested.new_epoch)


def _offline(state: PartitionState, requested: RequestedChange) -> Replicas:
    return tuple(r for r in dict.fromkeys((*state.offline, *requested.offline)) if r not in requested.online)


def _requested_assignment(
    state: PartitionState, requested: RequestedChange, may_lead: MayLead
) -> _Assignment:
    """Return the requested assignment and ISR; the ISR without replicas that may not lead, since the high
    watermark would wait for them."""
    replicas = state.replicas if requested.replicas is None else requested.replicas
    isr = state.isr if requested.isr is None else requested.isr
    out = (*requested.forfeited, *requested.lost)
    return _Assignment(
        replicas,
        () if state.is_suspect else tuple(r for r in isr if r in replicas and r not in out and may_lead(r)),
        state.adding if requested.adding is None else requested.adding,
        state.removing if requested.removing is None else requested.removing,
    )


def _completed(assignment: _Assignment) -> _Assignment:
    """Return the target assignment if every replica of it is in sync, else ``assignment`` unchanged."""
    if not assignment.adding and not assignment.removing:
        return assignment
    replicas = tuple(r for r in assignment.replicas if r not in assignment.removing)
    isr = tuple(r for r in assignment.isr if r not in assignment.removing)
    if replicas and all(r in isr for r in replicas):
        return _Assignment(replicas, isr, (), ())
    return assignment


def _elect(
    state: PartitionState,
    assignment: _Assignment,
    requested: RequestedChange,
    may_lead: MayLead,
    min_insync_replicas: int,
) -> _ElectionOutcome:
    order = assignment.replicas
    min_isr = min(min_insync_replicas, len(order))
    isr = assignment.isr
    safe = _safe(state, order, requested)
    last_known = _last_known_leader(state, order, requested)

    def led_by(leader: BrokerId, isr: Replicas, election: Election) -> _ElectionOutcome:
        certain = election in (Election.IN_SYNC, Election.ELIGIBLE)
        held_back = certain and len(isr) < min_isr
        return _ElectionOutcome(
            leader,
            isr,
            tuple(r for r in safe if r not in isr) if held_back else (),
            NO_LEADER,
            _recovery_state(state, requested) if certain else RecoveryState.RECOVERING,
            election,
        )

    if isr:
        return led_by(_choose(state, order, isr, requested), isr, Election.IN_SYNC)
    for replica in safe:
        if may_lead(replica):
            return led_by(replica, (replica,), Election.ELIGIBLE)
    if not safe and last_known != NO_LEADER and may_lead(last_known):
        return led_by(last_known, (last_known,), Election.LAST_KNOWN)
    if requested.allow_unclean:
        for replica in order:
            if may_lead(replica):
                return led_by(replica, (replica,), Election.UNCLEAN)
    return _leaderless(state, assignment, safe, last_known)


def _choose(state: PartitionState, order: Replicas, isr: Replicas, requested: RequestedChange) -> BrokerId:
    """Return the leader among the in-sync replicas ``isr``."""
    if state.leader in isr and not (requested.prefer_first and order[0] in isr):
        return state.leader
    return next(replica for replica in order if replica in isr)


def _safe(state: PartitionState, order: Replicas, requested: RequestedChange) -> Replicas:
    if state.is_suspect:
        return ()
    members = (*state.isr, *state.elr)
    return tuple(
        r for r in order if r in members and r not in requested.forfeited and r not in requested.lost
    )


def _last_known_leader(state: PartitionState, order: Replicas, requested: RequestedChange) -> BrokerId:
    found = state.leader if state.has_leader else state.last_known_leader
    return NO_LEADER if found in requested.lost or found not in order else found


def _recovery_state(state: PartitionState, requested: RequestedChange) -> RecoveryState:
    return RecoveryState.RECOVERED if requested.recovered else state.recovery_state


def _leaderless(
    state: PartitionState, assignment: _Assignment, safe: Replicas, last_known: BrokerId
) -> _ElectionOutcome:
    """Return the state without a leader: one replica is the ISR; the other safe ones are the ELR."""
    candidates = safe or assignment.replicas
    stand_in = last_known if last_known in candidates else _first_of((*state.isr, *state.elr), candidates)
    elr = tuple(r for r in safe if r != stand_in)
    recovery = state.recovery_state if safe else RecoveryState.RECOVERING
    return _ElectionOutcome(NO_LEADER, (stand_in,), elr, last_known, recovery, None)


def _first_of(candidates: Replicas, within: Replicas) -> BrokerId:
    return next((r for r in candidates if r in within), within[0])


def _record(
    key: TopicIdPartition,
    state: PartitionState,
    assignment: _Assignment,
    elected: _ElectionOutcome,
    offline: Replicas,
    *,
    wants_epoch: bool,
) -> PartitionChanged | None:
    if _is_unchanged(state, assignment, elected) and offline == state.offline and not wants_epoch:
        return None
    new_leader = elected.leader != state.leader
    # A replica removed from the assignment must not count for the high watermark, nor fetch, in the old
    # epoch.
    new_epoch = wants_epoch or new_leader or any(r not in assignment.replicas for r in state.replicas)
    return PartitionChanged(
        topic_id=key.topic_id,
        partition=key.partition,
        partition_epoch=PartitionEpoch(state.partition_epoch + 1),
        leader=elected.leader if new_leader else None,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1) if new_epoch else None,
        isr=_unless_equal(elected.isr, state.isr),
        elr=_unless_equal(elected.elr, state.elr),
        last_known_leader=(
            elected.last_known_leader if elected.last_known_leader != state.last_known_leader else None
        ),
        replicas=_unless_equal(assignment.replicas, state.replicas),
        adding=_unless_equal(assignment.adding, state.adding),
        removing=_unless_equal(assignment.removing, state.removing),
        recovery_state=(
            elected.recovery_state if elected.recovery_state is not state.recovery_state else None
        ),
        election=elected.election if new_leader and elected.leader != NO_LEADER else None,
        offline=_unless_equal(offline, state.offline),
    )


def _is_unchanged(state: PartitionState, assignment: _Assignment, elected: _ElectionOutcome) -> bool:
    return (
        elected.leader == state.leader
        and elected.isr == state.isr
        and elected.elr == state.elr
        and elected.last_known_leader == state.last_known_leader
        and elected.recovery_state is state.recovery_state
        and assignment.replicas == state.replicas
        and assignment.adding == state.adding
        and assignment.removing == state.removing
    )


def _unless_equal(requested: Replicas, present: Replicas) -> Replicas | None:
    return None if requested == present else requested


# The partition changes of one decision, each based on the ones before it.
#
# A decision may change a partition twice (a broker forfeits its replica, then leads again because there is no
# other): the second change must be based on the first, although the image has neither yet.


class PartitionDraft:
    """Collects the changes of one decision. Each change is a separate unit."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._states: dict[TopicIdPartition, PartitionState] = {}
        self._units: list[Unit] = []
        self._min_insync_replicas: dict[TopicId, int] = {}
        self._allow_unclean: dict[TopicId, bool] = {}

    def state(self, key: TopicIdPartition) -> PartitionState:
        found = self._states.get(key) or self.image.partition_by_id(*key)
        if found is None:
            raise LookupError(f"no such partition: {key}")
        return found

    def change(
        self, key: TopicIdPartition, requested: RequestedChange, *, may_lead: MayLead
    ) -> PartitionChanged | None:
        state = self.state(key)
        change = change_partition(
            key,
            state,
            requested,
            may_lead=may_lead,
            min_insync_replicas=self._min_insync_replicas_of(key.topic_id),
        )
        if change is not None:
            self._states[key] = state.after(change)
            self._units.append((change,))
        return change

    def with_election_policy(self, key: TopicIdPartition, requested: RequestedChange) -> RequestedChange:
        """Return ``requested``, with unclean elections allowed if the topic's settings allow them."""
        allowed = self._allow_unclean.get(key.topic_id)
        if allowed is None:
            allowed = self.image.unclean_leader_election_enabled(self._name(key.topic_id))
            self._allow_unclean[key.topic_id] = allowed
        return replace(requested, allow_unclean=True) if allowed else requested

    def leaderless_partitions(self) -> list[tuple[TopicIdPartition, PartitionState]]:
        """Return the partitions without a leader, considering the changes of this draft."""
        found = dict(self.image.leaderless_partitions())
        found.update(self._states)
        return [(key, self.state(key)) for key in found if not self.state(key).has_leader]

    def take_units(self) -> tuple[Unit, ...]:
        """Return the changes since the last call."""
        units, self._units = tuple(self._units), []
        return units

    def _min_insync_replicas_of(self, topic_id: TopicId) -> int:
        found = self._min_insync_replicas.get(topic_id)
        if found is None:
            found = self.image.min_insync_replicas(self._name(topic_id))
            self._min_insync_replicas[topic_id] = found
        return found

    def _name(self, topic_id: TopicId) -> str:
        topic = self.image.topic_by_id(topic_id)
        if topic is None:
            raise LookupError(f"no such topic: {topic_id}")
        return topic.name
