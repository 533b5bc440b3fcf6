"""Snapshots (KIP-630): the state after a prefix of the log takes the place of its records.

Each replica makes its own, of what is committed; its content is opaque here. The log then begins at its
*origin*, the end of a snapshot, or of an earlier one as long as the shell keeps the records in between. A
replica whose log ends below the leader's origin, or diverges there, gets the leader's snapshot instead of
records, in parts, and replaces its log by it.

Invariants:
- *a snapshot has only what is committed*, so it is never truncated and replaces nothing that is not in it;
- *the log begins at or below the end of the newest snapshot*: no record is missing between them;
- *the epoch of the last record that is gone is known*: it is the origin's. A log that is only a snapshot is
  as long, and as new, as the one that the snapshot was made from.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.invariants import check
from nilometer.raft.voters import VoterSet
from nilometer.replication.epochs import ReplicaLog


class SnapshotId(NamedTuple):
    end_offset: Offset
    """The snapshot has the state after all records below."""
    epoch: LeaderEpoch
    """The epoch of the last of these records."""


BEGINNING: Final = SnapshotId(0, NO_LEADER_EPOCH)
"""The origin of a log that has all its records."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that is complete and durable."""

    id: SnapshotId
    voters: VoterSet
    """Those that the records below its end have named last."""
    size: int
    """In bytes."""


class SnapshotLog:
    """A log that begins where a snapshot ends: what the roles read of it. Its first epoch is the origin's,
    also if no record of that is left."""

    __slots__ = ("_log", "origin", "snapshot")

    def __init__(self, log: ReplicaLog, origin: SnapshotId, snapshot: Snapshot | None) -> None:
        self._log = log
        self.origin = origin
        self.snapshot = snapshot
        """The newest one."""
        check(
            origin.end_offset <= self.snapshot_end,
            "the log begins at or below its snapshot's end",
            origin,
            snapshot,
        )

    @property
    def snapshot_end(self) -> Offset:
        """What is below is in the newest snapshot; 0 without one."""
        return 0 if self.snapshot is None else self.snapshot.id.end_offset

    @property
    def log_start_offset(self) -> Offset:
        return self.origin.end_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._log.log_end_offset

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.origin.epoch if self._is_empty else self._log.latest_epoch

    @property
    def _is_empty(self) -> bool:
        return self._log.log_end_offset <= self.origin.end_offset

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """As :meth:`ReplicaLog.end_offset_for_epoch`, with the origin's epoch in the chain."""
        end, known = self.origin
        if not self._is_empty:
            found = self._log.end_offset_for_epoch(epoch)
            if found[0] == NO_LEADER_EPOCH or found[1] > end:
                return found
        elif epoch > known:
            return NO_LEADER_EPOCH, UNKNOWN_OFFSET
        return (min(epoch, known) if end else epoch), end

    def has(self, end_offset: Offset, epoch: LeaderEpoch) -> bool:
        """Return whether the record before ``end_offset`` is of ``epoch``, and this log's own or the origin's
        last one."""
        if end_offset <= self.origin.end_offset:
            return (end_offset, epoch) == self.origin
        if end_offset > self.log_end_offset:
            return False
        found, end = self.end_offset_for_epoch(epoch)
        before = self.end_offset_for_epoch(LeaderEpoch(epoch - 1))[1] if epoch > self.origin.epoch else 0
        return found == epoch and max(before, 0) < end_offset <= end

    def needs_snapshot(self, end_offset: Offset, last_epoch: LeaderEpoch) -> bool:
        """Return whether a log that ends at ``end_offset``, with a record of ``last_epoch``, cannot be
        continued by records of this one: it ends below the origin, or differs from it there."""
        begin, epoch = self.origin
        if self.snapshot is None or not begin:
            return False
        return end_offset < begin or last_epoch < epoch or (end_offset == begin and last_epoch != epoch)


class Download:
    """A snapshot that a follower fetches from its leader, part after part."""

    __slots__ = ("id", "is_complete", "position")

    def __init__(self, snapshot: SnapshotId) -> None:
        self.id = snapshot
        self.position = 0
        """How many bytes have come."""
        self.is_complete = False
        """Whether all have come; the shell reads them then."""
