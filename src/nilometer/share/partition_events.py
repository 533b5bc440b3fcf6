"""What goes into a share partition and comes out of it: settings, requests of members, effects, and the view
of observers. :mod:`nilometer.share.share_partition` says when.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum, auto
from typing import NamedTuple, TypeAlias

import msgspec

from nilometer.share.delivery_state import DeliveryState, StateBatch
from nilometer.wire.errors import NONE, ErrorCode


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the group's configuration says of its share partitions; with Kafka's defaults."""

    record_lock_ms: int = 30_000
    """``share.record.lock.duration.ms``: when an acquired record becomes available again."""
    delivery_count_limit: int = 5
    """``share.delivery.count.limit``: after so many deliveries a record is archived; at least 1."""
    max_record_locks: int = 2_000
    """``share.partition.max.record.locks``: so many offsets may lie between start and end; at least 1. The
    last batch that was acquired may exceed it."""
    renew_enabled: bool = True
    """``share.renew.acknowledge.enable``."""
    dead_letters: bool = False
    """Whether a record that no member accepted has a dead letter written before it is archived:
    ``errors.deadletterqueue.topic.name`` is set (KIP-1191)."""


class AcquireMode(IntEnum):
    """How exactly a fetch's limit of records is kept (KIP-1206), with Kafka's numbers."""

    BATCH_OPTIMIZED = 0
    """Whole batches: the last one may exceed the limit."""
    RECORD_LIMIT = 1
    """Never more records than the limit."""


class AcknowledgeType(IntEnum):
    """What a member says of a record, with Kafka's numbers."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The work goes on: the lock starts again, and nothing else changes (KIP-1222)."""


class OffsetRange(NamedTuple):
    """Both ends are included."""

    first_offset: int
    last_offset: int


class Fetched(NamedTuple):
    """What the headers say of the batches that were read from the log."""

    fetch_offset: int
    """Where the log was read: ``next_fetch_offset`` at that time."""
    batches: Sequence[OffsetRange]
    """In order. The log has no record between ``fetch_offset`` and the first one."""
    unreadable: Sequence[OffsetRange] = ()
    """In order: what no member reads in them, such as the records of aborted transactions."""


class Acquired(NamedTuple):
    """A member has the records, with the lock's time to acknowledge them."""

    first_offset: int
    last_offset: int
    delivery_count: int
    """This delivery included."""


class AcknowledgementBatch(NamedTuple):
    first_offset: int
    last_offset: int
    types: Sequence[int]
    """One for the range, or one for each offset."""


class DeadReason(Enum):
    REJECTED = auto()
    DELIVERY_LIMIT = auto()


class Dead(msgspec.Struct, frozen=True):
    """No member accepted the records: what dead letters are made of."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: DeadReason
    has_letters: bool = False
    """Whether the records are archiving: write their dead letters, then say so with ``on_buried``. Otherwise
    they are archived already."""

    @property
    def records(self) -> int:
        return self.last_offset - self.first_offset + 1


class Write(msgspec.Struct, frozen=True):
    """Persist the batches, and say ``on_written(change, ok)``, in the order of the writes."""

    change: int
    batches: tuple[StateBatch, ...]
    """In order, none below the start offset. Empty, if only the start offset has changed."""
    start_offset: int
    delivery_complete_count: int
    """Of the offsets from the start offset on; with what earlier writes and this one complete (KIP-1226)."""


Effect: TypeAlias = Write | Dead


class Acquisition(NamedTuple):
    acquired: tuple[Acquired, ...] = ()
    effects: tuple[Effect, ...] = ()


class Acknowledgement(NamedTuple):
    error: ErrorCode = NONE
    """If there is one, nothing has changed."""
    effects: tuple[Effect, ...] = ()
    """If it has a Write, the member gets its answer when that is written; otherwise at once."""


class SpanView(msgspec.Struct, frozen=True):
    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int
    member_id: str | None
    lock_ends_ms: int | None
    """None unless a member holds it."""


class SharePartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """For observers."""

    start_offset: int
    end_offset: int
    """The first offset that was never read."""
    available: int
    acquired: int
    acknowledged: int
    archiving: int
    archived: int
    delivery_complete_count: int
    held: tuple[tuple[str, int], ...]
    """Members, and how many records each holds; by name, no more than were asked for."""
    spans: tuple[SpanView, ...]
    """From the start offset on, no more than were asked for."""
