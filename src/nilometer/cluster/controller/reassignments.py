"""Who leads and who has a replica, without a failure: elections on request and of preferred leaders, and
moves of partitions to other brokers while they are in use (KIP-455).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Generator, Sequence

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal, Steps, Stepwise
from nilometer.cluster.controller.partition_change import PartitionDraft, RequestedChange
from nilometer.cluster.controller.topics import check_assignment
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Replicas
from nilometer.cluster.states import PartitionState, quoted
from nilometer.identifiers import BrokerId, TopicIdPartition
from nilometer.wire.errors import ErrorCode

# Elections without a failure: on request (ElectLeaders), and the periodic preferred leader election.

STEP_PARTITIONS = 64
"""At so many partitions a step of a decision looks."""
PREFERRED_ELECTIONS_MAX = 1000
"""How many partitions change their leader in one round at most; the next round continues."""


class ElectionType(enum.IntEnum):
    """The election types of ElectLeaders, with its numbers."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectedPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    outcome: Outcome


@Stepwise
def decide_elect_leaders(
    image: ClusterImage,
    election_type: int,
    partitions: Sequence[tuple[str, int]] | None,
) -> Steps[tuple[ElectedPartition, ...]]:
    """Elect leaders of the given partitions (topic, number); None: of all that need an election.

    Raises Refusal for an unknown election type.
    """
    try:
        kind = ElectionType(election_type)
    except ValueError:
        raise Refusal(ErrorCode.invalid_request, f"Unknown election type {election_type}") from None
    draft = PartitionDraft(image)
    reply: list[ElectedPartition] = []
    for topic, partition in _all(image) if partitions is None else partitions:
        try:
            _elect(draft, kind, topic, partition)
            outcome = OK
        except Refusal as refusal:
            outcome = refusal.outcome
        if partitions is not None or outcome.error is not ErrorCode.election_not_needed:
            reply.append(ElectedPartition(topic, partition, outcome))
        yield 1
    return Decision(draft.take_units(), tuple(reply))


def preferred_imbalance(image: ClusterImage) -> Generator[int, None, dict[BrokerId, tuple[int, int]]]:
    """Return in steps for every preferred leader how many partitions it should lead, and how many it does
    not."""
    found: dict[BrokerId, tuple[int, int]] = {}
    for number, (_, state) in enumerate(image.partitions(), start=1):
        wanted, missing = found.get(state.replicas[0], (0, 0))
        found[state.replicas[0]] = (wanted + 1, missing + (not state.has_preferred_leader))
        if number % STEP_PARTITIONS == 0:
            yield STEP_PARTITIONS
    return dict(sorted(found.items()))


@Stepwise
def decide_preferred_leaders(
    image: ClusterImage, *, imbalance_percentage: int = 0, limit: int = PREFERRED_ELECTIONS_MAX
) -> Steps[bool]:
    """Elect the preferred leaders of brokers that do not lead more than ``imbalance_percentage`` of the
    partitions they should lead, if they are in sync.

    The reply is whether ``limit`` was reached, so that the next round should follow at once.
    """
    imbalance = yield from preferred_imbalance(image)
    unbalanced = {
        broker
        for broker, (wanted, missing) in imbalance.items()
        if missing * 100 > imbalance_percentage * wanted
    }
    draft = PartitionDraft(image)
    changed = 0
    for number, (key, state) in enumerate(image.partitions(), start=1):
        if number % STEP_PARTITIONS == 0:
            yield STEP_PARTITIONS
        preferred = state.replicas[0]
        if state.has_preferred_leader or preferred not in unbalanced or preferred not in state.isr:
            continue
        if changed == limit:
            return Decision(draft.take_units(), True)
        changed += draft.change(key, RequestedChange(prefer_first=True), may_lead=image.is_active) is not None
        yield 1
    return Decision(draft.take_units(), False)


def _all(image: ClusterImage) -> list[tuple[str, int]]:
    return [(topic.name, index) for topic in image.topics() for index in range(len(topic.partitions))]


def _elect(draft: PartitionDraft, kind: ElectionType, topic_name: str, partition: int) -> None:
    image = draft.image
    topic = image.topic(topic_name)
    if topic is None:
        raise Refusal(ErrorCode.unknown_topic_or_partition, f"No such topic as {quoted(topic_name)}")
    if topic.partition(partition) is None:
        raise Refusal(
            ErrorCode.unknown_topic_or_partition, f"No such partition as {quoted(topic_name)}-{partition}"
        )
    key = TopicIdPartition(topic.id, partition)
    state = draft.state(key)
    match kind:
        case ElectionType.PREFERRED:
            if state.has_preferred_leader:
                raise Refusal(ErrorCode.election_not_needed, "The preferred replica leads already.")
            wanted, failed = RequestedChange(prefer_first=True), ErrorCode.preferred_leader_not_available
        case ElectionType.UNCLEAN:
            if state.has_leader:
                raise Refusal(ErrorCode.election_not_needed, "The partition has a leader.")
            wanted, failed = RequestedChange(allow_unclean=True), ErrorCode.eligible_leaders_not_available
    draft.change(key, wanted, may_lead=image.is_active)
    if draft.state(key).leader == state.leader:
        raise Refusal(failed, f"No replica of {quoted(topic_name)}-{partition} that may lead is available.")


# Moving partitions to other brokers while they are in use (KIP-455).
#
# 1. The new replicas are added to the assignment and listed in ``adding``; those to be removed stay for now
#    and are listed in ``removing``.
# 2. The new replicas catch up and join the ISR, as any replica does.
# 3. When an AlterPartition puts the last target replica into the ISR, the assignment becomes the target
#    (:func:`nilometer.cluster.controller.partition_change.change_partition`): the removed replicas leave the
#    ISR and the assignment, with a new leader epoch.
#
# Throttles are topic and broker settings (``leader.replication.throttled.replicas`` and others): they are not
# decided here.


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
                name = f"{quoted(request.topic)}-{request.partition}"
                raise Refusal(
                    ErrorCode.invalid_request, f"Partition {name} appears more than once in the request."
                )
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
    if partitions is None:
        ongoing = image.reassigning_partitions()
        named = ((image.topic_by_id(key.topic_id), key.partition, state) for key, state in ongoing)
        return [OngoingReassignment(topic.name, index, state) for topic, index, state in named if topic]
    found: list[OngoingReassignment] = []
    for name, index in dict.fromkeys(partitions):
        topic = image.topic(name)
        state = None if topic is None else topic.partition(index)
        if state is not None and state.is_reassigning:
            found.append(OngoingReassignment(name, index, state))
    return found


def _reassign(draft: PartitionDraft, request: Reassignment, allow_factor_change: bool) -> None:
    topic = draft.image.topic(request.topic)
    if topic is None:
        raise Refusal(
            ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {quoted(request.topic)}."
        )
    if topic.partition(request.partition) is None:
        raise Refusal(
            ErrorCode.unknown_topic_or_partition,
            f"Unable to find partition {quoted(request.topic)}:{request.partition}.",
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
