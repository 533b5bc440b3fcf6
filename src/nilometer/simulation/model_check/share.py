"""The model of a share partition: its leaders, of which a former one may not know that it is one, the state
that the share coordinator keeps, and members that fetch and say what became of the records, in every order.

The leaders are the product's :class:`~nilometer.share.share_partition.SharePartition`, and its code merges
states. Each offset is a batch of its own. A write may be lost, or only its response; time goes on from the
end of one lock to that of the next.

A step checks what it does, and the state after it has the violation; :func:`share_violation` returns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nilometer.identifiers import TopicId
from nilometer.share.partition_events import (
    AcknowledgementBatch,
    AcknowledgeType,
    AcquireMode,
    Effect,
    Fetched,
    OffsetRange,
    ShareSettings,
    Write,
)
from nilometer.share.share_partition import SharePartition
from nilometer.share.state_records import (
    NO_EPOCH,
    NO_START_OFFSET,
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    ShareUpdate,
    merged,
)
from nilometer.simulation.model_check.explorer import Step, Violation
from nilometer.simulation.model_check.tables import Table, clone, fingerprint
from nilometer.wire.errors import NONE

LOCKED_ONCE = "a locked record is given to no other member"
DONE_ONCE = "what a member was told to be done is given to no one"
DELIVERY_LIMIT = (
    "a record is delivered no more often than the limit, and once more for each leader and lost write"
)
VALID_ENDS = "a record is done by a member, or by the limit"
START_GROWS = "the start offset never goes back"
HELD_IS_TAKEN = "an acknowledgement of the holder is taken, a late one refused"

KEY = SharePartitionKey("g", TopicId("t"), 0)
LOCK_MS = 1
KINDS = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)


class ShareBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the model, and how much may happen in it."""

    offsets: int = 1
    members: int = 2
    limit: int = 2
    elections: int = 1
    expiries: int = 2
    """How often time goes on by the duration of a lock."""
    losses: int = 1
    """Of writes, and of responses to writes."""


class _Record(NamedTuple):
    """What the outside knows of one record."""

    deliveries: int = 0
    """By the newest leader: a former one that does not know it goes on counting by itself."""
    accepted: bool = False
    """A member has said so; ``rejected`` likewise."""
    rejected: bool = False
    is_done: bool = False
    """A member got the response to that."""
    holder: tuple[int, int] | None = None
    """The leader epoch and the member of the last delivery, until that member says something or leaves."""
    until_ms: int = 0


class _Saying(NamedTuple):
    """What is acknowledged by a write."""

    offset: int
    is_final: bool


class _Leader(NamedTuple):
    epoch: int
    core: int
    """Its number in the table."""
    writes: tuple[tuple[Write, tuple[_Saying, ...]], ...] = ()
    """Those that have not arrived at the coordinator."""


class ShareState(NamedTuple):
    leaders: tuple[_Leader, ...]
    """A former one, if there is one, then the newest."""
    kept: SharePartitionState
    fence: int
    records: tuple[_Record, ...]
    now_ms: int = 0
    elections: int = 0
    losses: int = 0
    late_writes: int = 0
    """Those that had not arrived when another leader was elected: it does not know of their deliveries."""
    violation: Violation | None = None


class ShareWorld:
    """A model for :func:`~.explorer.explore`."""

    def __init__(self, bounds: ShareBounds) -> None:
        self._bounds = bounds
        self._settings = ShareSettings(
            record_lock_ms=LOCK_MS, delivery_count_limit=bounds.limit, max_record_locks=bounds.offsets
        )
        self._cores: Table[SharePartition] = Table()

    def first_state(self) -> ShareState:
        kept = SharePartitionState(0, 0, 0, 0)
        leader = _Leader(0, self._number(SharePartition(self._settings, kept)))
        return ShareState((leader,), kept, 0, (_Record(),) * self._bounds.offsets)

    def steps(self, state: ShareState) -> Iterator[tuple[Step, ShareState]]:
        if state.violation is not None:
            return
        for index, leader in enumerate(state.leaders):
            for member in range(self._bounds.members):
                yield from self._fetches(state, index, leader, member)
                yield from self._acknowledgements(state, index, leader, member)
                yield from self._departures(state, index, leader, member)
            yield from self._writes(state, index, leader)
        if state.now_ms < self._bounds.expiries * LOCK_MS:
            yield ("time goes on", 0, 0), self._later(state)
        if state.elections < self._bounds.elections:
            yield ("elect", 0, 0), self._elected(state)

    # ── members ─────────────────────────────────────────────────────────────────────────────────
    def _fetches(
        self, state: ShareState, index: int, leader: _Leader, member: int
    ) -> Iterator[tuple[Step, ShareState]]:
        core = self._copy(leader)
        first = core.next_fetch_offset()
        if not core.can_acquire() or first >= self._bounds.offsets:
            return
        acquired, effects = core.acquire(
            str(member),
            Fetched(first, [OffsetRange(offset, offset) for offset in range(first, self._bounds.offsets)]),
            max_records=1,
            batch_size=1,
            mode=AcquireMode.RECORD_LIMIT,
            now_ms=state.now_ms,
        )
        after = self._with(state, index, core, effects)
        for low, high, count in acquired:
            for offset in range(low, high + 1):
                after = self._deliver(after, leader, member, offset, count)
        if after != state:
            yield ("fetch", index, member), after

    def _deliver(
        self, state: ShareState, leader: _Leader, member: int, offset: int, count: int
    ) -> ShareState:
        record = state.records[offset]
        is_newest = leader.epoch == state.leaders[-1].epoch
        found = None
        if record.is_done and is_newest:
            found = Violation(DONE_ONCE, f"offset {offset} to member {member}")
        holder = record.holder
        is_other = holder is not None and holder[0] == leader.epoch and holder[1] != member
        if is_other and state.now_ms < record.until_ms:
            found = Violation(LOCKED_ONCE, f"offset {offset} to member {member}")
        times = record.deliveries + is_newest
        allowed = self._bounds.limit + state.elections + state.losses + state.late_writes
        if count > self._bounds.limit or times > allowed:
            found = Violation(DELIVERY_LIMIT, f"offset {offset}: {times} times, said to be {count}")
        changed = record._replace(
            deliveries=times, holder=(leader.epoch, member), until_ms=state.now_ms + LOCK_MS
        )
        return _changed(state, offset, changed, found)

    def _acknowledgements(
        self, state: ShareState, index: int, leader: _Leader, member: int
    ) -> Iterator[tuple[Step, ShareState]]:
        for offset, record in enumerate(state.records):
            if record.holder != (leader.epoch, member):
                continue
            for kind in KINDS:
                core = self._copy(leader)
                is_ignored = offset < core.start_offset
                batch = AcknowledgementBatch(offset, offset, (kind,))
                error, effects = core.acknowledge(str(member), [batch], state.now_ms)
                is_taken = error is NONE
                final = kind is not AcknowledgeType.RELEASE
                after = self._with(state, index, core, effects, (_Saying(offset, final),))
                changed = record._replace(
                    accepted=record.accepted or (is_taken and kind is AcknowledgeType.ACCEPT),
                    rejected=record.rejected or (is_taken and kind is AcknowledgeType.REJECT),
                    holder=None,
                )
                found = None
                if not is_ignored and is_taken != (state.now_ms < record.until_ms):
                    found = Violation(HELD_IS_TAKEN, f"offset {offset} of member {member}: {error.name}")
                yield (
                    (f"say {kind.name.lower()} of {offset}", index, member),
                    _changed(after, offset, changed, found),
                )

    def _departures(
        self, state: ShareState, index: int, leader: _Leader, member: int
    ) -> Iterator[tuple[Step, ShareState]]:
        held = (leader.epoch, member)
        if not any(record.holder == held for record in state.records):
            return
        core = self._copy(leader)
        after = self._with(state, index, core, core.release_member(str(member)))
        records = tuple(
            record._replace(holder=None) if record.holder == held else record for record in after.records
        )
        yield ("leave", index, member), after._replace(records=records)

    # ── writes, time and elections ──────────────────────────────────────────────────────────────
    def _writes(self, state: ShareState, index: int, leader: _Leader) -> Iterator[tuple[Step, ShareState]]:
        if not leader.writes:
            return
        write, sayings = leader.writes[0]
        is_fenced = leader.epoch < state.fence
        arrived = state if is_fenced else self._merge(state, write)
        yield ("write", index, 0), self._answered(arrived, index, write, sayings, ok=not is_fenced)
        if state.losses < self._bounds.losses:
            lost = state._replace(losses=state.losses + 1)
            yield ("lose a write", index, 0), self._answered(lost, index, write, sayings, ok=False)
            if not is_fenced:
                lost = arrived._replace(losses=state.losses + 1)
                yield ("lose a response", index, 0), self._answered(lost, index, write, sayings, ok=False)

    def _merge(self, state: ShareState, write: Write) -> ShareState:
        start = max(write.start_offset, state.kept.start_offset)
        update = ShareUpdate(KEY, 0, NO_EPOCH, start, write.delivery_complete_count, write.batches)
        kept = merged(state.kept, update)
        found = None
        if kept.start_offset < state.kept.start_offset or write.start_offset == NO_START_OFFSET:
            found = Violation(START_GROWS, f"{state.kept.start_offset}, then {kept.start_offset}")
        for offset, record in enumerate(state.records):
            if not _may_be_done(record, _state_at(kept, offset), self._bounds.limit):
                found = Violation(VALID_ENDS, f"offset {offset} is {_state_at(kept, offset)}")
        return state._replace(kept=kept, violation=found)

    def _answered(
        self, state: ShareState, index: int, write: Write, sayings: Iterable[_Saying], *, ok: bool
    ) -> ShareState:
        leader = state.leaders[index]
        core = self._copy(leader)
        effects = core.on_written(write.change, ok)
        popped = leader._replace(writes=leader.writes[1:])
        leaders = (*state.leaders[:index], popped, *state.leaders[index + 1 :])
        after = self._with(state._replace(leaders=leaders), index, core, effects)
        for offset, is_final in sayings:
            if ok and is_final:
                after = _changed(after, offset, after.records[offset]._replace(is_done=True), None)
        return after

    def _later(self, state: ShareState) -> ShareState:
        after = state._replace(now_ms=state.now_ms + LOCK_MS)
        for index, leader in enumerate(state.leaders):
            core = self._copy(leader)
            after = self._with(after, index, core, core.on_time(after.now_ms))
        return after

    def _elected(self, state: ShareState) -> ShareState:
        """The newest leader becomes a former one, which does not know it; the one before it ends."""
        epoch = state.leaders[-1].epoch + 1
        kept = replace(state.kept, leader_epoch=epoch)
        leader = _Leader(epoch, self._number(SharePartition(self._settings, kept)))
        former = state.leaders[-1]
        return state._replace(
            leaders=(former, leader),
            kept=kept,
            fence=epoch,
            elections=state.elections + 1,
            late_writes=state.late_writes + len(former.writes),
        )

    # ── cores ───────────────────────────────────────────────────────────────────────────────────
    def _copy(self, leader: _Leader) -> SharePartition:
        return clone(self._cores.values[leader.core])

    def _number(self, core: SharePartition) -> int:
        return self._cores.number_of(core, fingerprint(core))

    def _with(
        self,
        state: ShareState,
        index: int,
        core: SharePartition,
        effects: Iterable[Effect],
        sayings: tuple[_Saying, ...] = (),
    ) -> ShareState:
        """Return the state in which a leader has changed, and sends its writes."""
        leader = state.leaders[index]
        writes = tuple((one, sayings) for one in effects if isinstance(one, Write))
        changed = leader._replace(core=self._number(core), writes=leader.writes + writes)
        return state._replace(leaders=(*state.leaders[:index], changed, *state.leaders[index + 1 :]))


def _changed(state: ShareState, offset: int, record: _Record, found: Violation | None) -> ShareState:
    records = (*state.records[:offset], record, *state.records[offset + 1 :])
    return state._replace(records=records, violation=state.violation or found)


def _state_at(kept: SharePartitionState, offset: int) -> DeliveryState | None:
    """Return the state that is kept of a record; None below the start: it is done, in some way."""
    if offset < kept.start_offset:
        return None
    for batch in kept.batches:
        if batch.first_offset <= offset <= batch.last_offset:
            return batch.state
    return DeliveryState.AVAILABLE


def _may_be_done(record: _Record, state: DeliveryState | None, limit: int) -> bool:
    by_limit = record.deliveries >= limit
    if state is DeliveryState.ACKNOWLEDGED:
        return record.accepted
    if state is DeliveryState.ARCHIVED:
        return record.rejected or by_limit
    return state is not None or record.accepted or record.rejected or by_limit


def share_violation(world: ShareWorld, state: ShareState) -> Violation | None:
    """Return what the step into ``state`` has violated."""
    return state.violation
