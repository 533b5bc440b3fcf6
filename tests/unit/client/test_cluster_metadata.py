"""The picture of the cluster: what a newer answer may change, and what it may not."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.network.cluster_metadata import (
    NO_LEADER,
    BrokerNode,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)

ONE, TWO = BrokerNode(1, "one", 1), BrokerNode(2, "two", 2)
FIRST = TopicPartition("t", 0)


def picture(*partitions: tuple[int, int], topic_id: int = 7, name: str = "t") -> ClusterMetadata:
    """Topic ``t`` with the (leader, epoch) of each partition."""
    parts = tuple(PartitionMetadata(index, leader, epoch) for index, (leader, epoch) in enumerate(partitions))
    return ClusterMetadata("c", 1, {1: ONE, 2: TWO}, {name: TopicMetadata(name, UUID(int=topic_id), parts)})


def test_later_epoch_replaces_and_earlier_does_not() -> None:
    known = picture((1, 5), (1, 5))
    merged = known.merged(picture((2, 6), (2, 4)))
    assert merged.leader(FIRST) == TWO
    assert merged.leader(TopicPartition("t", 1)) == ONE
    assert merged.leader_epoch(TopicPartition("t", 1)) == 5


def test_same_epoch_takes_the_answer() -> None:
    assert picture((1, 5)).merged(picture((NO_LEADER, 5))).leader(FIRST) is None


def test_topic_created_again_starts_over() -> None:
    merged = picture((1, 5)).merged(picture((2, 0), topic_id=8))
    assert (merged.leader(FIRST), merged.leader_epoch(FIRST)) == (TWO, 0)


def test_topics_not_spoken_of_stay_and_gone_ones_go() -> None:
    known = picture((1, 5)).merged(picture((1, 0), name="u"))
    assert sorted(known.topics) == ["t", "u"]
    assert sorted(known.merged(ClusterMetadata(brokers={1: ONE}), gone=["t"]).topics) == ["u"]


def test_leader_named_in_passing_counts_only_when_newer_and_known() -> None:
    known = picture((1, 5))
    assert known.with_leader(FIRST, 2, 5) is known
    assert known.with_leader(FIRST, 9, 6) is known
    assert known.with_leader(TopicPartition("t", 3), 2, 6) is known
    changed = known.with_leader(FIRST, 9, 6, [BrokerNode(9, "nine", 9)])
    assert changed.leader(FIRST) == BrokerNode(9, "nine", 9)
    assert known.leader(FIRST) == ONE


def test_available_partitions_are_those_with_a_leader() -> None:
    assert picture((1, 0), (NO_LEADER, 0), (2, 0)).topics["t"].available == (0, 2)


def test_look_ups_of_what_is_not_there() -> None:
    known = picture((1, 5))
    assert known.partition(TopicPartition("t", 1)) is None
    assert known.partition(TopicPartition("t", -1)) is None
    assert known.leader(TopicPartition("u", 0)) is None
    assert known.partition_count("u") == 0


answers = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 6)), min_size=3, max_size=3)


@given(st.lists(answers, min_size=1, max_size=8))
def test_epochs_never_go_back_whatever_the_order_of_answers(history: list[list[tuple[int, int]]]) -> None:
    known = ClusterMetadata()
    highest = [-1, -1, -1]
    for answer in history:
        known = known.merged(picture(*answer))
        for index, (_, epoch) in enumerate(answer):
            highest[index] = max(highest[index], epoch)
            assert known.leader_epoch(TopicPartition("t", index)) == highest[index]


def test_metadata_without_epochs_is_taken_as_it_comes() -> None:
    old_broker = picture((2, -1))
    assert picture((1, 5)).merged(old_broker).leader(FIRST) == TWO
    assert replace(old_broker, controller_id=2).controller_id == 2
