"""A history of a run of any length: what was read is kept once, however often it was read.

A poll is digested when it is noted. Of its records remain those that tell something new (what an offset
holds, for the first time, or something else than before) and the steps that did not lead to the very next
offset; the judge of histories makes the same of them as of the whole. Memory grows with the records that
were written, not with those that were read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nilometer.simulation.checkers.history import History, Partition, Seen

FIRST_SEEN = "first seen by {}"
"""The name under which what a consumer read is kept as knowledge, without its order."""


@dataclass(slots=True)
class LongHistory(History):
    kept_whole: frozenset[str] = frozenset()
    """Consumers whose every poll is kept: who is asked for all that there is."""
    _values: dict[Partition, dict[int, str]] = field(default_factory=dict[Partition, dict[int, str]])
    _last: dict[str, dict[Partition, int]] = field(default_factory=dict[str, dict[Partition, int]])

    def moved(self, consumer: str, partition: Partition | None = None) -> None:
        """Nothing remains of it: what comes next is the first step."""
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
        """As a step, or a run of them, that follows nothing."""
        History.moved(self, consumer, records[0].partition)
        History.poll(self, consumer, records, transaction)


def _follows(seen: Seen, before: Seen) -> bool:
    return seen.partition == before.partition and seen.offset == before.offset + 1
