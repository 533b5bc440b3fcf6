"""Planning a compaction: which part of a log to clean, whether it is due, and which segments to merge.

A log's *clean* part ends at the checkpointed offset of the last round; the *dirty* part starts there. The
dirty part may be cleaned up to the least of

- the base offset of the active segment;
- the last stable offset, and so the high watermark: above it records may still be truncated or aborted;
- the recovery point on disk: an unclean restart rebuilds the leader epochs above it from the batches; if the
  first batch of an epoch had been removed, the epoch would start too late, and a follower would keep a
  divergent tail;
- the first segment with a record younger than ``min.compaction.lag.ms``.

Only whole segments are cleaned. Planning reads timestamps in the segments' files: it may block, and is safe
on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.storage.log_state import LogState
from nilometer.storage.segments.indexes import RELATIVE_OFFSET_MAX
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.topic_config import LogConfig

GROUP_SEGMENTS_MAX = 64
"""Limits the renames that replacing one group needs, a few per segment, on the thread of the log's owner."""


class CleanableView(msgspec.Struct, frozen=True):
    """The log's state from which a plan is made, copied on the owner's thread without blocking."""

    name: str
    segments: tuple[LogSegment, ...]
    """All segments; the last one is active."""
    config: LogConfig
    first_dirty_offset: int
    bound: int
    """No record at or above this offset may be cleaned, whatever its age."""

    @classmethod
    def of(cls, log: LogState, *, last_stable_offset: int, durable_recovery_point: int) -> CleanableView:
        first_dirty = max(log.cleaned_offset, log.log_start_offset)
        bound = min(
            last_stable_offset,
            durable_recovery_point,
            log.recovery_point,
            log.segments.active.base_offset,
        )
        return cls(log.name, tuple(log.segments), log.config, first_dirty, bound)

    @property
    def is_promising(self) -> bool:
        """Whether some whole segment is in the dirty part below the bound: a check without file access."""
        return any(
            self.first_dirty_offset < following.base_offset <= self.bound for following in self.segments
        )


class CleaningPlan(msgspec.Struct, frozen=True):
    segments: tuple[LogSegment, ...]
    """The segments to rewrite, from the first one of the log on, including those in the clean part."""
    first_dirty_offset: int
    end_offset: int
    """The offset at which the last of these segments ends."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether some record is older than ``max.compaction.lag.ms``."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_worth_it(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (
            self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio
        )


def plan_cleaning(view: CleanableView, wall_ms: int) -> CleaningPlan | None:
    """Return which segments to clean, or None if no whole segment may be cleaned. Raises OSError."""
    ends = [*(segment.base_offset for segment in view.segments[1:]), None]
    first_dirty = view.first_dirty_offset
    segments: list[LogSegment] = []
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty
    for segment, end in zip(view.segments, ends, strict=True):
        if end is None or end > view.bound:
            break
        if end > first_dirty:
            if _is_too_young(segment, view.config, wall_ms):
                break
            dirty_bytes += segment.size
        else:
            clean_bytes += segment.size
        segments.append(segment)
        end_offset = end
    if end_offset <= first_dirty:
        return None
    is_overdue = _is_overdue(view, wall_ms)
    return CleaningPlan(tuple(segments), first_dirty, end_offset, clean_bytes, dirty_bytes, is_overdue)


def oldest_timestamp(segment: LogSegment) -> int | None:
    """Return the timestamp of the segment's first batch, which decides its age; None if it has none."""
    timestamp = segment.first_batch_timestamp()
    return timestamp if timestamp is not None and timestamp >= 0 else None


def _is_too_young(segment: LogSegment, config: LogConfig, wall_ms: int) -> bool:
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and segment.size > 0 and segment.largest_timestamp() > wall_ms - lag_ms


def _is_overdue(view: CleanableView, wall_ms: int) -> bool:
    """Whether a segment of the dirty part, except the active one, is older than the maximum lag."""
    latest = wall_ms - view.config.max_compaction_lag_ms
    if latest < 0:
        return False
    ends = (segment.base_offset for segment in view.segments[1:])
    dirty = (one for one, end in zip(view.segments, ends, strict=False) if end > view.first_dirty_offset)
    return any((found := oldest_timestamp(segment)) is not None and found < latest for segment in dirty)


def group_segments(
    segments: Sequence[LogSegment], end_offset: int, segment_bytes: int
) -> list[tuple[LogSegment, ...]]:
    """Return groups of adjacent segments, each to be rewritten as one segment.

    A group has at most ``segment_bytes`` bytes, and offsets that fit into one index. So compaction does not
    leave ever smaller segments.
    """
    groups: list[tuple[LogSegment, ...]] = []
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    for segment, end in zip(segments, ends, strict=True):
        group = groups[-1] if groups else ()
        fits = (
            group
            and len(group) < GROUP_SEGMENTS_MAX
            and sum(one.size for one in group) + segment.size <= segment_bytes
            and end - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if fits:
            groups[-1] = (*group, segment)
        else:
            groups.append((segment,))
    return groups
