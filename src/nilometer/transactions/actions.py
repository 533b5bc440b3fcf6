"""The actions that a transaction shard requests of its shell, the broker's code around it.

The shell carries them out once the records that the shard returned before them are committed.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nilometer.storage import TopicPartition
from nilometer.transactions.requests import TimeOut


class SendMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """Send the marker that ends the transaction to the leader of each partition.

    When all markers are committed, the shard gets :class:`~nilometer.transactions.requests.MarkersWritten`.
    Until then the transaction stays prepared; a new coordinator sends the markers again.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]
    version: int
    """The ``transaction.version`` of this end; with 2 the marker's epoch is above that of the records."""


class AllocateProducerId(msgspec.Struct, frozen=True):
    """Allocate a producer id, and submit ``request``, the time-out of a transaction, again with that id.

    The abort of the transaction bumps the producer epoch, to fence the producer. If the epoch cannot be
    bumped any further, the producer must get a new id (``transaction.version`` 2).
    """

    request: TimeOut


TransactionAction: TypeAlias = SendMarkers | AllocateProducerId
