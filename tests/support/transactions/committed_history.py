"""What transactional clients did and read while brokers died, and the judgement of it: exactly once.

The rules are those of the simulation's judge of transactions.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nilometer.simulation.checkers.transactions import (
    NO_PRODUCER_ID,
    OUTPUT_MARK,
    Fate,
    LoggedTransaction,
    TransactionLedger,
    Visible,
    dirty_writes,
    exactly_once,
    judge,
    torn,
)

from ..simulation.history import History

NO_EPOCH = -1
LAST = "last"
"""The consumer that reads everything to its end after the brokers have recovered."""


@dataclass(slots=True)
class CommittedHistory:
    """Transactions of writers to a topic, and the polls of its ``read_committed`` readers.

    ``outputs`` has the polls of a topic to which transformers wrote each record of the first one once.
    """

    ledger: TransactionLedger = field(default_factory=TransactionLedger)
    history: History = field(default_factory=History)
    outputs: History = field(default_factory=History)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, transactional_id: str) -> LoggedTransaction:
        with self._lock:
            return self.ledger.begin(transactional_id, NO_PRODUCER_ID, NO_EPOCH)

    def fates(self) -> Counter[Fate]:
        return Counter(each.fate for each in self.ledger.transactions)

    def anomalies(self, partitions: list[str]) -> Iterator[str]:
        """Yield what is wrong with the reads, once `LAST` has read ``partitions`` to their ends."""
        yield from judge(self.ledger, self.history, partitions)
        visible = Visible.by(self.history, LAST)
        yield from torn(self.ledger, visible, partitions)
        yield from dirty_writes(self.ledger, visible)

    def wrong_outputs(self, group: str, output: str, committed: Mapping[str, int]) -> Iterator[str]:
        """Yield inputs without exactly one output of the transformer ``group``, and outputs of no input.

        ``output``: the partition that it writes; ``committed``: its offsets, by input partition.
        """
        inputs = Visible.by(self.history, LAST)
        outputs = Visible.by(self.outputs, LAST)
        both = Visible({**inputs.values, **outputs.values})
        for problem in exactly_once(self.ledger, both, sorted(committed), output, committed):
            yield f"{group}: {problem}"
        known = {value for partition in committed for value in inputs.values.get(partition, {}).values()}
        for offset, value in sorted(outputs.values.get(output, {}).items()):
            if value.rpartition(OUTPUT_MARK)[0] not in known:
                yield f"{group}: {value} at {offset} of {output} is of no committed record"
