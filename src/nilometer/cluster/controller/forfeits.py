"""ForfeitReplicas: a broker found damage in replicas of its own, and gives up what it was trusted with there.

It has lost records that it had acknowledged to its leader, or as leader. So it leaves the ISR and the
eligible replicas, and another leads. Every such partition gets a new leader epoch, also where the leader
stays: what that leader knew of the replica's log is no longer true, and no fetch of before may be counted.

A replica that nobody could replace keeps its place: its log up to the damage is the best there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nilometer.cluster.controller.broker_epoch import check_broker_epoch
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.controller.partition_change import Wanted
from nilometer.cluster.controller.partition_draft import PartitionDraft
from nilometer.cluster.identifiers import BrokerEpoch, BrokerId, TopicIdPartition
from nilometer.cluster.image import ClusterImage
from nilometer.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ForfeitedReplica:
    partition: TopicIdPartition
    outcome: Outcome


def decide_forfeit_replicas(
    image: ClusterImage,
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    partitions: Sequence[TopicIdPartition],
) -> Decision[tuple[ForfeitedReplica, ...]]:
    asked = tuple(dict.fromkeys(partitions))
    try:
        check_broker_epoch(image, broker_id, broker_epoch)
    except Refusal as refusal:
        return Decision((), tuple(ForfeitedReplica(key, refusal.outcome) for key in asked))
    draft = PartitionDraft(image)
    reply: list[ForfeitedReplica] = []
    for key in asked:
        try:
            _forfeit(draft, broker_id, key)
            reply.append(ForfeitedReplica(key, OK))
        except Refusal as refusal:
            reply.append(ForfeitedReplica(key, refusal.outcome))
    return Decision(draft.take_units(), tuple(reply))


def _forfeit(draft: PartitionDraft, broker_id: BrokerId, key: TopicIdPartition) -> None:
    image = draft.image
    state = image.partition_by_id(*key)
    if state is None:
        raise Refusal(ErrorCode.unknown_topic_or_partition, f"There is no partition {key}")
    if broker_id not in state.replicas:
        raise Refusal(ErrorCode.invalid_request, f"Broker {broker_id} has no replica of {key}")
    safe = () if state.is_suspect else (*state.isr, *state.elr)
    if not any(other != broker_id and image.is_active(other) for other in safe):
        raise Refusal(
            ErrorCode.eligible_leaders_not_available, "No other replica that surely has every record is here."
        )
    draft.change(
        key,
        Wanted(forfeited=(broker_id,), new_epoch=True),
        may_lead=lambda other: other != broker_id and image.is_active(other),
    )
