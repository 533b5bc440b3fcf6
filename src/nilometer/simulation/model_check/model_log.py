"""A minimal replica log: a list of (leader epoch, value), and the epoch chain.

It replaces the storage engine's log in the model check, the scenarios and tests. An offset is the index of a
record plus the log start offset, which changes only when the log is truncated fully. The epoch chain has
the start offset of each leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.replication import check

Record = tuple[int, int]
"""(leader epoch in which it was appended, value)"""


class ModelLog:
    """Invariants: epochs never decrease along the log; epochs and offsets of the chain are increasing."""

    __slots__ = ("chain", "log_start_offset", "records")

    def __init__(self, records: Iterable[Record] = (), log_start_offset: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.records: list[Record] = []
        self.chain: list[tuple[LeaderEpoch, Offset]] = []
        for epoch, value in records:
            self.append(epoch, value)

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.chain[-1][0] if self.chain else NO_LEADER_EPOCH

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        if epoch > self.latest_epoch:
            return NO_LEADER_EPOCH, UNKNOWN_OFFSET
        found, end_offset = NO_LEADER_EPOCH, self.log_end_offset
        for known, start_offset in self.chain:
            if known > epoch:
                end_offset = start_offset
                break
            found = known
        return (epoch if found == NO_LEADER_EPOCH else found), end_offset

    def start_epoch(self, epoch: int, start_offset: int) -> None:
        """Add an epoch to the chain; it replaces one with the same start offset, which has no records."""
        if epoch == self.latest_epoch:
            return
        check(epoch > self.latest_epoch, "epochs only rise along a log", epoch, self.chain)
        self.chain = [entry for entry in self.chain if entry[1] < start_offset]
        self.chain.append((LeaderEpoch(epoch), start_offset))

    def append(self, epoch: int, value: int) -> None:
        self.start_epoch(epoch, self.log_end_offset)
        self.records.append((epoch, value))

    def truncate_to(self, offset: int) -> None:
        del self.records[max(0, offset - self.log_start_offset) :]
        self.chain = [entry for entry in self.chain if entry[1] < offset]

    def truncate_fully(self, start_offset: int) -> None:
        self.records, self.chain, self.log_start_offset = [], [], start_offset

    def read(self, offset: int, max_records: int) -> tuple[Record, ...]:
        index = offset - self.log_start_offset
        return tuple(self.records[index : index + max_records])
