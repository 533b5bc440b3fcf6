"""The part of a share partition's state that outlives its leader, and its records in ``__share_group_state``,
in Kafka's format (KIP-932, "Managing durable share-partition state"; KIP-1226).

It is the start offset, and the state of each batch of records above it. The share partition's leader writes
it, the share coordinator keeps it.

A snapshot has the whole state of a share partition, an update what has changed since (version 0 of each key
and value). A tombstone with the key of a snapshot deletes the state.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import IntEnum
from heapq import heappop, heappush
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nilometer.identifiers import TopicId, topic_id_of, uuid_from_text
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.value_bytes import Reader, Writer

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


SNAPSHOT, UPDATE = 0, 1
"""The types of records, the versions of their keys."""
VALUE_VERSION = 0
NO_EPOCH = -1
"""In an update, instead of a leader epoch that has not changed."""
_TAG_DELIVERY_COMPLETE_COUNT = 0
_BATCH = struct.Struct(">qqbhB")
"""First and last offset, state, delivery count, and the number of tagged fields."""


class ShareSnapshot(msgspec.Struct, frozen=True):
    """The state as a whole; without one, the share partition is deleted."""

    key: SharePartitionKey
    state: SharePartitionState | None
    snapshot_epoch: int = 0
    """Counts the snapshots of the share partition."""
    created_ms: int = 0
    """When the last snapshot was made because of a request (ms since the epoch)."""
    written_ms: int = 0
    """When this snapshot was made; later than ``created_ms`` if only for its age."""


class ShareUpdate(msgspec.Struct, frozen=True):
    """What has changed."""

    key: SharePartitionKey
    snapshot_epoch: int
    """Of the snapshot that it adds to."""
    leader_epoch: int
    """``NO_EPOCH``: as it was."""
    start_offset: int
    """``NO_START_OFFSET``: as it was."""
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


ShareRecord = ShareSnapshot | ShareUpdate


# ── merging ─────────────────────────────────────────────────────────────────────────────────────
def merged(state: SharePartitionState, update: ShareUpdate) -> SharePartitionState:
    """Return the state after an update."""
    start_offset = state.start_offset if update.start_offset == NO_START_OFFSET else update.start_offset
    return SharePartitionState(
        state.state_epoch,
        state.leader_epoch if update.leader_epoch == NO_EPOCH else update.leader_epoch,
        start_offset,
        update.delivery_complete_count,
        merged_batches(state.batches, update.batches, start_offset),
    )


def merged_batches(
    known: Sequence[StateBatch], changed: Sequence[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the batches from ``start_offset`` on, in order, without overlaps.

    Where batches overlap, the higher delivery count holds, and of equal ones the higher state: a record's
    state only changes that way. Neighbours that are alike become one. ``known`` is such a result already, so
    that only its part near the changes is computed; ``changed`` may be in any order.
    """
    kept = _from_offset(known, start_offset)
    changed = [_cut(batch, start_offset) for batch in changed if batch.last_offset >= start_offset]
    if not changed:
        return tuple(kept)
    before = min(map(_FIRST, changed)) - 1
    after = max(map(_LAST, changed)) + 1
    low, high = bisect_left(kept, before, key=_LAST), bisect_right(kept, after, key=_FIRST)
    return (*kept[:low], *_overlaid(kept[low:high], _swept(changed)), *kept[high:])


_FIRST, _LAST = attrgetter("first_offset"), attrgetter("last_offset")


def _from_offset(batches: Sequence[StateBatch], start_offset: int) -> Sequence[StateBatch]:
    """Return the part of ordered batches from ``start_offset`` on."""
    if not batches or batches[0].first_offset >= start_offset:
        return batches
    first = bisect_left(batches, start_offset, key=_LAST)
    return [_cut(batch, start_offset) for batch in batches[first : first + 1]] + list(batches[first + 1 :])


def _cut(batch: StateBatch, start_offset: int) -> StateBatch:
    return batch if batch.first_offset >= start_offset else replace(batch, first_offset=start_offset)


def _swept(batches: list[StateBatch]) -> list[StateBatch]:
    """Return batches that may overlap as batches that do not.

    Goes through the offsets from the first on, with the batches at the present one in a heap, whose first is
    the batch that holds.
    """
    batches.sort(key=_FIRST)
    result: list[StateBatch] = []
    at_offset: list[tuple[int, int, int, StateBatch]] = []
    index, offset, count = 0, 0, len(batches)
    while index < count or at_offset:
        if not at_offset:
            alone = batches[index]
            if alone.first_offset >= offset and (
                index + 1 == count or batches[index + 1].first_offset > alone.last_offset
            ):
                _append(result, alone.first_offset, alone.last_offset, alone)
                index, offset = index + 1, alone.last_offset + 1
                continue
            offset = max(offset, batches[index].first_offset)
        while index < count and batches[index].first_offset <= offset:
            batch = batches[index]
            heappush(at_offset, (-batch.delivery_count, -batch.state, index, batch))
            index += 1
        while at_offset and at_offset[0][3].last_offset < offset:
            heappop(at_offset)
        if at_offset:
            holds = at_offset[0][3]
            last_offset = holds.last_offset
            if index < count:
                last_offset = min(last_offset, batches[index].first_offset - 1)
            _append(result, offset, last_offset, holds)
            offset = last_offset + 1
    return result


def _overlaid(known: Sequence[StateBatch], changed: Sequence[StateBatch]) -> list[StateBatch]:
    """Merge two lists that are each in order and without overlaps."""
    result: list[StateBatch] = []
    index, other, offset = 0, 0, 0
    while index < len(known) and other < len(changed):
        one, two = known[index], changed[other]
        first, second = max(one.first_offset, offset), max(two.first_offset, offset)
        if one.last_offset < second:
            _append(result, first, one.last_offset, one)
            index += 1
            continue
        if two.last_offset < first:
            _append(result, second, two.last_offset, two)
            other += 1
            continue
        if first < second:
            _append(result, first, second - 1, one)
        elif second < first:
            _append(result, second, first - 1, two)
        last_offset = min(one.last_offset, two.last_offset)
        counts = one.delivery_count - two.delivery_count
        holds = one if counts > 0 or (counts == 0 and one.state > two.state) else two
        _append(result, max(first, second), last_offset, holds)
        offset = last_offset + 1
        index += one.last_offset == last_offset
        other += two.last_offset == last_offset
    for batch in (*known[index:], *changed[other:]):
        _append(result, max(batch.first_offset, offset), batch.last_offset, batch)
    return result


def _append(batches: list[StateBatch], first_offset: int, last_offset: int, holds: StateBatch) -> None:
    """Append the offsets, joined with the last batch if that is adjacent and alike."""
    if batches:
        last = batches[-1]
        alike = last.state is holds.state and last.delivery_count == holds.delivery_count
        if alike and last.last_offset + 1 == first_offset:
            batches.pop()
            first_offset = last.first_offset
    if first_offset == holds.first_offset and last_offset == holds.last_offset:
        batches.append(holds)
    else:
        batches.append(StateBatch(first_offset, last_offset, holds.state, holds.delivery_count))


# ── writing ─────────────────────────────────────────────────────────────────────────────────────
def encode_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """Return (key, value); a value of None is a tombstone."""
    key = Writer(SNAPSHOT if isinstance(record, ShareSnapshot) else UPDATE, flexible=False)
    key.string(record.key.group_id)
    key.uuid(uuid_from_text(record.key.topic_id))
    key.int32(record.key.partition)
    writer = Writer(VALUE_VERSION, flexible=True)
    if isinstance(record, ShareUpdate):
        writer.int32(record.snapshot_epoch)
        writer.int32(record.leader_epoch)
        writer.int64(record.start_offset)
        _write_batches(writer, record.batches, record.delivery_complete_count)
        return key.done(), writer.done()
    state = record.state
    if state is None:
        return key.done(), None
    writer.int32(record.snapshot_epoch)
    writer.int32(state.state_epoch)
    writer.int32(state.leader_epoch)
    writer.int64(state.start_offset)
    writer.int64(record.created_ms)
    writer.int64(record.written_ms)
    _write_batches(writer, state.batches, state.delivery_complete_count)
    return key.done(), writer.done()


def _write_batches(writer: Writer, batches: Sequence[StateBatch], complete: int) -> None:
    writer.packed_array(
        _BATCH, [(one.first_offset, one.last_offset, one.state, one.delivery_count, 0) for one in batches]
    )
    count = complete.to_bytes(4, "big", signed=True)
    writer.tags(*(() if complete == UNKNOWN_COUNT else ((_TAG_DELIVERY_COMPLETE_COUNT, count),)))


# ── reading ─────────────────────────────────────────────────────────────────────────────────────
def decode_record(key: bytes, value: bytes | None) -> ShareRecord | None:
    """Decode a record; None if its key has another version, an unknown type. Raises MalformedMessage."""
    keys = Reader(key)
    if keys.version not in (SNAPSHOT, UPDATE):
        return None
    of = SharePartitionKey(keys.string(), topic_id_of(keys.uuid()), keys.int32())
    if value is None:
        return ShareSnapshot(of, None) if keys.version == SNAPSHOT else None
    reader = Reader(value)
    if reader.version != VALUE_VERSION:
        raise MalformedMessage(f"version {reader.version} of a share partition's record")
    reader.flexible = True
    snapshot_epoch = reader.int32()
    if keys.version == UPDATE:
        leader_epoch, start_offset = reader.int32(), reader.int64()
        batches, complete = _read_batches(reader)
        return ShareUpdate(of, snapshot_epoch, leader_epoch, start_offset, complete, batches)
    state_epoch, leader_epoch, start_offset = reader.int32(), reader.int32(), reader.int64()
    created_ms, written_ms = reader.int64(), reader.int64()
    batches, complete = _read_batches(reader)
    state = SharePartitionState(state_epoch, leader_epoch, start_offset, complete, batches)
    return ShareSnapshot(of, state, snapshot_epoch, created_ms, written_ms)


def _read_batches(reader: Reader) -> tuple[tuple[StateBatch, ...], int]:
    def read() -> StateBatch:
        first_offset, last_offset = reader.int64(), reader.int64()
        batch = StateBatch(first_offset, last_offset, _state(reader.int8()), reader.int16())
        reader.tags()
        return batch

    rows = reader.packed_array(_BATCH)
    if rows is None:
        batches = reader.array(read)
    else:
        batches = tuple(
            StateBatch(first, last, _state(state), deliveries) for first, last, state, deliveries, _ in rows
        )
    tags = reader.tags()
    count = tags.get(_TAG_DELIVERY_COMPLETE_COUNT)
    return batches, UNKNOWN_COUNT if count is None else count.int32()


_STATES = {state.value: state for state in DeliveryState}


def _state(number: int) -> DeliveryState:
    try:
        return _STATES[number]
    except KeyError:
        raise MalformedMessage(f"unknown delivery state {number}") from None
