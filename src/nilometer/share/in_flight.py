"""The offsets between the start and the end of a share partition, as ranges: where each stands, who holds it,
and what of it waits until it is written.

It knows no rules: which record may change, and into what, :mod:`nilometer.share.share_partition` decides.

Invariant: the ranges are in order, and follow each other without gaps from the start to the end offset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from nilometer.share.state_records import DeliveryState

AVAILABLE: Final = DeliveryState.AVAILABLE
ACQUIRED: Final = DeliveryState.ACQUIRED
ACKNOWLEDGED: Final = DeliveryState.ACKNOWLEDGED
ARCHIVING: Final = DeliveryState.ARCHIVING
ARCHIVED: Final = DeliveryState.ARCHIVED

NO_CHANGE: Final = 0
"""No change of the range waits until it is written."""

_FIRST: Final = attrgetter("first_offset")


def is_final(state: DeliveryState) -> bool:
    """Return whether a record never leaves the state."""
    return state is ACKNOWLEDGED or state is ARCHIVED


class AcquisitionBatch(NamedTuple):
    """The offsets that were acquired together when they were read for the first time.

    They stay together: in the mode that is optimized for batches, what of them is available is acquired at
    once, and one answer's ranges do not cross them.
    """

    first_offset: int
    last_offset: int

    @property
    def records(self) -> int:
        return self.last_offset - self.first_offset + 1


class Span(msgspec.Struct):
    """The offsets from ``first_offset`` to ``last_offset``, both included, of which the same is known."""

    first_offset: int
    last_offset: int
    batch: AcquisitionBatch
    state: DeliveryState
    delivery_count: int
    member_id: str | None = None
    """Who holds it. Invariant: it has one exactly while it is acquired."""
    lock_ends_ms: int = 0
    """When the lock of its holder ends, on the leader's monotonic clock."""
    change: int = NO_CHANGE
    """The change that has been sent to the share coordinator. Until then the span stays acquired."""
    becomes: DeliveryState = AVAILABLE
    """Its state when the change has been written."""

    @property
    def records(self) -> int:
        return self.last_offset - self.first_offset + 1

    @property
    def is_locked(self) -> bool:
        """A member holds it, and no acknowledgement of it waits."""
        return self.state is ACQUIRED and self.change == NO_CHANGE

    def joins(self, before: Span) -> bool:
        """Return whether it can be one span with the one before it."""
        return (
            self.state is before.state
            and self.delivery_count == before.delivery_count
            and self.change == before.change
            and (self.batch == before.batch or is_final(self.state))
            and self.member_id == before.member_id
            and self.lock_ends_ms == before.lock_ends_ms
            and self.becomes is before.becomes
        )


class InFlight:
    """The spans of one share partition, in order."""

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        """Invariant: it never decreases."""
        self.completing = 0
        """How many offsets become acknowledged or archived with changes that are not written yet."""
        self.held: dict[str, int] = {}
        """How many offsets each member holds; only members that hold any."""
        self._spans: list[Span] = []
        self._records = [0] * (ARCHIVED + 1)
        """How many offsets there are of each state."""
        self._available_from = start_offset
        """Invariant: no offset below it is available."""

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        """Return the number of spans, not of offsets."""
        return len(self._spans)

    @property
    def end_offset(self) -> int:
        """The first offset that was never read."""
        return self._spans[-1].last_offset + 1 if self._spans else self.start_offset

    @property
    def records(self) -> int:
        """How many offsets lie between start and end, whatever their state: what the lock limit counts."""
        return self.end_offset - self.start_offset

    def count(self, state: DeliveryState) -> int:
        return self._records[state]

    @property
    def complete(self) -> int:
        """How many offsets are acknowledged or archived, or become so when what was sent is written."""
        return self._records[ACKNOWLEDGED] + self._records[ARCHIVED] + self.completing

    def first_available(self) -> int:
        """Return the lowest offset that can be acquired, or the end offset if there is none."""
        index = self._index(self._available_from)
        while index < len(self._spans) and self._spans[index].state is not AVAILABLE:
            index += 1
        found = self._spans[index].first_offset if index < len(self._spans) else self.end_offset
        self._available_from = max(self._available_from, found)
        return found

    def between(self, first_offset: int, last_offset: int, most: int | None = None) -> list[Span]:
        """Return the spans that have an offset in the range; ``most``: the first so many."""
        if first_offset > last_offset or not self._spans:
            return []
        low, high = self._index(first_offset), bisect_right(self._spans, last_offset, key=_FIRST)
        if low < high and self._spans[low].last_offset < first_offset:
            low += 1
        return self._spans[low : high if most is None else min(high, low + most)]

    def cut(self, first_offset: int, last_offset: int, boundaries: Sequence[int] = ()) -> list[Span]:
        """Return the spans that have exactly the offsets of the range; split those at its ends.

        They are also split at ``boundaries``: offsets in order, each of which then begins a span.
        """
        low = self._split(first_offset)
        high = self._split(last_offset + 1)
        if not boundaries:
            return self._spans[low:high]
        pieces: list[Span] = []
        rest = iter(boundaries)
        boundary = next(rest, None)
        for span in self._spans[low:high]:
            while boundary is not None and boundary <= span.last_offset:
                if boundary > span.first_offset:
                    pieces.append(msgspec.structs.replace(span, last_offset=boundary - 1))
                    span.first_offset = boundary
                boundary = next(rest, None)
            pieces.append(span)
        self._spans[low:high] = pieces
        return pieces

    def append(self, span: Span) -> None:
        """Add a span that begins at the end offset."""
        self._spans.append(span)
        self._count(span, 1)

    def move(
        self,
        span: Span,
        state: DeliveryState,
        delivery_count: int,
        member_id: str | None = None,
        lock_ends_ms: int = 0,
    ) -> None:
        self._count(span, -1)
        span.state = state
        span.delivery_count = delivery_count
        span.member_id = member_id
        span.lock_ends_ms = lock_ends_ms
        self._count(span, 1)
        if state is AVAILABLE:
            self._available_from = min(self._available_from, span.first_offset)

    def begin(self, span: Span, change: int, becomes: DeliveryState) -> None:
        """Let the span wait until ``change`` is written."""
        span.change = change
        span.becomes = becomes
        if is_final(becomes):
            self.completing += span.records

    def finish(self, span: Span, written: bool) -> None:
        """Take the span's change into effect, or back."""
        becomes = span.becomes
        self._forget_change(span)
        if written:
            self.move(span, becomes, span.delivery_count)

    def join(self, first_offset: int, last_offset: int) -> None:
        """Make one span of neighbours of which the same is known, in and beside the range."""
        if not self._spans:
            return
        low = max(self._index(first_offset) - 1, 0)
        high = bisect_right(self._spans, last_offset + 1, key=_FIRST)
        kept = self._spans[low : low + 1]
        for span in self._spans[low + 1 : high]:
            if span.joins(kept[-1]):
                kept[-1].last_offset = span.last_offset
            else:
                kept.append(span)
        if len(kept) < high - low:
            self._spans[low:high] = kept

    def drop_below(self, offset: int) -> None:
        """Forget the offsets below ``offset``, whatever their state, and start there."""
        if self._spans and offset < self.end_offset:
            self._drop(self._split(offset))
        else:
            self._drop(len(self._spans))
        self.start_offset = max(self.start_offset, offset)

    def pass_final(self) -> bool:
        """Move the start offset over what is acknowledged or archived there; return whether it moved."""
        done = 0
        while done < len(self._spans) and is_final(self._spans[done].state):
            done += 1
        if done:
            self.start_offset = self._spans[done - 1].last_offset + 1
            self._drop(done)
        return done > 0

    def _drop(self, spans: int) -> None:
        for span in self._spans[:spans]:
            self._forget_change(span)
            self._count(span, -1)
        del self._spans[:spans]

    def _forget_change(self, span: Span) -> None:
        if span.change != NO_CHANGE and is_final(span.becomes):
            self.completing -= span.records
        span.change = NO_CHANGE
        span.becomes = AVAILABLE

    def _index(self, offset: int) -> int:
        """Return the index of the span that has ``offset``; of the first one, if all lie above."""
        return max(bisect_right(self._spans, offset, key=_FIRST) - 1, 0)

    def _split(self, offset: int) -> int:
        """Return the index of the span that begins at ``offset``: make one, if it lies within another."""
        index = bisect_left(self._spans, offset, key=_FIRST)
        if index == 0 or self._spans[index - 1].last_offset < offset:
            return index
        span = self._spans[index - 1]
        self._spans.insert(index, msgspec.structs.replace(span, first_offset=offset))
        span.last_offset = offset - 1
        return index

    def _count(self, span: Span, sign: int) -> None:
        records = sign * span.records
        self._records[span.state] += records
        if span.member_id is not None:
            held = self.held.get(span.member_id, 0) + records
            if held:
                self.held[span.member_id] = held
            else:
                del self.held[span.member_id]
