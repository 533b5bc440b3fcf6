"""The part of a share partition's state that outlives its leader: its start offset, and the state of each
batch of records above it (KIP-932, "Managing durable share-partition state").

The share partition's leader writes it, the share coordinator keeps it in ``__share_group_state``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from nilometer.identifiers import TopicId

NO_START_OFFSET = -1
"""The start offset has not been decided: the leader takes it from ``share.auto.offset.reset``."""
UNKNOWN_COUNT = -1
"""The delivery-complete count was written by a leader that does not count."""


class DeliveryState(IntEnum):
    """The state of a record, with Kafka's numbers."""

    AVAILABLE = 0
    ACQUIRED = 1
    """Never written: without its leader a record that was acquired is available again."""
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Its dead letter is to be written before it is archived (KIP-1191; ``share.version`` 2)."""
    ARCHIVED = 4


class StateBatch(msgspec.Struct, frozen=True):
    """The records from ``first_offset`` to ``last_offset``, both included, have one state."""

    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int
    """How often the records were delivered, so far; at least 0."""


class SharePartitionKey(NamedTuple):
    group_id: str
    topic_id: TopicId
    partition: int


class SharePartitionState(msgspec.Struct, frozen=True):
    """What the share coordinator knows of a share partition."""

    state_epoch: int
    """Increases when the group coordinator initializes the state again, which fences earlier writers."""
    leader_epoch: int
    """Of the partition's leader that read or wrote the state last; -1 if none did."""
    start_offset: int
    """Below it all records are done; or ``NO_START_OFFSET``."""
    delivery_complete_count: int
    """How many records from the start offset on are acknowledged or archived, or ``UNKNOWN_COUNT``."""
    batches: tuple[StateBatch, ...] = ()
    """In order, without overlaps, none below the start offset. Offsets between them are available, and were
    never delivered."""
