"""What a cleaner that reads a log from its start knows of the transactions on its way.

- A batch of an aborted transaction is known by the index of aborted transactions: its records may go at
  once, and must not count as the newest of their keys.
- A marker, commit or abort, is needed as long as a batch of its transaction is met: a reader takes what comes
  before an abort marker as aborted until it is there. So is the index entry of an aborted one.

One tracker sees one pass over the batches, from the log start on, in order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from nilometer.storage.producers.transaction_marker import ControlType
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.record_batch import BatchHeader


class TransactionTracker:
    __slots__ = ("_aborted", "_met")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """``aborted``: all that overlap what will be read."""
        self._aborted: defaultdict[int, deque[AbortedTxn]] = defaultdict(deque)
        for entry in sorted(set(aborted), key=lambda entry: entry.last_offset):
            self._aborted[entry.producer_id].append(entry)
        self._met: set[int] = set()
        """Producers of whose current transaction a batch was met."""

    def on_batch(self, header: BatchHeader) -> bool:
        """A batch of records was met; whether it belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._met.add(header.producer_id)
        entry = self._entry_at(header.producer_id, header.base_offset)
        return entry is not None and entry.first_offset <= header.base_offset

    def on_marker(self, header: BatchHeader, kind: ControlType) -> tuple[bool, AbortedTxn | None]:
        """A marker was met; whether no batch of its transaction was, and the index entry to keep, if any."""
        is_met = header.producer_id in self._met
        self._met.discard(header.producer_id)
        entry = self._entry_at(header.producer_id, header.base_offset)
        if entry is not None and entry.first_offset > header.base_offset:
            entry = None
        return not is_met, entry if is_met and kind is ControlType.ABORT else None

    def _entry_at(self, producer_id: int, offset: int) -> AbortedTxn | None:
        """The producer's first aborted transaction that ends at ``offset`` or later."""
        entries = self._aborted.get(producer_id)
        while entries and entries[0].last_offset < offset:
            entries.popleft()
        return entries[0] if entries else None
