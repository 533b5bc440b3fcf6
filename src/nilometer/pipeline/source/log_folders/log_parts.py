"""A partition's log as it can be read: one or several parts, of an archive and of a replica's folder.

Invariants: parts do not overlap and are in the order of offsets; between two parts offsets may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from nilometer.pipeline.source.log_folders.replica_folders import ReplicaFolder
from nilometer.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class LogPart:
    """The offsets [start, end) in one folder, and the base offsets of its segments."""

    replica: ReplicaFolder
    bases: tuple[int, ...]
    start: int
    end: int

    @property
    def place(self) -> str:
        return self.replica.place


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """The parts of one partition up to its high watermark; at least one, which may be empty."""

    parts: tuple[LogPart, ...]
    stable_end: int | None = None
    """The last stable offset, for a reader of committed records: nothing is read from there on."""

    @property
    def part(self) -> TopicPartition:
        return self.parts[0].replica.part

    @property
    def start(self) -> int:
        return self.parts[0].start

    @property
    def end(self) -> int:
        end = self.parts[-1].end
        return end if self.stable_end is None else max(min(end, self.stable_end), self.start)

    def within(self, start: int, end: int) -> Iterator[tuple[LogPart, int, int]]:
        """Yield each part that has some of [start, end), with the range in it."""
        for part in self.parts:
            low, high = max(start, part.start), min(end, part.end)
            if low < high:
                yield part, low, high

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of [start, end) that lie between two parts."""
        between = [(before.end, here.start) for before, here in pairwise(self.parts)]
        clipped = [(max(low, start), min(high, end)) for low, high in between]
        return [(low, high) for low, high in clipped if low < high]

    def behind_gaps(self) -> tuple[LogPart, ...]:
        """Return the last parts between which nothing is missing."""
        gaps = [
            slot for slot, (before, here) in enumerate(pairwise(self.parts), 1) if before.end < here.start
        ]
        return self.parts[gaps[-1] :] if gaps else self.parts

    def parts_before_gaps(self) -> list[LogPart]:
        return [before for before, here in pairwise(self.parts) if before.end < here.start]
