"""Internal topics with a replication factor that fits the number of brokers.

``__consumer_offsets`` with the replication factor of a big cluster cannot be created on a small one; with one
replica and ``min.insync.replicas`` 2 its consumers would silently get nothing. So an internal topic is
created with as many replicas as there are brokers, at most the configured number, and gets the missing ones
by reassignment when brokers join. ``min.insync.replicas`` needs no adjustment: its effective value is at most
the number of replicas.
"""

from __future__ import annotations

from nilometer.cluster.controller.assignments import usable_brokers
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.partition_change import RequestedChange
from nilometer.cluster.controller.partition_draft import PartitionDraft
from nilometer.cluster.controller.topics import NewTopic
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.partition_state import PartitionState
from nilometer.cluster.records import Replicas
from nilometer.identifiers import BrokerId, TopicIdPartition


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
