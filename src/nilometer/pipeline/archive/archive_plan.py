"""Decides which segments of a partition's replicas are copied. Pure.

A segment is copied if it is sealed (another one follows it), complete below the high watermark, and has an
offset that no archived segment has. The replica with the newest leader epoch below its high watermark comes
first; replicas that diverge from it are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nilometer.pipeline.source.log_folders.archive_manifest import EpochRuns, divergence


@dataclass(frozen=True, slots=True)
class SourceLog:
    """What is known of one replica before any of its segments is read."""

    name: str
    bases: tuple[int, ...]
    """The base offsets of its segments; the last one is active."""
    log_start: int
    high_watermark: int
    epochs: EpochRuns
    """Its leader epoch checkpoint."""

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record below the high watermark; -1 if unknown."""
        return max((epoch for epoch, start in self.epochs if start < self.high_watermark), default=-1)


@dataclass(frozen=True, slots=True)
class Copy:
    """One segment to copy: the number of the replica in the plan, and the segment's offsets [base, end)."""

    source: int
    base_offset: int
    end_offset: int
    start_offset: int
    """Its first offset that may be read."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """A replica that is not used, because its log is another one from ``offset`` on."""

    name: str
    offset: int


def in_order(sources: Sequence[SourceLog]) -> list[int]:
    """Return the numbers of the replicas in the order in which they are used."""

    def rank(number: int) -> tuple[int, int, int]:
        one = sources[number]
        return -one.last_epoch, -one.high_watermark, one.log_start

    return sorted(range(len(sources)), key=rank)


def diverging(sources: Sequence[SourceLog]) -> dict[int, Diverging]:
    """Return the replicas whose log differs from that of the first one in order, by number."""
    order = in_order(sources)
    if not order:
        return {}
    first = sources[order[0]]
    found: dict[int, Diverging] = {}
    for number in order[1:]:
        one = sources[number]
        offset = divergence(first.epochs, first.high_watermark, one.epochs, one.high_watermark)
        if offset is not None:
            found[number] = Diverging(one.name, offset)
    return found


def decide_copies(sources: Sequence[SourceLog], archived: Iterable[tuple[int, int]]) -> list[Copy]:
    """Return the segments to copy, in the order of offsets; ``archived`` are ranges [start, end)."""
    unusable = diverging(sources)
    covered = list(archived)
    copies: list[Copy] = []
    for number in in_order(sources):
        if number in unusable:
            continue
        for base, end in sealed(sources[number]):
            start = max(base, sources[number].log_start)
            if not covers(covered, start, end):
                copies.append(Copy(number, base, end, start))
                covered.append((base, end))
    return sorted(copies, key=lambda one: (one.base_offset, one.end_offset))


def sealed(source: SourceLog) -> list[tuple[int, int]]:
    """Return base and end offset of the segments that are sealed, committed and not below the log start."""
    return [
        (base, end) for base, end in pairwise(source.bases) if source.log_start < end <= source.high_watermark
    ]


def why_none(sources: Sequence[SourceLog]) -> str | None:
    """Return why the log has no segment to copy; None if it has some."""
    order = in_order(sources)
    if not order:
        return "no replica of it is there"
    first = sources[order[0]]
    if len(first.bases) < 2:
        return (
            "its only segment is the active one, which is not copied: segment.bytes and segment.ms of the "
            "topic say when it is sealed"
        )
    if not sealed(first):
        return (
            f"its sealed segments are not known to be committed: {first.name} has a high watermark of "
            f"{first.high_watermark}, which its broker writes down when it stops, and every "
            "replica.high.watermark.checkpoint.interval.ms while it runs. Run this command again then"
        )
    return None


def covers(ranges: Iterable[tuple[int, int]], start: int, end: int) -> bool:
    """Whether the ranges together contain all of [start, end)."""
    for low, high in sorted(ranges):
        if low > start:
            break
        start = max(start, high)
    return start >= end


def lost(archived_end: int | None, sources: Sequence[SourceLog], end: int) -> list[tuple[int, int]]:
    """Return the range that no replica has any more and that the archive has not: deleted too early.

    ``archived_end`` is where the archive ended before, None if it was empty; ``end`` is its present end. What
    is missing between archived segments shows in the archive itself.
    """
    if archived_end is None or not sources:
        return []
    start = min(one.log_start for one in sources)
    return [(archived_end, start)] if start > archived_end and end <= archived_end else []
