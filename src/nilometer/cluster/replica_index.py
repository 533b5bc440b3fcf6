"""Indexes of the image: the partitions with a replica on a broker, without a leader, or being reassigned.

Derived from the partitions' states; dictionaries are used as ordered sets. A change of ISR or leader, by far
the most frequent change, updates at most one key.
"""

from __future__ import annotations

from nilometer.cluster.partition_state import PartitionState
from nilometer.identifiers import BrokerId, TopicIdPartition

_Keys = dict[TopicIdPartition, None]


class ReplicaIndex:
    def __init__(self) -> None:
        self.partitions_count = 0
        self._hosted: dict[BrokerId, _Keys] = {}
        self._leaderless: _Keys = {}
        self._reassigning: _Keys = {}

    def hosted_by(self, broker: BrokerId) -> list[TopicIdPartition]:
        return list(self._hosted.get(broker, ()))

    def leaderless(self) -> list[TopicIdPartition]:
        return list(self._leaderless)

    @property
    def leaderless_count(self) -> int:
        return len(self._leaderless)

    def reassigning(self) -> list[TopicIdPartition]:
        return list(self._reassigning)

    def update(
        self, key: TopicIdPartition, before: PartitionState | None, after: PartitionState | None
    ) -> None:
        self.partitions_count += (after is not None) - (before is not None)
        old = () if before is None else before.replicas
        new = () if after is None else after.replicas
        if old != new:
            self._move(key, old, new)
        _mark(self._leaderless, key, after is not None and not after.has_leader)
        _mark(self._reassigning, key, after is not None and after.is_reassigning)

    def _move(self, key: TopicIdPartition, old: tuple[BrokerId, ...], new: tuple[BrokerId, ...]) -> None:
        for broker in old:
            if broker not in new:
                del self._hosted[broker][key]
        for broker in new:
            if broker not in old:
                self._hosted.setdefault(broker, {})[key] = None


def _mark(keys: _Keys, key: TopicIdPartition, wanted: bool) -> None:
    if wanted:
        keys[key] = None
    else:
        keys.pop(key, None)
