"""The partitions of a transaction take four bytes each, in the order in which they are written."""

from __future__ import annotations

import random
import sys

from nilometer.storage.names import TopicPartition
from nilometer.transactions.transaction import PartitionSet


def test_it_is_a_set_in_order() -> None:
    chance = random.Random(1)
    every = [TopicPartition(topic, number) for topic in ("b", "a", "c") for number in range(30)]
    for _ in range(100):
        first, second = chance.sample(every, 20), chance.sample(every, 20)
        some, both = PartitionSet.of([*first, *first]), PartitionSet.of(first).union(second)
        assert list(some) == sorted(first)
        assert list(both) == sorted({*first, *second})
        assert both == PartitionSet.of([*second, *first]) == PartitionSet.of(second).union(first)
        assert (len(some), len(both)) == (20, len({*first, *second}))
        assert [each for each in every if each in both] == [
            each for each in every if each in {*first, *second}
        ]
        by_topic = [(topic, both.numbers_of(topic).tolist()) for topic in both.packed]
        assert PartitionSet.of_topics(by_topic) == both
    assert len(PartitionSet()) == 0
    assert PartitionSet.of_topics([("a", ())]) == PartitionSet()


def test_thousands_of_partitions_take_little_memory() -> None:
    """A client may have thousands of transactions open, and a request of 16 kB names so many."""
    some = PartitionSet.of(TopicPartition("t", number) for number in range(4_000))
    assert sum(sys.getsizeof(packed) for packed in some.packed.values()) < 17_000
