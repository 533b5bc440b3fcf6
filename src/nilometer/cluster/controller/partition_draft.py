"""The partition changes of one decision, each based on the ones before it.

A decision may change a partition twice (a broker forfeits its replica, then leads again because there is no
other): the second change must be based on the first, although the image has neither yet.
"""

from __future__ import annotations

from dataclasses import replace

from nilometer.cluster.controller.partition_change import MayLead, RequestedChange, change_partition
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.partition_state import PartitionState
from nilometer.cluster.records import PartitionChanged
from nilometer.identifiers import TopicId, TopicIdPartition


class PartitionDraft:
    """Collects the changes of one decision. Each change is a separate unit."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._states: dict[TopicIdPartition, PartitionState] = {}
        self._units: list[Unit] = []
        self._min_insync_replicas: dict[TopicId, int] = {}
        self._allow_unclean: dict[TopicId, bool] = {}

    def state(self, key: TopicIdPartition) -> PartitionState:
        found = self._states.get(key) or self.image.partition_by_id(*key)
        if found is None:
            raise LookupError(f"no such partition: {key}")
        return found

    def change(
        self, key: TopicIdPartition, requested: RequestedChange, *, may_lead: MayLead
    ) -> PartitionChanged | None:
        state = self.state(key)
        change = change_partition(
            key,
            state,
            requested,
            may_lead=may_lead,
            min_insync_replicas=self._min_insync_replicas_of(key.topic_id),
        )
        if change is not None:
            self._states[key] = state.after(change)
            self._units.append((change,))
        return change

    def with_election_policy(self, key: TopicIdPartition, requested: RequestedChange) -> RequestedChange:
        """Return ``requested``, with unclean elections allowed if the topic's settings allow them."""
        allowed = self._allow_unclean.get(key.topic_id)
        if allowed is None:
            allowed = self.image.unclean_leader_election_enabled(self._name(key.topic_id))
            self._allow_unclean[key.topic_id] = allowed
        return replace(requested, allow_unclean=True) if allowed else requested

    def leaderless_partitions(self) -> list[tuple[TopicIdPartition, PartitionState]]:
        """Return the partitions without a leader, considering the changes of this draft."""
        found = dict(self.image.leaderless_partitions())
        found.update(self._states)
        return [(key, self.state(key)) for key in found if not self.state(key).has_leader]

    def take_units(self) -> tuple[Unit, ...]:
        """Return the changes since the last call."""
        units, self._units = tuple(self._units), []
        return units

    def _min_insync_replicas_of(self, topic_id: TopicId) -> int:
        found = self._min_insync_replicas.get(topic_id)
        if found is None:
            found = self.image.min_insync_replicas(self._name(topic_id))
            self._min_insync_replicas[topic_id] = found
        return found

    def _name(self, topic_id: TopicId) -> str:
        topic = self.image.topic_by_id(topic_id)
        if topic is None:
            raise LookupError(f"no such topic: {topic_id}")
        return topic.name
