"""The segments of a partition's replicas, side by side by base offset. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nilometer.client.replicas.replica_survey import ReplicaRow
from nilometer.wire.own_apis import SegmentsState, SegmentState

ROWS_MAX = 50
"""How many base offsets are shown: the newest."""
UNUSABLE = "its log cannot be used"
EARLIER_VERSION = "its broker is of a version that does not describe segments"


@dataclass(frozen=True, slots=True)
class SegmentCell:
    """A segment of one replica."""

    size_bytes: int
    modified_ms: int
    """In ms since the epoch; -1: not known."""
    is_active: bool
    """Whether records are appended to it."""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    base_offset: int
    largest_timestamp: int
    """In ms since the epoch, as one of the brokers knows it; -1: not known."""
    cells: tuple[SegmentCell | None, ...]
    """For each of ``SegmentsView.brokers``; None: its replica has no segment with this base offset."""


@dataclass(frozen=True, slots=True)
class SegmentsView:
    brokers: tuple[int, ...]
    """Those that describe their segments."""
    counts: tuple[int, ...]
    """How many segments each of them has."""
    rows: tuple[SegmentRow, ...]
    """The newest first."""
    is_cut: bool
    """Whether there are older segments that are not shown."""
    absent: tuple[tuple[int, str], ...]
    """The brokers that do not describe theirs, and why."""


def segments_view(rows: Sequence[ReplicaRow]) -> SegmentsView:
    """``rows``: the replicas of one partition."""
    known = {row.broker_id: found for row in rows if (found := _segments(row)) is not None}
    by_offset = {broker: {one.base_offset: one for one in found.newest} for broker, found in known.items()}
    offsets = sorted({offset for found in by_offset.values() for offset in found}, reverse=True)
    shown = offsets[:ROWS_MAX]
    return SegmentsView(
        brokers=tuple(known),
        counts=tuple(found.count for found in known.values()),
        rows=tuple(_row(offset, known, by_offset) for offset in shown),
        is_cut=len(shown) < len(offsets) or any(one.count > len(one.newest) for one in known.values()),
        absent=tuple((row.broker_id, _why_absent(row)) for row in rows if row.broker_id not in known),
    )


def _segments(row: ReplicaRow) -> SegmentsState | None:
    return None if row.state is None else row.state.segments


def _why_absent(row: ReplicaRow) -> str:
    if row.state is None:
        return row.failure or "it does not respond"
    return UNUSABLE if row.state.log_end_offset < 0 else EARLIER_VERSION


def _row(
    offset: int, known: dict[int, SegmentsState], by_offset: dict[int, dict[int, SegmentState]]
) -> SegmentRow:
    found = {broker: segments.get(offset) for broker, segments in by_offset.items()}
    cells = tuple(_cell(known[broker], segment) for broker, segment in found.items())
    largest = max(-1 if segment is None else segment.largest_timestamp for segment in found.values())
    return SegmentRow(offset, largest, cells)


def _cell(log: SegmentsState, segment: SegmentState | None) -> SegmentCell | None:
    if segment is None:
        return None
    return SegmentCell(segment.size_bytes, segment.modified_ms, segment is log.newest[-1])
