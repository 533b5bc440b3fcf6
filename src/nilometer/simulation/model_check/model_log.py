"""A replica's log as the theory has it: a list of (leader epoch, value), and the epoch chain.

The dumb counterpart of the storage engine's log, for the model check, the scenarios and tests. An offset is
an index; nothing is ever deleted at the front unless a log is started again.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.replication import NO_EPOCH, UNKNOWN_OFFSET, check

Record = tuple[int, int]
"""(leader epoch it was written in, value)"""


class ModelLog:
    """Invariants: epochs never fall along the log; the chain rises in epochs and in offsets."""

    __slots__ = ("chain", "log_start_offset", "records")

    def __init__(self, records: Iterable[Record] = (), log_start_offset: int = 0) -> None:
        self.log_start_offset = log_start_offset
        self.records: list[Record] = []
        self.chain: list[tuple[int, int]] = []
        for epoch, value in records:
            self.append(epoch, value)

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.chain[-1][0] if self.chain else NO_EPOCH

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if epoch > self.latest_epoch:
            return NO_EPOCH, UNKNOWN_OFFSET
        found, end_offset = NO_EPOCH, self.log_end_offset
        for known, start_offset in self.chain:
            if known > epoch:
                end_offset = start_offset
                break
            found = known
        return (epoch if found == NO_EPOCH else found), end_offset

    def start_epoch(self, epoch: int, start_offset: int) -> None:
        """An epoch that starts where an earlier one did takes its place: nothing was written in that."""
        if epoch == self.latest_epoch:
            return
        check(epoch > self.latest_epoch, "epochs only rise along a log", epoch, self.chain)
        self.chain = [entry for entry in self.chain if entry[1] < start_offset]
        self.chain.append((epoch, start_offset))

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
