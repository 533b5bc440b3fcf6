"""A gap between two segments of a log that was not closed in order.

Compaction removes records at the end of a segment, and a gap is left before the next one. A power failure
may leave one, too: the end of a segment is lost, the segment behind it is not. The files look the same, so
the topic's policy decides, as soon as it is known:

- compacted: the gap stays, as in Kafka;
- not compacted: only a loss makes a gap. The log ends before it, and what lies behind is kept aside, or
  readers would get a log with a hole in it without notice.

Until then the log has all its segments, and must not be closed as one in order.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.storage.tail_damage import Damage, DamageKind


class SegmentGap(NamedTuple):
    path: str
    """The log file behind the gap."""
    offset: int
    """Where the segment before it ends."""
    next_offset: int
    """Where the segment behind it begins."""

    def as_damage(self, evidence: list[str]) -> Damage:
        reason = f"segment begins at offset {self.next_offset}, the one before ended at {self.offset}"
        return Damage(self.path, 0, self.offset, reason, DamageKind.DAMAGED, tuple(evidence))
