"""Faults of share groups: of the share partition at its leader, of what is read, and of the states kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import structs
from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.sharing import share_fetch
from nilometer.broker.sharing.persister import SharePersister
from nilometer.broker.sharing.share_partitions import LedSharePartition
from nilometer.broker.turns import LongWork
from nilometer.share import share_partition, state_shard
from nilometer.share.in_flight import Span
from nilometer.share.partition_events import (
    AcknowledgementBatch,
    Acquired,
    Effect,
    Fetched,
    OffsetRange,
    Write,
    fetched,
)
from nilometer.share.share_partition import SharePartition
from nilometer.share.state_records import (
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    ShareUpdate,
    StateBatch,
)
from nilometer.share.state_shard import Prune, ShareStateShard, Turn
from nilometer.simulation.plan import Kind
from nilometer.simulation.share_workload import SharePlan
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import NONE, ErrorCode

PLAN = SharePlan(members=3, limit=3, lock_ms=1_500, max_record_locks=2_000, per_second=6.0)


# ── the leader ──────────────────────────────────────────────────────────────────────────────────
def answer_before_it_is_written(patch: Patch) -> None:
    acknowledge = LedSharePartition.acknowledge

    async def at_once(
        self: LedSharePartition, member_id: str, batches: Sequence[AcknowledgementBatch], work: LongWork
    ) -> ErrorCode:
        answer = await acknowledge(self, member_id, batches, work)
        return NONE if isinstance(answer, asyncio.Future) else answer

    patch.setattr(LedSharePartition, "acknowledge", at_once)


def read_no_batches(patch: Patch) -> None:
    read = SharePersister.read

    async def only_the_start(
        self: SharePersister, key: SharePartitionKey, leader_epoch: int
    ) -> SharePartitionState:
        return structs.replace(await read(self, key, leader_epoch), batches=())

    patch.setattr(SharePersister, "read", only_the_start)


def end_locks_early(patch: Patch) -> None:
    lock = SharePartition._lock

    def short(self: SharePartition, span: Span, want: Any, taken: list[Acquired]) -> None:
        lock(self, span, want._replace(lock_ends_ms=want.lock_ends_ms - 1_000), taken)

    push = SharePartition._push_lock

    def sooner(self: SharePartition, ends_ms: int, first_offset: int, last_offset: int) -> None:
        push(self, ends_ms - 1_000, first_offset, last_offset)

    patch.setattr(SharePartition, "_lock", short)
    patch.setattr(SharePartition, "_push_lock", sooner)


def never_end_locks(patch: Patch) -> None:
    patch.setattr(SharePartition, "_push_lock", lambda *_: None)


def renew_nothing(patch: Patch) -> None:
    patch.setattr(SharePartition, "_renew", lambda *_: NONE)


def let_any_member_acknowledge(patch: Patch) -> None:
    patch.setattr(SharePartition, "_holds", lambda *_: True)


def deliver_once_more(patch: Patch) -> None:
    def one_more(self: SharePartition, span: Span, change: Any) -> DeliveryState:
        limit = self.settings.delivery_count_limit
        return DeliveryState.AVAILABLE if span.delivery_count <= limit else DeliveryState.ARCHIVED

    patch.setattr(SharePartition, "_released", one_more)


def bury_what_is_released(patch: Patch) -> None:
    patch.setattr(SharePartition, "_released", lambda *_: DeliveryState.ARCHIVED)


def pass_what_is_acquired(patch: Patch) -> None:
    is_final = share_partition.is_final
    acquired = DeliveryState.ACQUIRED
    patch.setattr("nilometer.share.in_flight.is_final", lambda state: is_final(state) or state is acquired)


def forget_what_waited_for_a_lock(patch: Patch) -> None:
    """What lock ends write says that the records are acknowledged."""
    on_time = SharePartition.on_time

    def acknowledged(self: SharePartition, now_ms: int) -> tuple[Effect, ...]:
        return tuple(
            structs.replace(one, batches=tuple(map(_acknowledged, one.batches)))
            if isinstance(one, Write)
            else one
            for one in on_time(self, now_ms)
        )

    patch.setattr(SharePartition, "on_time", acknowledged)


def _acknowledged(batch: StateBatch) -> StateBatch:
    return structs.replace(batch, state=DeliveryState.ACKNOWLEDGED)


# ── what is read ────────────────────────────────────────────────────────────────────────────────
def read_what_was_aborted(patch: Patch) -> None:
    def with_aborted(records: Bytes, fetch_offset: int, aborted: Sequence[tuple[int, int]] = ()) -> Fetched:
        return fetched(records, fetch_offset)

    patch.setattr(share_fetch, "fetched", with_aborted)


def overlook_the_first_batch(patch: Patch) -> None:
    def without(records: Bytes, fetch_offset: int, aborted: Sequence[tuple[int, int]] = ()) -> Fetched:
        found = fetched(records, fetch_offset, aborted)
        ranges: Sequence[OffsetRange] = found.batches
        return found._replace(batches=ranges[1:]) if len(ranges) > 4 else found

    patch.setattr(share_fetch, "fetched", without)


# ── the share coordinator ───────────────────────────────────────────────────────────────────────
def snapshot_without_batches(patch: Patch) -> None:
    write = ShareStateShard._write_snapshot

    def emptied(
        self: ShareStateShard,
        turn: Turn,
        key: SharePartitionKey,
        kept: Any,
        state: SharePartitionState,
        created_ms: int,
    ) -> None:
        write(self, turn, key, kept, structs.replace(state, batches=()), created_ms)

    patch.setattr(ShareStateShard, "_write_snapshot", emptied)


def snapshot_with_the_first_start(patch: Patch) -> None:
    write = ShareStateShard._write_snapshot
    starts: dict[SharePartitionKey, int] = {}

    def going_back(
        self: ShareStateShard,
        turn: Turn,
        key: SharePartitionKey,
        kept: Any,
        state: SharePartitionState,
        created_ms: int,
    ) -> None:
        start = starts.setdefault(key, state.start_offset)
        write(self, turn, key, kept, structs.replace(state, start_offset=start), created_ms)

    patch.setattr(ShareStateShard, "_write_snapshot", going_back)


def prune_too_far(patch: Patch) -> None:
    prune = ShareStateShard._prune

    def further(self: ShareStateShard, turn: Turn) -> None:
        prune(self, turn)
        self._pruned = self._position
        turn.act(Prune(self._position))

    patch.setattr(ShareStateShard, "_prune", further)


def keep_the_first_state(patch: Patch) -> None:
    merged = state_shard.merged

    def first(state: SharePartitionState, update: ShareUpdate) -> SharePartitionState:
        if update.batches and state.batches:
            update = structs.replace(update, batches=())
        return merged(state, update)

    patch.setattr(state_shard, "merged", first)


CRASHES = (Kind.CRASH,)


def _fault(
    name: str,
    what: str,
    plant: Any,
    kinds: tuple[Kind, ...] = CRASHES,
    seeds: int = 6,
) -> PlantedFault:
    return PlantedFault(
        name=name,
        what=what,
        plant=plant,
        kinds=kinds,
        seeds=seeds,
        share=PLAN,
        mean_gap_s=3.0,
    )


FAULTS = (
    _fault(
        "share-answer-before-it-is-written",
        "an acknowledgement is answered before it is written",
        answer_before_it_is_written,
        (Kind.CRASH, Kind.ISOLATE),
        20,
    ),
    _fault("share-read-no-batches", "a new leader takes over the start offset alone", read_no_batches),
    _fault("share-end-locks-early", "a lock ends before its time", end_locks_early),
    _fault("share-never-end-locks", "a lock never ends", never_end_locks),
    _fault("share-renew-nothing", "a renewal is answered, and the lock ends as before", renew_nothing),
    _fault(
        "share-any-member-acknowledges",
        "a member may acknowledge what it does not hold any more",
        let_any_member_acknowledge,
    ),
    _fault("share-deliver-once-more", "a record is delivered more often than the limit", deliver_once_more),
    _fault("share-bury-what-is-released", "a released record is archived", bury_what_is_released),
    _fault("share-pass-what-is-acquired", "the start passes records that are locked", pass_what_is_acquired),
    _fault(
        "share-locks-end-as-acknowledged",
        "the end of a lock is written as an acknowledgement",
        forget_what_waited_for_a_lock,
        seeds=30,
    ),
    _fault("share-read-what-was-aborted", "records of aborted transactions are given", read_what_was_aborted),
    _fault("share-overlook-a-batch", "the first of several batches is overlooked", overlook_the_first_batch),
    _fault("share-snapshot-without-batches", "a snapshot has no batches", snapshot_without_batches),
    _fault(
        "share-snapshot-with-the-first-start",
        "a snapshot has the start offset of the one before",
        snapshot_with_the_first_start,
    ),
    _fault("share-prune-too-far", "records are pruned that a state needs", prune_too_far, seeds=20),
    _fault("share-keep-the-first-state", "only the first change of a state is kept", keep_the_first_state),
)
