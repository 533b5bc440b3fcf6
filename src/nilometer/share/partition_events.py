"""What goes into a share partition and comes out of it: settings, requests of members, effects, and the view
of observers. :mod:`nilometer.share.share_partition` says when.

The headers of record batches are read here for it: :func:`fetched` says what a fetch has read, and
:func:`batches_of` returns the batches of which a member acquired records.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum, auto
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec

from nilometer.share.state_records import DeliveryState, StateBatch
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import NONE, ErrorCode
from nilometer.wire.record_batch import batches
from nilometer.wire.records import ControlType, read_end_txn_marker


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


# What the headers of record batches say to a share partition: offsets, and what no member can read.
#
# Records are not decoded: a batch is acquired as its header describes it (KIP-932).

BATCHES_MAX = 500
"""So many batches are looked at; the next fetch looks at the others."""


def fetched(records: Bytes, fetch_offset: int, aborted: Sequence[tuple[int, int]] = ()) -> Fetched:
    """Return what was read at ``fetch_offset``, the first ``BATCHES_MAX`` batches of it.

    ``aborted``: (producer id, first offset) of the aborted transactions among the records, if the group reads
    only what is committed. Raises CorruptBatch.
    """
    ranges: list[OffsetRange] = []
    unreadable: list[OffsetRange] = []
    begins = sorted(aborted, key=lambda one: one[1], reverse=True)
    producers: set[int] = set()
    """Whose transaction is open here, and is aborted later."""
    for position, header in islice(batches(records), BATCHES_MAX):
        span = OffsetRange(header.base_offset, header.last_offset)
        ranges.append(span)
        while begins and begins[-1][1] <= header.last_offset:
            producers.add(begins.pop()[0])
        if header.is_control:
            marker = read_end_txn_marker(records, position, header)
            if marker is not None and marker.control_type is ControlType.ABORT:
                producers.discard(header.producer_id)
            unreadable.append(span)
        elif header.is_transactional and header.producer_id in producers:
            unreadable.append(span)
    return Fetched(fetch_offset, ranges, unreadable)


def batches_of(records: Bytes, acquired: Sequence[Acquired]) -> Bytes:
    """Return the batches from the first to the last one of which records were acquired."""
    if not acquired:
        return b""
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
    start = end = None
    for position, header in batches(records):
        if header.base_offset > last_offset:
            break
        if header.last_offset >= first_offset:
            start = position if start is None else start
            end = position + header.size
    return b"" if start is None else records[start:end]
