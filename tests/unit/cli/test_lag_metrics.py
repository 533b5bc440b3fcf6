"""The metrics of one reading of a cluster, also of an incomplete one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from nilometer.cli.exporter import ClusterState, GroupState, registry_of
from nilometer.client.admin.group_descriptions import ShareOffset
from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
TOPICS = {
    "a": TopicMetadata(
        "a",
        None,
        (
            PartitionMetadata(0, 1, replicas=(1, 2), in_sync_replicas=(1, 2)),
            PartitionMetadata(1, 1, replicas=(2, 1), in_sync_replicas=(1,)),
        ),
    ),
    "b": TopicMetadata("b", None, (PartitionMetadata(0, -1, replicas=(2,), in_sync_replicas=(2,)),)),
}
BROKERS = (BrokerNode(1, "h", 9092),)


def series(state: ClusterState) -> dict[tuple[str, ...], float]:
    """Return the values by name and labels, without the prefix that all names share."""
    text = "".join(registry_of(state).text())
    return {
        (sample.name.removeprefix("kafka_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_lag_is_what_a_group_has_not_committed_below_the_high_watermark() -> None:
    ends, starts = {A0: 10, A1: 7}, {A0: 2, A1: 0}
    groups = {"g": GroupState(3, {A0: 4, A1: 9, B0: 1})}
    found = series(ClusterState(BROKERS, TOPICS, starts, ends, groups))
    assert found["consumergroup_lag", "g", "a", "0"] == 6
    assert found["consumergroup_lag", "g", "a", "1"] == 0, "a commit above the known end is no negative lag"
    assert ("consumergroup_lag", "g", "b", "0") not in found, "without a leader the lag is not known"
    assert found["consumergroup_lag_sum", "g", "a"] == 6
    assert ("consumergroup_lag_sum", "g", "b") not in found
    assert found["consumergroup_current_offset", "g", "b", "0"] == 1
    assert found["consumergroup_current_offset_sum", "g", "a"] == 13
    assert found["consumergroup_members", "g"] == 3
    assert found["topic_partition_current_offset", "a", "0"] == 10
    assert found["topic_partition_oldest_offset", "a", "0"] == 2


def test_share_groups_have_their_start_offset_and_lag() -> None:
    shared = {A0: ShareOffset(A0, 7, 12), A1: ShareOffset(A1, None, None), B0: ShareOffset(B0, 3, None)}
    found = series(ClusterState(BROKERS, TOPICS, groups={"s": GroupState(2, shared=shared)}))
    assert found["nilometer_sharegroup_start_offset", "s", "a", "0"] == 7
    assert found["nilometer_sharegroup_lag", "s", "a", "0"] == 12
    assert ("nilometer_sharegroup_lag", "s", "a", "1") not in found, "no member has read it"
    assert found["nilometer_sharegroup_start_offset", "s", "b", "0"] == 3
    assert ("nilometer_sharegroup_lag", "s", "b", "0") not in found
    assert found["consumergroup_members", "s"] == 2


def test_partitions_have_their_leader_and_replicas() -> None:
    found = series(ClusterState(BROKERS, TOPICS))
    assert (found["brokers",], found["broker_info", "1", "h:9092"]) == (1, 1)
    assert (found["topic_partitions", "a"], found["topic_partitions", "b"]) == (2, 1)
    assert found["topic_partition_leader", "b", "0"] == -1
    assert [found["topic_partition_leader_is_preferred", "a", part] for part in ("0", "1")] == [1, 0]
    under = "topic_partition_under_replicated_partition"
    assert [found[under, "a", part] for part in ("0", "1")] == [0, 1]
    assert found["topic_partition_replicas", "a", "1"] == 2
    assert found["topic_partition_in_sync_replica", "a", "1"] == 1


def test_a_part_that_failed_is_shown_as_incomplete() -> None:
    found = series(ClusterState(BROKERS, TOPICS, failed={"groups": "the coordinator is away"}))
    assert found["nilometer_exporter_complete", "groups"] == 0
    assert found["nilometer_exporter_complete", "offsets"] == 1
