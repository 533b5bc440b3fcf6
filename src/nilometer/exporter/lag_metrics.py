"""The metrics of a cluster's topics and groups, with kafka_exporter's names, made from one reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from nilometer.client.network.cluster_metadata import PartitionMetadata, TopicPartition
from nilometer.exporter.cluster_reading import PARTS, ClusterState, GroupState
from nilometer.metrics.families import Family, Kind, Measured, Registry, Series

PARTITION_SERIES_MAX = 200_000

_TOPIC, _PARTITION = ("topic",), ("topic", "partition")
_GROUP_TOPIC, _GROUP_PARTITION = ("consumergroup", "topic"), ("consumergroup", "topic", "partition")


def _gauge(name: str, help_text: str, labels: tuple[str, ...] = ()) -> Family:
    return Family(f"kafka_{name}", Kind.GAUGE, help_text, labels, PARTITION_SERIES_MAX)


BROKERS = _gauge("brokers", "Brokers of the cluster that are not fenced.")
BROKER_INFO = _gauge("broker_info", "Always 1; the labels are a broker's id and address.", ("id", "address"))
TOPIC_PARTITIONS = _gauge("topic_partitions", "Partitions of a topic.", _TOPIC)
CURRENT_OFFSET = _gauge("topic_partition_current_offset", "The high watermark of a partition.", _PARTITION)
OLDEST_OFFSET = _gauge("topic_partition_oldest_offset", "The log start offset of a partition.", _PARTITION)
GROUP_MEMBERS = _gauge("consumergroup_members", "Members of a consumer group.", ("consumergroup",))
GROUP_OFFSET = _gauge(
    "consumergroup_current_offset", "The committed offset of a consumer group.", _GROUP_PARTITION
)
GROUP_LAG = _gauge(
    "consumergroup_lag",
    "How many offsets a consumer group is behind the high watermark; missing while that is not known.",
    _GROUP_PARTITION,
)
# Their names end like parts of a summary: as gauges they would break Prometheus' rules for names.
GROUP_OFFSET_SUM = Family(
    "kafka_consumergroup_current_offset_sum",
    Kind.UNTYPED,
    "The sum of the offsets that a consumer group has committed in a topic.",
    _GROUP_TOPIC,
)
GROUP_LAG_SUM = Family(
    "kafka_consumergroup_lag_sum",
    Kind.UNTYPED,
    "The sum of a consumer group's lag in a topic.",
    _GROUP_TOPIC,
)
UP = Family(
    "nilometer_exporter_complete",
    Kind.GAUGE,
    "1 if the part of the cluster could be read completely for this scrape, else 0; the log has the reason.",
    ("part",),
)

_OF_PARTITIONS: tuple[tuple[Family, Callable[[PartitionMetadata], int]], ...] = (
    (
        _gauge("topic_partition_leader", "The broker id of the leader, -1 if there is none.", _PARTITION),
        lambda partition: partition.leader_id,
    ),
    (
        _gauge("topic_partition_replicas", "The number of assigned replicas.", _PARTITION),
        lambda partition: len(partition.replicas),
    ),
    (
        _gauge("topic_partition_in_sync_replica", "The size of the ISR.", _PARTITION),
        lambda partition: len(partition.in_sync_replicas),
    ),
    (
        _gauge("topic_partition_leader_is_preferred", "1 if the first replica leads.", _PARTITION),
        lambda partition: int(partition.replicas[:1] == (partition.leader_id,)),
    ),
    (
        _gauge(
            "topic_partition_under_replicated_partition",
            "1 if fewer replicas are in sync than assigned.",
            _PARTITION,
        ),
        lambda partition: int(len(partition.in_sync_replicas) < len(partition.replicas)),
    ),
)
FAMILIES = (
    BROKERS,
    BROKER_INFO,
    TOPIC_PARTITIONS,
    CURRENT_OFFSET,
    OLDEST_OFFSET,
    *(family for family, _ in _OF_PARTITIONS),
    GROUP_MEMBERS,
    GROUP_OFFSET,
    GROUP_LAG,
    GROUP_OFFSET_SUM,
    GROUP_LAG_SUM,
    UP,
)


def registry_of(state: ClusterState) -> Registry:
    """Return a registry with the metrics of one reading."""
    registry = Registry()
    registry.add(FAMILIES, lambda: _collect(state))
    return registry


def _collect(state: ClusterState) -> Iterator[Measured]:
    yield Measured(BROKERS, [((), len(state.brokers))])
    addresses = [(str(broker.node_id), f"{broker.host}:{broker.port}") for broker in state.brokers]
    yield Measured(BROKER_INFO, ((labels, 1) for labels in addresses))
    sizes = (((name,), len(topic.partitions)) for name, topic in state.topics.items())
    yield Measured(TOPIC_PARTITIONS, sizes)
    yield Measured(CURRENT_OFFSET, _of_partitions(state.high_watermarks))
    yield Measured(OLDEST_OFFSET, _of_partitions(state.log_start_offsets))
    for family, value in _OF_PARTITIONS:
        yield Measured(family, _of_metadata(state, value))
    yield from _of_groups(state)
    yield Measured(UP, (((part,), int(part not in state.failed)) for part in PARTS))


def _of_partitions(values: Mapping[TopicPartition, int]) -> Iterator[Series]:
    for partition, value in sorted(values.items()):
        yield _labels(partition), value


def _of_metadata(state: ClusterState, value: Callable[[PartitionMetadata], int]) -> Iterator[Series]:
    for name, topic in state.topics.items():
        for partition in topic.partitions:
            yield (name, str(partition.partition)), value(partition)


def _of_groups(state: ClusterState) -> Iterator[Measured]:
    groups = state.groups
    yield Measured(GROUP_MEMBERS, (((name,), group.members) for name, group in groups.items()))
    yield Measured(
        GROUP_OFFSET,
        (
            ((name, *_labels(partition)), offset)
            for name, group in groups.items()
            for partition, offset in group.committed.items()
        ),
    )
    yield Measured(
        GROUP_LAG,
        (
            ((name, *_labels(partition)), lag)
            for name, group in groups.items()
            for partition in group.committed
            if (lag := state.lag(group, partition)) is not None
        ),
    )
    offsets = {name: _by_topic(group.committed) for name, group in groups.items()}
    yield Measured(GROUP_OFFSET_SUM, _sums(offsets))
    yield Measured(
        GROUP_LAG_SUM, _sums({name: _lag_by_topic(state, group) for name, group in groups.items()})
    )


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for partition, value in values.items():
        sums[partition.topic] = sums.get(partition.topic, 0) + value
    return sums


def _lag_by_topic(state: ClusterState, group: GroupState) -> dict[str, int]:
    known = {partition: state.lag(group, partition) for partition in group.committed}
    return _by_topic({partition: lag for partition, lag in known.items() if lag is not None})


def _sums(by_group: Mapping[str, Mapping[str, int]]) -> Iterator[Series]:
    for group, by_topic in by_group.items():
        for topic, value in by_topic.items():
            yield (group, topic), value


def _labels(partition: TopicPartition) -> tuple[str, str]:
    return partition.topic, str(partition.partition)
