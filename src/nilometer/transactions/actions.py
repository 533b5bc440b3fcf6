"""What a transaction shard has its shell do once its records are committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nilometer.storage import TopicPartition
from nilometer.transactions.requests import TimeOut


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """Have the leader of each partition write the marker that ends the transaction there.

    When all are committed the shard is asked :class:`~nilometer.transactions.requests.MarkersWritten`. Until
    then the transaction stays prepared; a new coordinator sends them again.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]
    version: int
    """The ``transaction.version`` of this end: whether the epoch is above that of the records."""


@dataclass(frozen=True, slots=True)
class AllocateProducerId:
    """Have ``request`` asked with a new producer id: fencing this producer uses up its last epoch."""

    request: TimeOut


TransactionAction: TypeAlias = SendMarkers | AllocateProducerId
