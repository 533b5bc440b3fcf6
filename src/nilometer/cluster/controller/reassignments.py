"""Moving partitions to other brokers while they are in use (KIP-455).

1. The new replicas are added to the assignment and listed in ``adding``; those to be removed stay for now
   and are listed in ``removing``.
2. The new replicas catch up and join the ISR, as any replica does.
3. When an AlterPartition puts the last target replica into the ISR, the assignment becomes the target
   (:func:`nilometer.cluster.controller.partition_change.change_partition`): the removed replicas leave the
   ISR and the assignment, with a new leader epoch.

Throttles are topic and broker settings (``leader.replication.throttled.replicas`` and others): they are not
decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal, Steps, Stepwise
from nilometer.cluster.controller.partition_change import PartitionDraft, RequestedChange
from nilometer.cluster.controller.topics import check_assignment
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Replicas
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import BrokerId, TopicIdPartition
from nilometer.wire.errors import ErrorCode


class Reassignment(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    replicas: Sequence[int] | None
    """The target assignment; None cancels the ongoing reassignment."""


class ReassignedPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    outcome: Outcome


class OngoingReassignment(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    state: PartitionState


@Stepwise
def decide_alter_reassignments(
    image: ClusterImage,
    requests: Sequence[Reassignment],
    *,
    allow_replication_factor_change: bool = True,
) -> Steps[tuple[ReassignedPartition, ...]]:
    draft = PartitionDraft(image)
    reply: list[ReassignedPartition] = []
    times = Counter((request.topic, request.partition) for request in requests)
    for request in requests:
        try:
            if times[request.topic, request.partition] > 1:
                raise Refusal(ErrorCode.invalid_request, "A partition may appear only once in a request.")
            _reassign(draft, request, allow_replication_factor_change)
            outcome = OK
        except Refusal as refusal:
            outcome = refusal.outcome
        reply.append(ReassignedPartition(request.topic, request.partition, outcome))
        yield 1
    return Decision(draft.take_units(), tuple(reply))


def list_reassignments(
    image: ClusterImage, partitions: Sequence[tuple[str, int]] | None = None
) -> list[OngoingReassignment]:
    """Return the ongoing reassignments of the given partitions, or of all."""
    wanted = None if partitions is None else set(partitions)
    found: list[OngoingReassignment] = []
    for key, state in image.reassigning_partitions():
        topic = image.topic_by_id(key.topic_id)
        if topic is not None and (wanted is None or (topic.name, key.partition) in wanted):
            found.append(OngoingReassignment(topic.name, key.partition, state))
    return found


def _reassign(draft: PartitionDraft, request: Reassignment, allow_factor_change: bool) -> None:
    topic = draft.image.topic(request.topic)
    if topic is None:
        raise Refusal(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {request.topic}.")
    if topic.partition(request.partition) is None:
        raise Refusal(
            ErrorCode.unknown_topic_or_partition,
            f"Unable to find partition {request.topic}:{request.partition}.",
        )
    key = TopicIdPartition(topic.id, request.partition)
    if request.replicas is None:
        _cancel(draft, key)
        return
    target = tuple(BrokerId(broker) for broker in request.replicas)
    state = draft.state(key)
    check_assignment(draft.image, target)
    if not allow_factor_change and len(target) != len(state.original_replicas):
        raise Refusal(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is {len(state.original_replicas)} and may not become {len(target)}.",
        )
    # ``adding`` is relative to the assignment before any reassignment, so that cancelling restores that one
    # even if this reassignment replaces another. A replica that the other one was adding, and that is not in
    # the new target, is in both lists.
    original = state.original_replicas
    removing = tuple(sorted(r for r in state.replicas if r not in target))
    adding = tuple(sorted(r for r in (*target, *removing) if r not in original))
    wanted = RequestedChange(replicas=(*target, *removing), adding=adding, removing=removing)
    draft.change(key, draft.with_election_policy(key, wanted), may_lead=draft.image.is_active)


def _cancel(draft: PartitionDraft, key: TopicIdPartition) -> None:
    state = draft.state(key)
    if not state.is_reassigning:
        raise Refusal(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
    original = state.original_replicas
    wanted = draft.with_election_policy(key, RequestedChange(replicas=original, adding=(), removing=()))
    if not _survives_on(draft.image, state, original) and not wanted.allow_unclean:
        raise Refusal(
            ErrorCode.invalid_replica_assignment,
            "Unable to revert the partition assignment because it would require an unclean leader election.",
        )
    draft.change(key, wanted, may_lead=draft.image.is_active)


def _survives_on(image: ClusterImage, state: PartitionState, replicas: Replicas) -> bool:
    """Return whether one of ``replicas`` can lead without loss of records.

    Now if the partition has a leader, otherwise once its broker returns.
    """
    safe = () if state.is_suspect else tuple(r for r in (*state.isr, *state.elr) if r in replicas)
    if state.has_leader:
        return any(image.is_active(r) and r not in state.offline for r in safe)
    return state.last_known_leader in replicas and (state.is_suspect or bool(safe))
