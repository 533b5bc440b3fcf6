"""The ledger of transactions: the writes of each one, and the response to its commit. No I/O.

A transaction is aborted if its commit was never requested, or certainly rejected: no reader may see its
records. It is committed if the commit was acknowledged. If the outcome of the commit is unknown, readers may
see all of its records, or none.

No value is written twice, so that a value that a reader returns identifies the write.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from nilometer.simulation.checkers.history import Partition

NO_PRODUCER_ID = -1
"""Of a transaction whose producer keeps its id to itself."""


class Fate(enum.Enum):
    OPEN = "open"
    """Its commit was not requested yet; if it never is, the transaction is aborted."""
    UNKNOWN = "unknown"
    """Its commit was requested; the outcome is not known."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Its commit was rejected, and no earlier request can have succeeded."""


@dataclass(slots=True)
class Written:
    partition: Partition
    value: str
    offset: int | None = None
    """The acknowledged offset; None if the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """An input of the transaction: its offset is committed with it."""

    partition: Partition
    offset: int
    value: str


@dataclass(slots=True)
class LoggedTransaction:
    number: int
    """Counts the transactions in the order in which they began."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    fate: Fate = Fate.OPEN
    writes: list[Written] = field(default_factory=list[Written])
    inputs: tuple[Consumed, ...] = ()
    read: list[str] = field(default_factory=list[str])
    """Values that its program read, as a read_committed consumer, while it was open."""

    def write(self, partition: Partition, value: str) -> Written:
        written = Written(partition, value)
        self.writes.append(written)
        return written

    def __str__(self) -> str:
        producer = f"producer {self.producer_id}, epoch {self.producer_epoch}"
        return f"transaction {self.number} of {self.transactional_id} ({producer}; {self.fate.value})"


@dataclass(slots=True)
class TransactionLedger:
    transactions: list[LoggedTransaction] = field(default_factory=list[LoggedTransaction])

    def begin(self, transactional_id: str, producer_id: int, producer_epoch: int) -> LoggedTransaction:
        begun = LoggedTransaction(len(self.transactions), transactional_id, producer_id, producer_epoch)
        self.transactions.append(begun)
        return begun
