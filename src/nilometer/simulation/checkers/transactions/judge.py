"""The judge of transactions: what read_committed readers saw, held against what producers were told. Pure.

- *aborted read*: a reader saw a record of a transaction that was aborted for certain;
- *torn transaction*: some of its records were read to the end, others were not;
- *lost record*: a reader passed a committed record, or read to the end without it;
- *G0*, dirty write: in a partition a record of a producer's later transaction lies before one of an earlier
  transaction of the same transactional id. Records of different ids may lie between each other as they like;
- *G1c*, circular information flow: of two transactions (or more, in a circle) each has read what the next one
  wrote, while it was open itself;
- *exactly once*: of each input, one output is committed, and the committed offsets say the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from nilometer.simulation.checkers.history import History, Outcome, Partition
from nilometer.simulation.checkers.history_judge import check, find_cycle
from nilometer.simulation.checkers.transactions.ledger import (
    Fate,
    LoggedTransaction,
    TransactionLedger,
    Written,
)

OUTPUT_MARK = ">"
"""Between an input's value and what makes its output unique."""


@dataclass(frozen=True, slots=True)
class Visible:
    """What the last reader, which read to the end, has seen."""

    values: Mapping[Partition, Mapping[int, str]]
    """By partition and offset."""

    def has(self, written: Written) -> bool:
        found = self.values.get(written.partition, {})
        return written.value in found.values() if written.offset is None else written.offset in found

    @classmethod
    def by(cls, history: History, consumer: str) -> Visible:
        values: dict[Partition, dict[int, str]] = defaultdict(dict)
        for poll in history.polls:
            if poll.consumer == consumer:
                for seen in poll.records:
                    values[seen.partition][seen.offset] = seen.value
        return cls(values)


def resolve(transaction: LoggedTransaction, read: Collection[str]) -> Fate:
    """Its fate, where what was read of it decides: a record that was read was committed."""
    if transaction.fate is Fate.OPEN:
        return Fate.ABORTED
    if transaction.fate is Fate.UNKNOWN and any(each.value in read for each in transaction.writes):
        return Fate.COMMITTED
    return transaction.fate


def judge(ledger: TransactionLedger, history: History, judged: Collection[Partition]) -> Iterator[str]:
    """What readers of ``history`` saw of the partitions ``judged``; its sends are made here."""
    read = values_read(history)
    for transaction in ledger.transactions:
        _note_sends(history, transaction, resolve(transaction, read), judged)
    yield from (f"transactions: {anomaly}" for anomaly in check(history))
    yield from information_cycles(ledger)


def values_read(history: History) -> set[str]:
    return {seen.value for poll in history.polls for seen in poll.records}


def _note_sends(
    history: History, transaction: LoggedTransaction, fate: Fate, judged: Collection[Partition]
) -> None:
    """The offset of a record that is not visible is left out: readers pass it."""
    for written in transaction.writes:
        if written.partition not in judged:
            continue
        producer = f"{transaction.transactional_id} in transaction {transaction.number}"
        noted = history.send(producer, written.partition, written.value)
        if fate is Fate.ABORTED:
            noted.failed()
        elif fate is Fate.COMMITTED and written.offset is not None:
            noted.acknowledged(written.offset)
        elif fate is Fate.COMMITTED:
            noted.outcome = Outcome.OK


def torn(ledger: TransactionLedger, visible: Visible, judged: Collection[Partition]) -> Iterator[str]:
    for transaction in ledger.transactions:
        writes = [each for each in transaction.writes if each.partition in judged]
        missing = [each for each in writes if not visible.has(each)]
        if missing and len(missing) < len(writes):
            yield f"torn transaction: {transaction}: {missing[0]} cannot be read, others of it can"


def dirty_writes(ledger: TransactionLedger, visible: Visible) -> Iterator[str]:
    writer = {each.value: one for one in ledger.transactions for each in one.writes}
    for partition, values in sorted(visible.values.items()):
        last: dict[str, LoggedTransaction] = {}
        for offset in sorted(values):
            transaction = writer.get(values[offset])
            if transaction is None:
                continue
            before = last.get(transaction.transactional_id, transaction)
            if before.number > transaction.number:
                yield f"G0: {partition} has {values[offset]} of {transaction} at {offset}, behind {before}"
            last[transaction.transactional_id] = transaction


def information_cycles(ledger: TransactionLedger) -> Iterator[str]:
    writer = {each.value: one.number for one in ledger.transactions for each in one.writes}
    read_by: defaultdict[str, set[str]] = defaultdict(set)
    for transaction in ledger.transactions:
        for value in (*transaction.read, *(each.value for each in transaction.inputs)):
            if (wrote := writer.get(value)) is not None:
                read_by[str(wrote)].add(str(transaction.number))
    cycle = find_cycle(read_by)
    if cycle:
        yield f"G1c: transactions {' → '.join(cycle)} have each read of the one before"


def exactly_once(
    ledger: TransactionLedger,
    visible: Visible,
    inputs: Iterable[Partition],
    committed: Mapping[Partition, int],
) -> Iterator[str]:
    """``committed``: the offsets that the group has at the end, by input partition."""
    outputs: defaultdict[str, list[str]] = defaultdict(list)
    for values in visible.values.values():
        for value in values.values():
            source, mark, _ = value.rpartition(OUTPUT_MARK)
            if mark:
                outputs[source].append(value)
    for partition in inputs:
        end = committed.get(partition, 0)
        for offset, value in sorted(visible.values.get(partition, {}).items()):
            found = outputs.get(value, [])
            if offset < end and len(found) != 1:
                yield f"exactly once: {value} at {offset} of {partition} has the outputs {found}"
            if offset >= end and found:
                yield f"exactly once: {found[0]} is there; {partition} is committed up to {end}, not {offset}"


def not_consumed(
    visible: Visible, inputs: Iterable[Partition], committed: Mapping[Partition, int]
) -> list[str]:
    """Inputs that wait to be transformed."""
    return [
        f"{value} at {offset} of {partition} was not transformed"
        for partition in inputs
        for offset, value in sorted(visible.values.get(partition, {}).items())
        if offset >= committed.get(partition, 0)
    ]


def expected_table(
    ledger: TransactionLedger, partition: Partition, read: Collection[str]
) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Of a compacted partition whose values are ``key=value``: the last committed value of each key; and
    those of transactions with an unknown outcome that would come later."""
    last: dict[str, tuple[int, str]] = {}
    unknown: list[tuple[str, int, str]] = []
    for transaction in ledger.transactions:
        fate = resolve(transaction, read)
        for written in transaction.writes:
            if written.partition != partition or written.offset is None:
                continue
            key = written.value.partition("=")[0]
            if fate is Fate.COMMITTED and written.offset > last.get(key, (-1, ""))[0]:
                last[key] = written.offset, written.value
            elif fate is Fate.UNKNOWN:
                unknown.append((key, written.offset, written.value))
    possible: defaultdict[str, set[str]] = defaultdict(set)
    for key, offset, value in unknown:
        if offset > last.get(key, (-1, ""))[0]:
            possible[key].add(value)
    return {key: value for key, (_, value) in last.items()}, possible


def compare_table(
    found: Mapping[str, str], expected: Mapping[str, str], possible: Mapping[str, set[str]]
) -> Iterator[str]:
    for key in sorted(found.keys() | expected.keys()):
        value = found.get(key)
        if value != expected.get(key) and value not in possible.get(key, ()):
            yield f"compaction: key {key} has {value}; committed last was {expected.get(key)}"
