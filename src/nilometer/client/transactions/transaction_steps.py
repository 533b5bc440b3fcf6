"""The requests that the transaction manager wants sent to coordinators, as data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_known(self) -> bool:
        return self.producer_id >= 0


@dataclass(eq=False, slots=True)
class PendingOffsets:
    """The offsets of one ``send_offsets()`` call; ``left`` are those not yet part of the transaction."""

    group: GroupMetadata
    left: dict[TopicPartition, OffsetAndMetadata] = field(
        default_factory=dict[TopicPartition, OffsetAndMetadata]
    )
    is_group_added: bool = False
    is_asked: bool = False
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class InitProducerId:
    identity: ProducerIdentity
    """The producer id whose next epoch to request (KIP-360); unknown for a new producer."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    identity: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AddOffsets:
    identity: ProducerIdentity
    pending: PendingOffsets


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    identity: ProducerIdentity
    pending: PendingOffsets
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    version: int
    """The ``transaction.version`` of the transaction."""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    identity: ProducerIdentity
    committed: bool
    version: int
    is_empty: bool
    """The coordinator has not started the transaction: no EndTxn is needed."""


Step: TypeAlias = InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTransaction
