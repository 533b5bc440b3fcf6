"""A history for long runs: every record is stored once, however often it is read.

Of each poll only the records with new information are kept: the first one read at an offset, a different one,
and the steps that did not lead to the next offset. The check of the history has the same result as with all
records. Memory grows with the number of written records, not with that of read ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nilometer.simulation.checkers.history import History, Partition, Seen

FIRST_SEEN = "first seen by {}"
"""The consumer name for records that are kept for their content, without the order of reading."""


@dataclass(slots=True)
class LongHistory(History):
    kept_whole: frozenset[str] = frozenset()
    """Consumers of which every poll is kept, because they must read all records."""
    _values: dict[Partition, dict[int, str]] = field(default_factory=dict[Partition, dict[int, str]])
    _last: dict[str, dict[Partition, int]] = field(default_factory=dict[str, dict[Partition, int]])

    def moved(self, consumer: str, partition: Partition | None = None) -> None:
        """Forget the consumer's position: its next record starts a new sequence."""
        if consumer in self.kept_whole:
            History.moved(self, consumer, partition)
        elif partition is None:
            self._last.pop(consumer, None)
        else:
            self._last.get(consumer, {}).pop(partition, None)

    def poll(self, consumer: str, records: Iterable[Seen], transaction: str | None = None) -> None:
        if consumer in self.kept_whole:
            History.poll(self, consumer, records, transaction)
            return
        last = self._last.setdefault(consumer, {})
        unseen: list[Seen] = []
        for seen in records:
            values = self._values.setdefault(seen.partition, {})
            if seen.offset not in values:
                values[seen.offset] = seen.value
                if unseen and not _follows(seen, unseen[-1]):
                    self._keep(FIRST_SEEN.format(consumer), unseen, transaction)
                    unseen = []
                unseen.append(seen)
            elif values[seen.offset] != seen.value:
                self._keep(FIRST_SEEN.format(consumer), [seen], transaction)
            before = last.get(seen.partition)
            if before is not None and seen.offset != before + 1:
                self._keep(consumer, [Seen(seen.partition, before, values[before]), seen], transaction)
            last[seen.partition] = seen.offset
        if unseen:
            self._keep(FIRST_SEEN.format(consumer), unseen, transaction)

    def _keep(self, consumer: str, records: list[Seen], transaction: str | None) -> None:
        """Keep a sequence of records that does not continue an earlier one."""
        History.moved(self, consumer, records[0].partition)
        History.poll(self, consumer, records, transaction)


def _follows(seen: Seen, before: Seen) -> bool:
    return seen.partition == before.partition and seen.offset == before.offset + 1
