"""ForfeitReplicas: a broker found damage in its replicas, and requests to leave their ISRs and ELRs.

The broker has lost records that it had acknowledged as follower or leader. So it leaves the ISR and the
eligible leader replicas, and another replica leads. Every such partition gets a new leader epoch, also if the
leader stays the same: the leader's state of the replica's log is outdated, and no earlier fetch may count.

A replica that no other replica can replace stays in the ISR: its log up to the damage is the best one left.

A replica may also be reported *offline*: its log directory failed, or the broker fenced it (like KIP-858).
Such a replica cannot be used at all. It leaves the ISR and the leadership in any case, the partition has no
leader if no other replica can lead, and the replica stays offline until its broker registers again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.cluster.controller.broker_epoch import check_broker_epoch
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.controller.partition_change import RequestedChange
from nilometer.cluster.controller.partition_draft import PartitionDraft
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.partition_state import PartitionState
from nilometer.cluster.records import Replicas
from nilometer.identifiers import BrokerEpoch, BrokerId, TopicIdPartition
from nilometer.wire.errors import ErrorCode


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
