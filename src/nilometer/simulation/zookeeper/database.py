"""The data of one server: the transaction log on its disk, and the tree with the applied transactions.

Every proposed transaction is written to the log; the synced ones survive a crash. Invariant: the zxids of
the log are increasing, and ``base`` is the tree as of the transactions removed from the log's start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from nilometer.invariants import check
from nilometer.simulation.zookeeper.tree import Applied, DataTree, Transaction

LOG_MAX = 1_500
LOG_KEPT = 500
"""Applied transactions kept in the log for returning followers; one that lacks more gets a snapshot."""


def _zxid(transaction: Transaction) -> int:
    return transaction.zxid


class Database:
    def __init__(self) -> None:
        self.accepted_epoch = 0
        self.current_epoch = 0
        self.base = DataTree()
        self.log: list[Transaction] = []
        self.tree = DataTree()
        self._unsynced = 0
        """Number of transactions at the log's end that a crash would remove."""

    @property
    def last_zxid(self) -> int:
        return self.log[-1].zxid if self.log else self.base.zxid

    def load(self) -> None:
        """Restore the state after a crash: drop the unsynced transactions and rebuild the tree."""
        if self._unsynced:
            del self.log[-self._unsynced :]
            self._unsynced = 0
        self._rebuild()

    def write(self, transaction: Transaction) -> None:
        check(transaction.zxid > self.last_zxid, "zxids rise", transaction.zxid, self.last_zxid)
        self.log.append(transaction)
        self._unsynced += 1

    def synced_to(self, zxid: int) -> None:
        self._unsynced = len(self.log) - bisect_right(self.log, zxid, key=_zxid)

    def fast_forward(self) -> None:
        """Apply every written transaction, and count all as synced.

        Called between two roles, when a server cannot know which of them are committed.
        """
        self._unsynced = 0
        for transaction in self.between(self.tree.zxid, self.last_zxid):
            self.tree.apply(transaction)

    def apply(self, transaction: Transaction) -> Applied:
        return self.tree.apply(transaction)

    def between(self, after: int, up_to: int) -> list[Transaction]:
        start, end = (bisect_right(self.log, zxid, key=_zxid) for zxid in (after, up_to))
        return self.log[start:end]

    def position_before(self, zxid: int) -> int | None:
        """Return the newest zxid of the log that is at most ``zxid``; None if the log starts after it."""
        place = bisect_right(self.log, zxid, key=_zxid)
        if place:
            return self.log[place - 1].zxid
        oldest = self.log[0].zxid if self.log else self.base.zxid + 1
        return self.base.zxid if zxid >= self.base.zxid and self.base.zxid < oldest else None

    def truncate(self, to_zxid: int) -> None:
        """Remove the transactions after ``to_zxid``, which were never committed."""
        check(to_zxid >= self.base.zxid, "the base is not truncated", to_zxid, self.base.zxid)
        del self.log[bisect_right(self.log, to_zxid, key=_zxid) :]
        if self.tree.zxid > to_zxid:
            self._rebuild()

    def replace(self, snapshot: DataTree) -> None:
        self.base, self.tree, self.log, self._unsynced = snapshot, snapshot.copy(), [], 0

    def extend(self, transactions: Iterable[Transaction]) -> None:
        """Append and apply committed transactions, and count all as synced."""
        for transaction in transactions:
            self.log.append(transaction)
            self.tree.apply(transaction)
        self._unsynced = 0

    def compact(self) -> None:
        """Remove the log's oldest transactions once it has more than ``LOG_MAX``.

        Only called while serving: all applied transactions are then committed.
        """
        if len(self.log) > LOG_MAX:
            self.base = self.tree.copy()
            applied = bisect_right(self.log, self.base.zxid, key=_zxid)
            del self.log[: max(0, applied - LOG_KEPT)]

    def _rebuild(self) -> None:
        self.tree = self.base.copy()
        for transaction in self.between(self.base.zxid, self.last_zxid):
            self.tree.apply(transaction)
