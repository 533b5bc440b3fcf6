"""Tracking transactions while a cleaner reads a log from its start.

- The transaction index shows which batches belong to an aborted transaction: their records are removed at
  once, and must not count as the newest of their keys.
- A marker, commit or abort, is needed as long as the log has a batch of its transaction: without it a
  read-committed consumer cannot tell where the transaction ends. The same holds for the index entry of an
  aborted transaction.

Use one tracker for one pass over the batches, from the log start offset on, in order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.control_records import ControlType
from nilometer.wire.record_batch import BatchHeader


class TransactionTracker:
    __slots__ = ("_aborted", "_met")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """``aborted``: all aborted transactions that overlap the offsets to be read."""
        self._aborted: defaultdict[int, deque[AbortedTxn]] = defaultdict(deque)
        for entry in sorted(set(aborted), key=lambda entry: entry.last_offset):
            self._aborted[entry.producer_id].append(entry)
        self._met: set[int] = set()
        """Ids of the producers with a batch of their current transaction in the log."""

    def on_batch(self, header: BatchHeader) -> bool:
        """Track a data batch; return whether it belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._met.add(header.producer_id)
        entry = self._entry_at(header.producer_id, header.base_offset)
        return entry is not None and entry.first_offset <= header.base_offset

    def on_marker(self, header: BatchHeader, kind: ControlType) -> tuple[bool, AbortedTxn | None]:
        """Track a transaction marker of type ``kind``.

        Returns whether the log has no batch of its transaction left, and the transaction index entry to keep,
        if any.
        """
        is_met = header.producer_id in self._met
        self._met.discard(header.producer_id)
        entry = self._entry_at(header.producer_id, header.base_offset)
        if entry is not None and entry.first_offset > header.base_offset:
            entry = None
        return not is_met, entry if is_met and kind is ControlType.ABORT else None

    def _entry_at(self, producer_id: int, offset: int) -> AbortedTxn | None:
        """Return the producer's first aborted transaction that ends at ``offset`` or later, or None."""
        entries = self._aborted.get(producer_id)
        while entries and entries[0].last_offset < offset:
            entries.popleft()
        return entries[0] if entries else None
