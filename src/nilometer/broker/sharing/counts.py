"""What share groups have done on this broker since its start: of each group, and of all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from nilometer.share.partition_events import AcknowledgementBatch, Acquired, DeadReason

GROUPS_MAX = 999
"""So many groups are counted each by itself: the first since the start."""


class GroupCounts(msgspec.Struct):
    """Counts of records, unless they say otherwise."""

    acquired: int = 0
    """Deliveries, the repeated ones included."""
    redelivered: int = 0
    lock_timeouts: int = 0
    """Locks that ended before an acknowledgement."""
    dead: Counter[DeadReason] = msgspec.field(default_factory=Counter[DeadReason])
    letters: int = 0
    """Dead letters that were written."""
    letters_failed: int = 0
    """Dead letters that were given up."""
    letter_requests: int = 0
    """Attempts to write a batch of dead letters."""
    letter_requests_failed: int = 0
    """Batches of dead letters that were given up."""


class ShareCounts:
    def __init__(self) -> None:
        self.all = GroupCounts()
        self.by_group: dict[str, GroupCounts] = {}
        self.acknowledgements: Counter[int] = Counter()
        """Of records, by type."""

    def of(self, group_id: str) -> Iterable[GroupCounts]:
        """Return where something of the group is counted."""
        mine = self.by_group.get(group_id)
        if mine is None:
            if len(self.by_group) >= GROUPS_MAX:
                return (self.all,)
            mine = self.by_group[group_id] = GroupCounts()
        return self.all, mine

    def note_acquired(self, group_id: str, acquired: Sequence[Acquired]) -> None:
        records = redelivered = 0
        for one in acquired:
            count = one.last_offset - one.first_offset + 1
            records += count
            redelivered += count if one.delivery_count > 1 else 0
        for counts in self.of(group_id):
            counts.acquired += records
            counts.redelivered += redelivered

    def note_acknowledged(self, batches: Sequence[AcknowledgementBatch]) -> None:
        for first_offset, last_offset, types in batches:
            if len(types) == 1:
                self.acknowledgements[types[0]] += last_offset - first_offset + 1
            else:
                self.acknowledgements.update(types)
