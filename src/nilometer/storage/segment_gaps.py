"""A gap between two segments of a log that was not closed in order, and that compaction never came through.

Compaction removes records at the end of a segment, and a gap is left before the next one. A power failure
may leave one, too: the end of a segment is lost, the segment behind it is not. The files look the same. So
the folder tells (``LocalLog.may_have_gaps``): its marker is there before the first record is removed, whether
by this replica or by the leader that it follows, and stays when the topic's policy changes. With it gaps are
lawful. Without it only a loss makes a gap: the log ends before it, and what lies behind is set apart, or
readers would get a log with a hole in it without notice.

Until the log is cut it has all its segments, and must not be closed as one in order.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.storage.tail_damage import Damage, DamageKind


class SegmentGap(NamedTuple):
    path: str
    """The log file after the gap."""
    offset: int
    """Where the segment before it ends."""
    next_offset: int
    """Where the segment after it begins."""

    def as_damage(self, evidence: list[str]) -> Damage:
        reason = f"segment begins at offset {self.next_offset}, the one before ended at {self.offset}"
        return Damage(self.path, 0, self.offset, reason, DamageKind.DAMAGED, tuple(evidence))
