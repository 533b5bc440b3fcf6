"""Where records go (SPEC P-2): Java's hash for keys, an even spread for the rest, the user's own choice."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from nilometer.client.network.cluster_metadata import (
    NO_LEADER,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from nilometer.client.producer.partitioner import (
    RoundRobinPartitioner,
    StickyPartitioner,
    UserPartitioner,
    make_partitioner,
    murmur2,
    partition_for_key,
)
from nilometer.runtime.runtime import SeededEntropy


def cluster(*leaders: int) -> ClusterMetadata:
    parts = tuple(PartitionMetadata(index, leader, 0) for index, leader in enumerate(leaders))
    return ClusterMetadata(topics={"t": TopicMetadata("t", UUID(int=1), parts)})


def entropy() -> SeededEntropy:
    return SeededEntropy(random.Random(7))


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_p2_murmur2_is_that_of_java(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFF_FFFF


@given(st.binary(max_size=70))
def test_p2_murmur2_agrees_with_another_implementation(key: bytes) -> None:
    assert murmur2(key) == murmur2_of_kafka_python(key) & 0xFFFF_FFFF


def test_p2_key_chooses_among_all_partitions_with_a_leader_or_not() -> None:
    sticky = StickyPartitioner(entropy(), 100)
    known = cluster(1, NO_LEADER, 1, 1, 1)
    for number in range(200):
        key = b"key %d" % number
        assert sticky.partition("t", key, None, known) == partition_for_key(key, 5)


def produce(
    sticky: StickyPartitioner, known: ClusterMetadata, records: int, size: int, batch: int
) -> list[int]:
    """Partitions in the order that records of one size without a key went to them, batches being filled."""
    chosen: list[int] = []
    filled: Counter[int] = Counter()
    for _ in range(records):
        partition = sticky.partition("t", None, b"", known)
        if filled[partition] + size > batch:
            filled[partition] = 0
        filled[partition] += size
        chosen.append(partition)
        sticky.on_appended("t", partition, size, batch - filled[partition], known)
    return chosen


def test_p2_records_without_key_stay_for_a_batch_and_then_move() -> None:
    chosen = produce(StickyPartitioner(entropy(), 1000), cluster(1, 1, 1), 3000, 100, 1000)
    for begin in range(0, 3000, 10):
        assert len(set(chosen[begin : begin + 10])) == 1, "a batch was torn apart"
    spread = Counter(chosen)
    assert all(700 < spread[partition] < 1300 for partition in range(3)), spread


def test_sticky_prefers_short_queues() -> None:
    sticky = StickyPartitioner(entropy(), 10, queue_lengths=lambda _topic, _candidates: [9, 0, 0])
    spread = Counter(produce(sticky, cluster(1, 1, 1), 4000, 10, 10))
    assert spread[0] < 400
    assert spread[1] > 1500
    assert spread[2] > 1500


def test_sticky_leaves_a_partition_that_lost_its_leader() -> None:
    sticky = StickyPartitioner(entropy(), 1 << 30)
    first = sticky.partition("t", None, None, cluster(1, 1))
    leaders = [1, 1]
    leaders[first] = NO_LEADER
    assert sticky.partition("t", None, None, cluster(*leaders)) == 1 - first


def test_sticky_ignoring_keys() -> None:
    sticky = make_partitioner("uniform_sticky", entropy(), 1 << 30)
    known = cluster(*[1] * 20)
    assert len({sticky.partition("t", b"%d" % number, None, known) for number in range(50)}) == 1


def test_round_robin_takes_turns_among_partitions_with_a_leader() -> None:
    turns = RoundRobinPartitioner()
    known = cluster(1, NO_LEADER, 1)
    assert [turns.partition("t", b"same", None, known) for _ in range(5)] == [0, 2, 0, 2, 0]


def test_without_any_leader_all_partitions_are_candidates() -> None:
    turns = RoundRobinPartitioner()
    assert [turns.partition("t", None, None, cluster(NO_LEADER, NO_LEADER)) for _ in range(3)] == [0, 1, 0]


def test_p2_users_own_sees_everything_and_is_checked() -> None:
    seen: list[object] = []

    def choose(topic: str, key: bytes | None, value: bytes | None, known: ClusterMetadata) -> int:
        seen.append((topic, key, value, known.partition_count(topic)))
        return 2

    assert UserPartitioner(choose).partition("t", b"k", b"v", cluster(1, 1, 1)) == 2
    assert seen == [("t", b"k", b"v", 3)]
    with pytest.raises(ValueError, match="chose partition 2 of topic t, which has 2"):
        UserPartitioner(choose).partition("t", b"k", b"v", cluster(1, 1))
    with pytest.raises(ValueError, match="chose partition 'x'"):
        UserPartitioner(lambda *_: "x").partition("t", None, None, cluster(1))  # type: ignore[arg-type, return-value]


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no partitioner named magic"):
        make_partitioner("magic", entropy(), 1)
