"""The newest committed offset of each group, topic and partition.

The table depends on offset records alone, not on the groups' states or the time.

Invariant: no group and no topic of a group is kept without an offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from nilometer.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue

PartitionOffsets = Mapping[int, OffsetCommitValue]


class OffsetsTable:
    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        self._topics: Counter[str] = Counter()
        """By topic, the number of groups that have offsets of it."""
        self._count = 0

    def __len__(self) -> int:
        """The number of offsets."""
        return self._count

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is None:
            self._remove(key)
            return
        partitions = self._groups.setdefault(key.group, {}).setdefault(key.topic, {})
        if not partitions:
            self._topics[key.topic] += 1
        self._count += key.partition not in partitions
        partitions[key.partition] = value

    def _remove(self, key: OffsetCommitKey) -> None:
        topics = self._groups.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is None:
            return
        self._count -= 1
        if partitions:
            return
        del topics[key.topic]
        self._topics[key.topic] -= 1
        if not self._topics[key.topic]:
            del self._topics[key.topic]
        if not topics:
            del self._groups[key.group]

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> Mapping[str, PartitionOffsets]:
        return self._groups.get(group_id, {})

    def of_topic(self, topic: str) -> Iterator[tuple[str, PartitionOffsets]]:
        """Yield (group id, offsets by partition) of each group with offsets of the topic. Checks all
        groups."""
        for group_id, topics in self._groups.items():
            if topic in topics:
                yield group_id, topics[topic]

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def topics(self) -> list[str]:
        """Return all topics of which a group has offsets."""
        return list(self._topics)

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the tombstones of all offsets of the group."""
        return [
            tombstone(group_id, topic, partition)
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        ]


def tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)
