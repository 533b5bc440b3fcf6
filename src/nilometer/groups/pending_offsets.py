"""Pending offsets: committed in transactions that are still open, by the producer whose marker ends them.

Until then their only effect is that the partition's offset is unstable. A later ordinary commit of the same
partition replaces the pending offset, whether or not the transaction commits; a deletion removes it.
"""

from __future__ import annotations

from nilometer.groups.records import OffsetCommitKey, OffsetCommitValue


class PendingOffsets:
    """Invariant: both tables hold the same keys and producers."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetCommitKey, OffsetCommitValue | None]] = {}
        """By producer id; a value of None: still unstable, but a later ordinary commit has replaced it."""
        self._by_group: dict[str, dict[OffsetCommitKey, dict[int, None]]] = {}

    def add(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        self._by_producer.setdefault(producer_id, {})[key] = value
        self._by_group.setdefault(key.group, {}).setdefault(key, {})[producer_id] = None

    def is_pending(self, key: OffsetCommitKey) -> bool:
        return key in self._by_group.get(key.group, {})

    def of_group(self, group_id: str) -> list[OffsetCommitKey]:
        return list(self._by_group.get(group_id, {}))

    def on_plain_record(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Note a record for the key that was written outside of a transaction: a commit, or a tombstone."""
        for producer_id in list(self._by_group.get(key.group, {}).get(key, {})):
            if value is None:
                self._remove(producer_id, key)
            else:
                self._by_producer[producer_id][key] = None

    def end(self, producer_id: int) -> list[tuple[OffsetCommitKey, OffsetCommitValue]]:
        """Remove the pending offsets of a producer whose transaction has ended, and return those that count
        if it was committed."""
        pending = dict(self._by_producer.get(producer_id, {}))
        for key in pending:
            self._remove(producer_id, key)
        return [(key, value) for key, value in pending.items() if value is not None]

    def _remove(self, producer_id: int, key: OffsetCommitKey) -> None:
        offsets = self._by_producer[producer_id]
        del offsets[key]
        if not offsets:
            del self._by_producer[producer_id]
        keys = self._by_group[key.group]
        del keys[key][producer_id]
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._by_group[key.group]
