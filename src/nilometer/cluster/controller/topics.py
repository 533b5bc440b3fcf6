"""Creating topics (from counts or from a manual assignment), adding partitions, deleting topics; and the
growth of internal topics with the cluster.

Each topic of a request succeeds or fails independently, and its records are one unit: no broker ever sees a
topic with only some of its partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from nilometer.cluster.controller.configs import InheritedOf, check_configs, nothing_inherited
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal, Steps, Stepwise
from nilometer.cluster.controller.partition_change import PartitionDraft, RequestedChange
from nilometer.cluster.entries import Unit, fits_one_entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.placement import CannotPlace, UsableBroker, place_replicas
from nilometer.cluster.records import (
    ConfigChanged,
    ConfigResourceType,
    PartitionCreated,
    Record,
    Replicas,
    TopicCreated,
    TopicDeleted,
)
from nilometer.cluster.states import (
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    PartitionState,
    Topic,
    collision_key,
    why_invalid_name,
)
from nilometer.config import ConfigDefinition
from nilometer.identifiers import BrokerId, TopicId, TopicIdPartition, topic_id_of
from nilometer.runtime import Entropy
from nilometer.wire.errors import ErrorCode

# The brokers that may get replicas of a partition, by placement or by manual assignment.


def usable_brokers(image: ClusterImage) -> list[UsableBroker]:
    """Return all brokers that may get new replicas: those not in controlled shutdown."""
    return [
        UsableBroker(broker.id, broker.rack, not broker.fenced)
        for broker in image.brokers()
        if not broker.in_controlled_shutdown
    ]


def check_assignment(
    image: ClusterImage, replicas: Sequence[BrokerId], replication_factor: int | None = None
) -> None:
    """Check a manual assignment of one partition; ``replication_factor`` is that of the other partitions.

    Raises Refusal if it is invalid.
    """
    if not replicas:
        raise _refused("The manual partition assignment includes an empty replica list.")
    seen: set[BrokerId] = set()
    for broker in sorted(replicas):
        if image.broker(broker) is None:
            raise _refused(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker in seen:
            raise _refused(f"The manual partition assignment includes the broker {broker} more than once.")
        seen.add(broker)
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _refused(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
            f"is not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def first_isr(image: ClusterImage, replicas: Replicas) -> Replicas:
    """Return the first ISR of a new partition: every replica whose broker is active."""
    return tuple(broker for broker in replicas if image.is_active(broker))


def _refused(message: str) -> Refusal:
    return Refusal(ErrorCode.invalid_replica_assignment, message)


TakeQuota = Callable[[int], None]
"""Counts partitions that are created or deleted for the client's quota (KIP-599). Raises Refusal
(THROTTLING_QUOTA_EXCEEDED)."""

PARTITIONS_PER_REQUEST_MAX = 10_000
STEP_PARTITIONS = 64
"""Of so many new partitions a step of a decision is."""
"""A request for more is rejected before placement. The maximum size of an entry usually allows fewer."""


class TopicDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The values that the controller uses if a request has -1."""

    num_partitions: int = 1
    replication_factor: int = 1


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """A manual assignment: (partition, brokers) pairs. With it, both counts must be -1."""
    configs: Mapping[str, str | None] = msgspec.field(default_factory=dict[str, str | None])


class CreatedTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    outcome: Outcome
    topic_id: TopicId | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The topic's own settings."""


class MorePartitions(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    count: int
    """The new total number of partitions."""
    assignments: Sequence[Sequence[int]] | None = None
    """The brokers of each additional partition; None: the controller places them."""


def without_quota(_partitions: int) -> None:
    pass


@Stepwise
def decide_create_topics(
    image: ClusterImage,
    topics: Sequence[NewTopic],
    *,
    config_definition: ConfigDefinition,
    chance: Entropy,
    defaults: TopicDefaults,
    inherited_of: InheritedOf = nothing_inherited,
    validate_only: bool = False,
    take_quota: TakeQuota = without_quota,
) -> Steps[tuple[CreatedTopic, ...]]:
    """Create the valid ones of ``topics``. As in Kafka, those that are only validated count for the quota."""
    units: list[Unit] = []
    reply: list[CreatedTopic] = []
    names = Counter(topic.name for topic in topics)
    taken: dict[str, str] = {}
    for topic in topics:
        try:
            if names[topic.name] > 1:
                raise Refusal(ErrorCode.invalid_request, "Duplicate topic name.")
            _check_name(image, topic.name, taken)
            configs = check_configs(image, config_definition, inherited_of, topic.configs, topic.name)
            assignments = yield from _assignments(image, topic, defaults, chance)
            created, unit = yield from _create(image, topic.name, assignments, configs, chance)
            take_quota(len(assignments))
        except Refusal as refusal:
            reply.append(CreatedTopic(name=topic.name, outcome=refusal.outcome))
            continue
        taken[collision_key(topic.name)] = topic.name
        units.append(unit)
        reply.append(created)
    return Decision(() if validate_only else tuple(units), tuple(reply))


def decide_delete_topics(
    image: ClusterImage, topic_ids: Sequence[TopicId], take_quota: TakeQuota = without_quota
) -> Decision[tuple[tuple[TopicId, Outcome], ...]]:
    units: list[Unit] = []
    reply: list[tuple[TopicId, Outcome]] = []
    times = Counter(topic_ids)
    for topic_id in topic_ids:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            unknown = Outcome(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
            reply.append((topic_id, unknown))
            continue
        if times[topic_id] > 1:
            reply.append((topic_id, Outcome(ErrorCode.invalid_request, "Duplicate topic ID.")))
            continue
        try:
            take_quota(len(topic.partitions))
        except Refusal as refusal:
            reply.append((topic_id, refusal.outcome))
            continue
        units.append((TopicDeleted(topic_id=topic_id),))
        reply.append((topic_id, OK))
    return Decision(tuple(units), tuple(reply))


@Stepwise
def decide_create_partitions(
    image: ClusterImage,
    requests: Sequence[MorePartitions],
    *,
    chance: Entropy,
    validate_only: bool = False,
    take_quota: TakeQuota = without_quota,
) -> Steps[tuple[tuple[str, Outcome], ...]]:
    units: list[Unit] = []
    reply: list[tuple[str, Outcome]] = []
    names = Counter(request.name for request in requests)
    for request in requests:
        try:
            if names[request.name] > 1:
                raise Refusal(ErrorCode.invalid_request, "Duplicate topic in request.")
            unit = yield from _add_partitions(image, request, chance)
            take_quota(len(unit))
        except Refusal as refusal:
            reply.append((request.name, refusal.outcome))
            continue
        units.append(unit)
        reply.append((request.name, OK))
    return Decision(() if validate_only else tuple(units), tuple(reply))


def _check_name(image: ClusterImage, name: str, taken: Mapping[str, str]) -> None:
    if (error := why_invalid_name(name)) is not None:
        raise Refusal(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {error}")
    if image.topic(name) is not None:
        raise Refusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    collides = image.colliding_topic(name) or taken.get(collision_key(name))
    if collides is not None:
        raise Refusal(
            ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {collides}"
        )


def _create(
    image: ClusterImage,
    name: str,
    assignments: Sequence[Replicas],
    configs: Mapping[str, str],
    chance: Entropy,
) -> Generator[int, None, tuple[CreatedTopic, Unit]]:
    topic_id = topic_id_of(chance.uuid())
    records: list[Record] = [TopicCreated(name=name, topic_id=topic_id)]
    records.extend(
        ConfigChanged(resource_type=ConfigResourceType.TOPIC, resource_name=name, key=key, value=value)
        for key, value in sorted(configs.items())
    )
    records.extend((yield from _new_partitions(image, topic_id, 0, assignments)))
    created = CreatedTopic(
        name=name,
        outcome=OK,
        topic_id=topic_id,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0]),
        configs=dict(configs),
    )
    return created, _bounded(records)


def _bounded(records: Sequence[Record]) -> Unit:
    if not fits_one_entry(records):
        raise Refusal(
            ErrorCode.policy_violation,
            "Excessively large number of partitions per request. Create the topic with fewer and add more.",
        )
    return tuple(records)


def _assignments(
    image: ClusterImage, topic: NewTopic, defaults: TopicDefaults, chance: Entropy
) -> Generator[int, None, Sequence[Replicas]]:
    if topic.assignments:
        return (yield from _manual(image, topic))
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise Refusal(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise Refusal(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    factor = defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    count = defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    return (yield from _placed(image, count, factor, chance))


def _manual(image: ClusterImage, topic: NewTopic) -> Generator[int, None, Sequence[Replicas]]:
    for what, given in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.num_partitions),
    ):
        if given != -1:
            raise Refusal(
                ErrorCode.invalid_request,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    found: dict[int, Replicas] = {}
    factor: int | None = None
    for partition, brokers in topic.assignments:
        if partition in found:
            raise Refusal(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {partition}",
            )
        replicas = tuple(BrokerId(broker) for broker in brokers)
        check_assignment(image, replicas, factor)
        factor = len(replicas)
        found[partition] = replicas
        yield 1
    if sorted(found) != list(range(len(found))):
        raise Refusal(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    for partition, replicas in sorted(found.items()):
        _refuse_without_active_replica(image, partition, replicas)
        yield 1
    return [found[partition] for partition in range(len(found))]


def _refuse_without_active_replica(image: ClusterImage, partition: int, replicas: Replicas) -> None:
    if not first_isr(image, replicas):
        raise Refusal(
            ErrorCode.invalid_replica_assignment,
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced "
            "or in controlled shutdown.",
        )


def _placed(
    image: ClusterImage,
    count: int,
    factor: int,
    chance: Entropy,
    *,
    first_partition: int = 0,
) -> Generator[int, None, Sequence[Replicas]]:
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise Refusal(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
    brokers = usable_brokers(image)
    circle = max(1, len(brokers))
    start = chance.below(circle)
    shift = chance.below(circle)
    placed: list[Replicas] = []
    try:
        while len(placed) < count:
            placed += place_replicas(
                brokers,
                partitions=min(STEP_PARTITIONS, count - len(placed)),
                replication_factor=factor,
                start=start,
                shift=shift,
                first_partition=first_partition + len(placed),
            )
            yield STEP_PARTITIONS
    except CannotPlace as error:
        raise Refusal(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {factor} time(s): {error}",
        ) from error
    return placed


def _new_partitions(
    image: ClusterImage, topic_id: TopicId, first: int, assignments: Sequence[Replicas]
) -> Generator[int, None, Sequence[Record]]:
    records: list[Record] = []
    for index, replicas in enumerate(assignments, start=first):
        isr = first_isr(image, replicas)
        records.append(
            PartitionCreated(
                topic_id=topic_id,
                partition=index,
                replicas=replicas,
                isr=None if isr == replicas else isr,
            )
        )
        if len(records) % STEP_PARTITIONS == 0:
            yield STEP_PARTITIONS
    return records


_KEPT_BY_HASH = {TRANSACTION_STATE_TOPIC: "transactional ids", SHARE_GROUP_STATE_TOPIC: "share partitions"}


def _add_partitions(
    image: ClusterImage, request: MorePartitions, chance: Entropy
) -> Generator[int, None, Unit]:
    topic = image.topic(request.name)
    if topic is None:
        raise Refusal(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    if request.name in _KEPT_BY_HASH:  # the count decides which partition keeps what
        raise Refusal(
            ErrorCode.invalid_partitions,
            f"The number of partitions of {request.name} cannot change: {_KEPT_BY_HASH[request.name]} would "
            "change their coordinator, which does not know their state.",
        )
    present = len(topic.partitions)
    if request.count == present:
        raise Refusal(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
    if request.count < present:
        raise Refusal(
            ErrorCode.invalid_partitions,
            f"The topic {request.name} currently has {present} partition(s); {request.count} would not be an "
            "increase.",
        )
    assignments = yield from _additional(image, topic, request, chance)
    return _bounded((yield from _new_partitions(image, topic.id, present, assignments)))


def _additional(
    image: ClusterImage, topic: Topic, request: MorePartitions, chance: Entropy
) -> Generator[int, None, Sequence[Replicas]]:
    present = len(topic.partitions)
    additional = request.count - present
    factor = len(topic.partitions[0].target_replicas)
    if request.assignments is None:
        return (yield from _placed(image, additional, factor, chance, first_partition=present))
    if len(request.assignments) != additional:
        raise Refusal(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {additional} additional partition(s), but only {len(request.assignments)} "
            "assignment(s) were specified.",
        )
    found: list[Replicas] = []
    for index, brokers in enumerate(request.assignments, start=present):
        replicas = tuple(BrokerId(broker) for broker in brokers)
        check_assignment(image, replicas, factor)
        _refuse_without_active_replica(image, index, replicas)
        found.append(replicas)
        yield 1
    return found


# Internal topics with a replication factor that fits the number of brokers.
#
# ``__consumer_offsets`` with the replication factor of a big cluster cannot be created on a small one; with
# one replica and ``min.insync.replicas`` 2 its consumers would silently get nothing. So an internal topic is
# created with as many replicas as there are brokers, at most the configured number, and gets the missing ones
# by reassignment when brokers join. ``min.insync.replicas`` needs no adjustment: its effective value is at
# most the number of replicas.


def fitting_replication_factor(image: ClusterImage, configured: int) -> int:
    return max(1, min(configured, sum(broker.live for broker in usable_brokers(image))))


def internal_topic(
    image: ClusterImage,
    name: str,
    *,
    num_partitions: int,
    replication_factor: int,
    configs: dict[str, str | None],
) -> NewTopic:
    """Return the request that creates an internal topic with as many replicas as now possible."""
    return NewTopic(
        name=name,
        num_partitions=num_partitions,
        replication_factor=fitting_replication_factor(image, replication_factor),
        configs=configs,
    )


def decide_internal_topic_growth(image: ClusterImage, name: str, replication_factor: int) -> Decision[None]:
    """Add replicas to an internal topic that has fewer than configured if there are brokers for more."""
    draft = PartitionDraft(image)
    topic = image.topic(name)
    wanted = fitting_replication_factor(image, replication_factor)
    load = _replicas_per_broker(image)
    for index, state in enumerate(() if topic is None else topic.partitions):
        if topic is None or state.is_reassigning or len(state.replicas) >= wanted:
            continue
        added = _least_loaded(load, state, wanted - len(state.replicas))
        draft.change(
            TopicIdPartition(topic.id, index),
            RequestedChange(replicas=(*state.replicas, *added), adding=tuple(sorted(added))),
            may_lead=image.is_active,
        )
    return Decision(draft.take_units(), None)


def _replicas_per_broker(image: ClusterImage) -> dict[BrokerId, int]:
    return {broker.id: len(image.partitions_on(broker.id)) for broker in usable_brokers(image) if broker.live}


def _least_loaded(load: dict[BrokerId, int], state: PartitionState, count: int) -> Replicas:
    """Choose ``count`` brokers with the fewest replicas, and add the new replicas to ``load``."""
    free = sorted((b for b in load if b not in state.replicas), key=lambda b: (load[b], b))[:count]
    for broker in free:
        load[broker] += 1
    return tuple(free)
