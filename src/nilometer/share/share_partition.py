"""A share partition beside the leader: who gets which records, and what becomes of them (KIP-932).

::

                  acquire                    acknowledge
    available ──────────────► acquired ──────────────────────► acknowledged
        ▲                        │  │       accept
        └────────────────────────┘  │
          release, end of the lock, ├────────────────────────► archived
          departure of the member   │ gap, nothing to read        ▲
                                    │                             │ dead letter was written,
                                    └───────────► archiving ──────┘ or cannot be
                                      reject, last delivery

Without a topic for dead letters, what is rejected or delivered for the last time is archived directly.

Times are milliseconds of the leader's monotonic clock, and arguments. What the shell must do comes back as
effects. It persists the batches of each :class:`Write` in the order of the effects, and says so with
:meth:`SharePartition.on_written`. The records of an acknowledgement wait until then as they were, held by the
same member; what no member decided (a lock ended, records cannot be read) takes effect at once, and its write
is not repeated: without it, the next leader decides the same. That a record is archiving is written before
its dead letter, and that it is archived after it: a leader that finds archiving records writes their letters,
which may then exist twice, but are not missing because a leader was lost.

Invariants: only an acknowledgement of the member that holds a record, the limit of deliveries, the start of
the log, or that it cannot be read makes it acknowledged or archived; the start offset never decreases, nor
passes a record that is available, acquired or archiving; the delivery count is at most the limit.

What goes in and comes out: :mod:`nilometer.share.partition_events`. How ranges of offsets are split, joined
and counted: :mod:`nilometer.share.in_flight`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import msgspec

from nilometer.invariants import check
from nilometer.share.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    NO_CHANGE,
    AcquisitionBatch,
    InFlight,
    Span,
    is_final,
)
from nilometer.share.partition_events import (
    Acknowledgement,
    AcknowledgementBatch,
    AcknowledgeType,
    Acquired,
    AcquireMode,
    Acquisition,
    Dead,
    DeadReason,
    Effect,
    Fetched,
    OffsetRange,
    SharePartitionView,
    ShareSettings,
    SpanView,
    Write,
)
from nilometer.share.state_records import DeliveryState, SharePartitionState, StateBatch
from nilometer.steps import at_once
from nilometer.wire.errors import NONE, ErrorCode

EXCESS: Final = 2
"""What exceeds a limit is limited to so many times as much: a batch that exceeds the limit of records, and
the entries of the list of locks that no longer hold."""
INT32_MAX: Final = 2**31 - 1
"""The field for the delivery-complete count takes no more, but a gap in the log may be longer."""
LOCKS_WHEN_SHORT: Final = 32
"""So many records may be locked while memory is short; those that are locked already stay so."""
LOCKS_PER_TURN: Final = 500
"""So many entries of the list of locks, and spans in them, are looked at in one call of ``on_time``."""
RUNS_PER_STEP: Final = 128
"""So many runs of records with one type are acknowledged in one step."""
NEAR: Final = 16
"""Ranges of a change that are no further apart are looked at together when it is written."""
STALE_LOCKS_MIN: Final = 64
"""So many entries the list of locks may have, however few records are locked."""

SPANS_PER_STEP: Final = 256
"""So many ranges take effect in one step when they are written, or are loaded."""

_FIRST: Final = attrgetter("first_offset")
_T = TypeVar("_T")


class _Change(msgspec.Struct):
    """What was sent to the share coordinator, and is not written yet."""

    ranges: list[OffsetRange]
    """What waits for it; none, if it has taken effect."""
    dead: list[Dead]
    """Reported when it is written."""


class _Want(NamedTuple):
    """Who acquires how many, out of what, and until when."""

    member_id: str
    records: int
    batch_size: int
    mode: AcquireMode
    lock_ends_ms: int
    batches: Sequence[OffsetRange]
    last_offset: int
    """At most the end of the last batch."""

    @property
    def first_offset(self) -> int:
        return self.batches[0].first_offset

    def end_of_limit(self, first_offset: int, taken: int = 0) -> int:
        """Return the last offset that is acquired, if new records begin at ``first_offset``.

        It is where the batch ends that has the last wanted record.
        """
        last_offset = first_offset + self.records - taken - 1
        index = bisect_right(self.batches, last_offset, key=_FIRST) - 1
        if last_offset < first_offset or index < 0:
            return last_offset
        return min(max(last_offset, self.batches[index].last_offset), self.last_offset)


class _Run(NamedTuple):
    """Records of which a member says the same."""

    first_offset: int
    last_offset: int
    kind: int


class SharePartition:
    """See the module. Its cost is that of the ranges that an event touches; their number has a limit."""

    def __init__(self, settings: ShareSettings, state: SharePartitionState) -> None:
        """``state`` is what the share coordinator has; its start offset has been decided."""
        check(state.start_offset >= 0, "a share partition has a start offset", state.start_offset)
        self.settings = settings
        """The group's configuration now: later events follow it."""
        self.is_memory_short = False
        """Whether no more than ``LOCKS_WHEN_SHORT`` records may be locked, so that few ranges come."""
        self._in_flight = InFlight(state.start_offset)
        self._changes: dict[int, _Change] = {}
        """Invariant: each has records, or ends of locks, of its own; so the records limit their number."""
        self._last_change = NO_CHANGE
        self._locks: list[tuple[int, int, int]] = []
        """A heap: when locks end, and the range in which they do. What no longer holds is ignored there."""
        self._unwritten: list[StateBatch] = []
        """Archived, since it cannot be read: the next write takes it along."""
        self._timed_out: dict[int, None] = {}
        """Changes that archive, because locks ended at the last delivery, and are not written yet. The start
        offset waits for them: below it, whatever a member says is answered as if it were taken, and a leader
        that comes before the write would give the records again."""
        for batch in state.batches:
            self._load(batch)
        self._in_flight.pass_final()

    @classmethod
    def in_steps(
        cls, settings: ShareSettings, state: SharePartitionState
    ) -> Generator[int, None, SharePartition]:
        """Make a share partition step by step: yield how many ranges each step has loaded."""
        one = cls(settings, msgspec.structs.replace(state, batches=()))
        for number, batch in enumerate(state.batches, 1):
            one._load(batch)
            if number % SPANS_PER_STEP == 0:
                yield SPANS_PER_STEP
        one._in_flight.pass_final()
        return one

    @property
    def start_offset(self) -> int:
        return self._in_flight.start_offset

    @property
    def end_offset(self) -> int:
        """The first offset that was never read."""
        return self._in_flight.end_offset

    @property
    def acquired(self) -> int:
        """How many records members hold, those included whose acknowledgement waits until it is written."""
        return self._in_flight.count(ACQUIRED)

    @property
    def in_flight(self) -> int:
        """How many offsets lie between start and end."""
        return self._in_flight.records

    @property
    def complete(self) -> int:
        """How many of them are acknowledged or archived, or become so with what was sent."""
        return self._in_flight.complete

    @property
    def ranges(self) -> int:
        """How many ranges of alike records there are, which ``view`` lists."""
        return len(self._in_flight)

    @property
    def _most_locks(self) -> int:
        most = self.settings.max_record_locks
        return min(most, LOCKS_WHEN_SHORT) if self.is_memory_short else most

    def next_fetch_offset(self) -> int:
        """Return where the log is read next: the first available record, or else the end offset."""
        return self._in_flight.first_available()

    def can_acquire(self) -> bool:
        """Return whether a fetch may find records: one is available, or the lock limit has room for more."""
        return self.next_fetch_offset() < self.end_offset or self._in_flight.records < self._most_locks

    def next_deadline_ms(self) -> int | None:
        """Return when ``on_time`` must be called: no later than the first lock ends. None without locks."""
        if not self._in_flight.count(ACQUIRED):
            self._locks.clear()
        return self._locks[0][0] if self._locks else None

    # --- events

    def acquire(
        self,
        member_id: str,
        fetched: Fetched,
        *,
        max_records: int,
        batch_size: int,
        mode: AcquireMode,
        now_ms: int,
    ) -> Acquisition:
        """Give the member what is available in the batches that were read.

        ``max_records`` is kept as ``mode`` says. New records become ranges of about ``batch_size``, which end
        where batches do.
        """
        if not fetched.batches or fetched.batches[-1].last_offset < self.start_offset:
            return Acquisition()
        check(
            fetched.fetch_offset <= self.end_offset,
            "a fetch begins at or below the end offset",
            fetched.fetch_offset,
            self.end_offset,
        )
        last_offset = fetched.batches[-1].last_offset
        records = min(max_records, self._most_locks - self._in_flight.records)
        if records <= 0 and fetched.fetch_offset < self.end_offset:  # full; but what is in it can be acquired
            records = min(max_records, self.end_offset - fetched.fetch_offset)
            last_offset = min(last_offset, self.end_offset - 1)
        if records <= 0:
            return Acquisition()
        lock_ends_ms = now_ms + self.settings.record_lock_ms
        want = _Want(member_id, records, max(batch_size, 1), mode, lock_ends_ms, fetched.batches, last_offset)
        dead = self._bury_what_was_delivered_enough(fetched)
        self._archive_gap(fetched.fetch_offset, want.first_offset - 1)
        acquired, missing = self._acquire_again(want)
        if missing > 0 and self.end_offset <= last_offset:
            acquired += self._acquire_new(want._replace(records=missing))
        acquired = self._archive_unreadable(acquired, fetched.unreadable)
        for one in acquired:
            self._push_lock(lock_ends_ms, one.first_offset, one.last_offset)
        self._pass_final()
        effects: tuple[Effect, ...] = ()
        if dead or (self._unwritten and not acquired):
            effects = (self._write(self._next_change(), _Change([], dead), []),)
        return Acquisition(tuple(acquired), effects)

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgementBatch], now_ms: int
    ) -> Acknowledgement:
        """Take what the member says of records that it holds: all of it or nothing.

        What lies below the start offset is ignored. INVALID_REQUEST: the batches are not in order, a type is
        unknown, or a range was never read. INVALID_RECORD_STATE: the member does not hold one of the records,
        an acknowledgement of it waits already, or renewals are not enabled.
        """
        return at_once(self.acknowledge_in_steps(member_id, batches, now_ms))

    def acknowledge_in_steps(
        self, member_id: str, batches: Sequence[AcknowledgementBatch], now_ms: int
    ) -> Generator[int, None, Acknowledgement]:
        """As :meth:`acknowledge`: a generator, which yields how many runs it has gone through since.

        Other events may come between two steps. What the first steps took waits meanwhile as if it were being
        written, and is taken back if a later one fails.
        """
        error, checked = self._check_form(batches)
        if checked < len(batches) and not checked:
            return Acknowledgement(error)
        change = self._next_change()
        pending, written = _Change([], []), list[StateBatch]()
        renewed: list[OffsetRange] = []
        runs = _runs(batches[:checked])
        while True:
            some = list(islice(runs, RUNS_PER_STEP))
            for together in _adjacent(some):
                failed = self._take(member_id, together, change, pending, written, renewed)
                if failed is not NONE:
                    self._take_back(change, pending)
                    return Acknowledgement(failed)
            if len(some) < RUNS_PER_STEP:
                break
            yield len(some)
        if error is NONE and renewed:
            error = self._renew(member_id, renewed, now_ms)
        if error is not NONE:
            self._take_back(change, pending)
            return Acknowledgement(error)
        return Acknowledgement(NONE, (self._write(change, pending, written),) if written else ())

    def release_member(self, member_id: str) -> tuple[Effect, ...]:
        """The member's session has ended: what it holds becomes available when that is written."""
        if member_id not in self._in_flight.held:
            return ()
        written: list[StateBatch] = []
        pending = _Change([], [])
        held = [span for span in self._in_flight if span.member_id == member_id and span.is_locked]
        if not held:
            return ()
        change = self._next_change()
        for span in held:
            self._begin(span, AcknowledgeType.RELEASE, change, pending, written)
        pending.ranges.append(OffsetRange(held[0].first_offset, held[-1].last_offset))
        return (self._write(change, pending, written),)

    def on_written(self, change: int, ok: bool) -> tuple[Effect, ...]:
        """The share coordinator has the change; or does not have it, and then records stay as they were."""
        return at_once(self.on_written_in_steps(change, ok))

    def on_written_in_steps(self, change: int, ok: bool) -> Generator[int, None, tuple[Effect, ...]]:
        """As :meth:`on_written`: a generator, which yields how many ranges it has gone through since.

        Other events may come between two steps: what is left waits meanwhile as before.
        """
        pending = self._changes.pop(change)
        self._timed_out.pop(change, None)
        for first_offset, last_offset in pending.ranges:
            while spans := self._in_flight.between(first_offset, last_offset, SPANS_PER_STEP):
                for span in spans:
                    if span.change == change:
                        self._in_flight.finish(span, ok)
                        if not ok:  # its lock may have ended meanwhile
                            self._push_lock(span.lock_ends_ms, span.first_offset, span.last_offset)
                done = min(spans[-1].last_offset, last_offset)
                self._in_flight.join(first_offset, done)
                first_offset = done + 1
                if len(spans) == SPANS_PER_STEP:
                    yield len(spans)
        self._pass_final()
        return tuple(pending.dead) if ok or not pending.ranges else ()

    def on_loaded(self) -> tuple[Effect, ...]:
        """Return what an earlier leader has left to do: the dead letters that may not be written yet.

        Why the records are dead is told from their deliveries, as Kafka does.
        """
        limit = self.settings.delivery_count_limit
        return tuple(
            Dead(
                span.first_offset,
                span.last_offset,
                span.delivery_count,
                DeadReason.DELIVERY_LIMIT if span.delivery_count >= limit else DeadReason.REJECTED,
                has_letters=True,
            )
            for span in self._in_flight
            if span.state is ARCHIVING
        )

    def on_buried(self, ranges: Iterable[OffsetRange]) -> tuple[Effect, ...]:
        """The dead letters of the ranges are written, or cannot be: what is archiving there is archived."""
        written: list[StateBatch] = []
        for first_offset, last_offset in ranges:
            for span in self._in_flight.cut(first_offset, last_offset):
                if span.state is ARCHIVING:
                    self._in_flight.move(span, ARCHIVED, span.delivery_count)
                    _add(written, span, ARCHIVED)
            self._in_flight.join(first_offset, last_offset)
        self._pass_final()
        return (self._write(self._next_change(), _Change([], []), written),) if written else ()

    def on_time(self, now_ms: int) -> tuple[Effect, ...]:
        """Locks that have ended by now: the records are available again, or archived at the limit.

        If more ended than one call takes, ``next_deadline_ms`` says that it is still time.
        """
        written: list[StateBatch] = []
        done = _Change([], [])
        left = LOCKS_PER_TURN
        while left > 0 and self._locks and self._locks[0][0] <= now_ms:
            ends_ms, first_offset, last_offset = heappop(self._locks)
            spans = self._in_flight.between(first_offset, last_offset, left)
            if len(spans) == left and spans[-1].last_offset < last_offset:
                rest = spans[-1].last_offset + 1
                heappush(self._locks, (ends_ms, rest, last_offset))
                last_offset = rest - 1
            left -= max(1, len(spans))
            for span in spans:
                if span.is_locked and span.lock_ends_ms <= now_ms:
                    becomes = self._released(span, done)
                    self._in_flight.move(span, becomes, span.delivery_count)
                    _add(written, span, becomes)
            self._in_flight.join(first_offset, last_offset)
        if not written:
            return ()
        change = self._next_change()
        if done.dead:
            self._timed_out[change] = None
        return (self._write(change, done, written),)

    def on_log_start_moved(self, log_start_offset: int) -> None:
        """The log has no records below: neither has the share partition. The next write says so."""
        if log_start_offset > self.start_offset:
            self._in_flight.drop_below(log_start_offset)
            self._pass_final()

    def view(self, limit: int, members: int | None = None) -> SharePartitionView:
        """Return what observers may see, with at most ``limit`` ranges and so many members; None: as many."""
        count = self._in_flight.count
        return SharePartitionView(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            available=count(AVAILABLE),
            acquired=count(ACQUIRED),
            acknowledged=count(ACKNOWLEDGED),
            archiving=count(ARCHIVING),
            archived=count(ARCHIVED),
            delivery_complete_count=self._in_flight.complete,
            held=tuple(sorted(self._in_flight.held.items())[: limit if members is None else members]),
            spans=tuple(
                SpanView(
                    span.first_offset,
                    span.last_offset,
                    span.state,
                    span.delivery_count,
                    span.member_id,
                    span.lock_ends_ms if span.member_id is not None else None,
                )
                for span in islice(self._in_flight, limit)
            ),
        )

    # --- acquiring

    def _bury_what_was_delivered_enough(self, fetched: Fetched) -> list[Dead]:
        """Bury what is available beyond the limit: the limit is lower than when it was delivered."""
        done = _Change([], [])
        for span in self._in_flight.between(fetched.fetch_offset, fetched.batches[-1].last_offset):
            if span.state is AVAILABLE and span.delivery_count >= self.settings.delivery_count_limit:
                becomes = self._released(span, done)
                self._in_flight.move(span, becomes, span.delivery_count)
                _add(self._unwritten, span, becomes)
        return done.dead

    def _archive_gap(self, first_offset: int, last_offset: int) -> None:
        """The log has no records there (any more): archive what is not held."""
        for span in self._in_flight.between(first_offset, last_offset):
            if span.state is AVAILABLE:
                low, high = max(span.first_offset, first_offset), min(span.last_offset, last_offset)
                for part in self._in_flight.cut(low, high):
                    self._in_flight.move(part, ARCHIVED, part.delivery_count)
                    _add(self._unwritten, part, ARCHIVED)
        if self.end_offset <= last_offset:
            gap = Span(
                self.end_offset, last_offset, AcquisitionBatch(self.end_offset, last_offset), ARCHIVED, 0
            )
            self._in_flight.append(gap)
            _add(self._unwritten, gap, ARCHIVED)

    def _acquire_again(self, want: _Want) -> tuple[list[Acquired], int]:
        """Acquire what is available below the end offset; return how many records may be acquired besides.

        What was acquired together is acquired again together. What has been delivered often is delivered with
        less and less beside it, and alone the last time: one record that no member survives must not take the
        others with it.
        """
        acquired: list[Acquired] = []
        missing = want.records
        available = [
            span
            for span in self._in_flight.between(want.first_offset, want.last_offset)
            if span.state is AVAILABLE
        ]
        for batch, group in groupby(available, key=lambda span: span.batch):
            if missing <= 0:
                break
            spans = list(group)
            is_throttled = max(span.delivery_count for span in spans) >= self._throttled_from()
            if is_throttled and acquired:
                return acquired, 0
            taken: list[Acquired] = []
            for low, high in self._portion(want._replace(records=missing), batch, spans):
                for part in self._in_flight.cut(low, high):
                    self._lock(part, want, taken)
            acquired += taken
            missing -= _records(taken)
            if is_throttled and taken:
                return acquired, 0
        return acquired, missing

    def _throttled_from(self) -> int:
        """Return the delivery count from which on fewer records are delivered together."""
        return max(2, (self.settings.delivery_count_limit + 1) // 2)

    def _portion(self, want: _Want, batch: AcquisitionBatch, spans: Iterable[Span]) -> list[OffsetRange]:
        """Return what of a batch's available spans is delivered now."""
        throttled_from = self._throttled_from()
        throttled_to = 0
        taken = 0
        portion: list[OffsetRange] = []
        for span in spans:
            low, high = max(span.first_offset, want.first_offset), min(span.last_offset, want.last_offset)
            count = span.delivery_count
            if count >= throttled_from and not throttled_to:
                throttled_to = max(1, batch.records >> (count - throttled_from + 1))
            is_last_delivery = count == self.settings.delivery_count_limit - 1 >= 2
            most = high - low + 1
            if want.mode is AcquireMode.RECORD_LIMIT:
                most = min(most, want.records - taken)
            elif not count:  # a gap in what the last leader wrote: to its member, the records are new
                most = min(most, want.end_of_limit(low, taken) - low + 1)
            if taken < throttled_to:
                most = min(most, throttled_to - taken)
            if is_last_delivery:
                most = min(most, 0 if taken else 1)
            if most > 0:
                portion.append(OffsetRange(low, low + most - 1))
                taken += most
            if low + most <= high or is_last_delivery or taken == throttled_to:
                break
        return portion

    def _acquire_new(self, want: _Want) -> list[Acquired]:
        """Acquire from the end offset on."""
        first_offset = self.end_offset
        most = want.records + (EXCESS - 1) * self._most_locks
        last_offset = min(want.end_of_limit(first_offset), first_offset + most - 1)
        bounds = [first_offset]
        if want.mode is AcquireMode.BATCH_OPTIMIZED and last_offset - first_offset >= want.batch_size:
            for batch in want.batches:
                if batch.first_offset - bounds[-1] >= want.batch_size and batch.first_offset <= last_offset:
                    bounds.append(batch.first_offset)
        acquired: list[Acquired] = []
        for first, next_first in zip(bounds, [*bounds[1:], last_offset + 1], strict=True):
            together = AcquisitionBatch(first, next_first - 1)
            self._in_flight.append(Span(*together, together, AVAILABLE, 0))
            wanted_last = next_first - 1
            if want.mode is AcquireMode.RECORD_LIMIT:
                wanted_last = min(wanted_last, first + want.records - 1)
            taken: list[Acquired] = []
            for part in self._in_flight.cut(first, wanted_last):
                self._lock(part, want, taken)
            acquired += taken
        return acquired

    def _lock(self, span: Span, want: _Want, taken: list[Acquired]) -> None:
        count = span.delivery_count + 1
        self._in_flight.move(span, ACQUIRED, count, want.member_id, want.lock_ends_ms)
        if taken and (taken[-1].last_offset + 1, taken[-1].delivery_count) == (span.first_offset, count):
            taken[-1] = taken[-1]._replace(last_offset=span.last_offset)
        else:
            taken.append(Acquired(span.first_offset, span.last_offset, count))

    def _archive_unreadable(
        self, acquired: list[Acquired], unreadable: Sequence[OffsetRange]
    ) -> list[Acquired]:
        """Archive what of the acquired records no member can read; return the rest."""
        if not unreadable:
            return acquired
        kept: list[Acquired] = []
        position = 0
        for one in acquired:
            first_offset = one.first_offset
            while position < len(unreadable) and unreadable[position].last_offset < first_offset:
                position += 1
            for index in range(position, len(unreadable)):
                low, high = unreadable[index]
                if low > one.last_offset:
                    break
                low, high = max(low, first_offset), min(high, one.last_offset)
                if low > first_offset:
                    kept.append(one._replace(first_offset=first_offset, last_offset=low - 1))
                for span in self._in_flight.cut(low, high):
                    self._in_flight.move(span, ARCHIVED, span.delivery_count - 1)
                    _add(self._unwritten, span, ARCHIVED)
                first_offset = high + 1
            if first_offset <= one.last_offset:
                kept.append(one._replace(first_offset=first_offset))
        return kept

    # --- acknowledging

    def _check_form(self, batches: Sequence[AcknowledgementBatch]) -> tuple[ErrorCode, int]:
        """Return the first error of the batches in themselves, and how many precede it whose records have to
        be looked at first; none, if the batches are not in order.

        A member holds no more records than may be locked, and so cannot name more.
        """
        if len(batches) > EXCESS * self.settings.max_record_locks:
            return ErrorCode.invalid_request, 0
        before = -1
        for first_offset, last_offset, types in batches:
            if not before <= first_offset <= last_offset:
                return ErrorCode.invalid_request, 0
            if len(types) not in (1, last_offset - first_offset + 1):
                return ErrorCode.invalid_request, 0
            if first_offset == before:  # said twice, or no offset
                return ErrorCode.invalid_record_state, 0
            before = last_offset
        for index, batch in enumerate(batches):
            error = self._check_batch(batch)
            if error is not NONE:
                return error, index
        return NONE, len(batches)

    def _check_batch(self, batch: AcknowledgementBatch) -> ErrorCode:
        if batch.last_offset < self.start_offset:
            return NONE
        if not len(self._in_flight):
            return ErrorCode.invalid_record_state
        if batch.last_offset >= self.end_offset:
            return ErrorCode.invalid_request
        types = batch.types
        if len(types) > 1 and batch.first_offset < self.start_offset:
            types = types[self.start_offset - batch.first_offset :]
        if not all(AcknowledgeType.GAP <= kind <= AcknowledgeType.RENEW for kind in set(types)):
            return ErrorCode.invalid_request
        return NONE

    def _take(
        self,
        member_id: str,
        runs: Sequence[_Run],
        change: int,
        pending: _Change,
        written: list[StateBatch],
        renewed: list[OffsetRange],
    ) -> ErrorCode:
        """Begin to change what the member says of runs that follow each other, if it holds all of it."""
        first_offset, last_offset = max(runs[0].first_offset, self.start_offset), runs[-1].last_offset
        if last_offset < first_offset:
            return NONE
        if not self._holds(member_id, first_offset, last_offset):
            return ErrorCode.invalid_record_state
        _add_range(pending.ranges, first_offset, last_offset)
        kinds = iter(runs)
        run = next(kinds)
        boundaries = [one.first_offset for one in runs if one.first_offset > first_offset]
        for span in self._in_flight.cut(first_offset, last_offset, boundaries):
            while run.last_offset < span.first_offset:
                run = next(kinds)
            if run.kind == AcknowledgeType.RENEW:
                _add_range(renewed, span.first_offset, span.last_offset, near=0)
            else:
                self._begin(span, run.kind, change, pending, written)
        self._in_flight.join(first_offset, last_offset)
        return NONE

    def _holds(self, member_id: str, first_offset: int, last_offset: int) -> bool:
        for span in self._in_flight.between(first_offset, last_offset):
            if not span.is_locked or span.member_id != member_id:
                return False
        return True

    def _take_back(self, change: int, pending: _Change) -> None:
        """Let the records stay as they were, whose change does not come about."""
        for first_offset, last_offset in pending.ranges:
            for span in self._in_flight.between(first_offset, last_offset):
                if span.change == change:
                    self._in_flight.finish(span, written=False)
                    self._push_lock(span.lock_ends_ms, span.first_offset, span.last_offset)
            self._in_flight.join(first_offset, last_offset)

    def _renew(self, member_id: str, ranges: Sequence[OffsetRange], now_ms: int) -> ErrorCode:
        if not self.settings.renew_enabled:
            return ErrorCode.invalid_record_state
        if not all(self._holds(member_id, max(first, self.start_offset), last) for first, last in ranges):
            return ErrorCode.invalid_record_state
        lock_ends_ms = now_ms + self.settings.record_lock_ms
        for first_offset, last_offset in ranges:
            first_offset = max(first_offset, self.start_offset)
            for span in self._in_flight.cut(first_offset, last_offset) if first_offset <= last_offset else ():
                span.lock_ends_ms = lock_ends_ms
            self._push_lock(lock_ends_ms, first_offset, last_offset)
            self._in_flight.join(first_offset, last_offset)
        return NONE

    def _begin(self, span: Span, kind: int, change: int, pending: _Change, written: list[StateBatch]) -> None:
        if kind == AcknowledgeType.ACCEPT:
            becomes = ACKNOWLEDGED
        elif kind == AcknowledgeType.RELEASE:
            becomes = self._released(span, pending)
        elif kind == AcknowledgeType.REJECT:
            becomes = self._bury(span, pending, DeadReason.REJECTED)
        else:
            becomes = ARCHIVED
        self._in_flight.begin(span, change, becomes)
        _add(written, span, becomes)

    def _released(self, span: Span, change: _Change) -> DeliveryState:
        """Return what becomes of records that are not held any more: a release counts as a delivery."""
        if span.delivery_count < self.settings.delivery_count_limit:
            return AVAILABLE
        return self._bury(span, change, DeadReason.DELIVERY_LIMIT)

    def _bury(self, span: Span, change: _Change, reason: DeadReason) -> DeliveryState:
        """Return what becomes of records that no member accepted, and is reported when it is written."""
        has_letters = self.settings.dead_letters
        change.dead.append(
            Dead(span.first_offset, span.last_offset, span.delivery_count, reason, has_letters=has_letters)
        )
        return ARCHIVING if has_letters else ARCHIVED

    # --- what is persisted, and when locks end

    def _load(self, batch: StateBatch) -> None:
        check(
            self.end_offset <= batch.first_offset <= batch.last_offset,
            "the batches of a share partition's state are in order, from its start offset on",
            self.end_offset,
            batch.first_offset,
            batch.last_offset,
        )
        if self.end_offset < batch.first_offset:
            self._append(self.end_offset, batch.first_offset - 1, AVAILABLE, 0)
        state = batch.state if is_final(batch.state) or batch.state is ARCHIVING else AVAILABLE
        self._append(batch.first_offset, batch.last_offset, state, batch.delivery_count)

    def _append(self, first_offset: int, last_offset: int, state: DeliveryState, count: int) -> None:
        together = AcquisitionBatch(first_offset, last_offset)
        self._in_flight.append(Span(first_offset, last_offset, together, state, count))

    def _pass_final(self) -> None:
        """Move the start offset over what is acknowledged or archived there, as far as that is written."""
        if not self._timed_out:
            self._in_flight.pass_final()

    def _next_change(self) -> int:
        self._last_change += 1
        return self._last_change

    def _write(self, change: int, pending: _Change, written: list[StateBatch]) -> Write:
        self._changes[change] = pending
        batches = sorted(
            (batch for batch in self._unwritten + written if batch.last_offset >= self.start_offset),
            key=lambda batch: batch.first_offset,
        )
        self._unwritten.clear()
        complete = min(self._in_flight.complete, INT32_MAX)
        return Write(change, tuple(batches), self.start_offset, complete)

    def _push_lock(self, ends_ms: int, first_offset: int, last_offset: int) -> None:
        heappush(self._locks, (ends_ms, first_offset, last_offset))
        if len(self._locks) > EXCESS * len(self._in_flight) + STALE_LOCKS_MIN:
            self._locks = [
                (span.lock_ends_ms, span.first_offset, span.last_offset)
                for span in self._in_flight
                if span.is_locked
            ]
            heapify(self._locks)


def _runs(batches: Iterable[AcknowledgementBatch]) -> Iterator[_Run]:
    """Return the runs of records with one type; a run ends where its batch does."""
    for first_offset, last_offset, types in batches:
        if len(types) == 1:
            yield _Run(first_offset, last_offset, types[0])
            continue
        for kind, same in groupby(types):
            count = len(list(same))
            yield _Run(first_offset, first_offset + count - 1, kind)
            first_offset += count


def _adjacent(runs: Iterable[_Run]) -> Iterator[list[_Run]]:
    """Divide runs into such as follow each other without a gap."""
    together: list[_Run] = []
    for run in runs:
        if together and run.first_offset != together[-1].last_offset + 1:
            yield together
            together = []
        together.append(run)
    if together:
        yield together


def _add_range(ranges: list[OffsetRange], first_offset: int, last_offset: int, near: int = NEAR) -> None:
    """Add a range above the others: to the last one, if that ends at most ``near`` offsets below it."""
    if ranges and first_offset - ranges[-1].last_offset <= near + 1:
        first_offset = ranges.pop().first_offset
    ranges.append(OffsetRange(first_offset, last_offset))


def _add(batches: list[StateBatch], span: Span, state: DeliveryState) -> None:
    """Add the span to what is written, as one batch with the one before it if they are alike."""
    first_offset = span.first_offset
    if batches:
        before = batches[-1]
        if (before.last_offset + 1, before.state, before.delivery_count) == (
            first_offset,
            state,
            span.delivery_count,
        ):
            first_offset = batches.pop().first_offset
    batches.append(StateBatch(first_offset, span.last_offset, state, span.delivery_count))


def _records(acquired: Iterable[Acquired]) -> int:
    return sum(one.last_offset - one.first_offset + 1 for one in acquired)
