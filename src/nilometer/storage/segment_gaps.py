"""A gap between two segments of a log that was not cleanly shut down and was never compacted.

Compaction may remove the records at the end of a segment, which leaves a gap before the next one. A power
failure may leave one, too: the end of a segment is lost, the segment after it is not. The files look the
same. So a marker file in the folder (``LocalLog.may_have_gaps``) is created before the first record is
removed, whether by this replica or by the leader that it follows, and it stays when the topic's policy
changes. With the marker gaps are valid. Without it a gap is a loss of data: the log is ended before it, and
the segments after it are kept as ``.corrupt`` files, since readers would not notice the missing records.

Until the log is cut at the gap it has all its segments, and must not count as cleanly shut down.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.storage.tail_damage import Damage, DamageKind


class SegmentGap(NamedTuple):
    path: str
    """The log file after the gap."""
    offset: int
    """The offset at which the segment before the gap ends."""
    next_offset: int
    """The base offset of the segment after the gap."""

    def as_damage(self, evidence: list[str]) -> Damage:
        reason = f"segment begins at offset {self.next_offset}, the one before ended at {self.offset}"
        return Damage(self.path, 0, self.offset, reason, DamageKind.DAMAGED, tuple(evidence))
