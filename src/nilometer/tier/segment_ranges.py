"""Offsets and leader epochs of stored segments: which of them a reader uses, where offsets are missing, and
where two logs of one partition differ. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

EpochRuns = Sequence[tuple[int, int]]
"""(leader epoch, first offset) of each run of batches, in the order of offsets."""


class Span(Protocol):
    """The offsets of a segment."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]: ...


S = TypeVar("S", bound=Span)


# --- ranges of offsets


def chain(segments: Iterable[S]) -> list[S]:
    """Return the segments that a reader uses: as few as contain all offsets, in the order of offsets.

    Segments of two replicas may overlap: then each begins inside the one before it. No two of a chain have
    the same base offset.
    """
    pending = sorted(segments, key=lambda one: (one.base_offset, one.end_offset))
    found: list[S] = []
    end, at = -1, 0
    while at < len(pending):
        furthest = pending[at]
        limit = max(end, furthest.base_offset)
        while at < len(pending) and pending[at].base_offset <= limit:
            if pending[at].end_offset > furthest.end_offset:
                furthest = pending[at]
            at += 1
        if furthest.end_offset > end:
            found.append(furthest)
            end = furthest.end_offset
    return found


def runs(linked: Sequence[S]) -> list[list[S]]:
    """Divide a chain at its gaps."""
    found: list[list[S]] = []
    for one in linked:
        if found and one.base_offset <= found[-1][-1].end_offset:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def gaps(linked: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the ranges [start, end) that are missing in a chain."""
    return [
        (before.end_offset, here.base_offset)
        for before, here in pairwise(linked)
        if here.base_offset > before.end_offset
    ]


# --- leader epochs


def epochs_of(linked: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the runs of leader epochs of a chain."""
    found: list[tuple[int, int]] = []
    end = -1
    for one in linked:
        for number, (epoch, start) in enumerate(one.epochs):
            following = one.epochs[number + 1][1] if number + 1 < len(one.epochs) else one.end_offset
            if following > end and (not found or found[-1][0] != epoch):
                found.append((epoch, max(start, end)))
        end = one.end_offset
    return found


def chain_divergence(linked: Sequence[Span], theirs: EpochRuns, their_end: int) -> int | None:
    """Return the first offset at which a log has another leader epoch than the archive, or None."""
    for run in runs(linked):
        offset = divergence(epochs_of(run), run[-1].end_offset, theirs, their_end)
        if offset is not None:
            return offset
    return None


def divergence(mine: EpochRuns, my_end: int, theirs: EpochRuns, their_end: int) -> int | None:
    """Return the first offset at which two logs of one partition have different leader epochs, or None.

    Only offsets that both have are compared; a negative epoch is unknown. A log that begins where the other
    one ends, or later, may not begin with an older epoch.
    """
    if not mine or not theirs:
        return None
    low, high = max(mine[0][1], theirs[0][1]), min(my_end, their_end)
    if low >= high:
        is_first = my_end <= theirs[0][1]
        last_epoch = _epoch_at(mine, my_end - 1) if is_first else _epoch_at(theirs, their_end - 1)
        epoch, start = (theirs if is_first else mine)[0]
        return start if 0 <= epoch < last_epoch else None
    for offset in sorted({low, *(start for _, start in (*mine, *theirs) if low <= start < high)}):
        one, other = _epoch_at(mine, offset), _epoch_at(theirs, offset)
        if one != other and min(one, other) >= 0:
            return offset
    return None


def _epoch_at(epoch_runs: EpochRuns, offset: int) -> int:
    found = -1
    for epoch, start in epoch_runs:
        if start > offset:
            break
        found = epoch
    return found
