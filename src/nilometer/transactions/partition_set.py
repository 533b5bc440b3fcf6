"""The partitions of a transaction in few bytes: a request of 16 kB names 4,000, and a client may have
thousands of transactions open. Each is a number of four bytes beside the topic's name.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from nilometer.storage.names import TopicPartition

_NUMBERS = "i"
"""The type of an array of the numbers of one topic's partitions."""


class PartitionSet(msgspec.Struct, frozen=True):
    """In order of topics and numbers. :meth:`of` makes one."""

    packed: dict[str, bytes] = {}
    """By topic: the numbers in ascending order."""

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition]) -> PartitionSet:
        numbers = defaultdict[str, set[int]](set)
        for each in partitions:
            numbers[each.topic].add(each.partition)
        return cls({topic: _packed(numbers[topic]) for topic in sorted(numbers)})

    @classmethod
    def of_topics(cls, topics: Iterable[tuple[str, Iterable[int]]]) -> PartitionSet:
        numbers = defaultdict[str, set[int]](set)
        for topic, indexes in topics:
            numbers[topic].update(indexes)
        return cls({topic: _packed(numbers[topic]) for topic in sorted(numbers) if numbers[topic]})

    def __len__(self) -> int:
        return sum(len(packed) for packed in self.packed.values()) // array(_NUMBERS).itemsize

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic in self.packed:
            for number in self.numbers_of(topic):
                yield TopicPartition(topic, number)

    def __contains__(self, partition: TopicPartition) -> bool:
        numbers = self.numbers_of(partition.topic)
        place = bisect_left(numbers, partition.partition)
        return place < len(numbers) and numbers[place] == partition.partition

    def numbers_of(self, topic: str) -> memoryview:
        """Return the numbers of the topic's partitions in ascending order."""
        return memoryview(self.packed.get(topic, b"")).cast(_NUMBERS)

    def union(self, added: Iterable[TopicPartition]) -> PartitionSet:
        more = PartitionSet.of(added).packed
        changed = {
            topic: _packed({*self.numbers_of(topic), *memoryview(packed).cast(_NUMBERS)})
            for topic, packed in more.items()
        }
        packed = self.packed | changed
        return PartitionSet({topic: packed[topic] for topic in sorted(packed)})


def _packed(numbers: set[int]) -> bytes:
    return array(_NUMBERS, sorted(numbers)).tobytes()
