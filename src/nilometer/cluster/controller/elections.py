"""Elections without a failure: on request (ElectLeaders), and the periodic preferred leader election."""

from __future__ import annotations

import enum
from collections.abc import Generator, Sequence

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal, Steps, Stepwise
from nilometer.cluster.controller.partition_change import PartitionDraft, RequestedChange
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerId, TopicIdPartition
from nilometer.wire.errors import ErrorCode

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
        raise Refusal(ErrorCode.unknown_topic_or_partition, f"No such topic as {topic_name}")
    if topic.partition(partition) is None:
        raise Refusal(ErrorCode.unknown_topic_or_partition, f"No such partition as {topic_name}-{partition}")
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
        raise Refusal(failed, f"No replica of {topic_name}-{partition} that may lead is available.")
