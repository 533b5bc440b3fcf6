"""A log of (leader epoch, value) pairs with its epoch chain: the dumb version the roles are tested on."""

from __future__ import annotations

from nilometer.replication import (
    AppendBatches,
    Effect,
    StartEpoch,
    TruncateFully,
    TruncateTo,
)


class ListLog:
    """Invariant: epochs of the records never fall; the chain has an entry for each of them."""

    def __init__(self, *epochs: int, log_start_offset: int = 0) -> None:
        """A log with one record per given epoch."""
        self.log_start_offset = log_start_offset
        self.records: list[tuple[int, str]] = []
        self.chain: list[tuple[int, int]] = []
        for epoch in epochs:
            self.append(epoch, f"m{self.log_end_offset}")

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.chain[-1][0] if self.chain else -1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if not self.chain or epoch > self.latest_epoch:
            return (-1, -1)
        if epoch == self.latest_epoch:
            return (epoch, self.log_end_offset)
        higher_start = min(start for known, start in self.chain if known > epoch)
        return max((known for known, _ in self.chain if known <= epoch), default=epoch), higher_start

    def start_epoch(self, epoch: int, offset: int) -> None:
        if epoch > self.latest_epoch:
            self.chain = [entry for entry in self.chain if entry[1] < offset] + [(epoch, offset)]

    def append(self, epoch: int, value: str) -> None:
        self.start_epoch(epoch, self.log_end_offset)
        self.records.append((epoch, value))

    def truncate_to(self, offset: int) -> None:
        self.chain = [entry for entry in self.chain if entry[1] < offset]
        del self.records[offset - self.log_start_offset :]

    def truncate_fully(self, offset: int) -> None:
        self.chain, self.records, self.log_start_offset = [], [], offset

    def carry_out(self, effects: tuple[Effect, ...], source: ListLog | None = None) -> None:
        """What the effects do to a log; batches come from ``source``."""
        for effect in effects:
            match effect:
                case TruncateTo(offset):
                    self.truncate_to(offset)
                case TruncateFully(offset):
                    self.truncate_fully(offset)
                case StartEpoch(epoch, offset):
                    self.start_epoch(epoch, offset)
                case AppendBatches(end_offset):
                    assert source is not None
                    while self.log_end_offset < end_offset:
                        self.append(*source.records[self.log_end_offset - source.log_start_offset])
                case _:
                    pass
