"""The changes of one metadata entry, on which a broker must act after applying it.

A delta has the state before and after; its dictionaries are in the order of the records.
The delta of an entry of a deposed controller is not accepted, and empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from nilometer.cluster.records import ConfigResourceType, ProducerIdsAllocated
from nilometer.cluster.states import Broker, PartitionState, Topic
from nilometer.identifiers import BrokerId, EntryNumber, TopicId, TopicIdPartition


class ConfigResource(NamedTuple):
    type: ConfigResourceType
    name: str


class BrokerTransition(NamedTuple):
    before: Broker | None
    after: Broker | None


class PartitionTransition(NamedTuple):
    before: PartitionState | None
    after: PartitionState | None

    def concerns(self, broker: BrokerId) -> bool:
        """Whether ``broker`` has a replica of the partition before or after the change."""
        return any(state is not None and broker in state.replicas for state in self)


class ImageDelta(msgspec.Struct):
    number: EntryNumber
    accepted: bool = True
    controller_changed: bool = False
    brokers: dict[BrokerId, BrokerTransition] = msgspec.field(
        default_factory=dict[BrokerId, BrokerTransition]
    )
    topics_created: dict[TopicId, Topic] = msgspec.field(default_factory=dict[TopicId, Topic])
    topics_deleted: dict[TopicId, Topic] = msgspec.field(default_factory=dict[TopicId, Topic])
    """The deleted topics' last state; their partitions are also in ``partitions``, with ``after`` None."""
    partitions: dict[TopicIdPartition, PartitionTransition] = msgspec.field(
        default_factory=dict[TopicIdPartition, PartitionTransition]
    )
    configs: dict[ConfigResource, dict[str, str | None]] = msgspec.field(
        default_factory=dict[ConfigResource, dict[str, str | None]]
    )
    producer_ids: list[ProducerIdsAllocated] = msgspec.field(default_factory=list[ProducerIdsAllocated])
    features: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """New finalized levels, by feature."""
    acls: int = 0
    """The number of ACLs created and deleted."""
    scram: int = 0
    """The number of credentials set and removed."""
    quotas: int = 0
    """The number of quotas of clients set and removed."""
    tokens: list[str] = msgspec.field(default_factory=list[str])
    """The ids of the delegation tokens issued, changed and removed."""

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(
            self.controller_changed or self.brokers or self.topics_created or self.topics_deleted
            or self.partitions or self.configs or self.producer_ids or self.features or self.acls
            or self.scram or self.quotas or self.tokens
        )  # fmt: skip

    def partitions_on(self, broker: BrokerId) -> Iterator[tuple[TopicIdPartition, PartitionTransition]]:
        """Yield the changed partitions with a replica on ``broker`` before or after the change."""
        for key, transition in self.partitions.items():
            if transition.concerns(broker):
                yield key, transition

    def note_broker(self, broker: BrokerId, before: Broker | None, after: Broker | None) -> None:
        known = self.brokers.get(broker)
        self.brokers[broker] = BrokerTransition(known.before if known else before, after)
