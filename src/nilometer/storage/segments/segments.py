"""The segments of a log, ordered by base offset.

The segments are one tuple that is replaced as a whole on every change, so a reader on any thread that takes
the tuple once sees a consistent state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from nilometer.storage.segments.segment import LogSegment


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


class LogSegments:
    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments: tuple[LogSegment, ...] = tuple(sorted(segments, key=_base_offset))

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @property
    def first(self) -> LogSegment:
        return self._segments[0]

    @property
    def active(self) -> LogSegment:
        """The last segment, the only one that is appended to."""
        return self._segments[-1]

    def newest(self, count: int) -> tuple[LogSegment, ...]:
        """Return the last ``count`` segments, or all."""
        return self._segments[-count:]

    def floor(self, offset: int) -> LogSegment | None:
        """Return the segment with the largest base offset not above ``offset``, or None."""
        segments = self._segments
        slot = bisect_right(segments, offset, key=_base_offset) - 1
        return segments[slot] if slot >= 0 else None

    def higher(self, base_offset: int) -> LogSegment | None:
        """Return the segment after the one at ``base_offset``, or None."""
        segments = self._segments
        slot = bisect_right(segments, base_offset, key=_base_offset)
        return segments[slot] if slot < len(segments) else None

    def from_offset(self, offset: int) -> tuple[LogSegment, ...]:
        """Return the segments that may contain ``offset`` or higher offsets."""
        segments = self._segments
        return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0) :]

    def add(self, segment: LogSegment) -> None:
        segments = self._segments
        slot = bisect_left(segments, segment.base_offset, key=_base_offset)
        self._segments = (*segments[:slot], segment, *segments[slot:])

    def remove(self, gone: Iterable[LogSegment]) -> None:
        bases = {segment.base_offset for segment in gone}
        self._segments = tuple(segment for segment in self._segments if segment.base_offset not in bases)

    def replace(self, gone: Iterable[LogSegment], segment: LogSegment) -> None:
        """Replace the adjacent segments ``gone`` by ``segment``, which has the first one's base offset."""
        bases = {one.base_offset for one in gone}
        kept = (one for one in self._segments if one.base_offset not in bases)
        self._segments = tuple(sorted((*kept, segment), key=_base_offset))

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self._segments)
