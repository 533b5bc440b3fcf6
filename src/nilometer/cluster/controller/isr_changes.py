"""What brokers request for the ISRs: a leader changes one (AlterPartition), a broker leaves those of its
damaged or offline replicas (ForfeitReplicas).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from nilometer.cluster.controller.brokers import check_broker_epoch
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.controller.partition_change import PartitionDraft, RequestedChange
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import RecoveryState, Replicas
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicIdPartition,
)
from nilometer.wire.errors import ErrorCode

# AlterPartition: a leader requests a change of the ISR (KIP-497, KIP-841, KIP-903).
#
# The leader's metadata may be outdated: its own leadership, the partition's state, the registered brokers,
# the incarnation of a follower that caught up. Each has an epoch, and each epoch is checked:
#
# - the *broker epoch* of the leader's broker: it may have restarted since;
# - the *leader epoch*: another broker may lead. The *partition epoch*: the state may have changed since;
# - the broker epoch of *every proposed member*: a replica that restarted may have lost records.
#
# If the leader has a higher epoch than this image, the leader has read further in the metadata log and this
# controller is outdated. A request for the ISR that is already committed succeeds: it repeats an earlier
# request whose response was lost (KAFKA-12686).


class IsrMember(msgspec.Struct, frozen=True):
    broker_id: BrokerId
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """The broker epoch of the follower that caught up; -1 if unknown, and then not checked."""


class IsrChange(msgspec.Struct, frozen=True, kw_only=True):
    """The ISR that a leader requests for one partition, with the epochs by which it is checked."""

    partition: TopicIdPartition
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    new_isr: tuple[IsrMember, ...]
    recovery_state: RecoveryState = RecoveryState.RECOVERED


class AlteredPartition(msgspec.Struct, frozen=True):
    partition: TopicIdPartition
    outcome: Outcome
    state: PartitionState | None = None
    """The partition's new state if the request succeeded."""


def decide_alter_partitions(
    image: ClusterImage,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    requests: Sequence[IsrChange],
) -> Decision[tuple[AlteredPartition, ...]]:
    """Decide the requests of the leader on broker ``broker_id``; each partition gets its own outcome."""
    try:
        check_broker_epoch(image, broker_id, broker_epoch)
    except Refusal as refusal:
        return Decision((), tuple(AlteredPartition(r.partition, refusal.outcome) for r in requests))
    draft = PartitionDraft(image)
    times = Counter(request.partition for request in requests)
    reply: list[AlteredPartition] = []
    for request in requests:
        try:
            if times[request.partition] > 1:
                topic_id, index = request.partition
                raise Refusal(
                    ErrorCode.invalid_request,
                    f"Partition {index} of topic id {topic_id} appears more than once in the request.",
                )
            reply.append(_alter(draft, broker_id, request))
        except Refusal as refusal:
            reply.append(AlteredPartition(request.partition, refusal.outcome))
    return Decision(draft.take_units(), tuple(reply))


def _alter(draft: PartitionDraft, broker_id: BrokerId, request: IsrChange) -> AlteredPartition:
    image = draft.image
    state = _known_state(image, request.partition)
    _check_epochs(state, broker_id, request)
    if _is_already_committed(state, request):
        return AlteredPartition(request.partition, OK, state)
    if request.partition_epoch < state.partition_epoch:
        raise Refusal(
            ErrorCode.invalid_update_version,
            f"The partition epoch is {state.partition_epoch}, not {request.partition_epoch}",
        )
    _check_isr(state, request)
    _refuse_ineligible(image, state, request)
    requested = RequestedChange(
        isr=tuple(member.broker_id for member in request.new_isr),
        recovered=request.recovery_state is RecoveryState.RECOVERED,
    )
    draft.change(
        request.partition,
        draft.with_election_policy(request.partition, requested),
        may_lead=image.is_active,
    )
    after = draft.state(request.partition)
    if after.leader != broker_id:
        # The new ISR completed a reassignment, and the requesting leader is not in the new assignment.
        elected = Outcome(ErrorCode.new_leader_elected, f"The leader is {after.leader} now")
        return AlteredPartition(request.partition, elected)
    return AlteredPartition(request.partition, OK, after)


def _known_state(image: ClusterImage, partition: TopicIdPartition) -> PartitionState:
    topic = image.topic_by_id(partition.topic_id)
    if topic is None:
        raise Refusal(ErrorCode.unknown_topic_id, f"No topic has the id {partition.topic_id}")
    state = topic.partition(partition.partition)
    if state is None:
        raise Refusal(
            ErrorCode.unknown_topic_or_partition, f"There is no partition {topic.name}-{partition.partition}"
        )
    return state


def _check_epochs(state: PartitionState, broker_id: BrokerId, request: IsrChange) -> None:
    if request.leader_epoch > state.leader_epoch or request.partition_epoch > state.partition_epoch:
        raise Refusal(
            ErrorCode.not_controller,
            f"Leader epoch {request.leader_epoch} and partition epoch {request.partition_epoch} are not "
            f"known here yet, only {state.leader_epoch} and {state.partition_epoch}",
        )
    if request.leader_epoch < state.leader_epoch:
        raise Refusal(
            ErrorCode.fenced_leader_epoch,
            f"The leader epoch is {state.leader_epoch}, not {request.leader_epoch}",
        )
    if broker_id != state.leader:
        raise Refusal(ErrorCode.invalid_request, f"The leader is {state.leader}, not {broker_id}")


def _is_already_committed(state: PartitionState, request: IsrChange) -> bool:
    asked = {member.broker_id for member in request.new_isr}
    return asked == set(state.isr) and request.recovery_state is state.recovery_state


def _check_isr(state: PartitionState, request: IsrChange) -> None:
    isr = [member.broker_id for member in request.new_isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(state.replicas):
        raise Refusal(
            ErrorCode.invalid_request, f"The ISR {isr} is not part of the assignment {state.replicas}"
        )
    if state.leader not in isr:
        raise Refusal(ErrorCode.invalid_request, f"The ISR {isr} lacks the leader {state.leader}")
    if request.recovery_state is RecoveryState.RECOVERING:
        if len(isr) > 1:
            raise Refusal(
                ErrorCode.invalid_request, f"The ISR {isr} has followers while the leader is recovering"
            )
        if state.recovery_state is RecoveryState.RECOVERED:
            raise Refusal(ErrorCode.invalid_request, "A recovered leader cannot be recovering again")


def _refuse_ineligible(image: ClusterImage, state: PartitionState, request: IsrChange) -> None:
    reasons = [
        f"{member.broker_id} ({reason})"
        for member in request.new_isr
        if (reason := _why_ineligible(image, state, member)) is not None
    ]
    if reasons:
        raise Refusal(ErrorCode.ineligible_replica, f"Ineligible for the ISR: {', '.join(reasons)}")


def _why_ineligible(image: ClusterImage, state: PartitionState, member: IsrMember) -> str | None:
    broker = image.broker(member.broker_id)
    if broker is None:
        return "not registered"
    if broker.in_controlled_shutdown:
        return "shutting down"
    if broker.fenced:
        return "fenced"
    if member.broker_epoch not in (NO_BROKER_EPOCH, broker.epoch):
        return f"broker epoch {member.broker_epoch} instead of {broker.epoch}"
    if member.broker_id in state.offline:
        return "its replica is offline"
    return None


# ForfeitReplicas: a broker found damage in its replicas, and requests to leave their ISRs and ELRs.
#
# The broker has lost records that it had acknowledged as follower or leader. So it leaves the ISR and the
# eligible leader replicas, and another replica leads. Every such partition gets a new leader epoch, also if
# the leader stays the same: the leader's state of the replica's log is outdated, and no earlier fetch may
# count.
#
# A replica that no other replica can replace stays in the ISR: its log up to the damage is the best one left.
#
# A replica may also be reported *offline*: its log directory failed, or the broker fenced it (like KIP-858).
# Such a replica cannot be used at all. It leaves the ISR and the leadership in any case, the partition has no
# leader if no other replica can lead, and the replica stays offline until its broker registers again.


class ForfeitedReplica(msgspec.Struct, frozen=True):
    partition: TopicIdPartition
    outcome: Outcome


def decide_forfeit_replicas(
    image: ClusterImage,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    partitions: Sequence[TopicIdPartition],
    *,
    offline: bool = False,
) -> Decision[tuple[ForfeitedReplica, ...]]:
    """Decide the request of broker ``broker_id``; each partition gets its own outcome.

    ``offline``: the replicas cannot be used any more; otherwise they lost records and will catch up.
    """
    asked = tuple(dict.fromkeys(partitions))
    try:
        check_broker_epoch(image, broker_id, broker_epoch)
    except Refusal as refusal:
        return Decision((), tuple(ForfeitedReplica(key, refusal.outcome) for key in asked))
    draft = PartitionDraft(image)
    reply: list[ForfeitedReplica] = []
    for key in asked:
        try:
            if offline:
                _take_offline(draft, broker_id, key)
            else:
                _forfeit(draft, broker_id, key)
            reply.append(ForfeitedReplica(key, OK))
        except Refusal as refusal:
            reply.append(ForfeitedReplica(key, refusal.outcome))
    return Decision(draft.take_units(), tuple(reply))


def _take_offline(draft: PartitionDraft, broker_id: BrokerId, key: TopicIdPartition) -> None:
    """Mark the replica as offline.

    The content of a failed disk is uncertain, so the replica also counts as unsafe if another one is safe.
    """
    state = _state_with(draft.image, broker_id, key)
    if broker_id in state.offline:
        return  # a repeated request: the response to the earlier one was lost
    forfeited = (broker_id,) if any(other != broker_id for other in _safe(state)) else ()
    wanted = RequestedChange(offline=(broker_id,), forfeited=forfeited, new_epoch=True)
    draft.change(key, draft.with_election_policy(key, wanted), may_lead=draft.image.is_active)


def _state_with(image: ClusterImage, broker_id: BrokerId, key: TopicIdPartition) -> PartitionState:
    state = image.partition_by_id(*key)
    if state is None:
        raise Refusal(ErrorCode.unknown_topic_or_partition, f"There is no partition {key}")
    if broker_id not in state.replicas:
        raise Refusal(ErrorCode.invalid_request, f"Broker {broker_id} has no replica of {key}")
    return state


def _safe(state: PartitionState) -> Replicas:
    return () if state.is_suspect else (*state.isr, *state.elr)


def _forfeit(draft: PartitionDraft, broker_id: BrokerId, key: TopicIdPartition) -> None:
    image = draft.image
    state = _state_with(image, broker_id, key)
    usable = [other for other in _safe(state) if image.is_active(other) and other not in state.offline]
    if not any(other != broker_id for other in usable):
        raise Refusal(
            ErrorCode.eligible_leaders_not_available,
            "No other replica that certainly has every record is available.",
        )
    draft.change(
        key,
        RequestedChange(forfeited=(broker_id,), new_epoch=True),
        may_lead=lambda other: other != broker_id and image.is_active(other),
    )
